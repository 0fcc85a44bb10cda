"""Tiles: the scores of some queries for some keys, exactly, and how a call is cut into them.

Every weight that clearhead computes outside of scratch.py comes out of `Scores.tile`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.softmax import LOG2_E

ELEMENTS = 1 << 19  # scores in a tile, over all its heads: 2 MiB in float32
KEYS = 256  # keys in a tile, if its queries are not few
TALL = 1024  # queries of one head in a tile at most: more would waste much along a diagonal
WHOLE = 128  # few queries: not worth a second tile, though a diagonal hides half of the first


@dataclass(frozen=True)
class Chunk:
    """Heads that are worked on together: batch elements b and key heads g, with query heads h."""

    b: slice
    g: slice
    h: slice
    rows: int  # queries in a tile


def chunks(bound: BoundRule) -> Iterator[Chunk]:
    """Cut a call into chunks whose tiles hold about ELEMENTS scores each.

    Many heads in one product when the sequences are short, fewer when they are long.
    """
    if not (bound.B and bound.H and bound.T):
        return
    group = bound.H // bound.G
    budget = max(1, ELEMENTS // max(1, min(bound.S, KEYS)))  # rows of a tile, all heads
    each = group * min(bound.T, 128)  # rows that a key head brings along, at least
    n_heads = max(1, budget // max(each, 1))
    n_batches = max(1, min(n_heads // bound.G, bound.B))
    n_heads = min(n_heads, bound.G)
    rows = max(1, min(bound.T, TALL, budget // (n_batches * n_heads * group)))
    if rows == bound.T > WHOLE and bound.after is not None:
        rows = (rows + 1) // 2
    for b in range(0, bound.B, n_batches):
        for g in range(0, bound.G, n_heads):
            last = min(g + n_heads, bound.G)
            yield Chunk(
                b=slice(b, min(b + n_batches, bound.B)),
                g=slice(g, last),
                h=slice(g * group, last * group),
                rows=rows,
            )


def blocks(
    bound: BoundRule, chunk: Chunk,
    rows: tuple[int, int] | None = None, cols: tuple[int, int] | None = None,
) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:  # fmt: skip
    """Each block of queries i0:i1 with the tiles of keys j0:j1 that it can see at all.

    Of the whole map, or of some of its rows and columns.
    """
    start, stop = rows or (0, bound.T)
    left, right = cols or (0, bound.S)
    for i0 in range(start, stop, chunk.rows):
        i1 = min(i0 + chunk.rows, stop)
        first, last = bound.keys(i0, i1, chunk.b)
        first, last = max(first, left), min(last, right)
        step = width(chunk, i1 - i0)
        yield i0, i1, [(j, min(j + step, last)) for j in range(first, last, step)]


def width(chunk: Chunk, n_rows: int) -> int:
    """The keys in a tile of so many queries: what a tile costs beside its scores, few share."""
    n = (chunk.b.stop - chunk.b.start) * (chunk.h.stop - chunk.h.start) * n_rows
    return KEYS if n_rows > WHOLE else max(KEYS, ELEMENTS // n // KEYS * KEYS)


@dataclass(frozen=True)
class Dropout:
    """Which weights are dropped: drawn tile by tile, and drawn again alike on the way back."""

    p: float
    seed: int

    def kept_(self, room: Tensor, chunk: Chunk, i0: int, j0: int) -> Tensor:
        """1 / (1 - p) for weights that are kept and 0 for those that are dropped, in `room`."""
        tile = chunk.b.start, chunk.h.start, i0, j0
        stream = torch.Generator(room.device).manual_seed(hash((self.seed, *tile)) % (1 << 63))
        return room.bernoulli_(1 - self.p, generator=stream).div_(1 - self.p)


class Scores:
    """The scores of one chunk, tile by tile, in float32 (float64 for float64).

    q (b, h, T, D) and k (b, g, S, D) are the chunk's own. A tile's matrices are stacked by key
    head, (b * g, group * rows, keys): the query heads of a group share their keys unexpanded.
    """

    def __init__(
        self, q: Tensor, k: Tensor, bound: BoundRule, chunk: Chunk, rooms: int = 1
    ) -> None:
        self.bound, self.chunk = bound, chunk
        self.q = torch.unflatten(q[chunk.b, chunk.h], 1, (-1, bound.H // bound.G))  # by group
        self.k = k[chunk.b, chunk.g]  # (b, g, S, D)
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.n_batches, self.n_heads = q[chunk.b, chunk.h].shape[:2]
        self.n = self.n_batches * self.k.shape[1]  # matrices in a stack
        # All rooms in one piece: the C library keeps one that it has given out before, where it
        # hands two back to the system each time, to be faulted in again, page by page.
        self._space = self.k.new_empty((rooms, 0), dtype=self.dtype)
        self._rooms: dict[tuple[int, int, int], Tensor] = {}
        self.keys = self.by_tile(k)

    def queries(self, i0: int, i1: int) -> Tensor:
        """Scaled queries, (b * g, group * rows, D)."""
        block = self.q[:, :, :, i0:i1].to(self.dtype) * self.bound.scale
        return block.reshape(self.n, -1, block.shape[-1])

    def stacked_rows(self, per_row: Tensor) -> Tensor:
        """(b, h, rows, n) as (b * g, group * rows, n)."""
        n_rows = per_row.shape[0] * per_row.shape[1] * per_row.shape[2] // max(self.n, 1)
        return per_row.to(self.dtype).reshape(self.n, n_rows, per_row.shape[-1])

    def by_tile(self, per_key: Tensor) -> Callable[[int, int], Tensor]:
        """What gives j0:j1 of the chunk's keys or values (B, G, S, n) as (b * g, keys, n).

        A view where layout and dtype allow it; a copy of those keys alone where they do not.
        """
        mine = per_key[self.chunk.b, self.chunk.g]
        if mine.dtype == self.dtype and (len(mine) == 1 or mine.is_contiguous()):
            stack = mine.flatten(0, 1)
            return lambda j0, j1: stack[:, j0:j1]
        dtype = self.dtype  # a function that held on to self would keep its rooms from being freed
        return lambda j0, j1: mine[:, :, j0:j1].to(dtype).flatten(0, 1)

    def tile(
        self, queries: Tensor, i0: int, i1: int, j0: int, j1: int
    ) -> tuple[Tensor, Tensor | None]:
        """Scores, stacked, with -inf where hidden, and (b, h, rows, keys) where that is.

        None in place of the second where nothing is hidden. The scores lie in a buffer that the
        next call uses again.
        """
        scores = self.room(0, queries.shape[1], j1 - j0)
        torch.bmm(queries, self.keys(j0, j1).transpose(1, 2), out=scores)
        where = (i0, i1, j0, j1, self.chunk.b, self.chunk.h)
        if not self.bound.plain:
            self.bound.shape_scores_(self.by_head(scores, i1 - i0), *where)
        return scores, self.bound.hide_(self.by_head(scores, i1 - i0), *where)

    def by_head(self, stacked: Tensor, n_rows: int) -> Tensor:
        """(b * g, group * rows, ...) seen as (b, h, rows, ...)."""
        return stacked.view(self.n_batches, self.n_heads, n_rows, *stacked.shape[2:])

    def room(self, which: int, n_rows: int, n_keys: int) -> Tensor:
        """An uninitialized tile (b * g, rows, keys), in the space number `which` of this object."""
        room = self._rooms.get((which, n_rows, n_keys))
        if room is None:
            size = self.n * n_rows * n_keys
            if self._space.shape[1] < size:
                self._rooms.clear()
                self._space = self.k.new_empty((len(self._space), size), dtype=self.dtype)
            room = self._space[which, :size].view(self.n, n_rows, n_keys)
            self._rooms[which, n_rows, n_keys] = room
        return room


@dataclass(frozen=True, eq=False)
class LogSum:
    """The lse of rows in two parts, high + low: where scores are large, float32 rounds it coarsely.

    low is 0 where only a rounded lse is known; then weights are off by |lse| 6e-8 of themselves.
    """

    high: Tensor
    low: Tensor

    def __getitem__(self, where: Any) -> "LogSum":
        return LogSum(self.high[where], self.low[where])

    def base(self) -> Tensor:
        """high, with 0 for rows that see nothing."""
        return self.high.masked_fill(self.high == -torch.inf, 0.0)


def weights_(scores: Tensor, lse: LogSum, hidden: Tensor | None) -> Tensor:
    """p = exp(s - lse) in place of the scores; lse has one axis less. Rows of lse -inf give 0."""
    scores.sub_(lse.base().unsqueeze(-1))
    low = (lse.low * -LOG2_E).unsqueeze(-1)
    p = torch.addcmul(low, scores, low.new_tensor(LOG2_E), out=scores).exp2_()
    return p if hidden is None else p.masked_fill_(hidden, 0.0)
