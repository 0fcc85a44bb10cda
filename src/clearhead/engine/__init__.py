"""The engine: exact attention with every diagnostic, in memory that grows with T and not with T².

`attention` is the door. It checks what comes in, once, and hands it to an implementation;
implementations never import each other, and an explicit request never falls back to another.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine import gradients, tiled
from clearhead.engine.tiles import Dropout, LogSum
from clearhead.rule import Rule

__all__ = ["Attended", "attention"]

IMPLEMENTATIONS = ("auto", "tiled")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, eq=False)
class Attended:
    """One call of attention: the output and what each row did, with the leading axes of q.

    out          (B, H, T, Dv) in the inputs' dtype; None without values
    lse          log sum_j exp(s_ij), the one number that fixes a row: p_ij = exp(s_ij - lse_i)
    lse_low      what rounding took from lse; it matters where scores are large: at 1e9 the last
                 digit of a float32 is worth 64
    entropy      -sum p log p in nats, a learned sink being one more outcome
    max_score    the largest score, the sink left out
    mean_key     sum_j p_ij j, the expected key position; not renormalized
    visible      how many keys the row sees
    sink_mass    the weight of the learned sink, 0 without one
    received     (B, H, S) sum of each key's weights over the real queries, when asked for
    top_key      the key of the largest score, the lowest of equals, when asked for
    distance     sum_j p_ij |i + offset - j| / (1 - sink_mass), in keys, when asked for
    key_scores   (B, H, T, 3) the scores of the first key of the query's own document, of the key
                 before its own and of its own, with the distance; NaN where it sees no such key

    Each is (B, H, T), float32 (float64 for float64), top_key int64. Rows of padding are there like
    all others: average with HeadStats.of, which leaves them out. A row that sees nothing: out,
    entropy, mean_key, visible, sink_mass and distance 0, lse and max_score -inf, top_key -1; with a
    sink, lse is its logit and sink_mass 1. A row that sees a NaN or an infinity is NaN throughout.
    """

    out: Tensor | None
    lse: Tensor
    lse_low: Tensor
    entropy: Tensor
    max_score: Tensor
    mean_key: Tensor
    visible: Tensor
    sink_mass: Tensor
    rule: Rule
    n_keys: int
    impl: str
    received: Tensor | None = None
    top_key: Tensor | None = None
    distance: Tensor | None = None
    key_scores: Tensor | None = None

    def __repr__(self) -> str:
        """The shapes; printed numbers of a call are pages."""
        shapes = (f"{n} {tuple(x.shape)}" for n, x in vars(self).items() if isinstance(x, Tensor))
        return f"Attended({', '.join(shapes)}, {self.rule}, impl={self.impl!r})"

    @property
    def max_prob(self) -> Tensor:
        """The largest weight of each row, the sink left out; 0 where nothing is seen. A figure,
        without a gradient."""
        p = torch.exp(self.max_score - self.lse.detach() - self.lse_low)
        return p.masked_fill(self.visible == 0, 0.0)

    @property
    def key_weights(self) -> Tensor | None:
        """The weights whose scores are key_scores, (B, H, T, 3), NaN where it sees no such key.

        Relative to the row's largest, which keeps the digits of their ratios where a sink takes
        nearly all.
        """
        if self.key_scores is None:
            return None
        relative = torch.exp(self.key_scores - self.max_score.unsqueeze(-1))
        return relative * self.max_prob.unsqueeze(-1)

    @property
    def normalized_entropy(self) -> Tensor:
        """Entropy over log(number of outcomes), in 0..1; 0 where there are fewer than two."""
        outcomes = self.visible + (self.rule.sinks is not None)
        few = outcomes < 2
        share = self.entropy / outcomes.masked_fill(few, 2).log()
        return share.clamp(max=1.0).masked_fill(few, 0.0)

    @property
    def effective_keys(self) -> Tensor:
        """exp(entropy): this many equal keys would have the same entropy; 0 if nothing is seen."""
        return self.entropy.exp().masked_fill(self.visible == 0, 0.0)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    rule: Rule | None = None,
    *,
    impl: str = "auto",
    received: bool = False,
    top: bool = False,
    distance: bool = False,
    dropout: float = 0.0,
) -> Attended:
    """Exact attention under a Rule, with the diagnostics of every row.

        p_ij = exp(s_ij - lse_i)    out_i = sum_j p_ij v_j    H_i = -sum_j p_ij log p_ij

        a = attention(q, k, v, Rule(causal=True))       a.out, a.entropy, a.max_prob, ...

    q is (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) or None for statistics only, at half the
    work. H must be a multiple of G: query head h reads key head h // (H/G), which is not expanded.
    Heads come before tokens, x.view(B, T, H, D).transpose(1, 2); 3-D inputs are (H, T, D), not
    (B, T, d_model), and 2-D (T, D). Any strides, any device; empty axes are fine. Nothing is causal
    unless the rule says so.

    Sums in float32 for float32, float16 and bfloat16, in float64 for float64; autocast is off
    inside. Differentiable, once, in q, k, v, rule.bias and rule.sinks through out, lse and entropy:
    tiles are computed again on the way back. The same input gives the same bits. It works under
    torch.compile and breaks the graph there, which gains nothing: torch.compiler.disable keeps the
    compiler out. Sums over keys must fit the dtype: S |v| below 3e38.

    impl      "auto", or "tiled" for the tile loop in PyTorch; which one ran is in `.impl`
    received  also sum each key's weights: a second pass over the scores
    top       also find each row's top key: a second pass over the scores
    distance  also sum how far each row looks, and keep its scores of three keys (key_scores), in
              the same pass: HeadStats.of needs none of its own
    dropout   the probability that a weight does not reach `out`, where the others grow by
              1 / (1 - dropout); nothing else of the result notices. Drawn from torch's global
              random numbers

    Raises ValueError, naming every shape, for what does not fit.
    """
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {', '.join(IMPLEMENTATIONS)}; got {impl!r}")
    rule = Rule() if rule is None else rule
    if not isinstance(rule, Rule):
        raise TypeError(
            f"rule must be a Rule, such as Rule(causal=True) or Rule(mask=mask); got "
            f"{type(rule).__name__}"
        )
    check_inputs(q, k, v)
    with torch.autocast(q.device.type, enabled=False):
        values = None if v is None else as_four(v)
        inputs, asked = _bind(as_four(q), as_four(k), values, rule, True, dropout, distance)
        attended = _attend(inputs, asked, received, top)
    lead = q.shape[:-2]  # as many leading axes as came in
    as_q = {
        name: x.reshape(*lead, *x.shape[2:])
        for name in ("out", *_ROWS, "received", "top_key", "distance", "key_scores")
        if (x := getattr(attended, name)) is not None
    }
    return replace(attended, **as_q)


def output(
    q: Tensor, k: Tensor, v: Tensor | None, rule: Rule | None = None, *, dropout: float = 0.0
) -> Tensor:
    """The `out` of `attention`, to the bit, and no figures: for models that nobody looks at."""
    check_inputs(q, k, v)
    if v is None:
        raise ValueError("output needs v; attention(q, k, None) has the figures alone")
    with torch.autocast(q.device.type, enabled=False):
        rule = Rule() if rule is None else rule
        inputs, asked = _bind(as_four(q), as_four(k), as_four(v), rule, False, dropout)
        out: Tensor = _Attention.apply(*inputs, asked)[0]  # type: ignore[no-untyped-call]
    return out.reshape(*q.shape[:-2], *out.shape[2:])


_ROWS = ("lse", "lse_low", "entropy", "max_score", "mean_key", "visible", "sink_mass")

# q, k, v, rule.bias, rule.sinks: what has a gradient
_Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is asked of some inputs, apart from them."""

    bound: BoundRule
    bad: Tensor | None  # keys that are not finite, (B, G, S), where there are any
    figures: bool
    dropout: Dropout | None
    distance: bool = False


