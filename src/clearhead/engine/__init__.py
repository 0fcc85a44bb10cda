"""The engine: exact attention with every diagnostic, in memory that grows with T and not with T².

`attention` is the door. It checks what comes in, once, and hands it to an implementation: the
native kernel (native.py, csrc/) or the tile loop in PyTorch (tiled.py). Implementations never
import each other, and an explicit request never falls back to another.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine import gradients, native, tiled
from clearhead.engine.inputs import as_four, check_inputs, is_tame, without_bad_keys
from clearhead.engine.rows import Rows
from clearhead.engine.tiles import Dropout, LogSum
from clearhead.rule import Rule

__all__ = ["Attended", "attention"]

IMPLEMENTATIONS = ("auto", "tiled", "native")


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

    impl      "tiled" for the tile loop in PyTorch, "native" for the compiled kernel, which needs
              tensors on the CPU and no dropout; "auto" is native where that can be, else tiled.
              Which one ran is in `.impl`
    received  also sum each key's weights: a second pass over the scores
    top       also find each row's top key: with "tiled" a second pass over the scores; "native"
              finds it in any case
    distance  also sum how far each row looks, and keep its scores of three keys (key_scores), in
              the same pass: HeadStats.of needs none of its own
    dropout   the probability that a weight does not reach `out`, where the others grow by
              1 / (1 - dropout); nothing else of the result notices. Drawn from torch's global
              random numbers

    Raises ValueError, naming every shape, for what does not fit.
    """
    rule = Rule() if rule is None else rule
    if not isinstance(rule, Rule):
        raise TypeError(
            f"rule must be a Rule, such as Rule(causal=True) or Rule(mask=mask); got "
            f"{type(rule).__name__}"
        )
    check_inputs(q, k, v)
    with _no_autocast(q):
        values = None if v is None else as_four(v)
        inputs = (as_four(q), as_four(k), values, rule.bias, rule.sinks)
        asked = _asked(inputs, rule, impl, True, dropout, distance)
        attended = _attend(inputs, asked, received, top)
    if q.ndim == 4:
        return attended
    lead = q.shape[:-2]  # as many leading axes as came in
    as_q = {
        name: x.reshape(*lead, *x.shape[2:])
        for name in ("out", *_ROWS, "received", "top_key", "distance", "key_scores")
        if (x := getattr(attended, name)) is not None
    }
    return replace(attended, **as_q)


