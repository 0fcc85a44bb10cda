"""What may come in to a call of attention: shapes, dtypes, and numbers that are not finite."""

import math
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_inputs(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Raise ValueError, naming every shape, where q, k and v do not fit (TypeError: no tensors)."""
    given: tuple[Any, ...] = (q, k) if v is None else (q, k, v)
    named = zip("qkv", given, strict=False)
    if not all(isinstance(x, Tensor) for x in given):
        kinds = [f"{n} is a {type(x).__name__}" for n, x in named if not isinstance(x, Tensor)]
        raise TypeError(f"q, k and v must be torch tensors; {', '.join(kinds)}")
    if why := _why_not(q, k, v):
        seen = ", ".join(f"{name} {list(x.shape)}" for name, x in named)
        raise ValueError(why.format(seen=seen))


def _why_not(q: Tensor, k: Tensor, v: Tensor | None) -> str:
    """Why these do not fit, with `{seen}` where the shapes of all go; empty if they do."""
    given = [q, k] if v is None else [q, k, v]
    shapes = [tuple(x.shape) for x in given]
    if len(shapes[0]) not in (2, 3, 4) or len({len(shape) for shape in shapes}) > 1:
        return "q, k and v must all be (T, D), (H, T, D) or (B, H, T, D); got {seen}"
    for what in ("dtype", "device"):
        if len({getattr(x, what) for x in given}) > 1:
            named = zip("qkv", given, strict=False)
            of_each = ", ".join(f"'{name}': {getattr(x, what)}" for name, x in named)
            return f"q, k and v must share one {what}; got {{{{{of_each}}}}}"
    if q.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        return f"q, k and v must hold floats ({known}); got {q.dtype}"
    (*leading, _, d_q), (*of_keys, _, d_k) = shapes[:2]
    if d_q != d_k or d_q < 1:
        sizes = f"q has head size {d_q} and k {d_k}"
        return sizes + ": they must be equal and at least 1 ({seen})"
    if shapes[-1][:-1] != shapes[1][:-1]:
        return "k and v must agree in all but the last axis; got {seen}"
    if len(leading) == 2 and leading[0] != of_keys[0]:
        return f"q has batch size {leading[0]} but k has {of_keys[0]} " + "({seen})"
    if of_keys and not of_keys[-1]:
        return "k must have at least one head; got {seen}"
    if of_keys and leading[-1] % of_keys[-1]:
        heads = f"k has {of_keys[-1]} heads but q has {leading[-1]}"
        return heads + ": query heads must be a multiple of key heads ({seen})"
    return ""


def as_four(x: Tensor) -> Tensor:
    """(T, D) or (H, T, D) as (1, H, T, D)."""
    return x if x.ndim == 4 else x[(None,) * (4 - x.ndim)]


def is_tame(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether no product of a query and a key, nor a part of it, can overflow float32."""
    if not (q.numel() and k.numel()):
        return False
    largest = [max(abs(end.item()) for end in x.detach().aminmax()) for x in (q, k)]
    return largest[0] * largest[1] * max(abs(scale), 1.0) * q.shape[-1] < 1e37


def without_bad_keys(k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """k and v with zeros for keys that hold a NaN or an infinity, and which those are (B, G, S).

    None in place of the last where there is none. Rows that see such a key become NaN afterwards;
    for all others it may hold what it likes.
    """
    sums = [
        x.sum(dtype=torch.promote_types(x.dtype, torch.float32)) for x in (k, v) if x is not None
    ]
    if all(math.isfinite(total.item()) for total in sums):  # one cheap pass, and nearly always all
        return k, v, None
    bad = ~k.isfinite().all(dim=-1)
    if v is not None:
        bad |= ~v.isfinite().all(dim=-1)
    if not bad.any():
        return k, v, None
    clean = bad[..., None]
    return k.masked_fill(clean, 0.0), None if v is None else v.masked_fill(clean, 0.0), bad
