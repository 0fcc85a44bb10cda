"""A Run on the disk, written: call by call, and whole or not there.

Tensors go into a data folder of this writer's own; run.json, which names it, is put in place last,
in one move. Killed at any moment there is the run that was there before, or none. Data folders that
no run.json names are removed by the next writer, but for those that somebody is writing: a writer
holds a lock in its own for as long as it lives, and one on the folder while it makes or removes
any. Where there are no locks, only what the last run.json named is removed.
"""

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import Tensor

from clearhead.files import hold, json_text, make_directory, write_files
from clearhead.run.calls import FIGURES, KEPT, Call, Check
from clearhead.run.files import CALL, STATS, TOKENS, StoredCall, check_tensor
from clearhead.run.format import (
    DATA,
    FORMAT,
    RULE_TENSORS,
    RUN,
    VERSION,
    check_said,
    finite,
    read_json,
    said_of,
    said_of_check,
)
from clearhead.stats import HeadStats

LOCK = ".run.lock"
# safetensors writes to a .tmp of its own first.
_OURS = re.compile(r"(call-\d{6,}|stats|tokens)\.safetensors|\.run\.lock|\.tmp\w+")
_PART = re.compile(r"\.run\.json\..*\.part")


class Written(Protocol):
    """What `finish` needs of a Run."""

    model: str
    sites: list[tuple[str, int]]
    n_calls: int
    stats: MutableMapping[int, HeadStats]
    tokens: MutableMapping[int, Tensor]
    pieces: dict[int, str]
    roles: dict[str, dict[str, Any]]
    versions: dict[str, str]
    notes: list[str]
    keep: str
    checked: list[tuple[str, Check]]
    read: dict[str, int]


class RunWriter:
    """Writes a Run into a folder while it happens; left without `finish`, nothing has changed.

        with RunWriter(folder) as writer:
            call = writer.add(call)      its tensors are on the disk now, and read from there
            writer.finish(run)

    Raises ValueError where the folder holds a run.json of something else, OSError where nothing
    can be written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        make_directory(self.folder)
        _only_ours(self.folder)
        self._said: list[dict[str, Any]] = []
        self._sites: list[tuple[int, str, int]] = []
        self._places: set[tuple[int, int]] = set()
        self._lock: int | None = None
        self._done = False
        with _locked(self.folder):
            self._data = self.folder / f"data-{secrets.token_hex(8)}"
            self._data.mkdir()
            try:
                self._lock = _open(self._data / LOCK)
                hold(self._lock, wait=True)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def add(self, call: Call) -> Call:
        """Write a call; the same call, whose tensors are read from its file when looked at.

        Raises ValueError for tensors that do not fit its shape and for a second call of the same
        layer and forward pass, and OSError.
        """
        self._check_open()
        number = len(self._said)
        if (call.layer, call.number) in self._places:
            raise ValueError(f"{call.name} of layer {call.layer} was added before: one call each")
        tensors = _tensors_of(call)
        said = said_of(call, tuple(tensors))
        for name, x in tensors.items():
            check_tensor(name, x, said)
        path = self._data / CALL.format(number)
        said["bytes"] = self._write(path, tensors)
        self._said.append(said)
        self._sites.append((call.layer, call.module, call.index))
        self._places.add((call.layer, call.number))
        return StoredCall.of(path, said, (call.module, call.index))

    def finish(self, run: Written) -> None:
        """Write what is no call and put the run in place of the one before.

        Raises ValueError for what a run cannot say, and OSError; the run before stays then.
        """
        self._check_open()
        for layer, *site in self._sites:
            if not layer < len(run.sites) or list(run.sites[layer]) != site:
                raise ValueError(f"layer {layer} is called by {site}, but sites say {run.sites}")
        stats = {
            f"{layer}.{name}": x
            for layer, found in run.stats.items()
            for name, x in found.to_tensors().items()
        }
        tokens = {
            str(sequence): (x if x.ndim == 2 else x[None]).to(torch.int64)
            for sequence, x in run.tokens.items()
        }
        said = {
            "format": FORMAT,
            "version": VERSION,
            "data": self._data.name,
            "model": run.model,
            "keep": run.keep,
            "n_calls": run.n_calls,
            "sites": [list(site) for site in run.sites],
            "versions": dict(run.versions),
            "notes": list(run.notes),
            "read": dict(run.read),
            "roles": {head: finite(role) for head, role in run.roles.items()},
            "pieces": {str(token): text for token, text in run.pieces.items()},
            "checked": [[name, said_of_check(check)] for name, check in run.checked],
            "stats": {
                "of": {str(layer): found.n_heads for layer, found in run.stats.items()},
                "bytes": self._write(self._data / STATS, stats),
            },
            "tokens": {
                "of": {name: list(x.shape) for name, x in tokens.items()},
                "bytes": self._write(self._data / TOKENS, tokens),
            },
        }
        check_said(json.loads(json.dumps({**said, "calls": self._said}, allow_nan=False)))
        lines = ",\n  ".join(
            json.dumps(call, separators=(",", ":"), allow_nan=False) for call in self._said
        )
        text = json_text(said).removesuffix("\n}") + f',\n "calls": [\n  {lines}\n ]\n}}\n'
        for path in self._data.glob("*.safetensors"):
            _on_the_disk(path)
        _on_the_disk(self._data)
        with _locked(self.folder) as alone:
            before = _only_ours(self.folder)
            write_files(self.folder, {RUN: text.encode("ascii")})
            self._done = True
            _on_the_disk(self.folder)
            self._unlock()
            for path in self.folder.iterdir():
                if path.name == before or (alone and path.name != self._data.name):
                    _remove(path)

    def close(self) -> None:
        """Let go; what was not finished is removed."""
        self._unlock()
        # Ctrl-C may have come in the very moment after the move.
        if not self._done and not self._named():
            _remove(self._data)

    def _check_open(self) -> None:
        if self._lock is None:
            raise ValueError(f"{self.folder}: this writer has finished, or let go; make another")

    def _named(self) -> bool:
        """Whether run.json names our data."""
        try:
            return _only_ours(self.folder) == self._data.name
        except (ValueError, OSError):
            return False

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            (self._data / LOCK).unlink(missing_ok=True)

    def _write(self, path: Path, tensors: Mapping[str, Tensor]) -> int:
        """Write a file of tensors; its bytes. No tensors, no file."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if not tensors:
            return 0
        try:
            save_file(_apart(tensors), path)
            os.chmod(path, os.stat(self._data / LOCK).st_mode)  # the umask decides, as for others
        except SafetensorError as error:  # says in words what the system said
            found = re.search(r"os error (\d+)", str(error))
            if found is None:
                raise ValueError(f"{path} cannot be written: {error}") from error
            number = int(found[1])
            raise OSError(
                number, f"it was not written ({os.strerror(number)})", str(path)
            ) from error
        return path.stat().st_size