def _bind(
    q: Tensor, k: Tensor, v: Tensor | None, rule: Rule, figures: bool, dropout: float,
    distance: bool = False,
) -> tuple[_Inputs, _Asked]:  # fmt: skip
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
    bound = BoundRule(rule, q, k)
    k, v, bad = _without_bad_keys(k, v)
    bound.tame = _tame(q, k, bound.scale)
    drop = Dropout(dropout, int(torch.randint(1 << 62, ()))) if dropout else None
    return (q, k, v, rule.bias, rule.sinks), _Asked(bound, bad, figures, drop, distance)


def _attend(inputs: _Inputs, asked: _Asked, received: bool, top: bool) -> Attended:
    out, *rows = _Attention.apply(*inputs, asked)  # type: ignore[no-untyped-call]
    lse, entropy, lse_low, max_score, mean_key, visible, far, key_scores = rows
    (q, k, *_), bound = inputs, asked.bound
    with torch.no_grad():
        logsum = LogSum(lse, lse_low)
        sink_mass = torch.zeros_like(lse)
        if bound.sinks is not None:
            sinks = bound.sinks.to(lse)[:, None]
            sink_mass = torch.exp(sinks - logsum.base() - lse_low)
        return Attended(
            out, lse, lse_low, entropy, max_score, mean_key, visible, sink_mass,
            rule=bound.rule, n_keys=bound.S, impl="tiled",
            received=tiled.column_sums(q, k, logsum, bound) if received else None,
            top_key=tiled.top_keys(q, k, max_score, bound) if top else None,
            distance=far, key_scores=key_scores,
        )  # fmt: skip


