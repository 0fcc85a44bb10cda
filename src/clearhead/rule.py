"""The rule of attention: how a score is formed, and which keys a query may see.

A record of a dozen independent facts. Bound to the shapes of one call (bound.py) it answers for
every tile of scores; nothing else knows what a mask, a window or a document means.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size. Query i stands at key
position i + offset; "its own key" is the key there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Integral

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rule:
    """How a score is formed and which keys a query may see. Every field may be left out.

        s_ij = softcap(scale q_i . k_j) + alibi + bias        for the keys j that query i may see
        softcap(x) = c tanh(x / c)                            alibi = -slope (i + offset - j)

    scale       factor of the products; 1/sqrt(D) unless given
    causal      query i sees keys j <= i + offset
    offset      the key position of the first query: S - T unless given (bottom-right, as with a
                cache); 0 is top-left; a (B,) integer tensor is one for each batch element
    window      W: the W last keys up to the query's own (needs causal); (a, b): a keys before and b
                after the query's own
    softcap     c > 0
    alibi       (H,) slopes; constants, without a gradient
    sinks       (H,) logits of one more outcome in the denominator, which no key gets
    key_mask    (B, S) bool, True = a real key; the others are seen by nobody. The opposite of
                torch's key_padding_mask: pass ~key_padding_mask
    query_mask  (B, T) bool, True = a real query. It changes no row of the output or of Attended:
                HeadStats, `received` and `between` leave the others out. With padding, give both
    segments    (B, S) integers, the document of each key: a query sees its own document only
    mask        bool, True = may attend, broadcast to (B, H, T, S)
    bias        floats added to the scores, broadcast to (B, H, T, S); -inf, or the lowest number of
                its own dtype, hides the key

    Raises TypeError or ValueError for what can be no rule at all; shapes are checked in a call.
    """

    scale: float | None = None
    causal: bool = False
    offset: int | Tensor | None = None
    window: int | tuple[int, int] | None = None
    softcap: float | None = None
    alibi: Tensor | None = None
    sinks: Tensor | None = None
    key_mask: Tensor | None = None
    query_mask: Tensor | None = None
    segments: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_tensors(self)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it holds of tensors."""
        values = (getattr(self, field.name) for field in fields(self))
        return tuple(x for x in values if isinstance(x, Tensor))

    @classmethod
    def from_sdpa(
        cls, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
    ) -> "Rule":
        """The rule that torch.nn.functional.scaled_dot_product_attention means by its arguments.

        is_causal is aligned top-left there, offset 0, also where T != S. A boolean attn_mask is
        True where a key may be seen, a float one is added. Raises ValueError for a float mask of
        ones and zeros: added to the scores, as SDPA does with it, it hides nothing.
        """
        bias = mask = None
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            mask = attn_mask
        elif attn_mask is not None:
            bias = attn_mask
            if not bias.is_floating_point():
                raise ValueError(
                    "attn_mask must be boolean, or floats to add to the scores; got "
                    f"{attn_mask.dtype} {shape_of(attn_mask)} (attn_mask.bool() if 1 means may "
                    "attend)"
                )
            if bias.numel():
                ones, zeros = bias == 1, bias == 0
                if bool((ones | zeros).all()) and bool(ones.any()) and bool(zeros.any()):
                    raise ValueError(
                        f"attn_mask {shape_of(attn_mask)} holds only 0.0 and 1.0: added to the "
                        "scores it hides nothing. Pass attn_mask.bool() if 1 means may attend"
                    )
        return cls(
            scale=scale, causal=is_causal, offset=0 if is_causal else None, mask=mask, bias=bias
        )

    def same_as(self, other: "Rule") -> bool:
        """Whether both say the same, tensors compared by what they hold."""
        for field in fields(self):
            a, b = getattr(self, field.name), getattr(other, field.name)
            if isinstance(a, Tensor) and isinstance(b, Tensor):
                if a is not b and not (a.shape == b.shape and torch.equal(a, b.to(a.device))):
                    return False
            elif isinstance(a, Tensor) or isinstance(b, Tensor) or a != b:
                return False
        return True

    def __repr__(self) -> str:
        shown = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                shown.append(
                    f"{field.name}={str(value.dtype).removeprefix('torch.')}{shape_of(value)}"
                )
            elif value is not field.default:
                shown.append(f"{field.name}={value!r}")
        return f"Rule({', '.join(shown)})"


# What a rule can be ------------------------------------------------------------------------------


