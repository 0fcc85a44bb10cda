"""The tile loop in pure PyTorch: any Rule, any device, O(T) memory.

For a block of queries, one tile of keys after the other is absorbed into a Partial, and the weights
of a tile are forgotten as soon as they are summed up. gradients.py is the way back.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.picks import Picks
from clearhead.engine.rows import Rows
from clearhead.engine.tiles import (
    ELEMENTS,
    KEYS,
    Chunk,
    Dropout,
    LogSum,
    Scores,
    blocks,
    chunks,
    weights_,
)
from clearhead.softmax import Partial, absorb, empty, finish

DIAGONAL = 64  # rows of the squares along a diagonal
FEWEST = 16  # keys: with fewer, a product is summed in another order than the one that made lse


def forward(
    q: Tensor, k: Tensor, v: Tensor | None, bound: BoundRule,
    figures: bool = True, dropout: Dropout | None = None, distance: bool = False,
) -> Rows:  # fmt: skip
    """The rows of a call: q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) or None.

    Without `figures`, out and lse alone; `distance` brings key_scores along. Dropout touches out
    and nothing else.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    n_values = 0 if v is None else v.shape[-1]
    per_row = ["lse", "lse_low", *(("entropy", "max_score", "mean_key") if figures else ())]
    per_row += ["distance"] if distance else []
    result = {name: q.new_empty((bound.B, bound.H, bound.T), dtype=dtype) for name in per_row}
    visible = torch.empty_like(result["lse"]) if figures else None
    picks = Picks(bound, dtype) if distance else None
    if v is not None:
        result["out"] = q.new_empty((bound.B, bound.H, bound.T, n_values))
    positions = torch.arange(bound.S, dtype=dtype, device=q.device)
    for chunk in chunks(bound):
        scores = Scores(q, k, bound, chunk, rooms=2 if dropout is None else 3)
        values = None if v is None else scores.by_tile(v)
        sink = None if bound.sinks is None else bound.sinks[chunk.h, None]
        for i0, i1, tiles in blocks(bound, chunk):
            queries = scores.queries(i0, i1)
            part = empty((scores.n, queries.shape[1]), n_values, queries, distance)
            seen: int | Tensor = 0
            for j0, j1 in tiles:
                tile, hidden = scores.tile(queries, i0, i1, j0, j1)
                shape = tile.shape[1:]
                kept, apart, further = None, None, 0
                if dropout is not None:
                    kept = dropout.kept_(scores.room(2, *shape), chunk, i0, j0)
                if picks is not None:
                    apart, further = bound.apart(i0, i1, j0, j1, chunk.b, dtype)
                    picks.read(scores.by_head(tile, i1 - i0), hidden, chunk, i0, j0)
                absorb(
                    part, tile,
                    positions=positions[j0:j1] if figures else None,
                    values=None if values is None else values(j0, j1),
                    masked=hidden is not None or not bound.safe,
                    room=scores.room(1, *shape), kept=kept, apart=apart, further=further,
                )  # fmt: skip
                if figures:
                    seen = seen + (j1 - j0 if hidden is None else (~hidden).sum(dim=-1))
            done = finish(shaped(part, scores, i1 - i0), sink)
            where = (chunk.b, chunk.h, slice(i0, i1))
            for name, rows in result.items():
                rows[where] = getattr(done, name)
            if visible is not None:
                visible[where] = seen  # a number that all share, or (b, h, rows)
    return Rows(**result, visible=visible, key_scores=None if picks is None else picks.scores)


def shaped(part: Partial, scores: Scores, n_rows: int) -> Partial:
    """Stacked rows seen as (b, h, rows)."""
    m, l, u, c, o = (  # noqa: E741
        scores.by_head(x, n_rows) for x in (part.m, part.l, part.u, part.c, part.o)
    )
    return Partial(m, l, u, c, o, None if part.a is None else scores.by_head(part.a, n_rows))


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


def on_key(q: Tensor, k: Tensor, bound: BoundRule, lse: LogSum, j: int) -> Tensor:
    """Every row's weight on key j, (B, H, T), 0 where it does not see it. O(T D)."""
    weight = torch.zeros_like(lse.high)
    j0 = max(0, min(j, bound.S - FEWEST))
    j1 = min(j0 + FEWEST, bound.S)
    for chunk in chunks(bound):
        scores = Scores(q, k, bound, chunk)
        rows = max(chunk.rows, chunk.rows * KEYS // FEWEST)
        for i0 in range(0, bound.T, rows):
            i1 = min(i0 + rows, bound.T)
            first, last = bound.keys(i0, i1, chunk.b)
            if not first <= j < last:
                continue
            tile, hidden = scores.tile(scores.queries(i0, i1), i0, i1, j0, j1)
            tile = scores.by_head(tile, i1 - i0)
            hidden = None if hidden is None else hidden.expand(tile.shape)[..., j - j0, None]
            where = (chunk.b, chunk.h, slice(i0, i1))
            weight[where] = weights_(tile[..., j - j0, None], lse[where], hidden)[..., 0]
    return weight


def on_lag(q: Tensor, k: Tensor, bound: BoundRule, lse: LogSum, lag: int) -> Tensor:
    """Every row's weight on key i + offset - lag, (B, H, T), 0 where it sees none. O(T D)."""
    found = torch.full_like(lse.high, -torch.inf)
    seen = torch.zeros_like(found, dtype=torch.bool)
    every = Chunk(slice(0, bound.B), slice(0, bound.G), slice(0, bound.H), DIAGONAL)
    small = 0 < bound.B * bound.H * DIAGONAL**2 <= ELEMENTS
    for chunk in [every] if small else chunks(bound):
        for b in _alike(chunk.b, bound.offsets):  # an offset of its own is a diagonal of its own
            offset, scores = bound.offsets[b.start], Scores(q, k, bound, replace(chunk, b=b))
            first, last = max(0, lag - offset), min(bound.T, bound.S + lag - offset)
            for i1 in range(first + DIAGONAL, last + DIAGONAL, DIAGONAL):
                i1 = min(i1, last)
                i0 = max(first, i1 - DIAGONAL)  # the last of them is as tall as the others
                if i0 >= i1:
                    continue
                j0, j1 = i0 + offset - lag, i1 + offset - lag
                tile, hidden = scores.tile(scores.queries(i0, i1), i0, i1, j0, j1)
                where = (b, chunk.h, slice(i0, i1))
                tile = scores.by_head(tile, i1 - i0)
                found[where] = tile.diagonal(dim1=-2, dim2=-1)
                seen[where] = (
                    True if hidden is None
                    else ~hidden.expand(tile.shape).diagonal(dim1=-2, dim2=-1)
                )  # fmt: skip
    return weights_(found.unsqueeze(-1), lse, ~seen.unsqueeze(-1)).squeeze(-1)


def _alike(b: slice, per_batch: Sequence[int]) -> list[slice]:
    """The batch elements of a chunk in one piece if they have the same number, else each alone."""
    if len(set(per_batch[b])) < 2:
        return [b]
    return [slice(x, x + 1) for x in range(b.start, b.stop)]
