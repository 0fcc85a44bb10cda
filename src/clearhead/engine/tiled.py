"""The tile loop in pure PyTorch: any Rule, any device, O(T) memory.

For a block of queries, one tile of keys after the other is absorbed into a Partial, and the weights
of a tile are forgotten as soon as they are summed up. gradients.py is the way back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.tiles import Dropout, LogSum, Scores, blocks, chunks, weights_
from clearhead.softmax import Partial, absorb, empty, finish


@dataclass(eq=False)
class Rows:
    """Per-row results of a call, each (B, H, T) in the accumulation's dtype; out (B, H, T, Dv).

    None is what was not asked for.
    """

    lse: Tensor
    lse_low: Tensor
    out: Tensor | None = None
    entropy: Tensor | None = None
    max_score: Tensor | None = None
    mean_key: Tensor | None = None
    visible: Tensor | None = None

    def spoil(self, bad: Tensor) -> None:
        """Make the rows of `bad` (B, H, T) NaN."""
        for x in (self.lse, self.entropy, self.max_score, self.mean_key):
            if x is not None:
                x.masked_fill_(bad, torch.nan)
        if self.out is not None:
            self.out.masked_fill_(bad[..., None], torch.nan)


def forward(
    q: Tensor, k: Tensor, v: Tensor | None, bound: BoundRule,
    figures: bool = True, dropout: Dropout | None = None,
) -> Rows:  # fmt: skip
    """The rows of a call: q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) or None.

    Without `figures`, out and lse alone. Dropout touches out and nothing else.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    n_values = 0 if v is None else v.shape[-1]
    per_row = ["lse", "lse_low", *(("entropy", "max_score", "mean_key") if figures else ())]
    result = {name: q.new_empty((bound.B, bound.H, bound.T), dtype=dtype) for name in per_row}
    visible = torch.empty_like(result["lse"]) if figures else None
    if v is not None:
        result["out"] = q.new_empty((bound.B, bound.H, bound.T, n_values))
    positions = torch.arange(bound.S, dtype=dtype, device=q.device)
    for chunk in chunks(bound):
        scores = Scores(q, k, bound, chunk, rooms=2 if dropout is None else 3)
        values = None if v is None else scores.by_tile(v)
        sink = None if bound.sinks is None else bound.sinks[chunk.h, None]
        for i0, i1, tiles in blocks(bound, chunk):
            queries = scores.queries(i0, i1)
            part = empty((scores.n, queries.shape[1]), n_values, queries)
            seen: int | Tensor = 0
            for j0, j1 in tiles:
                tile, hidden = scores.tile(queries, i0, i1, j0, j1)
                shape = tile.shape[1:]
                kept = None
                if dropout is not None:
                    kept = dropout.kept_(scores.room(2, *shape), chunk, i0, j0)
                absorb(
                    part, tile,
                    positions=positions[j0:j1] if figures else None,
                    values=None if values is None else values(j0, j1),
                    masked=hidden is not None or not bound.safe,
                    room=scores.room(1, *shape), kept=kept,
                )  # fmt: skip
                if figures:
                    seen = seen + (j1 - j0 if hidden is None else (~hidden).sum(dim=-1))
            done = finish(shaped(part, scores, i1 - i0), sink)
            where = (chunk.b, chunk.h, slice(i0, i1))
            for name, rows in result.items():
                rows[where] = getattr(done, name)
            if visible is not None:
                visible[where] = seen  # a number that all share, or (b, h, rows)
    return Rows(**result, visible=visible)


def shaped(part: Partial, scores: Scores, n_rows: int) -> Partial:
    """Stacked rows seen as (b, h, rows)."""
    m, l, u, c, o = (  # noqa: E741
        scores.by_head(x, n_rows) for x in (part.m, part.l, part.u, part.c, part.o)
    )
    return Partial(m, l, u, c, o)


def column_sums(q: Tensor, k: Tensor, lse: LogSum, bound: BoundRule) -> Tensor:
    """sum_i p_ij over the real queries: what each key receives, (B, H, S). A second pass."""
    received = lse.high.new_zeros((bound.B, bound.H, bound.S))
    real = bound.query_mask
    for chunk in chunks(bound):
        scores = Scores(q, k, bound, chunk)
        mine = received[chunk.b, chunk.h]
        for i0, i1, tiles in blocks(bound, chunk):
            queries = scores.queries(i0, i1)
            row_lse = lse[chunk.b, chunk.h, i0:i1]
            for j0, j1 in tiles:
                tile, hidden = scores.tile(queries, i0, i1, j0, j1)
                p = weights_(scores.by_head(tile, i1 - i0), row_lse, hidden)
                if real is not None:
                    p.masked_fill_(~real[chunk.b, None, i0:i1, None], 0.0)
                mine[..., j0:j1] += p.sum(dim=2)
    return received


def top_keys(q: Tensor, k: Tensor, max_score: Tensor, bound: BoundRule) -> Tensor:
    """The key of each row's largest score, the lowest of equals, -1 where none is seen. A pass."""
    top = torch.full_like(max_score, -1, dtype=torch.int64)
    for chunk in chunks(bound):
        scores = Scores(q, k, bound, chunk)
        for i0, i1, tiles in blocks(bound, chunk):
            queries = scores.queries(i0, i1)
            where = (chunk.b, chunk.h, slice(i0, i1))
            found, largest = top[where], max_score[where].unsqueeze(-1)
            for j0, j1 in tiles:
                tile, _ = scores.tile(queries, i0, i1, j0, j1)
                at = scores.by_head(tile, i1 - i0) == largest
                here = at.any(dim=-1) & (found < 0) & (largest[..., 0] > -torch.inf)
                found[here] = at.to(torch.uint8).argmax(dim=-1)[here] + j0
            top[where] = found
    return top


def rows_that_see(keys: Tensor, bound: BoundRule) -> Tensor:
    """Which rows (B, H, T) see any of the `keys` (B, G, S)."""
    sees = keys.new_zeros((bound.B, bound.H, bound.T))
    for chunk in chunks(bound):
        mine = keys[chunk.b, chunk.g].repeat_interleave(bound.H // bound.G, dim=1)[:, :, None]
        for i0, i1, tiles in blocks(bound, chunk):
            for j0, j1 in tiles:
                found = mine[..., j0:j1]
                hidden = bound.hidden(i0, i1, j0, j1, chunk.b, chunk.h)
                found = found if hidden is None else found & ~hidden
                sees[chunk.b, chunk.h, i0:i1] |= found.any(dim=-1)
    return sees
