"""A mask of T x S looked at in one pass, and the rules that it could have come from.

masks.py proves or rejects them. Letters: B batch, H query heads, T queries, S keys; b and h are the
sizes of B and H in memory, 1 where the mask is one and the same. A tile is (b, h, rows, S) bytes,
1 = visible.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from clearhead.rule import Rule

ELEMENTS = 1 << 18  # of a tile, which is what is looked at and allocated at a time
SAMPLES = 16  # rows that a guess is made from


# Looking at a mask -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Looked:
    """Which keys (b, S) anybody sees, and which queries (b, T) see anything. Booleans."""

    keys: np.ndarray
    rows: np.ndarray


class Cells:
    """A mask as tiles of bytes, 1 = visible; axes that are one and the same repeated have size 1.

    Torch reduces bytes thirty times as fast as booleans, and compares them without a branch.
    """

    def __init__(self, mask: Tensor, T: int, S: int) -> None:
        x = mask[(None,) * (4 - mask.ndim)]
        for axis in range(3):
            if x.stride(axis) == 0:
                x = x.narrow(axis, 0, 1)
        self.x = x.expand(-1, -1, -1, S)
        self.T, self.S = T, S
        self.lowest = None if x.dtype == torch.bool else torch.finfo(x.dtype).min
        self.additive = False  # whether some number is neither 0 nor hides
        self.heads_agree = True

    @property
    def batch(self) -> int:
        return self.x.shape[0]

    @property
    def repeated(self) -> bool:
        """Whether all queries have the same row, of which one is here."""
        return self.x.shape[2] == 1 and self.T > 1

    def blocks(self, most: int | None = None) -> Iterator[tuple[int, int]]:
        b, h, rows, S = self.x.shape
        step = max(1, min(most or rows, ELEMENTS // (b * h * S)))
        for i0 in range(0, rows, step):
            yield i0, min(i0 + step, rows)

    def tile(self, i0: int, i1: int) -> Tensor:
        return self._visible(self.x[:, :, i0:i1])

    def _visible(self, x: Tensor) -> Tensor:
        if self.lowest is None:
            return x.view(torch.uint8)
        return (self._hides(x) if self.additive else x.bool().view(torch.uint8)) ^ 1

    def _hides(self, x: Tensor) -> Tensor:
        assert self.lowest is not None
        # Written as numbers the comparison runs several keys at a time, as booleans one by one.
        return torch.le(x, self.lowest, out=torch.empty_like(x)).bool().view(torch.uint8)

    def look(self) -> Looked:
        """One pass over everything. It learns whether the numbers are a mask and heads agree."""
        looked = self._look()
        if looked is None:
            self.additive = True
            looked = self._look()
            assert looked is not None
        if self.heads_agree and not self.additive:
            self.x = self.x[:, :1]
        return looked

    def _look(self) -> Looked | None:
        b, _, n_rows, S = self.x.shape
        keys = torch.zeros(b, S, dtype=torch.uint8, device=self.x.device)
        rows = torch.empty(b, n_rows, dtype=torch.uint8, device=self.x.device)
        for i0, i1 in self.blocks():
            tile = self.tile(i0, i1)
            if self.lowest is not None and not self.additive and self._adds(i0, i1, tile):
                return None
            one = tile[:, 0]
            if tile.shape[1] > 1:
                self.heads_agree = self.heads_agree and not bool((tile ^ tile[:, :1]).amax())
                if not self.heads_agree:
                    one = tile.amax(dim=1)
            keys = torch.maximum(keys, one.amax(dim=1))
            rows[:, i0:i1] = one.amax(dim=2)
        return Looked(_booleans(keys), _booleans(rows.expand(b, self.T)))

    def _adds(self, i0: int, i1: int, tile: Tensor) -> bool:
        """Whether a number that is not 0 does not hide: NaN is one of them."""
        return not bool((self._hides(self.x[:, :, i0:i1]) ^ tile).amin())

    def rows_at(self, at: np.ndarray) -> np.ndarray:
        """The rows `at` (b, n) of the first head: (b, n, S)."""
        rows = torch.from_numpy(at).to(self.x.device)
        elements = torch.arange(self.batch, device=self.x.device)[:, None]
        return _booleans(self._visible(self.x[elements, 0, rows]))

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last visible key of every query, each (b, T), as _ends has them."""
        dtype = torch.int16 if self.S < 2**15 - 1 else torch.int32
        count = torch.arange(1, self.S + 1, dtype=dtype, device=self.x.device)
        both: list[tuple[Tensor, Tensor]] = []
        for i0, i1 in self.blocks():
            numbers = self.tile(i0, i1)[:, 0].to(dtype)
            last = (numbers * count).amax(dim=2)
            both.append((self.S - (numbers * count.flip(0)).amax(dim=2), last - 1))
        first, last = (torch.cat(parts, dim=1).long().cpu() for parts in zip(*both, strict=True))
        return first.numpy(), last.numpy()


