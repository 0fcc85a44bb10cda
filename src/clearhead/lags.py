"""Matrices whose entries depend on the lag alone: how far a key lies behind its query.

All their tiles are pieces of one small matrix, since a tile that lies one query further on is the
same but for one row. So what a diagonal needs is made once in a call, however often it is crossed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

MOST = 3 << 18  # entries of the one matrix: enough for tiles of 1,024 x 256; larger are made anew


class ByLag:
    """entry(lag) for the queries and keys of a tile: lag = lead + i - j in row i and column j.

    `entry` takes lags (n,), int64, and gives a tensor like them, of any dtype. Tiles are not to be
    changed: they share their memory.
    """

    def __init__(self, entry: Callable[[Tensor], Tensor], device: torch.device) -> None:
        self.entry, self.device = entry, device
        # Rows and keys of the largest tile, and (2 rows + keys, keys): the tile of lead -rows and
        # so tall. In one piece, as threads that share a map may each replace it.
        self.all: tuple[int, int, Tensor] | None = None

    def tile(self, lead: int, rows: int, keys: int) -> Tensor:
        """The tile (rows, keys) of a lead from -rows to keys: beyond, all lags have one sign."""
        if not -rows <= lead <= keys:
            raise ValueError(f"a tile of {rows} x {keys} needs no lead of {lead}")
        high, wide, made = self.all or (0, 0, None)
        if made is None or rows > high or keys > wide:
            if _size(rows, keys) > MOST:
                return self._made(lead, rows, keys)
            both = max(rows, high), max(keys, wide)
            high, wide = both if _size(*both) <= MOST else (rows, keys)
            made = self._made(-high, 2 * high + wide, wide)
            self.all = high, wide, made
        return made[high + lead :][:rows, :keys]

    def _made(self, lead: int, rows: int, keys: int) -> Tensor:
        """The tile, whose every row is a piece of one line: the row below begins a step earlier."""
        line = torch.arange(lead + rows, lead - keys, -1, device=self.device)
        return self.entry(line).unfold(0, keys, 1)[1:].flip(0).contiguous()


def _size(rows: int, keys: int) -> int:
    return (2 * rows + keys) * keys