# Tensors ------------------------------------------------------------------------------------------


def _tensors_of(call: Call) -> dict[str, Tensor]:
    """What the file of a call holds, by name, on the CPU."""
    found = {name: call.tensors[name] for name in (*FIGURES, *KEPT) if name in call.tensors}
    if unknown := sorted(set(call.tensors) - set(found)):
        raise ValueError(f"{call.name} has tensors that no run keeps: {', '.join(unknown)}")
    if call.rows is not None:
        found["rows"] = call.rows.to(torch.int64)
    for name in RULE_TENSORS:
        x = getattr(call.rule, name)
        if isinstance(x, Tensor):
            for axis in range(x.ndim):  # what is expanded is stored once
                if name in ("mask", "bias") and x.stride(axis) == 0 and x.shape[axis] > 1:
                    x = x.narrow(axis, 0, 1)
            found[f"rule.{name}"] = x
    return found


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous and with memory of their own each, as safetensors wants them."""
    seen: set[int] = set()
    found = {}
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        storage = x.untyped_storage()
        if storage.nbytes() != x.nbytes or storage.data_ptr() in seen:
            x = x.clone()
        seen.add(x.untyped_storage().data_ptr())
        found[name] = x
    return found


# Folders ------------------------------------------------------------------------------------------


def _only_ours(folder: Path) -> str | None:
    """The data folder of the run that is there, if any.

    Raises ValueError where there is a run.json that is not ours to replace.
    """
    path = folder / RUN
    if not os.path.lexists(path):
        return None
    try:
        return str(read_json(path)["data"])
    except ValueError as error:
        raise ValueError(f"{error}; choose another folder, or remove it") from error


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the folder for a moment; whether that kept others out."""
    lock = _open(folder / LOCK)
    try:
        yield hold(lock, wait=True)
    finally:
        os.close(lock)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _remove(path: Path) -> None:
    """Remove what a writer left: a data folder that nobody is writing, half a run.json."""
    try:
        if _PART.fullmatch(path.name):  # they are written by who holds the folder
            path.unlink()
        if not DATA.fullmatch(path.name) or path.is_symlink() or not path.is_dir():
            return
        if (path / LOCK).exists():
            lock = os.open(path / LOCK, os.O_RDWR)
            try:
                if not hold(lock, wait=False):
                    return
            finally:
                os.close(lock)
        for inside in path.iterdir():
            if _OURS.fullmatch(inside.name):
                inside.unlink()
        path.rmdir()
    except OSError:  # somebody writes it, or has files in it, or we may not: they stay
        return


def _on_the_disk(path: Path) -> None:
    """Wait until what was written is there after a loss of power, too."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