def output(
    q: Tensor, k: Tensor, v: Tensor | None, rule: Rule | None = None, *,
    impl: str = "auto", dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """The `out` of `attention`, to the bit, and no figures: for models that nobody looks at."""
    check_inputs(q, k, v)
    if v is None:
        raise ValueError("output needs v; attention(q, k, None) has the figures alone")
    with _no_autocast(q):
        rule = Rule() if rule is None else rule
        inputs = (as_four(q), as_four(k), as_four(v), rule.bias, rule.sinks)
        out = _rows(inputs, _asked(inputs, rule, impl, False, dropout)).out
    assert out is not None
    return out.reshape(*q.shape[:-2], *out.shape[2:])


def _no_autocast(x: Tensor) -> AbstractContextManager[object]:
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


# What a call gives back, of which the first three have a gradient.
_NAMES = (
    "out", "lse", "entropy", "lse_low", "max_score", "mean_key", "visible", "distance",
    "key_scores", "top_key",
)  # fmt: skip
_ROWS = ("lse", "lse_low", "entropy", "max_score", "mean_key", "visible", "sink_mass")

# q, k, v, rule.bias, rule.sinks: what has a gradient
_Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


@dataclass(eq=False, slots=True)
class _Asked:
    """What is asked of some inputs, apart from them."""

    bound: BoundRule
    impl: str
    figures: bool
    dropout: Dropout | None
    distance: bool


def _asked(
    inputs: _Inputs, rule: Rule, impl: str, figures: bool, dropout: float, distance: bool = False
) -> _Asked:  # fmt: skip
    if impl not in IMPLEMENTATIONS:
        raise ValueError(f"impl must be one of {', '.join(IMPLEMENTATIONS)}; got {impl!r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
    q, k, *_ = inputs
    if impl != "tiled":
        hindrance = native.hindrance(inputs, rule, dropout)
        if impl == "native" and hindrance:
            raise ValueError(f"impl='native' {hindrance}; impl='tiled' computes this")
        impl = "tiled" if hindrance else "native"
    drop = Dropout(dropout, int(torch.randint(1 << 62, ()))) if dropout else None
    return _Asked(BoundRule(rule, q, k), impl, figures, drop, distance)


def _rows(inputs: _Inputs, asked: _Asked) -> Rows:
    """The rows of a call, part of a graph where there is to be one."""
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs):
        rows = _Attention.apply(*inputs, asked)  # type: ignore[no-untyped-call]
        return Rows(**dict(zip(_NAMES, rows, strict=True)))
    return _compute(inputs, asked)[0]


def _compute(inputs: _Inputs, asked: _Asked) -> tuple[Rows, Tensor, Tensor | None]:
    """The rows of a call, and its k and v without what is not finite."""
    (q, k, v, *_), bound = inputs, asked.bound
    q, k, v = _plain(q), _plain(k), None if v is None else _plain(v)
    if asked.impl == "native":
        rows, finite = native.forward(q, k, v, bound, asked.figures, asked.distance)
        if finite:
            return rows, k, v
    k, v, bad = without_bad_keys(k, v)
    if asked.impl == "native":
        rows, _ = native.forward(q, k, v, bound, asked.figures, asked.distance)
    else:
        bound.tame = is_tame(q, k, bound.scale)
        figures = asked.figures or not bound.tame
        rows = tiled.forward(q, k, v, bound, figures, asked.dropout, asked.distance)
        if not bound.tame and rows.visible is not None:  # all that it sees fell below float32
            rows.spoil((rows.visible > 0) & (rows.lse == -torch.inf) | rows.lse.isnan())
    if bad is not None:
        rows.spoil(tiled.rows_that_see(bad, bound))
    return rows, k, v


def _plain(x: Tensor) -> Tensor:
    return x.detach() if x.requires_grad else x


def _attend(inputs: _Inputs, asked: _Asked, received: bool, top: bool) -> Attended:
    rows, (q, k, *_), bound = _rows(inputs, asked), inputs, asked.bound
    logsum, top_key, sums = LogSum(rows.lse, rows.lse_low), rows.top_key, None
    assert rows.entropy is not None and rows.max_score is not None
    assert rows.mean_key is not None and rows.visible is not None
    sought = top and top_key is None
    if received or sought:
        with torch.no_grad():  # rows that see what is not finite are NaN by their lse
            k, _, _ = without_bad_keys(k, None)
            if received:
                kernel = native if asked.impl == "native" else tiled
                sums = kernel.column_sums(q, k, logsum, bound)
            if sought:
                top_key = tiled.top_keys(q, k, rows.max_score, bound)
    return Attended(
        rows.out, rows.lse, rows.lse_low, rows.entropy, rows.max_score, rows.mean_key,
        rows.visible, _sink_mass(logsum, bound), rule=bound.rule, n_keys=bound.S, impl=asked.impl,
        received=sums, top_key=top_key, distance=rows.distance, key_scores=rows.key_scores,
    )  # fmt: skip


def _sink_mass(lse: LogSum, bound: BoundRule) -> Tensor:
    if bound.sinks is None:
        return torch.zeros_like(lse.high)
    with torch.no_grad():
        return torch.exp(bound.sinks.to(lse.high)[:, None] - lse.base() - lse.low)


class _Attention(torch.autograd.Function):
    """out, lse and entropy with their gradients; the other rows are figures, not functions."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor | None, bias: Tensor | None,
        sinks: Tensor | None, asked: _Asked,
    ) -> tuple[Tensor | None, ...]:  # fmt: skip
        rows, clean_k, clean_v = _compute((q, k, v, bias, sinks), asked)
        # bias and sinks only so that a change in place is noticed
        ctx.save_for_backward(
            q, clean_k, clean_v, bias, sinks, rows.out, rows.lse, rows.lse_low, rows.entropy
        )
        ctx.asked = asked
        ctx.set_materialize_grads(False)  # a gradient that is not there stays None
        found = [getattr(rows, name) for name in _NAMES]
        ctx.mark_non_differentiable(*(x for x in found[3:] if x is not None))
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, d_entropy: Tensor | None, *_: Any
    ) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, out, lse, lse_low, entropy = ctx.saved_tensors
        asked: _Asked = ctx.asked
        rows, upstream = (out, LogSum(lse, lse_low), entropy), (d_out, d_lse, d_entropy)
        with _no_autocast(q):
            new = _gradients((q, k, v), rows, upstream, asked, bias=ctx.needs_input_grad[3])
        given = (q, k, v, asked.bound.rule.bias, asked.bound.rule.sinks)
        grads = (new.q, new.k, new.v, new.bias, new.sinks)
        return *(
            None if x is None or grad is None else grad.to(x.dtype)
            for x, grad in zip(given, grads, strict=True)
        ), None  # fmt: skip


def _gradients(
    inputs: tuple[Tensor, Tensor, Tensor | None],
    rows: tuple[Tensor | None, LogSum, Tensor | None],
    upstream: tuple[Tensor | None, Tensor | None, Tensor | None],
    asked: _Asked,
    bias: bool,
) -> gradients.Gradients:
    """As gradients.backward has it, which alone knows that of a bias."""
    bound = asked.bound
    if bias or asked.impl != "native":
        return gradients.backward(inputs, rows, upstream, bound, bias, asked.dropout)
    (out, logsum, entropy), (d_out, d_lse, d_entropy) = rows, upstream
    fixed = gradients.fixed_part((None, logsum, entropy), (None, d_lse, d_entropy))
    new = native.backward(*inputs, logsum, bound, out, d_out, fixed, d_entropy)
    sinks = None if bound.sinks is None else gradients.of_sinks(bound, logsum, fixed, d_entropy)
    return gradients.Gradients(*new, bias=None, sinks=sinks)
