"""The gradients of attention, tile by tile: what the tile loop did, the other way round.

With lse known, every weight is known at once, p_ij = exp(s_ij - lse_i), and so is

    dL/ds_ij = p_ij (g_i . v_j - g_i . out_i + gl_i - gH_i (log p_ij + H_i))

for the gradients g of out, gl of lse and gH of the entropy. A learned sink is one more outcome,
with its logit for the score and no value. From there the chain goes back through bias, softcap and
scale to q and k. Nothing of size T x S is kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.tiles import Chunk, Dropout, LogSum, Scores, blocks, chunks
from clearhead.softmax import FAR, LN_2, LOG2_E


@dataclass(frozen=True, eq=False)
class Upstream:
    """What comes back into each row; (B, H, T) each and out (B, H, T, Dv). None is zero."""

    lse: LogSum  # the row's own
    out: Tensor | None  # g
    entropy: Tensor | None  # gH
    fixed: Tensor  # the same for every key of a row: g . out - gl + gH H
    spoiled: bool  # whether some rows or queries are NaN, which their hidden keys must not be
    dropout: Dropout | None  # what the way there dropped


@dataclass(eq=False)
class Gradients:
    """dL/d each input, in the accumulation's dtype; None for what is not there or not asked for."""

    q: Tensor
    k: Tensor
    v: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None


def backward(
    inputs: tuple[Tensor, Tensor, Tensor | None],
    rows: tuple[Tensor | None, LogSum, Tensor | None],
    upstream: tuple[Tensor | None, Tensor | None, Tensor | None],
    bound: BoundRule,
    bias: bool,
    dropout: Dropout | None = None,
) -> Gradients:
    """Gradients for q, k, v through (out, lse, entropy): the rows of the forward, what comes back.

    `bias` says whether the gradient of bound.rule.bias is wanted.
    """
    (q, k, v), (_, logsum, _), (d_out, _, d_entropy) = inputs, rows, upstream
    lse, fixed = logsum.high, fixed_part(rows, upstream)
    spoiled = bool(lse.isnan().any()) or not bool(q.isfinite().all())
    back = Upstream(logsum, None if v is None else d_out, d_entropy, fixed, spoiled, dropout)

    new = Gradients(
        q=torch.zeros_like(q, dtype=lse.dtype),
        k=torch.zeros_like(k, dtype=lse.dtype),
        v=None if v is None else torch.zeros_like(v, dtype=lse.dtype),
        bias=None,
        sinks=None,
    )
    if bias and bound.rule.bias is not None:
        new.bias = lse.new_zeros(bound.rule.bias.shape)
    for chunk in chunks(bound):
        _chunk_backward(
            Scores(q, k, bound, chunk, rooms=3 if dropout is None else 4), v, back, chunk, new
        )
    if bound.sinks is not None:
        new.sinks = of_sinks(bound, logsum, fixed, d_entropy)
    return new


def fixed_part(
    rows: tuple[Tensor | None, LogSum, Tensor | None],
    upstream: tuple[Tensor | None, Tensor | None, Tensor | None],
) -> Tensor:
    """What every key of a row has alike, g . out - gl + gH H: (B, H, T)."""
    (out, logsum, entropy), (d_out, d_lse, d_entropy) = rows, upstream
    fixed = torch.zeros_like(logsum.high)
    if d_out is not None and out is not None:
        fixed += (d_out.to(fixed.dtype) * out.to(fixed.dtype)).sum(dim=-1)
    if d_lse is not None:
        fixed -= d_lse
    if d_entropy is not None and entropy is not None:
        fixed += d_entropy * entropy
    return fixed


def of_sinks(bound: BoundRule, logsum: LogSum, fixed: Tensor, entropy: Tensor | None) -> Tensor:
    """The gradient of the sinks, (H,)."""
    assert bound.sinks is not None
    log_p = bound.sinks.to(fixed)[:, None] - logsum.base() - logsum.low  # (B, H, T)
    log_p.clamp_(min=FAR)
    d = -fixed if entropy is None else -fixed - entropy * log_p
    return (log_p.exp() * d).sum(dim=(0, 2))


