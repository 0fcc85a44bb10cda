"""What a call of attention was given, read from the arguments of each function that computes one.

Every reader returns the same record, `AttentionInputs`: the queries, keys and values that the call
itself saw, after rotary positions and norms, the Rule that it followed, and what it made of them.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.capture.masks import MaskCache
from clearhead.engine import Attended
from clearhead.rule import Rule, shape_of


class Unreadable(Exception):
    """A call that cannot be observed; the words say why."""


def same(out: Tensor, rows: Tensor) -> Tensor:
    """What is made of an output before it is seen: nothing."""
    return out


@dataclass(frozen=True, eq=False)
class AttentionInputs:
    """One call of attention as it was made.

    q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) and the rule. `made` is what the model got out
    of it, (B, H, T, Dv), or with `finish` what was made of that in the same function, (B, T, n):
    finish(out, rows) does the same with the rows (R,) of an output (B, H, R, Dv). `unsure` says why
    the two cannot agree, such as dropout. mask_bytes counts a mask that had to be kept as it is.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    rule: Rule
    made: Tensor | None
    entry: str = "an adapter"
    cross: bool = False
    finish: Callable[[Tensor, Tensor], Tensor] = field(default=same)
    unsure: str | None = None
    mask_bytes: int = 0


CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")  # in a module's name


