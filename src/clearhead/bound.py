"""A Rule bound to the shapes of one call: what a tile of scores needs to know of it.

Whoever computes a weight asks three things here: which keys a block of queries can see at all,
which keys of a tile are hidden, and what is added to its products.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from clearhead.lags import ByLag
from clearhead.rule import Rule, check_shapes

FARTHEST = 1 << 60  # an offset: lags and positions must stay within int64


class BoundRule:
    """A Rule and the shapes of one call: the answers to what a tile of scores needs to know.

    A tile is rows i0:i1 and columns j0:j1 of the map, for batch elements `b` and heads `h`, slices.
    """

    def __init__(self, rule: Rule, q: Tensor, k: Tensor) -> None:
        self.rule = rule
        self.B, self.H, self.T, D = q.shape
        self.G, self.S = k.shape[1], k.shape[2]
        self.device = q.device
        self.scale = 1 / math.sqrt(D) if rule.scale is None else float(rule.scale)
        check_shapes(rule, q, k)

        self.offset: int | Tensor
        if isinstance(rule.offset, Tensor):
            self.offset = rule.offset.to(self.device, torch.int64)
            self.offsets: list[int] = self.offset.tolist()
        else:  # an integer of numpy is one of ours from here on
            self.offset = self.S - self.T if rule.offset is None else int(rule.offset)
            self.offsets = [self.offset] * self.B
        if far := [n for n in self.offsets if abs(n) > FARTHEST]:
            raise ValueError(f"offset must be within 2^60 of 0, a key position; got {far[0]}")

        # before and after: how many keys a query sees to either side of its own; None: all of them.
        self.before: int | None = None
        self.after: int | None = None
        if isinstance(rule.window, tuple):
            self.before, self.after = rule.window
        elif rule.window is not None:
            self.before = rule.window - 1
        if rule.causal:
            self.after = 0
        # No query has more keys than that to a side, and integers of a tensor end somewhere.
        most = 2 * (self.T + self.S) + max(map(abs, self.offsets), default=0)
        if self.before is not None:
            self.before = min(int(self.before), most)
        if self.after is not None:
            self.after = min(int(self.after), most)

        self.key_mask = None if rule.key_mask is None else rule.key_mask.to(self.device)
        self.query_mask = None if rule.query_mask is None else rule.query_mask.to(self.device)
        self._keys = self._real_keys()
        self._holes = self._padding_inside()
        self.documents = None if rule.segments is None else self._find_documents(rule.segments)
        self._by_lags: dict[tuple[_Entry, torch.dtype], ByLag] = {}
        # Whether no product of a query and a key can overflow; whoever looked at them says so.
        self.tame = False
        self.sinks = None if rule.sinks is None else rule.sinks.detach().to(self.device)
        full = (self.B, self.H, self.T, self.S)
        self.mask = None if rule.mask is None else rule.mask.to(self.device).expand(full)
        self.bias = None if rule.bias is None else rule.bias.detach().to(self.device).expand(full)

    # Which keys a block of queries can see at all ------------------------------------------------

    def keys(self, i0: int, i1: int, b: slice = slice(None)) -> tuple[int, int]:
        """The keys j0:j1 outside of which no query of i0:i1 sees any; (0, 0) if there are none."""
        lowest, highest = self._ends(b)
        j0, j1 = self._keys
        if self.before is not None:
            j0 = max(j0, i0 + lowest - self.before)
        if self.after is not None:
            j1 = min(j1, i1 + highest + self.after)
        if self.documents is not None:
            _, first, last = self.documents
            if i1 > i0 and self.B:
                j0 = max(j0, int(first[b, i0:i1].min()))
                j1 = min(j1, int(last[b, i0:i1].max()) + 1)
        return (j0, j1) if j0 < j1 else (0, 0)

    def _ends(self, b: slice) -> tuple[int, int]:
        """The lowest and the highest offset of these batch elements."""
        offsets = self.offsets[b] or [0]
        return min(offsets), max(offsets)

    def _real_keys(self) -> tuple[int, int]:
        """From the first to behind the last key that is real in any batch element."""
        if self.key_mask is None:
            return 0, self.S
        real = self.key_mask.any(dim=0).nonzero()
        return (int(real[0]), int(real[-1]) + 1) if len(real) else (0, 0)

    def _padding_inside(self) -> list[int] | None:
        """For each number of keys n, in how many of the first n somebody has padding."""
        if self.key_mask is None:
            return None
        padded = (~self.key_mask).any(dim=0).long()
        return [0, *padded.cumsum(0).tolist()]

    def _find_documents(self, segments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For each query its document, and that document's first and last key; each (B, T).

        A query whose position lies outside of the keys has a document of its own without keys.
        """
        segments = segments.to(self.device, torch.int64)
        ordered, order = segments.sort(dim=1, stable=True)
        begins = ordered != ordered.roll(1, dims=1)
        begins[:, :1] = False
        number = torch.empty_like(order).scatter_(1, order, begins.cumsum(dim=1))  # from 0 up
        position = torch.arange(self.S, device=self.device).expand(self.B, self.S)
        first = torch.full_like(position, self.S).scatter_reduce(1, number, position, "amin")
        last = torch.full_like(position, -1).scatter_reduce(1, number, position, "amax")
        where = self.positions(0, self.T).expand(self.B, self.T)
        outside = (where < 0) | (where >= self.S)
        self.numbers = number
        if not self.S:
            return where * 0 - 1, where * 0, where * 0 - 1
        mine = number.gather(1, where.clamp(0, self.S - 1))
        return (
            mine.masked_fill(outside, -1),
            first.gather(1, mine).masked_fill(outside, self.S),
            last.gather(1, mine).masked_fill(outside, -1),
        )

    def positions(self, i0: int, i1: int) -> Tensor:
        """The key positions at which the queries i0:i1 stand: (1, rows), or (B, rows)."""
        rows = torch.arange(i0, i1, device=self.device)
        if isinstance(self.offset, Tensor):
            return rows + self.offset[:, None]
        return rows[None] + self.offset

    def first_keys(self, positions: Tensor) -> Tensor:
        """The lowest real key of the document at each of `positions` (B, n); S if it has none."""
        keys = torch.arange(self.S, device=self.device).expand(self.B, self.S)
        if self.key_mask is not None:
            keys = keys.masked_fill(~self.key_mask, self.S)
        number, own = torch.zeros_like(keys), torch.zeros_like(positions)
        if self.documents is not None and self.S:
            outside = (positions < 0) | (positions >= self.S)
            number = self.numbers
            own = number.gather(1, positions.clamp(0, self.S - 1)).masked_fill(outside, self.S)
        first = keys.new_full((self.B, self.S + 1), self.S)
        return first.scatter_reduce(1, number, keys, "amin").gather(1, own)

    def places(self) -> Tensor:
        """Each query's first key, the key before its own, and its own: (B, T, 3)."""
        own = self.positions(0, self.T).expand(self.B, self.T)
        return torch.stack([self.first_keys(own), own - 1, own], dim=-1)

    def common_first_key(self) -> int | None:
        """The first key of every query, if they have one and the same, and the same offset."""
        if self.documents is not None or isinstance(self.offset, Tensor):
            return None
        if self.key_mask is None:
            return 0
        firsts = self.first_keys(torch.zeros(self.B, 1, dtype=torch.int64, device=self.device))
        return int(firsts[0]) if len(firsts) and bool((firsts == firsts[0]).all()) else None

    def apart(
        self, i0: int, i1: int, j0: int, j1: int, b: slice, dtype: torch.dtype
    ) -> tuple[Tensor, int]:  # fmt: skip
        """How far each key of a tile lies from where its query stands, as a sum of two parts.

        Neither is below 0: one for each entry, (1 or b, 1, rows, keys), and one for all of them.
        """
        if isinstance(self.offset, Tensor):
            own = self.positions(i0, i1)[b, None, :, None]
            return (own - torch.arange(j0, j1, device=self.device)).abs_().to(dtype), 0
        rows, keys = i1 - i0, j1 - j0
        lead = i0 + self.offset - j0
        near = min(max(lead, -rows), keys)
        lags = self._by_lag(_distance, dtype).tile(near, rows, keys)
        return lags[None, None], abs(lead - near)

    def _by_lag(self, entry: "_Entry", dtype: torch.dtype) -> ByLag:
        """What depends on the lag alone, made once in a call."""
        found = self._by_lags.get((entry, dtype))
        if found is None:
            found = self._by_lags[entry, dtype] = ByLag(partial(entry, dtype), self.device)
        return found

    # Which keys of a tile are hidden -------------------------------------------------------------

    def hidden(
        self, i0: int, i1: int, j0: int, j1: int, b: slice = slice(None), h: slice = slice(None)
    ) -> Tensor | None:
        """True where a query may not see a key, broadcastable to the tile; None if nowhere."""
        hidden = self._band(i0, i1, j0, j1, b)
        if self._padded(j0, j1):
            assert self.key_mask is not None
            hidden = _either(hidden, ~self.key_mask[b, None, None, j0:j1])
        if self.documents is not None:
            mine = self.documents[0][b, None, i0:i1, None]
            hidden = _either(hidden, mine != self.numbers[b, None, None, j0:j1])
        if self.mask is not None:
            hidden = _either(hidden, ~self.mask[b, h, i0:i1, j0:j1])
        if self.bias is not None:
            lowest = torch.finfo(self.bias.dtype).min
            hidden = _either(hidden, self.bias[b, h, i0:i1, j0:j1] <= lowest)
        return hidden

    def _padded(self, j0: int, j1: int) -> bool:
        return self._holes is not None and self._holes[j1] > self._holes[j0]

    def _band(self, i0: int, i1: int, j0: int, j1: int, b: slice) -> Tensor | None:
        """What causality and the window hide."""
        if isinstance(self.offset, Tensor):
            return self._band_of_each(i0, i1, j0, j1, b)
        hidden = None
        for behind, lead in self._cuts(i0, i1, j0, j1):
            side = self._by_lag(_behind if behind else _ahead, torch.bool)
            hidden = _either(hidden, side.tile(lead, i1 - i0, j1 - j0)[None, None])
        return hidden

    def _cuts(self, i0: int, i1: int, j0: int, j1: int) -> list[tuple[bool, int]]:
        """The sides on which a band ends in a tile, True for the keys behind, and its lead there.

        For one offset of all batch elements.
        """
        assert not isinstance(self.offset, Tensor)
        rows, keys = i1 - i0, j1 - j0
        lead, found = i0 + self.offset - j0, []
        if self.before is not None and (left := lead - self.before) + rows - 1 > 0:
            found.append((True, min(left, keys)))
        if self.after is not None and (right := lead + self.after) - (keys - 1) < 0:
            found.append((False, max(right, -rows)))
        return found

    def hide_(
        self, scores: Tensor, i0: int, i1: int, j0: int, j1: int,
        b: slice = slice(None), h: slice = slice(None),
    ) -> Tensor | None:  # fmt: skip
        """Put -inf where hidden, in place of scores (b, h, rows, keys), and say where that is.

        Clamping to -inf or +inf takes a seventh of the time of filling, but lets a NaN through: it
        is for tame products, and for bands that are the same all along the diagonal.
        """
        hidden = self.hidden(i0, i1, j0, j1, b, h)
        if hidden is None:
            return None
        if not (self.tame and self._banded) or self._padded(j0, j1):
            scores.masked_fill_(hidden, -math.inf)
            return hidden
        for behind, lead in self._cuts(i0, i1, j0, j1):
            ceiling = self._by_lag(_low_behind if behind else _low_ahead, scores.dtype)
            scores.clamp_(max=ceiling.tile(lead, i1 - i0, j1 - j0))
        return hidden

    @property
    def _banded(self) -> bool:
        """Whether causality, window and padding are all that hides, alike in all batch elements."""
        more = (self.documents, self.mask, self.bias)
        return not isinstance(self.offset, Tensor) and all(part is None for part in more)

    def _band_of_each(self, i0: int, i1: int, j0: int, j1: int, b: slice) -> Tensor | None:
        """The same where batch elements have offsets of their own."""
        lowest, highest = self._ends(b)
        lag = self.positions(i0, i1)[b, None, :, None] - torch.arange(j0, j1, device=self.device)
        hidden = None
        if self.before is not None and j0 < i1 - 1 + highest - self.before:
            hidden = lag > self.before
        if self.after is not None and j1 - 1 > i0 + lowest + self.after:
            hidden = _either(hidden, lag < -self.after)
        return hidden

    @property
    def safe(self) -> bool:
        """Whether differences of scores stay far from the lowest number of float32."""
        return self.tame and self.bias is None

    # What is added to the products ---------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether a score is nothing but scale times q . k."""
        rule = self.rule
        return rule.softcap is None and rule.alibi is None and rule.bias is None

    def shape_scores_(
        self, scores: Tensor, i0: int, i1: int, j0: int, j1: int,
        b: slice = slice(None), h: slice = slice(None),
    ) -> Tensor:  # fmt: skip
        """Softcap, then ALiBi, then bias, in place on scaled products (b, h, rows, keys)."""
        rule = self.rule
        if rule.softcap is not None:
            scores.div_(rule.softcap).tanh_().mul_(rule.softcap)
        if rule.alibi is not None:
            slopes = rule.alibi.to(scores)[h, None, None]
            back = self.positions(i0, i1)[b if isinstance(self.offset, Tensor) else slice(None)]
            back = back[:, None, :, None] - torch.arange(j0, j1, device=self.device)
            scores.addcmul_(slopes, back.to(scores.dtype), value=-1)
        if self.bias is not None:
            bias = self.bias[b, h, i0:i1, j0:j1].to(scores.dtype)
            scores.add_(bias)
        return scores


# What a lag says of a key: each takes the dtype of its answer, and lags.
_Entry = Callable[[torch.dtype, Tensor], Tensor]


def _behind(dtype: torch.dtype, lag: Tensor) -> Tensor:
    return (lag > 0).to(dtype)


def _ahead(dtype: torch.dtype, lag: Tensor) -> Tensor:
    return (lag < 0).to(dtype)


def _low_behind(dtype: torch.dtype, lag: Tensor) -> Tensor:
    """-inf where a side of a band hides, else +inf."""
    return torch.where(lag > 0, -math.inf, math.inf).to(dtype)


def _low_ahead(dtype: torch.dtype, lag: Tensor) -> Tensor:
    return torch.where(lag < 0, -math.inf, math.inf).to(dtype)


def _distance(dtype: torch.dtype, lag: Tensor) -> Tensor:
    return lag.abs().to(dtype)


def _either(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a | b
