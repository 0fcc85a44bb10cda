"""Rotary position embedding: queries and keys are turned by an angle that grows with the position.

What is turned by the same angle keeps its product, so the product of a query and a key depends on
how far apart they stand and not on where. There is nothing to learn and nothing to add to the
scores: turn q and k, then attend.

    cos, sin = rotary_cos_sin(torch.arange(T), d_rotary=64)
    attention(apply_rotary(q, cos, sin), apply_rotary(k, cos, sin), v, Rule(causal=True))

Letters: B batch, H heads, T positions, D head size, R how many of its numbers are turned (even).

Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding" (2021,
arXiv:2104.09864), equations 15 and 34, which pairs neighbors: "interleaved".
"""

import torch
from torch import Tensor

PAIRINGS = ("halves", "interleaved")


def rotary_frequencies(
    d_rotary: int,
    base: float = 10000.0,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """The angle, in radians, by which each pair turns from one position to the next.

        frequency_n = base^(-2 n / R)        n = 0 .. R/2 - 1

    Returns (R/2,), from 1 down to nearly 1/base. Raises ValueError for an odd R or a base that is
    not positive.
    """
    if d_rotary < 2 or d_rotary % 2:
        raise ValueError(
            f"d_rotary must be even and at least 2: numbers turn in pairs; got {d_rotary}"
        )
    if not base > 0:
        raise ValueError(f"base must be above 0; got {base}")
    _check_dtype(dtype)
    exponents = torch.arange(0, d_rotary, 2, dtype=dtype, device=device) / d_rotary
    return 1.0 / base**exponents


def rotary_cos_sin(
    positions: Tensor,
    d_rotary: int,
    base: float = 10000.0,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of every position and pair.

        angle_tn = position_t frequency_n

    positions are (T,), or (B, T) where each sequence has its own (left padding, caches filled to
    different lengths); fractions are fine (interpolated positions). Returns two tensors (T, R/2) or
    (B, T, R/2): once for each pair, not written out twice to the width R.

    float32 is what models are trained with, and the angles are theirs to the bit; they are off by
    about 6e-8 of themselves, 0.004 radians at position 65,536. float64 has no such error.
    """
    if positions.ndim not in (1, 2) or positions.dtype == torch.bool or positions.is_complex():
        raise ValueError(
            "positions must be numbers, (T,) or (B, T); got "
            f"{positions.dtype} {tuple(positions.shape)}"
        )
    frequencies = rotary_frequencies(d_rotary, base, dtype=dtype, device=positions.device)
    angles = positions[..., None].to(dtype) * frequencies
    return angles.cos(), angles.sin()


def apply_rotary(
    x: Tensor, cos: Tensor, sin: Tensor, pairing: str = "halves", d_rotary: int | None = None
) -> Tensor:
    """Turn queries or keys by the angles of their positions.

        (a, b) -> (a cos - b sin,  a sin + b cos)        for each pair (a, b) of the first R numbers

    x         (B, H, T, D), (H, T, D) or (T, D), any strides
    cos, sin  (T, R/2), or (B, T, R/2) for a 4-D x, from `rotary_cos_sin` or from a model. A table
              of all positions is indexed first: cos[positions]
    pairing   which numbers form pair n: n and n + R/2 ("halves": NeoX, Llama and most models since)
              or 2n and 2n + 1 ("interleaved": RoFormer, GPT-J). Weights trained with one are
              wrong with the other
    d_rotary  R, twice the width of cos unless given, at most D; the other numbers stay as they are

    In float32 (float64 for float64), rounded once, to the dtype of x. Length is kept, position 0
    stays as it is, and q_i . k_j depends on i - j alone. Differentiable. Raises ValueError, naming
    every shape, for what does not fit.
    """
    _check(x, cos, sin, pairing, d_rotary)
    half = cos.shape[-1]
    R = 2 * half
    dtype = torch.promote_types(x.dtype, torch.float32)
    if cos.ndim == 3:  # a head axis
        cos, sin = cos[:, None], sin[:, None]
    cos, sin = cos.to(dtype), sin.to(dtype)  # (T, R/2) or (B, 1, T, R/2)
    turned = x[..., :R].to(dtype)
    if pairing == "halves":
        a, b = turned[..., :half], turned[..., half:]
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
    pairs = (a * cos - b * sin, a * sin + b * cos)
    if pairing == "halves":
        turned = torch.cat(pairs, dim=-1)
    else:
        turned = torch.stack(pairs, dim=-1).flatten(-2)
    turned = turned.to(x.dtype)
    return turned if x.shape[-1] == R else torch.cat((turned, x[..., R:]), dim=-1)


# What comes in ------------------------------------------------------------------------------------


def _check_dtype(dtype: torch.dtype) -> None:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"dtype must be torch.float32 or torch.float64: angles need the digits; got {dtype}"
        )


def _check(x: Tensor, cos: Tensor, sin: Tensor, pairing: str, d_rotary: int | None) -> None:
    seen = f"(x {list(x.shape)}, cos {list(cos.shape)}, sin {list(sin.shape)})"
    if pairing not in PAIRINGS:
        raise ValueError(f"pairing must be one of {', '.join(PAIRINGS)}; got {pairing!r}")
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"x must be (T, D), (H, T, D) or (B, H, T, D) {seen}")
    if not all(tensor.is_floating_point() for tensor in (x, cos, sin)):
        raise ValueError(
            f"x, cos and sin must hold floats; got {x.dtype}, {cos.dtype}, {sin.dtype} {seen}"
        )
    T, D = x.shape[-2:]
    fitting = [(T,), (x.shape[0], T)] if x.ndim == 4 else [(T,)]
    if cos.shape != sin.shape or tuple(cos.shape[:-1]) not in fitting:
        shapes = "(T, R/2) or (B, T, R/2)" if x.ndim == 4 else "(T, R/2)"
        raise ValueError(
            f"cos and sin must both be {shapes} with T = {T}, a row for each position of x; index "
            f"a table of all positions first: cos[positions] {seen}"
        )
    R = 2 * cos.shape[-1]
    if d_rotary is not None and cos.shape[-1] == d_rotary:
        raise ValueError(
            f"cos is {d_rotary} wide, each angle written out twice: pass R/2 = {d_rotary / 2:g} "
            "columns, cos[..., :R // 2] of a table for halves, cos[..., ::2] of one for "
            f"interleaved {seen}"
        )
    if d_rotary is not None and d_rotary != R:
        raise ValueError(
            f"d_rotary = {d_rotary} needs cos and sin {d_rotary / 2:g} wide, half of it {seen}"
        )
    if not 2 <= R <= D:
        raise ValueError(
            f"cos of width R/2 = {cos.shape[-1]} turns R = {R} numbers, but x has D = {D} "
            f"{seen}. A table that has each angle twice is halved first: cos[..., :R // 2] for "
            "halves, cos[..., ::2] for interleaved"
        )
