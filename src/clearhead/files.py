"""Files that are whole or not there: what is written never shows half of itself."""

import json
import os
from collections.abc import Mapping
from pathlib import Path


def json_text(value: object) -> str:
    """Strict JSON in ASCII: readable everywhere, and a NaN raises instead of slipping in."""
    return json.dumps(value, indent=1, allow_nan=False)


def make_directory(directory: Path) -> None:
    """Make `directory` with its parents and see that files can be written there.

    Raises OSError (of the fitting kind) otherwise.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _stage(directory, "probe", b"").unlink()
    except OSError as error:
        why = "it is a file" if directory.is_file() else error.strerror
        raise OSError(
            error.errno, f"nothing can be written there ({why}); choose another", str(directory)
        ) from error


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file of `contents`, by name, into `directory`: all of them or, on failure, none.

    Each is written in full beside its place, under a name of this process's own, and moved there
    only when all are on the disk. A reader, a second copy running at once or a kill in the middle
    therefore finds whole files only. Raises OSError; nothing of an unfinished write stays behind.
    """
    staged: dict[Path, Path] = {}
    try:
        for name, content in contents.items():
            if (directory / name).is_dir():
                raise IsADirectoryError(21, os.strerror(21), str(directory / name))
            staged[_stage(directory, name, content)] = directory / name
        for part, target in staged.items():
            os.replace(part, target)
    finally:
        for part in staged:
            part.unlink(missing_ok=True)


def _stage(directory: Path, name: str, content: bytes) -> Path:
    part = directory / f".{name}.{os.getpid()}.part"
    try:
        with open(part, "wb") as file:  # the umask decides who may read, as for any file
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part
