"""The native kernel: the same rows as tiled.py, by the C of csrc/, for CPUs.

A compiled library without any header of Python or torch, loaded by ctypes: one build serves every
version of both, and whoever calls holds no lock meanwhile. What is said here is where the arrays
lie. The library comes back every SLICE seconds, so that Ctrl-C is heard.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.rows import Rows
from clearhead.rule import Rule

SLICE = 0.2  # seconds
WIDEST = 4096  # numbers of a row: some of them lie on the stack of a thread
_SETS = ("baseline", "avx2", "avx512")  # each better than the one before
_P = ParamSpec("_P")
_R = TypeVar("_R")
_PROCESS = os.getpid()
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool)


class _Array(ctypes.Structure):
    """Array of call.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("strides", ctypes.c_int64 * 4),
        ("dtype", ctypes.c_int64),
    )  # fmt: skip


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Call(ctypes.Structure):
    """Call of call.h, field by field."""

    _fields_ = (
        *_fields(ctypes.c_int64, "B H G T S D Dv"),
        *_fields(ctypes.c_double, "scale softcap"),
        *_fields(ctypes.c_int64, "before after"),
        *_fields(_Array, "q k v mask bias"),
        *_fields(ctypes.c_void_p, "offset key_mask query_mask document first last number"),
        *_fields(ctypes.c_void_p, "alibi sinks"),
        *_fields(ctypes.c_void_p, "out lse lse_low entropy max_score mean_key visible"),
        *_fields(ctypes.c_void_p, "distance key_scores top_key first_key"),
        *_fields(ctypes.c_int64, "figures next units per_unit bad"),
        *_fields(ctypes.c_double, "until"),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None where it was not built, or is none of this machine's."""
    for path in sorted(Path(__file__).parent.glob("_native*.so")):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


@cache
def instruction_set() -> int:
    """The number of the best of _SETS that this machine has."""
    return int(_loaded().clearhead_best())


@cache
def _openmp() -> ctypes.c_void_p:
    """How torch's own OpenMP runs a function on its threads; NULL where it has another."""
    run = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    return ctypes.c_void_p(None) if run is None else ctypes.cast(run, ctypes.c_void_p)


def _team() -> ctypes.c_void_p:
    """Who does the work; NULL for threads of the call's own. OpenMP's do not outlive a fork, and
    a child that calls for them waits forever."""
    return _openmp() if os.getpid() == _PROCESS else ctypes.c_void_p(None)


def _unseen(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, into which torch.compile does not look: it knows nothing of C, and warns."""

    @wraps(function)
    def called(*args: _P.args, **options: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            apart: Callable[_P, _R] = torch.compiler.disable(function)
            return apart(*args, **options)
        return function(*args, **options)

    return called


@_unseen
def hindrance(inputs: Sequence[Tensor | None], rule: Rule, dropout: float) -> str:
    """Why a call on q, k, v, ... cannot be native; empty where it can."""
    given = [x for x in (*inputs, *vars(rule).values()) if isinstance(x, Tensor)]
    q, widest = given[0], max(0 if x is None else x.shape[-1] for x in inputs[:3])
    if q.device.type != "cpu":
        return f"needs tensors on the CPU; these are on {q.device}"
    if dropout:
        return "knows no dropout"
    if widest > WIDEST:
        return f"knows heads of up to {WIDEST} numbers; these have {widest}"
    if library() is None:
        return "is not built here: clearhead doctor says what is missing"
    strange = [x for x in given if not _lies_in_memory(x)]
    if not strange and not _lies_in_memory(like_results := q.new_empty(1)):
        strange = [like_results]  # a mode makes them
    if strange:
        kind = type(strange[0]).__name__
        return f"needs numbers in memory; this {kind} has none of its own there"
    return ""


def _lies_in_memory(x: Tensor) -> bool:
    if x.device.type != "cpu":  # a part of the rule, which is brought here
        return True
    if x.layout != torch.strided or type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    try:
        return bool(x.data_ptr()) or not x.numel()
    except RuntimeError:
        return False


def _loaded() -> ctypes.CDLL:
    loaded = library()
    assert loaded is not None
    return loaded


@_unseen
def forward(
    q: Tensor, k: Tensor, v: Tensor | None, bound: BoundRule,
    figures: bool = True, distance: bool = False,
) -> tuple[Rows, bool]:  # fmt: skip
    """The rows of a call, as tiled.forward gives them, with the top keys: q (B, H, T, D), k
    (B, G, S, D), v (B, G, S, Dv) or None; and whether all keys and values that were read are
    finite: else rows that do not see a bad one may be spoiled too.
    """
    q, k = q.resolve_neg(), k.resolve_neg()  # else the numbers in memory have another sign
    v, bias = (None if x is None else x.resolve_neg() for x in (v, bound.bias))
    (B, H, T, D), (G, S), Dv = q.shape, k.shape[1:3], 0 if v is None else v.shape[-1]
    dtype = torch.promote_types(q.dtype, torch.float32)
    shape = (B, H, T)
    names = ["lse", "lse_low"]
    names += ["entropy", "max_score", "mean_key", "visible"] if figures else []
    names += ["distance"] if distance else []
    rows = {name: q.new_empty(shape, dtype=dtype) for name in names}
    if v is not None:
        rows["out"] = q.new_empty((*shape, Dv))
    if figures:
        rows["top_key"] = q.new_empty(shape, dtype=torch.int64)
    if distance:
        rows["key_scores"] = q.new_empty((*shape, 3), dtype=dtype)
    rule = _rule(bound)
    if distance:
        first = bound.common_first_key()
        of = (
            q.new_full((B, T), first, dtype=torch.int64)
            if first is not None
            else (bound.places()[..., 0].contiguous())
        )
        rule["first_key"] = of
    if q.numel() and T:
        offsets = (ctypes.c_int64 * B)(*bound.offsets)
        call = _Call(
            B=B, H=H, T=T, D=D, G=G, S=S, Dv=Dv, scale=bound.scale,
            softcap=bound.rule.softcap or 0.0,
            before=-1 if bound.before is None else bound.before,
            after=-1 if bound.after is None else bound.after,
            q=_array(q), k=_array(k), v=_array(v), mask=_array(bound.mask), bias=_array(bias),
            offset=ctypes.addressof(offsets),
            figures=int(figures),
            **{name: x.data_ptr() for name, x in (rule | rows).items()},
        )  # fmt: skip
        _run(call, wide=dtype == torch.float64)
        return Rows(**rows), not call.bad
    return Rows(**rows), True


def _array(x: Tensor | None) -> _Array:
    if x is None:
        return _Array()
    size = x.element_size()
    strides = (ctypes.c_int64 * 4)(*(n * size for n in x.stride()))
    return _Array(x.data_ptr(), strides, _DTYPES.index(x.dtype))


def _rule(bound: BoundRule) -> dict[str, Tensor]:
    """What the kernel reads of a rule beside numbers, side by side in memory."""
    found = {"key_mask": bound.key_mask, "query_mask": bound.query_mask}
    if bound.documents is not None:
        shape = (bound.B, bound.T)
        names = ("document", "first", "last")
        found |= dict(zip(names, (x.expand(shape) for x in bound.documents), strict=True))
        found["number"] = bound.numbers
    for name in ("alibi", "sinks"):
        if (x := getattr(bound.rule, name)) is not None:
            found[name] = x.detach().to(bound.device, torch.float64)
    return {name: x.contiguous().resolve_neg() for name, x in found.items() if x is not None}


def _run(call: _Call, wide: bool) -> None:
    """The work of a call, on torch's threads. Between two slices Python hears of signals."""
    attend, threads = _loaded().clearhead_attend, torch.get_num_threads()
    left = 1
    while left:
        left = attend(
            ctypes.byref(call), instruction_set(), int(wide), threads,
            ctypes.c_double(SLICE), _team(),
        )  # fmt: skip
        if left < 0:
            raise MemoryError("the native kernel found no memory for its tiles")
