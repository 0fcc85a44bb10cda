"""The native kernel: the same rows as tiled.py, by the C of csrc/, for CPUs.

A compiled library without any header of Python or torch, loaded by ctypes: one build serves every
version of both, and whoever calls holds no lock meanwhile. What is said here is where the arrays
lie. The library comes back every SLICE seconds, so that Ctrl-C is heard.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.rows import Rows
from clearhead.engine.tiles import LogSum
from clearhead.library import built, load
from clearhead.rule import Rule

SLICE = 0.2  # seconds
WIDEST = 1024  # numbers of a row: 32 of them lie on the stack of a thread
_P = ParamSpec("_P")
_R = TypeVar("_R")
_PROCESS = os.getpid()
_FORWARD, _RECEIVED, _QUERY_GRADIENT, _KEY_GRADIENTS, _CELLS = range(5)  # Kind of call.h
SETS = ("baseline", "avx2", "avx512", "avx512bf16", "amx")  # each better than the one before
_FIGURES = ("entropy", "max_score", "mean_key", "visible")
_DTYPES = {  # of call.h
    torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.bool: 4,
}  # fmt: skip


class _Array(ctypes.Structure):
    """Array of call.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        *((f"stride_{axis}", ctypes.c_int64) for axis in "bhid"),
        ("dtype", ctypes.c_int64),
    )


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
        *_fields(ctypes.c_int64, "figures"),
        *_fields(ctypes.c_void_p, "received"),
        *_fields(_Array, "g made"),
        *_fields(ctypes.c_void_p, "fixed total d_entropy dq dk dv"),
        *_fields(ctypes.c_int64, "i0 i1 j0 j1"),
        *_fields(ctypes.c_void_p, "cells"),
        *_fields(ctypes.c_int64, "kind next units per_unit bad pairs depth"),
        *_fields(ctypes.c_void_p, "room"),
        *_fields(ctypes.c_int64, "room_size entered"),
        *_fields(ctypes.c_double, "until"),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernel; None where it was not built, or is none of this machine's."""
    path = built()
    try:
        loaded = None if path is None else load(path)
    except OSError:
        return None
    if loaded is not None:
        loaded.clearhead_plan.restype = ctypes.c_int64
        loaded.clearhead_multiply_adds.restype = ctypes.c_int64
    return loaded


@cache
def instruction_set() -> int:
    """The number of the best of SETS that this machine has."""
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
def hindrance(inputs: Sequence[Tensor | None], rule: Rule, dropout: float = 0.0) -> str:
    """Why a call on q, k, v, ... cannot be native; empty where it can."""
    given = [x for x in inputs if x is not None]
    q, widest = given[0], max([x.shape[-1] for x in inputs[:3] if x is not None])
    if not q.is_cpu:
        return f"needs tensors on the CPU; these are on {q.device}"
    if dropout:
        return "knows no dropout"
    if widest > WIDEST:
        return f"knows heads of up to {WIDEST} numbers; these have {widest}"
    if library() is None:
        return "is not built here: clearhead doctor says what is missing"
    if strange := [x for x in (*given, *rule.tensors) if not _lies_in_memory(x)]:
        kind = type(strange[0]).__name__
        return f"needs numbers in memory; this {kind} has none of its own there"
    if is_followed():
        return "cannot be followed by a trace, a mode or forward derivatives"
    return ""


def is_followed() -> bool:
    """Whether somebody follows what is computed: a trace, a mode, forward derivatives. They see
    tensors that are made empty, and not what the kernel writes there."""
    inside: Any = torch._C
    if inside._get_tracing_state() is not None or inside._len_torch_dispatch_stack():
        return True
    return bool(torch.autograd.forward_ad._current_level >= 0)


