"""How far the reading of a corpus has come, and everything that it has found: one small file.

Its size depends on the model alone. What it holds adds up, so the processes of a job each have one.
"""

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from clearhead.capture.keeping import count_check
from clearhead.files import write_files
from clearhead.roles import Evidence
from clearhead.run import Run
from clearhead.run.format import check_of, said_of_check
from clearhead.stats import HeadStats

FILE = "corpus-{}.safetensors"
FORMAT, VERSION = "clearhead corpus", 1
FEW = 5  # texts that were left out, by name
_PLACE, _COUNTS = ("number", "offset", "window"), ("texts", "tokens", "windows", "left_out")

# What a reading is of: changed, it is another one.
KINDS = {"model": "another model", "corpus": "another corpus, or this one before it was changed",
         "options": "other options", "processes": "another number of processes",
         "versions": "other versions"}  # fmt: skip


@dataclass
class Place:
    """Where a reading is: the texts behind it, of whatever process, the byte at which the next one
    begins, and the windows of that one that have been read."""

    number: int = 0
    offset: int = 0
    window: int = 0


@dataclass(eq=False)
class Progress:
    """Where a reading is, and what it has found.

    place            where to go on
    texts, tokens, windows  read, by this process
    left_out, named  texts that were left out, and of the first few [number, name and reason]
    run              sites, n_calls, stats and checked
    found            the evidence for roles by layer
    refused          modules that could not be observed, and why
    """

    run: Run = field(default_factory=lambda: Run("", []))
    found: dict[int, Evidence] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    named: list[tuple[int, str]] = field(default_factory=list)
    place: Place = field(default_factory=Place)
    texts: int = 0
    tokens: int = 0
    windows: int = 0
    left_out: int = 0

    def leave_out(self, number: int, why: str) -> None:
        self.left_out += 1
        self.named = sorted([*self.named, (number, why)])[:FEW]

    def merge(self, other: "Progress") -> "Progress":
        """What both have found, wherever they are. Layers are told by their sites, not numbers."""
        run = Run("", list(self.run.sites), self.run.n_calls + other.run.n_calls)
        run.stats, run.checked = dict(self.run.stats), list(self.run.checked)
        run.sites += [site for site in other.run.sites if site not in run.sites]
        found = dict(self.found)
        tables: list[tuple[Any, Any]] = [(run.stats, other.run.stats), (found, other.found)]
        for mine, theirs in tables:
            for layer, one in theirs.items():
                own = run.sites.index(other.run.sites[layer])
                mine[own] = mine[own].merge(one) if own in mine else one
        for name, check in other.run.checked:
            count_check(run, name, check)
        new = Progress(run, found, {**other.refused, **self.refused})
        new.named = sorted([*self.named, *other.named])[:FEW]
        for name in _COUNTS:
            setattr(new, name, getattr(self, name) + getattr(other, name))
        return new

    # As bytes -------------------------------------------------------------------------------------

    def pack(self, identity: Mapping[str, str]) -> bytes:
        """A safetensors file; what is no tensor is JSON in its header, with a digest of what is."""
        from safetensors.torch import save

        tensors: dict[str, Tensor] = {}
        for kind, table in (("stats", self.run.stats), ("roles", self.found)):
            for layer, one in table.items():
                for name, x in one.to_tensors().items():
                    tensors[f"{kind}.{layer}.{name}"] = x.contiguous().clone()
        said = {
            "format": FORMAT, "version": VERSION, "identity": dict(identity),
            **asdict(self.place), **{name: getattr(self, name) for name in _COUNTS},
            "named": self.named, "refused": self.refused,
            "n_calls": self.run.n_calls, "sites": self.run.sites,
            "checked": [[name, said_of_check(check)] for name, check in self.run.checked],
            "digest": _digest(tensors),
        }  # fmt: skip
        return save(tensors, {"corpus": json.dumps(said, allow_nan=False)})

    @classmethod
    def unpack(cls, data: bytes, name: str) -> "Progress":
        """The inverse of pack. Raises ValueError, with the name, for what is none or is damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        said = said_in(data, name)
        try:
            tensors = load(data)
            if _digest(tensors) != said["digest"]:
                raise ValueError("its numbers are not those that were written")
            kinds: dict[str, dict[int, dict[str, Tensor]]] = {"stats": {}, "roles": {}}
            for full, x in tensors.items():
                kind, layer, part = full.split(".", 2)
                kinds[kind].setdefault(int(layer), {})[part] = x
            run = Run("", [(module, index) for module, index in said["sites"]], said["n_calls"])
            run.stats = {n: HeadStats.from_tensors(x) for n, x in sorted(kinds["stats"].items())}
            run.checked = [(where, check_of(check)) for where, check in said["checked"]]
            found = {n: Evidence.from_tensors(x) for n, x in sorted(kinds["roles"].items())}
            counts = {what: said[what] for what in (*_PLACE, *_COUNTS)}
            for what, count in counts.items():
                if type(count) is not int or count < 0:
                    raise ValueError(f"{what} is {count!r}")
            place = Place(*(counts.pop(what) for what in _PLACE))
            named = [(n, why) for n, why in said["named"]]
            new = cls(run, found, dict(said["refused"]), named, place, **counts)
        except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _no_progress(name, error) from error
        return new


def said_in(data: bytes, name: str) -> dict[str, Any]:
    """What the header of a progress says. Raises ValueError, with the name, for what is none."""
    try:
        (size,) = struct.unpack("<Q", data[:8])
        if size > len(data):
            raise ValueError("it is cut off")
        said = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["corpus"])
        if said["format"] != FORMAT or said["version"] != VERSION:
            raise ValueError(f"its format is {said['format']!r}, {said['version']!r}")
        if not all(isinstance(said["identity"][kind], str) for kind in KINDS):
            raise ValueError("it does not say what it is of")
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_progress(name, error) from error
    return dict(said)


def _no_progress(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"{name} is no progress that can be gone on with ({type(error).__name__}: {error}); remove "
        "it to begin again"
    )


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name].contiguous()
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        found.update(x.numpy().tobytes())
    return found.hexdigest()


# On the disk --------------------------------------------------------------------------------------


def read(folder: Path, rank: int, identity: Mapping[str, str]) -> Progress | None:
    """What this process kept in a folder, None if nothing.

    Raises ValueError where a file there is of another reading than this, or is damaged; OSError.
    """
    mine = folder / FILE.format(rank)
    for path in sorted(folder.glob(FILE.format("*"))):
        theirs = said_in(path.read_bytes(), str(path))["identity"]
        for kind, words in KINDS.items():
            if theirs[kind] != identity[kind]:
                told = kind in ("options", "processes", "versions")
                what = f" ({theirs[kind]}; now {identity[kind]})" if told else ""
                raise ValueError(
                    f"{path} is the progress of {words}{what}: go on with that, choose another "
                    "--save, or remove the file"
                )
    for path in folder.iterdir():  # what a kill in the middle of writing left
        if re.fullmatch(rf"\.{re.escape(mine.name)}\.\d+-[0-9a-f]{{8}}\.part", path.name):
            path.unlink()
    return Progress.unpack(mine.read_bytes(), str(mine)) if mine.exists() else None


def keep(folder: Path, rank: int, data: bytes) -> None:
    """Put a packed progress in place of the one before, in one move. Raises OSError."""
    write_files(folder, {FILE.format(rank): data})
