"""Which keys a role names, which rows can show it, and what the weights of a call put there.

    mass_i = sum of p_ij over the keys j of a role        uniform_i = visible ones of them / visible

A row counts for a role where it sees a key of the role, where uniform attention would not put MOST
of the weight there anyway, and where those keys are not also those of another role. roles.py makes
names of the sums; docs/roles.md has every role's keys, rows and source.

Letters: B batch, H heads, T queries, S keys. Query i stands at key i + offset, its own key.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.bound import BoundRule
from clearhead.cells import Where
from clearhead.engine.tiles import Scores, blocks, chunks, weights_
from clearhead.map import DIAGONAL, AttentionMap

MOST = 0.5  # where uniform attention puts more than this on a role's keys, a row has little choice
WINDOW = 8  # keys to either side of a query's own that are local
BAND = 16  # keys to either side whose lags are told apart
WIDE = 16  # keys that a row must see to be broad

LAG = "lag"  # a tally for each lag: column BAND - n is the key n before the query's own
LAGS = 2 * BAND + 1
TALLIES = (LAG, "local window", "broad", "first token", "delimiter", "same token", "induction")
NOBODY, NO_KEY = -2, -1  # marks of a query without a key, and of a key without a query


class Call:
    """The rows of one call: which of them count, how many keys they see, where they stand.

    figures  entropy, max_score, sink_mass and visible, (B, H, T) each
    cross    the queries stand in another sequence: they have no own key
    """

    def __init__(self, bound: BoundRule, figures: Mapping[str, Tensor], cross: bool) -> None:
        self.bound, self.cross = bound, cross
        self.visible = figures["visible"].double()  # (B, H, T)
        self.counted = torch.stack([x.isfinite() for x in figures.values()]).all(dim=0)
        self.counted &= self.visible > 0
        if bound.query_mask is not None:
            self.counted &= bound.query_mask[:, None]
        self.own = bound.positions(0, bound.T).expand(bound.B, bound.T)
        self.first = bound.first_keys(self.own)  # (B, T)


class Sums:
    """For each tally the sum of mass, of its uniform share, and the rows: (H,), or (H, LAGS)."""

    def __init__(self, bound: BoundRule) -> None:
        self._parts = [
            {
                name: torch.zeros(
                    (bound.H, LAGS) if name == LAG else bound.H, dtype=dtype, device=bound.device
                )
                for name in TALLIES
            }
            for dtype in (torch.float64, torch.float64, torch.int64)
        ]

    def add(self, tally: str, heads: slice, mass: Tensor, uniform: Tensor, rows: Tensor) -> None:
        """Add those of (b, h, n), or (b, h, n, LAGS), that `rows` says count."""
        for total, x in zip(self._parts, (mass, uniform, rows), strict=True):
            picked = x if x is rows else x.double().masked_fill(~rows, 0.0)
            total[tally][heads] += picked.sum(dim=(0, 2))

    def parts(self) -> list[dict[str, Tensor]]:
        """mass, uniform and rows, on the CPU."""
        return [{name: x.cpu() for name, x in part.items()} for part in self._parts]


# Keys around a query's own ------------------------------------------------------------------------


def near(amap: AttentionMap, call: Call, sums: Sums) -> None:
    """The keys around a query's own: each lag, and the window of all of them together."""
    columns = torch.arange(LAGS, device=call.bound.device)
    local = slice(BAND - WINDOW, BAND + WINDOW + 1)
    for where, p, seen in _diagonals(amap):
        b, h, rows = where
        visible, counted = call.visible[where], call.counted[where]
        # Where the first key is among them, a role of lags cannot be told from "first token".
        ahead = (call.first - call.own)[b, None, rows, None]
        first = columns == ahead + BAND  # (b, 1, n, LAGS)
        share = 1 / visible.clamp(min=1)
        cells = seen & ~first & (counted & (share <= MOST)).unsqueeze(-1)
        sums.add(LAG, h, p, share.unsqueeze(-1).expand(p.shape), cells)
        share = seen[..., local].sum(dim=-1) * share
        clean = counted & _has_choice(share) & ~first[..., local].any(dim=-1)
        sums.add("local window", h, p[..., local].sum(dim=-1), share, clean)