def _lies_in_memory(x: Tensor) -> bool:
    if not x.is_cpu:  # a part of the rule, which is brought here
        return True
    if type(x) is not Tensor and type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    try:
        return x.layout == torch.strided and (bool(x.data_ptr()) or not x.numel())
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
    shape, dtype = (bound.B, bound.H, bound.T), _wide(q)
    lse = torch.empty(shape, dtype=dtype, device="cpu")
    rows = {"lse": lse, "lse_low": torch.empty_like(lse)}
    more = _FIGURES if figures else ()
    for name in (*more, "distance") if distance else more:
        rows[name] = torch.empty_like(lse)
    if v is not None:
        rows["out"] = q.new_empty((*shape, v.shape[-1]))
    if figures:
        rows["top_key"] = q.new_empty(shape, dtype=torch.int64)
    given = {}
    if distance:
        rows["key_scores"] = q.new_empty((*shape, 3), dtype=dtype)
        first = bound.common_first_key()
        given["first_key"] = (
            bound.places()[..., 0].contiguous() if first is None
            else torch.full((bound.B, bound.T), first, device="cpu")
        )  # fmt: skip
    call = _run(_FORWARD, q, k, v, bound, rows | given, figures=int(figures))
    return Rows(**rows), not call.bad


@_unseen
def column_sums(q: Tensor, k: Tensor, lse: LogSum, bound: BoundRule) -> Tensor:
    """What each key receives, (B, H, S), as tiled.column_sums has it; keys must be finite."""
    received = lse.high.new_empty((bound.B, bound.H, bound.S))
    _run(_RECEIVED, q, k, None, bound, _of(lse) | {"received": received})
    return received