def _chunk_backward(
    scores: Scores, v: Tensor | None, back: Upstream, chunk: Chunk, new: Gradients
) -> None:
    values = None if v is None else scores.by_tile(v)
    for i0, i1, tiles in blocks(scores.bound, chunk):
        rows = (chunk.b, chunk.h, slice(i0, i1))
        queries = scores.queries(i0, i1)
        d_queries = torch.zeros_like(queries)
        # p = r exp(s - lse.high): r goes to what comes back, which has one number a row, or Dv.
        lse = back.lse[rows]
        r, fixed, base = torch.exp(-lse.low), back.fixed[rows], lse.base().unsqueeze(-1)
        entropy = None if back.entropy is None else back.entropy[rows]
        if entropy is not None:
            fixed = fixed - entropy * lse.low
            entropy = (entropy * r).unsqueeze(-1)
        fixed = scores.stacked_rows((fixed * r).unsqueeze(-1))
        g = None if back.out is None else back.out[rows] * r.unsqueeze(-1)
        if g is not None:
            if back.spoiled:  # p is NaN there, where it is seen
                g = g.masked_fill(back.lse.high[rows].isnan().unsqueeze(-1), 0.0)
            g = scores.stacked_rows(g)
        for j0, j1 in tiles:
            keys = scores.keys(j0, j1)
            tile, hidden = scores.tile(queries, i0, i1, j0, j1)
            # log2 of p / r in place of the scores, p / r beside it
            log2_p = scores.by_head(tile, i1 - i0)
            log2_p.sub_(base).mul_(LOG2_E)
            if hidden is not None or not scores.bound.safe:
                log2_p.clamp_(min=FAR)
            p = torch.exp2(tile, out=scores.room(1, *tile.shape[1:]))
            if hidden is not None and back.spoiled:
                scores.by_head(p, i1 - i0).masked_fill_(hidden, 0.0)

            d = scores.room(2, *tile.shape[1:])
            if g is None or values is None or new.v is None:
                torch.neg(fixed.expand_as(d), out=d)
            else:
                torch.bmm(g, values(j0, j1).transpose(1, 2), out=d)
                arrived = p
                if back.dropout is not None:
                    room = scores.room(3, *tile.shape[1:])
                    kept = back.dropout.kept_(room, chunk, i0, j0)
                    d.mul_(kept)
                    arrived = kept.mul_(p)
                d.sub_(fixed)
                _add(new.v, chunk, j0, j1, torch.bmm(arrived.transpose(1, 2), g))
            d_scores = scores.by_head(d, i1 - i0)
            if entropy is not None:
                d_scores.addcmul_(log2_p, entropy, value=-LN_2)
            d.mul_(p)
            if hidden is not None and back.spoiled:
                d_scores.masked_fill_(hidden, 0.0)

            if new.bias is not None:
                where = (*rows, slice(j0, j1))
                _add_broadcast(new.bias, d_scores, where)
            cap = scores.bound.rule.softcap
            if cap is not None:  # the slope of c tanh(x / c) is 1 - tanh²(x / c)
                slope = torch.bmm(queries, keys.transpose(1, 2), out=p)
                d.mul_(slope.div_(cap).tanh_().square_().neg_().add_(1.0))
                if hidden is not None and back.spoiled:
                    d_scores.masked_fill_(hidden, 0.0)
            d_queries.baddbmm_(d, keys)
            whole = queries.masked_fill(~queries.isfinite(), 0.0) if back.spoiled else queries
            _add(new.k, chunk, j0, j1, torch.bmm(d.transpose(1, 2), whole))  # scaled already
        new.q[rows] = scores.by_head(d_queries.mul_(scores.bound.scale), i1 - i0)


def _add(total: Tensor, chunk: Chunk, j0: int, j1: int, stacked: Tensor) -> None:
    """Add (b * g, keys, n) to its place in (B, G, S, n)."""
    place = total[chunk.b, chunk.g, j0:j1]
    place += stacked.view(place.shape)


def _add_broadcast(total: Tensor, tile: Tensor, where: tuple[slice, ...]) -> None:
    """Add a tile (b, h, rows, keys) to a bias that may be broadcast along any axis."""
    padded = total[(None,) * (4 - total.ndim)]
    broadcast = tuple(axis for axis, size in enumerate(padded.shape) if size == 1)
    place = padded[tuple(slice(None) if a in broadcast else s for a, s in enumerate(where))]
    place += tile.sum(dim=broadcast, keepdim=True) if broadcast else tile