def _diagonals(amap: AttentionMap) -> Iterator[tuple[Where, Tensor, Tensor]]:
    """The band of keys around each query's own: (b, h, rows), weights and which are seen.

    Both (b, h, n, LAGS); where there is no such key the weight is 0 and it is not seen.
    """
    bound, lse = amap._bound, amap._lse_of(0, amap._bound.T)
    for chunk in chunks(bound):
        # An offset for each batch element is a band for each.
        apart = isinstance(bound.offset, Tensor)
        each = [slice(b, b + 1) for b in range(chunk.b.start, chunk.b.stop)]
        for b in each if apart else [chunk.b]:
            offset = int(bound.positions(0, 1)[b.start if apart else 0, 0])
            scores = Scores(amap._q, amap._k, bound, replace(chunk, b=b))
            for i0 in range(0, bound.T, DIAGONAL):
                i1 = min(i0 + DIAGONAL, bound.T)
                low, high = i0 + offset - BAND, i1 + offset + BAND
                j0, j1 = max(low, 0), min(high, bound.S)
                if j0 >= j1:
                    continue
                where = (b, chunk.h, slice(i0, i1))
                tile, hidden = scores.tile(scores.queries(i0, i1), i0, i1, j0, j1)
                p = weights_(scores.by_head(tile, i1 - i0), lse[where], hidden)
                seen = torch.ones_like(p, dtype=torch.bool) if hidden is None else ~hidden
                # (b, h, n, n + LAGS - 1), and of row r its LAGS keys from r on
                wide = (F.pad(x.expand(p.shape), (j0 - low, high - j1)) for x in (p, seen))
                p, seen = (x.unfold(-1, LAGS, 1).diagonal(dim1=2, dim2=3).mT for x in wide)
                yield where, p, seen


# Keys that may lie anywhere -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KeySet:
    """The keys of a role: key j is one of query i's where their marks agree, and is not `barred`.

    rows    (B, T) int32, NOBODY where the query cannot show the role
    keys    (B, S) int32, NO_KEY where the key is nobody's
    barred  "own": the query's own key; "later": those behind its own
    """

    rows: Tensor
    keys: Tensor
    barred: str | None = None

    def tile(self, own: Tensor, b: slice, i: tuple[int, int], j: tuple[int, int]) -> Tensor:
        """Which cells of a tile those are, (b, rows, keys)."""
        mine = self.rows[b, slice(*i), None] == self.keys[b, None, slice(*j)]
        if self.barred is not None:
            at, stands = torch.arange(*j, device=own.device), own[b, slice(*i), None]
            mine &= at != stands if self.barred == "own" else at <= stands
        return mine


def key_sets(
    call: Call, tokens: Tensor | None, delimiters: Tensor | None, asking: Tensor | None
) -> dict[str, KeySet]:
    """The sets of one call, of the roles that it can test."""
    bound = call.bound
    everywhere = torch.arange(bound.S, device=bound.device).expand(bound.B, -1)
    first = call.first
    if not call.cross:
        first = first.masked_fill((first == call.own) | (first == call.own - 1), NOBODY)
    first = first.masked_fill(first == bound.S, NOBODY)
    sets = {"first token": KeySet(first.int(), everywhere.int())}
    if delimiters is not None:
        delimiters = delimiters.to(bound.device)
        # A first key has a role of its own, whatever it is.
        marks = (delimiters & (bound.first_keys(everywhere) != everywhere)).int()
        rows = torch.ones_like(first)
        if not call.cross:
            near_one = _at(marks, call.own, 0) + _at(marks, call.own - 1, 0) > 0
            rows = rows.masked_fill(near_one, NOBODY)
        sets["delimiter"] = KeySet(rows.int(), marks.masked_fill(marks == 0, NO_KEY))
    if tokens is None or (call.cross and asking is None):
        return sets
    given = tokens if asking is None else torch.cat([tokens, asking], dim=1)
    ids = given.to(bound.device).unique(return_inverse=True)[1].int()
    if call.cross:
        sets["same token"] = KeySet(ids[:, bound.S :], ids[:, : bound.S])
    else:
        sets |= _token_sets(call, ids, delimiters)
    return sets