@dataclass(slots=True)
class Caller:
    """The module that attends: its name, what it was called with, and whether by torch.func."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    transformed: bool = False

    @property
    def cross(self) -> bool:
        """Whether the end of its name says that it attends to another sequence."""
        end = ".".join(self.name.lower().split(".")[-2:])
        return any(part in end for part in CROSS)

    def heads_in(self, n: int, T: int) -> int:
        """How many heads the leading axis of a query (n, T, D) holds of each batch element.

        Told by what the module itself was given: (T, E) has no batch, so all n are heads; of
        (B, T, E) or (T, B, E) they are n / B; and one head where nothing says so.
        """
        for x in (*self.args, *self.kwargs.values()):
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_nested:
                continue
            if x.ndim == 2 and x.shape[0] == T:
                return n
            for axis in (0, 1) if x.ndim == 3 else ():
                if x.shape[1 - axis] == T and n % x.shape[axis] == 0:
                    return n // x.shape[axis]
        return 1


# PyTorch's fused attention ------------------------------------------------------------------------


def of_sdpa(
    made: Tensor, caller: Caller, masks: MaskCache,
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> AttentionInputs:  # fmt: skip
    """torch.nn.functional.scaled_dot_product_attention, by its own parameters."""
    lengths = None
    if query.is_nested:
        query, key, value, made, lengths = _padded(query, key, value, made)
    lead: tuple[int, ...] = (1, 1, *made.shape[:-2])[-max(2, made.ndim - 2) :]
    parts: list[Any] = [query, key, value, made, attn_mask]
    if made.ndim == 3:
        n, T = made.shape[:2]
        heads = n if enable_gqa else caller.heads_in(n, T)
        lead = (n // heads, heads)
        split = [x is not None and x.ndim == 3 and x.shape[0] == n for x in parts]
        parts = [x.unflatten(0, lead) if s else x for x, s in zip(parts, split, strict=True)]
    q, k, v, made = (_four(x, lead) for x in parts[:4])
    B, H = made.shape[:2]
    q, k, v = (x.expand(B, n, -1, -1) for x, n in ((q, H), (k, k.shape[1]), (v, v.shape[1])))
    if k.shape[1] != v.shape[1]:
        k, v = (x.repeat_interleave(H // x.shape[1], dim=1) for x in (k, v))
    rule, kept = Rule(scale=scale), 0
    if attn_mask is not None:
        mask = parts[4] if parts[4].ndim == 2 else _four(parts[4], lead)
        rule, kept = _with_mask(rule, mask, q, k, caller.cross, masks)
    elif is_causal:
        rule = replace(rule, causal=True, offset=0)
    if lengths is not None:
        rule = _with_lengths(rule, lengths, q, k, caller.cross)
    dropped = "dropout" if dropout_p > 0 else None
    return AttentionInputs(
        q, k, v, rule, made, "sdpa", caller.cross, unsure=dropped, mask_bytes=kept
    )


def of_flash(
    result: tuple[Tensor, Any], caller: Caller, masks: MaskCache,
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, attn_mask: Tensor | None = None, scale: float | None = None,
) -> AttentionInputs:  # fmt: skip
    """The kernels below it that take a mask by name or none, by their own parameters."""
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale)
    return of_sdpa(result[0], caller, masks, *given)


def of_efficient(
    result: tuple[Tensor, Any], caller: Caller, masks: MaskCache,
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Tensor | None, compute_log_sumexp: bool,
    dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> AttentionInputs:  # fmt: skip
    """Those that take a bias, by their own parameters."""
    given = (query, key, value, attn_bias, dropout_p, is_causal, scale)
    return of_sdpa(result[0], caller, masks, *given)


def _four(x: Tensor, lead: tuple[int, ...]) -> Tensor:
    """x (..., T, D), whose leading axes broadcast to `lead`, as (B or 1, heads, T, D)."""
    if x.ndim == 4 and len(lead) == 2:
        return x
    *batch, heads = (*(1 for _ in range(len(lead) + 2 - x.ndim)), *x.shape[:-2])
    if any(n != 1 for n in batch):
        batch = list(lead[:-1])
    return x.expand(*batch, heads, -1, -1).reshape(-1, heads, *x.shape[-2:])


def _padded(*nested: Tensor) -> tuple[Any, ...]:
    """Nested (B, H, ragged, D) tensors, padded with zeros, and the length of each key row."""
    lengths = torch.tensor([part.shape[-2] for part in nested[1].unbind()])
    return (*(torch.nested.to_padded_tensor(x, 0.0) for x in nested), lengths)


def _with_lengths(rule: Rule, lengths: Tensor, q: Tensor, k: Tensor, cross: bool) -> Rule:
    """The rule of a batch whose elements have so many keys."""
    real = (torch.arange(k.shape[2]) < lengths[:, None]).to(k.device)
    alike = not cross and q.shape[2] == k.shape[2]
    return replace(rule, key_mask=real, query_mask=real if alike else None)


def _with_mask(
    rule: Rule, mask: Tensor, q: Tensor, k: Tensor, cross: bool, masks: MaskCache
) -> tuple[Rule, int]:
    """The rule with what a mask says, and the bytes of what had to be kept of it."""
    B, H, T, S = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    found = masks.reduce(mask, B, H, T, S, self_attention=not cross)
    fields = ("causal", "offset", "window", "key_mask", "query_mask", "segments", "mask", "bias")
    said = {name: getattr(found.rule, name) for name in fields}
    return replace(rule, **said), found.kept_bytes


# transformers' interface --------------------------------------------------------------------------

FUSED = ("flash", "paged", "flex", "sage", "kernels-community")


def of_interface(
    result: Any, name: str, caller: Caller, masks: MaskCache,
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor,
    attention_mask: Tensor | None = None, dropout: float = 0.0, scaling: float | None = None,
    is_causal: bool | None = None, position_bias: Tensor | None = None,
    softcap: float | None = None, s_aux: Tensor | None = None, **_: Any,
) -> AttentionInputs:  # fmt: skip
    """What transformers' models call as attention_interface, by the names that it gives them.

    On "sdpa" a mask that is None stands for causal, top-left, in a causal module; on "eager" it
    stands for nothing.
    """
    if any(part in name for part in FUSED):
        raise Unreadable(
            f"it runs on {name!r}, whose masks clearhead does not read; load the model with "
            'attn_implementation="sdpa"'
        )
    T, cross = query.shape[2], caller.cross or bool(getattr(module, "is_cross_attention", False))
    rule, kept = Rule(scale=_scale(module, query, scaling), softcap=softcap), 0
    if attention_mask is not None:
        mask = attention_mask[..., : key.shape[2]]
        rule, kept = _with_mask(rule, mask, query, key, cross, masks)
    elif name == "sdpa":
        asked = is_causal if is_causal is not None else getattr(module, "is_causal", True)
        if asked and T > 1:
            rule = replace(rule, causal=True, offset=0)
    if position_bias is not None:
        rule, more = _with_bias(rule, position_bias)
        kept += more
    sinks = s_aux if s_aux is not None else getattr(module, "sinks", None)
    if isinstance(sinks, Tensor) and sinks.ndim == 1 and len(sinks) == query.shape[1]:
        rule = replace(rule, sinks=sinks.detach())
    made = result[0].transpose(1, 2)
    B = made.shape[0]  # learned queries may have a batch of one
    q, k, v = (x.expand(B, -1, -1, -1) for x in (query, key, value))
    dropped = "dropout" if dropout > 0 and (name == "sdpa" or module.training) else None
    return AttentionInputs(q, k, v, rule, made, name, cross, unsure=dropped, mask_bytes=kept)


def _scale(module: nn.Module, query: Tensor, scaling: float | None) -> float:
    if scaling is not None:
        return float(scaling)
    size = getattr(module, "head_dim", None)
    return 1 / math.sqrt(size if isinstance(size, int) else query.shape[-1])


def _with_bias(rule: Rule, bias: Tensor) -> tuple[Rule, int]:
    """The rule with a bias more; one that is all zero says nothing."""
    bias = bias.detach()
    if not bias.any():
        return rule, 0
    if rule.bias is not None:
        bias = bias + rule.bias
    return replace(rule, bias=bias), bias.numel() * bias.element_size()


# Our own engine, and whoever tells us -------------------------------------------------------------


def of_engine(
    result: Attended | Tensor, caller: Caller, masks: MaskCache,
    q: Tensor, k: Tensor, v: Tensor | None = None, rule: Rule | None = None,
    *, dropout: float = 0.0, **_: Any,
) -> AttentionInputs:  # fmt: skip
    """clearhead's own attention(...) and output(...)."""
    made = result.out if isinstance(result, Attended) else result
    if v is None or made is None:
        raise Unreadable("it asks clearhead.attention for statistics only, v=None: there is no out")
    q, k, v, made = (x[(None,) * (4 - x.ndim)] for x in (q, k, v, made))
    dropped = "dropout" if dropout > 0 else None
    rule = Rule() if rule is None else rule
    return AttentionInputs(q, k, v, rule, made, "clearhead", caller.cross, unsure=dropped)