class _Attention(torch.autograd.Function):
    """out, lse and entropy with their gradients; the other rows are figures, not functions."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor | None, bias: Tensor | None,
        sinks: Tensor | None, asked: _Asked,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        bound = asked.bound
        figures = asked.figures or not bound.tame
        rows = tiled.forward(q, k, v, bound, figures, asked.dropout, asked.distance)
        if asked.bad is not None:
            rows.spoil(tiled.rows_that_see(asked.bad, bound))
        if not bound.tame and rows.visible is not None:  # all that it sees fell below float32
            rows.spoil((rows.visible > 0) & (rows.lse == -torch.inf) | rows.lse.isnan())
        # bias and sinks only so that a change in place is noticed
        ctx.save_for_backward(q, k, v, bias, sinks, rows.out, rows.lse, rows.lse_low, rows.entropy)
        ctx.asked = asked
        ctx.set_materialize_grads(False)  # a gradient that is not there stays None
        rest = (
            rows.lse_low, rows.max_score, rows.mean_key, rows.visible, rows.distance,
            rows.key_scores,
        )  # fmt: skip
        ctx.mark_non_differentiable(*(x for x in rest if x is not None))
        return rows.out, rows.lse, rows.entropy, *rest

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_entropy: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, out, lse, lse_low, entropy = ctx.saved_tensors
        asked: _Asked = ctx.asked
        with torch.autocast(q.device.type, enabled=False):
            new = gradients.backward(
                (q, k, v), (out, LogSum(lse, lse_low), entropy), (d_out, d_lse, d_entropy),
                asked.bound, bias=ctx.needs_input_grad[3], dropout=asked.dropout,
            )  # fmt: skip
        given = (q, k, v, asked.bound.rule.bias, asked.bound.rule.sinks)
        grads = (new.q, new.k, new.v, new.bias, new.sinks)
        return *(
            None if x is None or grad is None else grad.to(x.dtype)
            for x, grad in zip(given, grads, strict=True)
        ), None  # fmt: skip


# What comes in ------------------------------------------------------------------------------------


def check_inputs(q: Tensor, k: Tensor, v: Tensor | None) -> None:
    """Raise ValueError, naming every shape, where q, k and v do not fit (TypeError: no tensors)."""
    given: dict[str, Any] = {"q": q, "k": k} if v is None else {"q": q, "k": k, "v": v}
    if strange := [n for n, x in given.items() if not isinstance(x, Tensor)]:
        kinds = ", ".join(f"{name} is a {type(given[name]).__name__}" for name in strange)
        raise TypeError(f"q, k and v must be torch tensors; {kinds}")
    seen = ", ".join(f"{name} {list(x.shape)}" for name, x in given.items())
    if q.ndim not in (2, 3, 4) or any(x.ndim != q.ndim for x in given.values()):
        raise ValueError(f"q, k and v must all be (T, D), (H, T, D) or (B, H, T, D); got {seen}")
    for what in ("dtype", "device"):
        found = {name: getattr(x, what) for name, x in given.items()}
        if len(set(found.values())) > 1:
            raise ValueError(f"q, k and v must share one {what}; got {found}")
    if q.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"q, k and v must hold floats ({known}); got {q.dtype}")
    if q.shape[-1] != k.shape[-1] or q.shape[-1] < 1:
        raise ValueError(
            f"q has head size {q.shape[-1]} and k {k.shape[-1]}: they must be equal and at least 1 "
            f"({seen})"
        )
    if v is not None and v.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"k and v must agree in all but the last axis; got {seen}")
    if q.ndim == 4 and q.shape[0] != k.shape[0]:
        raise ValueError(f"q has batch size {q.shape[0]} but k has {k.shape[0]} ({seen})")
    if q.ndim > 2 and not k.shape[-3]:
        raise ValueError(f"k must have at least one head; got {seen}")
    if q.ndim > 2 and q.shape[-3] % k.shape[-3]:
        raise ValueError(
            f"k has {k.shape[-3]} heads but q has {q.shape[-3]}: query heads must be a multiple of "
            f"key heads ({seen})"
        )


def as_four(x: Tensor) -> Tensor:
    """(T, D) or (H, T, D) as (1, H, T, D)."""
    return x[(None,) * (4 - x.ndim)]


def _tame(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether no product of a query and a key, nor a part of it, can overflow float32."""
    if not (q.numel() and k.numel()):
        return False
    largest = [max(abs(end.item()) for end in x.detach().aminmax()) for x in (q, k)]
    return largest[0] * largest[1] * max(abs(scale), 1.0) * q.shape[-1] < 1e37


def _without_bad_keys(k: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
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