def _booleans(bytes_: Tensor) -> np.ndarray:
    array: np.ndarray = bytes_.cpu().numpy().view(np.bool_)
    return array


def _ends(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first and the last True of each row; their number and -1 where there are none."""
    n, some = rows.shape[-1], rows.any(axis=-1)
    first = np.where(some, rows.argmax(axis=-1), n)
    return first, np.where(some, n - 1 - rows[..., ::-1].argmax(axis=-1), -1)


# Guessing ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Guess:
    """Fields of a rule for b batch elements, still as arrays. `start` is the offset, (b,)."""

    start: np.ndarray
    causal: bool = False
    window: int | tuple[int, int] | None = None
    key_mask: np.ndarray | None = None
    segments: np.ndarray | None = None

    def rule(self, T: int, S: int, device: torch.device) -> Rule:
        offset: int | Tensor | None = int(self.start[0])
        if (self.start != offset).any():
            offset = torch.from_numpy(self.start).to(device)
        elif offset == S - T:
            offset = None
        key_mask, segments = (
            None if x is None else torch.from_numpy(x).to(device)
            for x in (self.key_mask, self.segments)
        )
        return Rule(
            causal=self.causal, offset=offset, window=self.window,
            key_mask=key_mask, segments=segments,
        )  # fmt: skip


def guesses(cells: Cells, looked: Looked, self_attention: bool) -> Iterator[Guess]:
    """Rules for the batch elements of the cells, what is likelier and simpler first."""
    T, S = cells.T, cells.S
    default = Guess(np.full(cells.batch, S - T))
    if cells.repeated or (T == 1 and not self_attention):
        yield _with_keys(default, looked.keys, T)
        return
    # The first and the last query that see anything, and some between them.
    first_row, last_row = _ends(looked.rows)
    share = np.linspace(0, 1, min(T, SAMPLES))
    at = first_row[:, None] + np.outer(last_row - first_row, share).astype(np.int64)
    sample = cells.rows_at(at.clip(0, T - 1))
    first, last = _ends(sample)
    sampled = _band(default, at, first, last, looked)
    yield _with_keys(sampled, looked.keys, T)
    # With documents too a row is one piece, but for keys that nobody sees: else it is given up.
    seen = np.pad(looked.keys.cumsum(axis=1), ((0, 0), (1, 0)))
    between = np.take_along_axis(seen, last + 1, 1) - np.take_along_axis(seen, first, 1)
    if T == 1 or (sample.sum(axis=2) != np.maximum(between, 0)).any():
        return
    first, last = cells.ends()
    band = _band(default, np.arange(T), first, last, looked)
    if band.window != sampled.window or (band.start != sampled.start).any():
        yield _with_keys(band, looked.keys, T)
    yield from _documents(cells, looked, first, last)


def _band(
    default: Guess, at: np.ndarray, first: np.ndarray, last: np.ndarray, looked: Looked
) -> Guess:
    """Causality and a window, from the first and last keys of the rows `at`; each (b, n)."""
    T, S = looked.rows.shape[1], looked.keys.shape[1]
    alive, far = last >= 0, T + S
    lowest_key, highest_key = _ends(looked.keys)
    high = np.where(alive, last - at, -far).max(axis=1)
    low = np.where(alive, first - at, far).min(axis=1)
    # Whether the band ends a row and not the keys, or leaves the first or the last rows empty.
    first_row, last_row = _ends(looked.rows)
    some = alive.any(axis=1)
    right = (alive & (last < highest_key[:, None])).any(axis=1) | (some & (first_row > 0))
    left = (alive & (first > lowest_key[:, None])).any(axis=1) | (some & (last_row < T - 1))
    if T == 1:
        # Of a window if one explains the whole batch; else the keys before are padding.
        left = some & (low > 0)
        left &= ((high - low)[left] == (high - low)[some].max(initial=0)).all()
        right = some & (left | (high < S - 1)).any()
    if not right.any():
        before = int((S - T - low[some]).max(initial=-1))
        two_sided = left.any() and before >= 0
        return replace(default, window=(before, far)) if two_sided else default
    ends = np.unique(high[right])
    start = np.where(some & (len(ends) > 1), high, ends[-1])
    before = int((start - low)[some].max())
    bounded = bool(left.any())
    end = int(ends[0])
    after = end - (S - T)  # beyond the own key, if queries stand bottom-right
    around = before - after
    if len(ends) == 1 and after > 0 and around >= 0:
        symmetric = bounded and around == after and end != 0
        if T == S or symmetric:
            return replace(default, window=(around if bounded else far, after))
    return replace(default, start=start, causal=True, window=before + 1 if bounded else None)


def _with_keys(guess: Guess, seen: np.ndarray, T: int) -> Guess:
    """With the key mask that hides what nobody sees though the band would show it to somebody."""
    start, key = guess.start[:, None], np.arange(seen.shape[1])
    hide = ~seen
    if isinstance(guess.window, tuple):
        before, after = guess.window
        hide &= (key >= start - before) & (key < start + T + after)
    elif guess.window is not None:
        hide &= key > start - guess.window
    if guess.causal:
        hide &= key < start + T
    return replace(guess, key_mask=~hide) if hide.any() else guess


def _documents(
    cells: Cells, looked: Looked, first: np.ndarray, last: np.ndarray
) -> Iterator[Guess]:
    """Documents without and with a window. A document has the number of its first visible key.

    Queries that see nothing have a document -1, of keys that nobody sees: so a rule can say that
    the rows of padding are empty. Keys of documents without a query here have -2.
    """
    T, S = cells.T, cells.S
    empty, row, key = last < 0, np.arange(T), np.arange(S)
    reach = int(np.where(empty, -T - S, last - row).max())
    offset, after = (0, max(reach, 0)) if T == S else (reach, 0)
    own = row + offset
    # Keys with a query of their own, and keys before them that the first query sees.
    mine = (key >= offset) & (key < offset + T)
    mine = mine | ((key < offset) & (key >= first[:, :1]))
    hide = ~looked.keys & mine
    base = Guess(
        np.full(cells.batch, offset), causal=after == 0, key_mask=~hide if hide.any() else None
    )

    def of_keys(starts: np.ndarray) -> np.ndarray:
        documents = np.where(empty, -1, starts)
        return np.where(mine, documents[:, (key - offset).clip(0, T - 1)], -2)

    yield replace(base, segments=of_keys(first))
    # Where the window ends a row, its document began before.
    before = int(np.where(empty, -1, own - first).max())
    if before >= 0:
        nearest = np.where(looked.keys, key, S)[:, ::-1]
        nearest = np.minimum.accumulate(nearest, axis=1)[:, ::-1]  # the next key that is seen
        cut = first <= nearest[:, (own - before).clip(0, S - 1)]
        starts = np.maximum.accumulate(np.where(empty | cut, 0, first), axis=1)
        window = before + 1 if after == 0 else (before, after)
        yield replace(base, window=window, segments=of_keys(starts))
