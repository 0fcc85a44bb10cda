"""A Run on the disk, read: tensors in safetensors files that are opened when somebody looks.

docs/run-format.md says what is in them. Nothing is believed: a tensor has the shape and dtype that
run.json gives it, and a file has its size and is in the folder, itself and not a link. Nothing is
ever unpickled.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size, L tokens; n rows of a
call that were sampled, or T.
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from clearhead.moments import MAP, ROW, bin_edges
from clearhead.rule import Rule
from clearhead.run.calls import FIGURES, KEPT, Call
from clearhead.run.format import NAMES, check_of, rule_numbers
from clearhead.stats import HeadStats

STATS, TOKENS, CALL = "stats.safetensors", "tokens.safetensors", "call-{:06d}.safetensors"
SMALL = 1 << 16  # bytes of a tensor that is copied; a larger one stays on the disk until looked at

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
V = TypeVar("V")


def read_tensors(
    path: Path, size: int, names: tuple[str, ...] | None = None, small: int = SMALL
) -> dict[str, Tensor]:
    """Some or all tensors of a file of `size` bytes. Large ones stay on the disk (memory-mapped).

    Raises ValueError, naming the file, for what is not as the run says; OSError.
    """
    from safetensors import SafetensorError, safe_open

    if path.is_symlink() or path.parent.is_symlink():
        raise ValueError(f"{path} is, or lies in, a symbolic link: a run is in one folder")
    found = _there(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size:
        raise ValueError(f"{path} has {found.st_size:,} bytes, not {size:,}: damaged or replaced")
    try:
        with safe_open(path, "pt") as file:
            stored = set(file.keys())
            wanted = stored if names is None else names
            if missing := [name for name in wanted if name not in stored]:
                raise ValueError(f"{path} does not hold {missing[0]}")
            tensors = {name: file.get_tensor(name) for name in sorted(wanted)}
    except (SafetensorError, RuntimeError, TypeError, KeyError, OverflowError) as error:
        _there(path)
        raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    return {name: x.clone() if x.nbytes <= small else x for name, x in tensors.items()}


def _there(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except FileNotFoundError as error:
        why = "is missing: damaged, or another run was saved there since this one was opened"
        raise FileNotFoundError(error.errno, why, str(path)) from error


def check_tensor(name: str, x: Tensor, call: Mapping[str, Any]) -> None:
    """Raise ValueError where a tensor of a call has not the shape and dtype that the call gives."""
    B, H, G, T, S, D = call["shape"]
    n = T if call["rows"] is None else call["rows"]
    heads = range(H) if call["heads"] is None else call["heads"]
    floats = tuple(NAMES.values())
    part = name.removeprefix("rule.")
    wanted: tuple[tuple[int, ...], tuple[torch.dtype, ...]]
    if name in FIGURES:
        wanted = (B, H, n), (torch.float32, torch.float64)
    elif name == "q":
        wanted = (B, len(heads), n, D), (NAMES[call["dtype"]],)
    elif name == "k":
        wanted = (
            (B, len({h // (H // G) for h in heads}), S - call["held_from"], D),
            (NAMES[call["dtype"]],),
        )
    elif part in ("mask", "bias"):
        sizes = zip(reversed(x.shape), (S, T, H, B), strict=False)
        fits = x.ndim <= 4 and all(a in (1, b) for a, b in sizes)
        wanted = tuple(x.shape) if fits else (B, H, T, S), floats
        wanted = (wanted[0], (torch.bool,)) if part == "mask" else wanted
    else:
        shape, dtypes = {
            "rows": ((n,), (torch.int64,)),
            "offset": ((B,), _INTEGERS),
            "alibi": ((H,), floats),
            "sinks": ((H,), floats),
            "key_mask": ((B, S), (torch.bool,)),
            "query_mask": ((B, T), (torch.bool,)),
            "segments": ((B, S), _INTEGERS),
        }[part]
        wanted = shape, dtypes
    if tuple(x.shape) != wanted[0] or x.dtype not in wanted[1]:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in wanted[1])
        seen = f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
        raise ValueError(f"{name} is {seen}; of this call it is {kinds} {wanted[0]}")
    if name == "rows" and n:
        ordered = bool((x.diff() > 0).all()) and int(x[0]) >= 0 and int(x[-1]) < T
        if not ordered:
            raise ValueError(f"rows must be ascending numbers of its {T} queries")


class CallTensors(Mapping[str, Tensor]):
    """The tensors of a call in their file, each read anew when it is asked for."""

    def __init__(self, path: Path, said: Mapping[str, Any]) -> None:
        self.path, self.said = path, said
        self.names = tuple(name for name in said["tensors"] if name in (*FIGURES, *KEPT))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<{', '.join(self.names)} in {self.path}>"

    def read(self, name: str) -> Tensor:
        return self.read_all((name,))[name]

    def read_all(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        found = read_tensors(self.path, self.said["bytes"], names)
        try:
            for name, tensor in found.items():
                check_tensor(name, tensor, self.said)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from error
        return found


class StoredCall(Call):
    """A Call whose tensors, and those of its rule, are in a file until somebody looks."""

    @classmethod
    def of(cls, path: Path, said: Mapping[str, Any], site: tuple[str, int]) -> "StoredCall":
        call = object.__new__(cls)  # its rule and rows are not there yet, and it is frozen
        check = said["check"]
        heads = said["heads"]
        call.__dict__.update(
            {name: said[name] for name in _AS_THEY_ARE},
            module=site[0], index=site[1], shape=tuple(said["shape"]),
            heads=None if heads is None else tuple(heads), check=check_of(check),
            tensors=CallTensors(path, said),
        )  # fmt: skip
        return call

    @cached_property
    def rule(self) -> Rule:
        found = self._found
        names = [name for name in found.said["tensors"] if name.startswith("rule.")]
        tensors: dict[str, Any] = {name.removeprefix("rule."): found.read(name) for name in names}
        return replace(rule_numbers(found.said["rule"]), **tensors)

    @cached_property
    def rows(self) -> Tensor | None:
        return None if self._found.said["rows"] is None else self._found.read("rows")

    def _several(self, *names: str) -> dict[str, Tensor]:
        if not isinstance(self.tensors, CallTensors):  # a changed copy of it
            return super()._several(*names)
        return self.tensors.read_all(tuple(name for name in names if name in self.tensors))

    @property
    def folder(self) -> Path | None:
        """The folder of its run, if its tensors are there."""
        found = self.tensors
        return found.path.parent.parent.resolve() if isinstance(found, CallTensors) else None

    @property
    def _found(self) -> CallTensors:
        assert isinstance(self.tensors, CallTensors)
        return self.tensors


_AS_THEY_ARE = (
    "layer", "number", "entry", "Dv", "key_start", "held_from", "first_row", "sequence", "dtype",
    "impl", "cross", "mask_bytes",
)  # fmt: skip


class Stored(MutableMapping[int, V], Generic[V]):
    """By number, what one file holds: read as a whole when the first is asked for."""

    def __init__(self, keys: list[int], read: Callable[[], dict[int, V]]) -> None:
        self._keys, self._read = dict.fromkeys(keys), read
        self._held: dict[int, V] | None = None

    def _all(self) -> dict[int, V]:
        if self._held is None:
            self._held = self._read() if self._keys else {}
        return self._held

    def __getitem__(self, key: int) -> V:
        return self._all()[key]

    def __setitem__(self, key: int, value: V) -> None:
        self._all()[key] = value
        self._keys[key] = None

    def __delitem__(self, key: int) -> None:
        del self._all()[key]
        del self._keys[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def read_stats(path: Path, said: Mapping[str, Any]) -> dict[int, HeadStats]:
    """HeadStats by layer. Raises ValueError for tensors that are none."""
    by_layer: dict[int, dict[str, Tensor]] = {int(layer): {} for layer in said["of"]}
    for name, x in read_tensors(path, said["bytes"]).items():
        layer, _, rest = name.partition(".")
        known = layer in said["of"]
        if known:
            H, part = said["of"][layer], rest.rpartition(".")[2]
            metric = rest.rpartition(".")[0]
            bins = (
                (len(bin_edges(metric)) - 1,)
                if part == "histogram" and metric in (*ROW, *MAP)
                else ()
            )
            real = part in ("mean", "m2", "minimum", "maximum")
            shape = (len(x), 3) if rest == "nonfinite_at" and x.ndim else (H, *bins)
            known = tuple(x.shape) == shape
            known = known and x.dtype == (torch.float64 if real else torch.int64)
        if not known:
            raise ValueError(f"{path}: {name} is {x.dtype} {tuple(x.shape)}, no figure of a layer")
        by_layer[int(layer)][rest] = x
    try:
        return {layer: HeadStats.from_tensors(found) for layer, found in by_layer.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_tokens(path: Path, said: Mapping[str, Any]) -> dict[int, Tensor]:
    """Tokens by sequence, (B, L) int64."""
    found = {}
    names = tuple(said["of"])
    for name, x in read_tensors(path, said["bytes"], names).items():
        if list(x.shape) != said["of"][name] or x.dtype != torch.int64:
            raise ValueError(f"{path}: {name} is {x.dtype} {tuple(x.shape)}, not the run's tokens")
        found[int(name)] = x
    return found