def _check_numbers(rule: Rule) -> None:
    for name in ("scale", "softcap"):
        value = getattr(rule, name)
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} must be a finite number; got {value!r}")
    if rule.softcap is not None and rule.softcap <= 0:
        raise ValueError(f"softcap must be above 0 (None for no cap); got {rule.softcap!r}")
    offset: object = rule.offset
    if isinstance(offset, Tensor):
        if offset.ndim != 1 or offset.is_floating_point() or offset.dtype == torch.bool:
            raise ValueError(
                "offset must be an integer or a (B,) integer tensor, one for each batch element; "
                f"got {offset.dtype} {shape_of(offset)}"
            )
    elif offset is not None and (isinstance(offset, bool) or not isinstance(offset, Integral)):
        raise TypeError(f"offset must be an integer or a (B,) integer tensor; got {offset!r}")
    window: object = rule.window
    if window is None:
        return
    if isinstance(window, tuple):
        if len(window) != 2 or not all(isinstance(w, Integral) and int(w) >= 0 for w in window):
            raise ValueError(
                "window (a, b) is a keys before and b keys after the query's own, both integers of "
                f"0 or more; got {window!r}"
            )
    elif isinstance(window, bool) or not isinstance(window, Integral):
        raise TypeError(f"window must be an integer or a pair of integers; got {window!r}")
    elif window < 1:
        raise ValueError(f"window must be 1 or more: the query's own key counts; got {window}")
    elif not rule.causal:
        raise ValueError(
            f"window={window} alone is the last {window} keys, which needs causal=True; without it "
            f"pass a pair (before, after), such as ({window - 1}, {window - 1})"
        )


_BOOLEAN = ("key_mask", "query_mask", "mask")


def _check_tensors(rule: Rule) -> None:
    for name in (*_BOOLEAN, "alibi", "sinks", "segments", "bias"):
        value = getattr(rule, name)
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor; got {type(value).__name__}")
    for name in _BOOLEAN:
        value = getattr(rule, name)
        if value is not None and value.dtype != torch.bool:
            hint = "" if value.is_floating_point() else f" ({name}.bool() if 1 means True)"
            more = "; numbers to add to the scores go into bias" if name == "mask" else ""
            raise ValueError(
                f"{name} must be boolean, True = {'may attend' if name == 'mask' else 'real'}{hint}"
                f"{more}; got {value.dtype} {shape_of(value)}"
            )
    for name in ("bias", "alibi", "sinks"):
        value = getattr(rule, name)
        if value is not None and not value.is_floating_point():
            more = "; a mask goes into mask, as booleans" if name == "bias" else ""
            raise ValueError(f"{name} must hold floats{more}; got {value.dtype} {shape_of(value)}")
    segments = rule.segments
    if segments is not None and (segments.is_floating_point() or segments.dtype == torch.bool):
        raise ValueError(
            f"segments must hold integers, a document number for each key; got {segments.dtype} "
            f"{shape_of(segments)}"
        )


def check_shapes(rule: Rule, q: Tensor, k: Tensor) -> None:
    """ValueError, with all that is wrong, unless a rule fits q (B, H, T, D) and k (B, G, S, D)."""
    if not rule.tensors:
        return
    (B, H, T, _), S = q.shape, k.shape[2]
    wanted: dict[str, tuple[tuple[int, ...], str]] = {
        "alibi": ((H,), "(H,)"),
        "sinks": ((H,), "(H,)"),
        "key_mask": ((B, S), "(B, S)"),
        "query_mask": ((B, T), "(B, T)"),
        "segments": ((B, S), "(B, S)"),
    }
    if isinstance(rule.offset, Tensor):
        wanted["offset"] = ((B,), "(B,)")
    wrong = []
    for name, (shape, letters) in wanted.items():
        value = getattr(rule, name)
        if value is not None and tuple(value.shape) != shape:
            four = ": pass x[:, 0, 0] of it" if name == "key_mask" and value.ndim == 4 else ""
            wrong.append(f"{name} must be {letters} = {shape}, got {shape_of(value)}{four}")
    for name in ("mask", "bias"):
        value = getattr(rule, name)
        if value is not None and not _broadcasts(tuple(value.shape), (B, H, T, S)):
            wrong.append(
                f"{name} must broadcast to (B, H, T, S) = {(B, H, T, S)}, got {shape_of(value)}"
                + (
                    " (a mask of padding goes into key_mask)"
                    if name == "mask" and tuple(value.shape) == (B, S)
                    else ""
                )
            )
    if wrong:
        raise ValueError(f"{'; '.join(wrong)} (q {shape_of(q)}, k {shape_of(k)})")


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    if len(shape) > len(target):
        return False
    tail = target[len(target) - len(shape) :]
    return all(a in (1, b) for a, b in zip(shape, tail, strict=True))


def alibi_slopes(n_heads: int) -> Tensor:
    """The slope of each head, (H,): 2^(-8 (h + 1) / H), and for H that is no power of two those of
    the next lower power, then every second one of twice it.

    Source: Press, Smith and Lewis, "Train Short, Test Long" (2022, arXiv:2108.12409).
    """

    def powers(n: int) -> list[float]:
        return [2 ** (-8 * (h + 1) / n) for h in range(n)]

    n = 1 << int(math.log2(n_heads))
    return torch.tensor(powers(n) + powers(2 * n)[::2][: n_heads - n])


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