def of_output(out: Tensor, *given: Any, **more: Any) -> AttentionInputs:
    """clearhead's output(...), which returns nothing else."""
    return of_engine(out, *given, **more)


def of_weights(
    weights: Tensor, caller: Caller, masks: MaskCache, real: Tensor | None = None
) -> AttentionInputs:
    """The weights (B, H, T, S) that a model returned itself, as a call: q k' = 0, bias = log p.

    `real`, (B, T), is the model's own mask of padding, if it was given one.
    """
    (B, H, T, S), cross = weights.shape, caller.cross
    if T != S and not cross:
        raise Unreadable(
            f"the weights that it returns are {shape_of(weights)}: of some layout of its own, and "
            "not of every token for every token"
        )
    total = weights.double().sum(dim=-1)
    some = total > 0.5  # or a row that sees nothing
    lost = float((total - 1).abs()[some].max()) if bool(some.any()) else 1.0
    # Adding up S numbers in the model's dtype, each of them rounded.
    if lost > 4 * torch.finfo(weights.dtype).eps * max(S, 16) ** 0.5:
        raise Unreadable(f"the weights that it returns do not sum to 1: a row is off by {lost:.2g}")
    nothing = weights.new_zeros(B, 1, S, 1, dtype=torch.float32)
    bias = weights.detach().float().log()
    padded = real is not None and not cross and tuple(real.shape) == (B, T)
    rule = Rule(scale=1.0, bias=bias, query_mask=real if padded else None)
    return AttentionInputs(
        nothing.new_zeros(B, H, T, 1), nothing, nothing, rule, None, "its own weights", cross,
        unsure="the model's own weights", mask_bytes=bias.numel() * bias.element_size(),
    )  # fmt: skip


def check_told(told: object) -> AttentionInputs:
    """What an adapter returned. Raises TypeError or ValueError for what is no AttentionInputs."""
    if not isinstance(told, AttentionInputs):
        raise TypeError(f"an adapter returns clearhead.AttentionInputs; got {type(told).__name__}")
    shapes = ", ".join(f"{n} {shape_of(getattr(told, n))}" for n in ("q", "k", "v"))
    if any(x.ndim != 4 for x in (told.q, told.k, told.v)):
        raise ValueError(f"an adapter's q, k and v are (B, heads, tokens, size); got {shapes}")
    return told