@_unseen
def backward(
    q: Tensor, k: Tensor, v: Tensor | None, lse: LogSum, bound: BoundRule,
    out: Tensor | None, d_out: Tensor | None, fixed: Tensor, d_entropy: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k and v, in the accumulation's dtype, from what comes back into out and the
    entropy, and from `fixed`: the rest of what gradients.Upstream calls so, to which g . out is
    added when the pass for q is over, which may be made twice. Keys and values must be finite.
    """
    new = [torch.empty_like(x, dtype=lse.high.dtype, memory_format=torch.contiguous_format)
           if x is not None else None for x in (q, k, v)]  # fmt: skip
    d_q, d_k, d_v = new
    assert d_q is not None and d_k is not None
    back = _of(lse) | {"fixed": fixed, "total": fixed.clone()}
    if d_entropy is not None:
        back["d_entropy"] = d_entropy.to(fixed.dtype).contiguous().resolve_neg()
    if d_out is None:
        v = out = None
    of_out = {"g": d_out, "made": out}
    _run(_QUERY_GRADIENT, q, k, v, bound, back | {"dq": d_q}, of_out)
    fixed.copy_(back["total"])
    values = {} if v is None or d_v is None else {"dv": d_v}
    _run(_KEY_GRADIENTS, q, k, v, bound, back | {"dk": d_k} | values, of_out)
    return d_q, d_k, d_v if values or d_v is None else d_v.zero_()


@_unseen
def lse_of_rows(q: Tensor, k: Tensor, bound: BoundRule, i0: int, i1: int) -> LogSum | None:
    """lse of some rows of the one head of a call, (rows,); None if some key is not finite."""
    rows = {name: q.new_empty(i1 - i0, dtype=_wide(q)) for name in ("lse", "lse_low")}
    call = _run(_FORWARD, q[:, :, i0:i1], k, None, bound, rows, start=i0)
    return None if call.bad else LogSum(rows["lse"], rows["lse_low"])


@_unseen
def cells(
    q: Tensor, k: Tensor, bound: BoundRule, rows: tuple[int, int], cols: tuple[int, int],
    lse: LogSum | None,
) -> Tensor:  # fmt: skip
    """Rows i0:i1 and columns j0:j1 of the map, (B, H, i1 - i0, j1 - j0): its weights, from the lse
    of these rows, or its scores without; where hidden, weight 0 or -inf.
    """
    (i0, i1), (j0, j1) = rows, cols
    found = torch.empty(bound.B, bound.H, i1 - i0, j1 - j0, dtype=_wide(q), device="cpu")
    known = {} if lse is None else _of(lse)
    _run(_CELLS, q, k, None, bound, known | {"cells": found}, i0=i0, i1=i1, j0=j0, j1=j1)
    return found


def multiply_adds(steps: int, wide: bool = False) -> int:
    """Does multiply-adds that wait for nothing, `steps` steps on each of torch's threads, in
    float64 if `wide`, else in float32: the floating-point operations that they were. What they
    reach in a second, nothing exceeds.
    """
    do, threads = _loaded().clearhead_multiply_adds, torch.get_num_threads()
    return int(do(instruction_set(), int(wide), ctypes.c_int64(steps), threads, _team()))


def _of(lse: LogSum) -> dict[str, Tensor]:
    return {"lse": lse.high.contiguous(), "lse_low": lse.low.contiguous()}


def _run(
    kind: int, q: Tensor, k: Tensor, v: Tensor | None, bound: BoundRule,
    arrays: dict[str, Tensor], more: dict[str, Tensor | None] | None = None,
    start: int = 0, **numbers: int,
) -> _Call:  # fmt: skip
    """A call, done: with `arrays` that lie side by side in memory, and `more` that need not. Of
    one head, q may be its rows from `start` on. Between two slices Python hears of signals."""
    (B, H, T, D), (G, S), Dv = q.shape, k.shape[1:3], 0 if v is None else v.shape[-1]
    given = {"q": q, "k": k, "v": v, **(more or {})}
    if bound.rule.tensors:
        rows = slice(start, start + T)
        arrays = arrays | _rule(bound, rows)
        given.update(_by_cell(bound, rows))
    # Of a tensor that is negated when somebody reads it, the numbers in memory have another sign.
    strided = {name: x.resolve_neg() for name, x in given.items() if x is not None}
    offsets = (ctypes.c_int64 * B)(*(n + start for n in bound.offsets))
    call = _Call(
        kind=kind, B=B, H=H, T=T, D=D, G=G, S=S, Dv=Dv,
        scale=bound.scale, softcap=bound.rule.softcap or 0.0,
        before=-1 if bound.before is None else bound.before,
        after=-1 if bound.after is None else bound.after,
        offset=ctypes.addressof(offsets),
        **{name: _array(x) for name, x in strided.items()},
        **{name: x.data_ptr() for name, x in arrays.items()}, **numbers,
    )  # fmt: skip
    loaded, threads, here = _loaded(), torch.get_num_threads(), ctypes.byref(call)
    which = instruction_set(), int(_wide(q) == torch.float64)
    size = loaded.clearhead_plan(here, *which, threads)
    # torch's own, so that it is counted
    room = torch.empty(threads * size + 64, dtype=torch.uint8, device="cpu")
    call.room = -(-room.data_ptr() // 64) * 64
    while loaded.clearhead_attend(here, *which, threads, ctypes.c_double(SLICE), _team()):
        pass
    return call


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _array(x: Tensor) -> _Array:
    size, (b, h, i, d) = x.element_size(), x.stride()
    return _Array(x.data_ptr(), b * size, h * size, i * size, d * size, _DTYPES[x.dtype])


def _by_cell(bound: BoundRule, rows: slice) -> dict[str, Tensor]:
    given = {"mask": bound.mask, "bias": bound.bias}
    return {name: x[:, :, rows] for name, x in given.items() if x is not None}


def _rule(bound: BoundRule, rows: slice) -> dict[str, Tensor]:
    """What the kernel reads of a rule beside numbers, side by side in memory."""
    found = {"key_mask": bound.key_mask, "query_mask": bound.query_mask}
    if bound.documents is not None:
        shape = (bound.B, bound.T)
        names = ("document", "first", "last")
        found |= dict(zip(names, (x.expand(shape)[:, rows] for x in bound.documents), strict=True))
        found["number"] = bound.numbers
    for name in ("alibi", "sinks"):
        if (x := getattr(bound.rule, name)) is not None:
            found[name] = x.detach().to(bound.device, torch.float64)
    return {name: x.contiguous().resolve_neg() for name, x in found.items() if x is not None}
