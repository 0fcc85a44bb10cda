"""Files that are whole or not there: what is written never shows half of itself."""

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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


def check_place(directory: Path) -> None:
    """See, before work begins, that files could be written to `directory`. It is not made yet.

    Raises OSError like make_directory.
    """
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    make_directory(directory)


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write every file of `contents`, by name, into `directory`: all of them or, on failure, none.

    Each is written in full beside its place, under a name of this process's own, and moved there
    only when all are on the disk. A reader, a second copy running at once or a kill in the middle
    therefore finds whole files only; if a move fails, those before it are taken back. Raises
    OSError; nothing of an unfinished write stays behind.
    """
    staged: dict[Path, Path] = {}
    kept: dict[Path, Path | None] = {}  # what stood in each place before; None: nothing
    try:
        for name, content in contents.items():
            if (directory / name).is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if (directory / name).exists() and not (directory / name).is_file():
                raise OSError(errno.EINVAL, "it is no ordinary file")  # a device, which stays one
            staged[directory / name] = _stage(directory, name, content)
        for target, part in staged.items():
            name = target.name
            kept[target] = _second_name(target)
            os.replace(part, target)
    except BaseException as error:
        for target, old in kept.items():
            if old is not None:
                os.replace(old, target)
            elif target not in staged or not staged[target].exists():
                target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(
                error.errno, f"{name} was not written ({error.strerror})", str(directory)
            ) from error
        raise
    finally:
        for path in (*staged.values(), *kept.values()):
            if path is not None:
                path.unlink(missing_ok=True)


@contextmanager
def alone(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock file `path` for as long as we do.

    Raises BlockingIOError, in the words of `otherwise`, where another process holds it; where there
    are no locks nobody is kept out.
    """
    with open(path, "w") as file:
        try:
            hold(file.fileno(), wait=False)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, otherwise, str(path.parent)) from error
        yield


def hold(lock: int, wait: bool) -> bool:
    """Lock an open file until it is closed; False where the system or the disk knows no locks.

    Raises BlockingIOError where another process holds it and we do not wait.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _stage(directory: Path, name: str, content: bytes) -> Path:
    part = _name_beside(directory / name)
    try:
        with open(part, "xb") as file:  # the umask decides who may read, as for any file
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part


def _second_name(target: Path) -> Path | None:
    """A second name for the file that is there now, to put it back with; None if there is none."""
    if not target.exists():
        return None
    second = _name_beside(target)
    try:
        os.link(target, second)
    except OSError:  # not every file system has links
        shutil.copy2(target, second)
    return second


def _name_beside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
