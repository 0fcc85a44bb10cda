"""The attention map that nobody stores: any part of it, exactly, from q, k and one number a row.

    p_ij = exp(s_ij - lse_i)

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import EllipsisType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from clearhead import cells
from clearhead.bound import BoundRule
from clearhead.cells import Pooled, Span
from clearhead.engine import Attended, attention, inputs, lines, tiled
from clearhead.engine.tiles import (
    ELEMENTS,
    KEYS,
    TALL,
    Chunk,
    LogSum,
    Scores,
    weights_,
)
from clearhead.rule import Rule

Index = int | slice | EllipsisType
Indices = Index | tuple[Index, ...]

ROWS = 8192  # queries in a tile at most: scaled, they are copied
DIAGONAL = tiled.DIAGONAL  # rows of the squares along one

Method = TypeVar("Method", bound=Callable[..., object])


def _figures(method: Method) -> Method:
    """Run without gradients and without autocast."""

    @wraps(method)
    def run(self: "AttentionMap", *args: Any, **kwargs: Any) -> object:
        with torch.no_grad(), torch.autocast(self._q.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return cast(Method, run)


class AttentionMap:
    """The weights of a call of attention, computed where somebody looks: a lazy (B, H, T, S).

        m[b, h, i, j] = exp(s_ij - lse_i)        m.scores[b, h, i, j] = s_ij

    q is (B, H, T, D), k (B, G, S, D), or both 3-D or 2-D as `attention` takes them; the map has the
    leading axes of q. They may lie in memory-mapped files: they are not copied, and only what a
    tile needs is read. lse is what `attention(q, k, v, rule)` returned, or its lse alone, by which
    weights are off by 6e-8 |lse| of themselves; without it, a row's is computed when a weight of
    the row is first asked for, and kept.

    Indices are integers, slices with any step and one Ellipsis; a result of more than `max_bytes`
    is refused before it is allocated. Results are float32 (float64 for float64), without gradient.
    A hidden key has weight 0 and score -inf; a row that sees a NaN or an infinity is NaN where it
    sees anything.

    Raises ValueError for shapes that do not fit and for too large a result, IndexError for an
    index outside of the map, TypeError for what is no index.
    """

    def __init__(
        self, q: Tensor, k: Tensor, rule: Rule | None = None, lse: Attended | Tensor | None = None,
        *, max_bytes: int = 1 << 30,
    ) -> None:  # fmt: skip
        inputs.check_inputs(q, k, None)
        self.rule = Rule() if rule is None else rule
        self.shape: tuple[int, ...] = (*q.shape[:-1], k.shape[-2])
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.max_bytes = max_bytes
        self._q, self._k = inputs.as_four(q.detach()), inputs.as_four(k.detach())
        self._bound = BoundRule(self.rule, self._q, self._k)
        self._latest: tuple[int, int, BoundRule] | None = None
        self._known: Tensor | None = None  # which rows of _lse are; None once all of them are
        rows = self._q.shape[:-1]
        if lse is None:
            with torch.inference_mode(False):  # they are written to later, perhaps outside of it
                self._lse = LogSum(*torch.zeros(2, *rows, dtype=self.dtype, device=q.device))
                self._known = torch.zeros(rows, dtype=torch.bool)
        else:
            low = lse.lse_low if isinstance(lse, Attended) else None
            high = lse.lse if isinstance(lse, Attended) else lse
            self._lse = cells.known_lse(high, low, self.shape[:-1], self._q)

    def __repr__(self) -> str:
        lse = "known" if self._known is None else "on demand"
        size = cells.readable(self.nbytes_dense)
        return f"AttentionMap({self.shape}, {self.dtype}, {self.rule}, lse {lse}, {size} if dense)"

    @property
    def nbytes_dense(self) -> int:
        """The bytes that the whole map would take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def scores(self) -> "ScoreMap":
        """The scores behind the weights, by the same indexing; -inf where a key is hidden."""
        return ScoreMap(self)

    def __getitem__(self, index: Indices) -> Tensor:
        return self._read(index, True, self.max_bytes)

    def head(self, *head: int) -> "AttentionMap":
        """One head, b, h, as a map of its own, (1, 1, T, S): the same q, k, lse. IndexError."""
        b, h = self._place_of("head", head)
        g = h // (self._bound.H // self._bound.G)
        here = slice(b, b + 1), slice(h, h + 1)
        rule = cells.rule_of_head(self.rule, b, h, (*self._q.shape[:-1], self._bound.S))
        one = AttentionMap(self._q[here], self._k[b : b + 1, g : g + 1], rule)
        known = self._known  # before lse: another thread may find out about all rows meanwhile
        one._known, one._lse = None if known is None else known[here], self._lse[here]
        return one

    def dense(self, max_bytes: int = 1 << 28) -> Tensor:
        """The whole map (B, H, T, S); ValueError, before allocating, if it is over max_bytes."""
        return self._read(..., True, max_bytes)

    @_figures
    def pooled(
        self, *head: int, rows: Span | None = None, cols: Span | None = None,
        shape: tuple[int, ...] = (1024, 1024), reduce: str = "max",
    ) -> Pooled:  # fmt: skip
        """One head's map, or the rectangle rows x cols of it, in n x m blocks.

        head is b, h (h alone for a 3-D map, nothing for a 2-D one); rows and cols are (start, stop)
        or slices. (n, m) is `shape`, or the number of rows or columns where that is smaller. reduce
        is "max", "mean" over all cells of a block, or "sum"; hidden cells count as 0. Memory: a few
        tiles and the result. Tiles that nobody sees are not computed.

        Raises IndexError for a head that is none, ValueError for the other arguments.
        """
        if reduce not in ("max", "mean", "sum"):
            raise ValueError(f"reduce must be 'max', 'mean' or 'sum'; got {reduce!r}")
        if len(shape) != 2 or not all(cells.is_integer(n) and n >= 1 for n in shape):
            raise ValueError(f"shape must be two integers of 1 or more, rows, cols; got {shape!r}")
        b, h = self._place_of("pooled", head)
        span_r = cells.span_of("rows", slice(None) if rows is None else rows, self._bound.T)
        span_c = cells.span_of("cols", slice(None) if cols is None else cols, self._bound.S)
        lse = partial(self._lse_of_head, b, h)
        return cells.pool(self._head(b, h), lse, (span_r, span_c), shape, reduce)

    @_figures
    def top(self, k: int = 8) -> tuple[Tensor, Tensor]:
        """The k largest weights of every row and their keys, both (B, H, T, k), largest first.

        The order is that of the scores, the lowest key first among equals. Where a row sees fewer
        keys: weight 0, key -1. A row of NaNs has no top key: -1. Memory O(T k).
        """
        if not cells.is_integer(k) or k < 1:
            raise ValueError(f"k must be an integer of 1 or more; got {k!r}")
        lse = self._lse_of(0, self._bound.T)
        values = lse.high.new_full((*lse.high.shape, k), -torch.inf)
        keys = torch.full_like(values, -1, dtype=torch.int64)
        for where, j0, tile in self._tiles((0, self._bound.T), (0, self._bound.S), None):
            new, at = cells.largest(tile, k)
            both = torch.cat([values[where], new], dim=-1)
            both, order = both.sort(dim=-1, descending=True, stable=True)
            values[where] = both[..., :k]
            keys[where] = torch.cat([keys[where], at + j0], dim=-1).gather(-1, order[..., :k])
        keys.masked_fill_((values == -torch.inf) | lse.high.isnan().unsqueeze(-1), -1)
        shape = (*self.shape[:-1], k)
        return weights_(values, lse, None).view(shape), keys.view(shape)

    @_figures
    def received(self) -> Tensor:
        """The sum of each key's weights over the real queries, (B, H, S)."""
        lse = self._lse_of(0, self._bound.T)
        total = lines.column_sums(self._q, self._k, lse, self._bound)
        return total.view(*self.shape[:-2], self.shape[-1])

    @_figures
    def on_key(self, j: int) -> Tensor:
        """Every row's weight on key j, (B, H, T), in O(T D). IndexError if there is no such key."""
        j = cells.place(j, len(self.shape) - 1, self.shape)
        lse = self._lse_of(0, self._bound.T)
        weight = lines.on_key(self._q, self._k, self._bound, lse, j)
        return weight.view(self.shape[:-1])

    @_figures
    def on_lag(self, n: int) -> Tensor:
        """Every row's weight on key i + offset - n, (B, H, T), in O(T D); n = 1 is the key before.

        0 where there is no such key or it is hidden.
        """
        lse = self._lse_of(0, self._bound.T)
        weight = lines.on_lag(self._q, self._k, self._bound, lse, n)
        return weight.view(self.shape[:-1])

    @_figures
    def between(self, queries: Span, keys: Span) -> Tensor:
        """The mass that the rows of one span lay on the keys of another, (B, H), in 0..1.

        sum_j p_ij over j in `keys`, its mean over the rows of `queries` that are real (query_mask)
        and see any key at all; NaN where there is no such row. Spans are (start, stop) or slices
        without a step. Raises ValueError for a span outside of the map.
        """
        rows, cols = (
            cells.span_of("queries", queries, self._bound.T),
            cells.span_of("keys", keys, self._bound.S),
        )
        mass, counted = self._mass(rows, cols), self._rows_that_see(*rows)
        if self.rule.query_mask is not None:
            counted = counted & self.rule.query_mask[:, None].to(counted.device)
        mass, counted = (x[..., slice(*rows)] for x in (mass, counted))
        mean = mass.masked_fill(~counted, 0.0).sum(dim=-1) / counted.sum(dim=-1)
        return mean.view(self.shape[:-2])

    # What all of these stand on ------------------------------------------------------------------

    def _place_of(self, who: str, head: tuple[int, ...]) -> tuple[int, int]:
        """b, h of a head that is named by as many numbers as the map has axes before T and S."""
        if len(head) != len(self.shape) - 2:
            takes = ("no head", "one head: h", "one head: b, h")[len(self.shape) - 2]
            raise IndexError(f"{who} takes {takes} of a map {self.shape}; got {head!r}")
        places = [cells.place(x, axis, self.shape) for axis, x in enumerate(head)]
        b, h = [0] * (2 - len(places)) + places
        return b, h

    def _tiles(
        self, rows: tuple[int, int], cols: tuple[int, int], lse: LogSum | None
    ) -> Iterator[tuple[cells.Where, int, Tensor]]:
        """The tiles of a rectangle in all heads: (b, h, rows), first key, weights by the lse of all
        rows, or scores without."""
        return cells.tiles(self._q, self._k, self._bound, (rows, cols), lse)

    def _mass(self, rows: tuple[int, int], cols: tuple[int, int]) -> Tensor:
        """sum_j p_ij over a span of keys, (B, H, T), for the rows of a span; 0 for the others."""
        lse = self._lse_of(*rows)
        mass = torch.zeros_like(lse.high)
        for where, _, tile in self._tiles(rows, cols, lse):
            mass[where] += tile.sum(dim=-1)
        return mass

    def _rows_that_see(self, i0: int, i1: int) -> Tensor:
        """Which rows of i0:i1 see any key, (B, H, T). Beside a sink, lse does not tell."""
        if self._bound.sinks is None:
            return self._lse_of(i0, i1).high != -torch.inf
        keys = torch.ones(self._k.shape[:-1], dtype=torch.bool, device=self._k.device)
        return tiled.rows_that_see(keys, self._bound)

    def _lse_of(self, i0: int, i1: int) -> LogSum:
        """lse of all heads, (B, H, T), right for the rows i0:i1 at least."""
        if self._known is not None and (i0, i1) == (0, self._bound.T):
            found = attention(self._q, self._k, None, self.rule)
            self._lse = LogSum(found.lse, found.lse_low)
            self._known = None
        if self._known is not None:
            for b in range(self._bound.B):
                for h in range(self._bound.H):
                    self._lse_of_head(b, h, i0, i1)
        return self._lse

    def _lse_of_head(self, b: int, h: int, i0: int, i1: int) -> LogSum:
        """lse of the rows i0:i1 of one head, (rows,)."""
        known = self._known  # one reading: another thread may find out about all rows meanwhile
        if known is not None:
            missing = (~known[b, h, i0:i1]).nonzero()
            if len(missing):
                first, last = i0 + int(missing[0]), i0 + int(missing[-1])
                scores = self._head(b, h)
                for i in range(first, last + 1, min(TALL, ELEMENTS // KEYS)):
                    here = b, h, slice(i, min(i + min(TALL, ELEMENTS // KEYS), last + 1))
                    found = cells.lse_of_rows(scores, here[2].start, here[2].stop)
                    self._lse.high[here], self._lse.low[here] = found.high, found.low
                    known[here] = True
        return self._lse[b, h, i0:i1]

    def _head(self, b: int, h: int) -> Scores:
        """One head as a call of its own, with B = H = G = 1 and the rule of this head alone."""
        g = h // (self._bound.H // self._bound.G)
        q, k = self._q[b : b + 1, h : h + 1], self._k[b : b + 1, g : g + 1]
        latest = self._latest  # one reading: another thread may be at another head
        if latest is None or latest[:2] != (b, h):
            full = (*self._q.shape[:-1], self._bound.S)
            latest = b, h, BoundRule(cells.rule_of_head(self.rule, b, h, full), q, k)
            self._latest = latest
        one = slice(0, 1)
        return Scores(q, k, latest[2], Chunk(one, one, one, ROWS), rooms=2)

    @_figures
    def _read(self, index: Indices, weights: bool, max_bytes: int) -> Tensor:
        """The cells of an index: weights, or the scores."""
        picked, dropped = cells.parse(index, self.shape)
        sizes = [len(x) for x in picked]
        n_bytes = math.prod(sizes) * self.dtype.itemsize
        if n_bytes > max_bytes:
            raise ValueError(
                f"{' x '.join(map(str, sizes))} cells of {self.dtype} take {n_bytes:,} bytes "
                f"({cells.readable(n_bytes)}), more than max_bytes = {max_bytes:,}: ask for fewer "
                "cells or raise max_bytes; pooled, top, received and between do without"
            )
        nothing = 0.0 if weights else -torch.inf
        result = torch.full(sizes, nothing, dtype=self.dtype, device=self._q.device)
        all_of_it = result[(None,) * (4 - len(sizes))]
        bs, hs, rows, cols = [range(1)] * (4 - len(sizes)) + picked
        if rows and cols:
            for x, b in enumerate(bs):
                for y, h in enumerate(hs):
                    self._fill(all_of_it[x, y], (b, h), rows, cols, weights)
        return result[tuple(0 if axis in dropped else slice(None) for axis in range(len(sizes)))]

    def _fill(
        self, result: Tensor, head: tuple[int, int], rows: range, cols: range, weights: bool
    ) -> None:
        """Write the cells rows x cols of one head that can be seen to `result` (rows, cols)."""
        scores = self._head(*head)
        lse_wanted = weights and self._known is not None
        wide = abs(cols[-1] - cols[0]) + 1
        high = min(ROWS, ELEMENTS // min(wide, KEYS))
        backwards = [axis for axis, x in enumerate((rows, cols)) if x.step < 0]
        for i0, i1, to_rows in cells.pieces(rows, (0, self._bound.T), wide, high, lse_wanted):
            lse = self._lse_of_head(*head, i0, i1) if weights else None
            broad = max(KEYS, ELEMENTS // (i1 - i0))
            for j0, j1, to_cols in cells.pieces(cols, scores.bound.keys(i0, i1), i1 - i0, broad):
                tile = cells.rectangle(scores, (i0, i1), (j0, j1), lse)
                picked = tile[:: abs(rows.step), :: abs(cols.step)]
                result[to_rows, to_cols] = picked.flip(backwards) if backwards else picked


class ScoreMap:
    """The scores of an AttentionMap, (B, H, T, S), by the same indexing."""

    def __init__(self, weights: AttentionMap) -> None:
        self._weights = weights
        self.shape = weights.shape

    def __getitem__(self, index: Indices) -> Tensor:
        return self._weights._read(index, False, self._weights.max_bytes)
