"""The scores of three keys of each query, out of the tiles in which they lie.

Taken there, and not computed again, each is the very number that the row's lse was made of.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine.tiles import Chunk


class Picks:
    """Each query's score with its first key, the key before its own, and its own: (B, H, T, 3).

    NaN where there is no such key, or it is hidden.
    """

    def __init__(self, bound: BoundRule, dtype: torch.dtype) -> None:
        self.bound = bound
        shape = (bound.B, bound.H, bound.T, 3)
        self.scores = torch.full(shape, torch.nan, dtype=dtype, device=bound.device)
        self.first = bound.common_first_key()
        self.places = bound.places() if self.first is None else None

    def read(self, tile: Tensor, hidden: Tensor | None, chunk: Chunk, i0: int, j0: int) -> None:
        """Take what lies in a tile (b, h, rows, keys) that begins at query i0 and key j0."""
        n_rows = tile.shape[2]
        found = self.scores[chunk.b, chunk.h, i0 : i0 + n_rows]
        hidden = None if hidden is None else hidden.expand(tile.shape)
        if self.places is not None:
            _gather(found, tile, hidden, self.places[chunk.b, None, i0 : i0 + n_rows] - j0)
            return
        for n, i, line_of in self._lines(n_rows, tile.shape[3], i0, j0):
            line = line_of(tile)
            if hidden is not None:
                line = line.masked_fill(line_of(hidden), torch.nan)
            found[..., i : i + line.shape[-1], n] = line

    def _lines(
        self, n_rows: int, n_keys: int, i0: int, j0: int
    ) -> Iterator[tuple[int, int, Callable[[Tensor], Tensor]]]:
        """Where all queries' keys lie on a column and two diagonals: which, from what row, and how.

        Copying a line costs less than looking each of its scores up.
        """
        assert self.first is not None
        assert isinstance(self.bound.offset, int)
        if 0 <= self.first - j0 < n_keys:
            yield 0, 0, partial(torch.select, dim=-1, index=self.first - j0)
        own = i0 + self.bound.offset - j0
        for n, column in ((1, own - 1), (2, own)):
            if -n_rows < column < n_keys:
                yield n, max(0, -column), partial(torch.diagonal, offset=column, dim1=-2, dim2=-1)


def _gather(found: Tensor, tile: Tensor, hidden: Tensor | None, at: Tensor) -> None:
    """Put the scores of a tile's keys `at` (b, 1, rows, n) into `found` (b, h, rows, n).

    Where there is no such key in the tile, or it is hidden, `found` stays as it is.
    """
    here = (at >= 0) & (at < tile.shape[-1])
    if not here.any():
        return
    at = at.clamp(0, tile.shape[-1] - 1).expand(found.shape)
    if hidden is not None:
        here = here & ~hidden.gather(-1, at)
    found.copy_(torch.where(here, tile.gather(-1, at), found))