def _token_sets(call: Call, ids: Tensor, delimiters: Tensor | None) -> dict[str, KeySet]:
    """Same token and induction, of tokens ids (B, S) that queries and keys share."""
    bound, own = call.bound, call.own
    real = torch.ones_like(ids, dtype=torch.bool)
    if bound.rule.key_mask is not None:
        real = bound.rule.key_mask.to(bound.device)
    before = ids.roll(1, dims=1).masked_fill(~real.roll(1, dims=1), NO_KEY)
    if bound.rule.segments is not None:
        documents = bound.rule.segments.to(bound.device)
        before = before.masked_fill(documents != documents.roll(1, dims=1), NO_KEY)
    before[:, 0] = NO_KEY  # the token before each key, in its own document
    mine = _at(ids.masked_fill(~real, NOBODY), own, NOBODY)
    first = _at(ids, call.first, NO_KEY).masked_fill(call.first == own, NO_KEY)
    unfit = (_at(ids, own - 1, NO_KEY) == mine) | (first == mine)
    if delimiters is not None:  # whoever looks from delimiters at delimiters matches no tokens
        unfit |= _at(delimiters.int(), own, 0) == 1
    same = KeySet(mine.masked_fill(unfit, NOBODY), ids, barred="own")
    unfit = (_at(before, own, NO_KEY) == mine) | (_at(before, own - 1, NO_KEY) == mine)
    after = KeySet(mine.masked_fill(unfit, NOBODY), before, barred="later")
    return {"same token": same, "induction": after}


def _at(marks: Tensor, where: Tensor, outside: int) -> Tensor:
    """marks (B, S) at the keys `where` (B, T); `outside` where there is no such key."""
    S = marks.shape[1]
    found = marks.gather(1, where.clamp(0, S - 1))
    return found.masked_fill((where < 0) | (where >= S), outside)


def far(amap: AttentionMap, call: Call, sets: Mapping[str, KeySet], sums: Sums) -> None:
    """The keys of each set, wherever they lie, in one pass over the tiles that can hold any."""
    bound, lse = call.bound, amap._lse_of(0, call.bound.T)
    for chunk in chunks(bound):
        scores = Scores(amap._q, amap._k, bound, chunk, rooms=2)
        for i0, i1, tiles in blocks(bound, chunk):
            where = (chunk.b, chunk.h, slice(i0, i1))
            low, high = _span(sets, chunk.b, i0, i1, bound.S)
            queries = scores.queries(i0, i1)
            found = {
                name: torch.zeros_like(call.visible[where]).repeat(2, 1, 1, 1) for name in sets
            }
            for j0, j1 in tiles:
                j0, j1 = max(j0, low), min(j1, high)
                if j0 >= j1:
                    continue
                stacked, hidden = scores.tile(queries, i0, i1, j0, j1)
                p = weights_(scores.by_head(stacked, i1 - i0), lse[where], hidden)
                room = scores.by_head(scores.room(1, *stacked.shape[1:]), i1 - i0)
                for name, keys in sets.items():
                    pairs = keys.tile(call.own, chunk.b, (i0, i1), (j0, j1))
                    if pairs.any():
                        pairs = pairs[:, None] if hidden is None else pairs[:, None] & ~hidden
                        seen = pairs.to(p.dtype)  # sums of floats are quick, those of bools are not
                        found[name][0] += torch.mul(p, seen, out=room).sum(dim=-1)
                        found[name][1] += seen.sum(dim=-1)
            for name, (mass, seen) in found.items():
                share = seen / call.visible[where].clamp(min=1)
                sums.add(name, chunk.h, mass, share, call.counted[where] & _has_choice(share))


def _has_choice(share: Tensor) -> Tensor:
    """Which rows have a choice, by the share of the keys they see that a role names."""
    return (share > 0) & (share <= MOST)


def _span(sets: Mapping[str, KeySet], b: slice, i0: int, i1: int, S: int) -> tuple[int, int]:
    """The keys that any set can hold; few where it is only the first ones."""
    if len(sets) > 1:
        return 0, S
    first = sets["first token"].rows[b, i0:i1]
    first = first[first != NOBODY]
    return (int(first.min()), int(first.max()) + 1) if len(first) else (0, 0)
