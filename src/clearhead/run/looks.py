"""From here to there: which heads look from some tokens of a text to others, and how much.

A place is a position (7), a span of them ((3, 9), "3:9"), or a word, wherever it stands. What a
head does is a mean over the rows of all texts in which both places are.

Letters: B batch, H query heads, T queries, S keys, L tokens of a sequence.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from clearhead import cells
from clearhead.cells import Span
from clearhead.map import AttentionMap
from clearhead.run.calls import Call
from clearhead.run.joining import Joined, join
from clearhead.run.words import spans_of

Place = int | str | Span
Spans = tuple[tuple[int, int], ...]


class Kept(Protocol):
    """What is asked of a Run."""

    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def tokens(self) -> Mapping[int, Tensor]: ...
    @property
    def pieces(self) -> Mapping[int, str]: ...


@dataclass(frozen=True)
class Places:
    """Where both places are in one text: spans of its tokens.

    sequence  which sequence of the run
    batch     which text of it; None: they are the same in each
    """

    sequence: int
    batch: int | None
    queries: Spans
    keys: Spans


class Looks(list[tuple[str, float, float]]):
    """(head, mass, uniform share) of every head, the largest mass first.

    here, there  the places, as they were asked for
    places       where they are, in every text that has both
    """

    def __init__(
        self, found: Iterable[tuple[str, float, float]], here: str, there: str,
        places: Sequence[Places],
    ) -> None:  # fmt: skip
        super().__init__(sorted(found, key=lambda one: -one[1]))
        self.here, self.there, self.places = here, there, list(places)


def between(
    run: Kept, queries: Place, keys: Place, sequence: int | None, batch: int | None
) -> Looks:
    """Run.between."""
    mapped = sorted({c.sequence for c in run.calls if c.has_map and not c.cross})
    everywhere = sequence is None and _is_word(queries) and _is_word(keys)
    wanted = mapped if everywhere else [sequence or 0]
    if not mapped or wanted[0] not in mapped:
        which = "q and k" if everywhere else f"q and k of sequence {wanted[0]}"
        raise ValueError(
            f"no {which} were kept, which looking from here to there needs: "
            'observe(keep="qk") keeps them, and inspect --keep qk --save RUN'
        )
    calls = [c for c in run.calls if c.sequence in wanted and c.has_map and not c.cross]
    places = _find(run, calls, queries, keys, wanted, batch)
    found: list[tuple[str, float, float]] = []
    for layer in sorted({c.layer for c in calls}):
        mine = [c for c in calls if c.layer == layer]
        for h, (mass, share, rows) in zip(mine[0].kept_heads, _of_layer(mine, places), strict=True):
            if rows:
                found.append((f"{layer}.{h}", mass / rows, share / rows))
    return Looks(found, _said(queries), _said(keys), places)


# Where it is --------------------------------------------------------------------------------------


def _is_word(place: Place) -> bool:
    return isinstance(place, str) and not re.fullmatch(r"\d+(:\d+)?", place.strip())


def _said(place: Place) -> str:
    if isinstance(place, str):
        return place
    if isinstance(place, slice):
        return f"{'' if place.start is None else place.start}:" + (
            "" if place.stop is None else str(place.stop)
        )
    return ":".join(map(str, place)) if isinstance(place, tuple) else str(place)


def _find(
    run: Kept, calls: Sequence[Call], queries: Place, keys: Place, wanted: Sequence[int],
    batch: int | None,
) -> list[Places]:  # fmt: skip
    """Every text that has both places. Raises ValueError where there is none."""
    found, seen = [], {name: set[int]() for name in ("queries", "keys")}
    for number in wanted:
        mine = [c for c in calls if c.sequence == number]
        B, S = mine[0].shape[0], min(_keys(mine, layer) for layer in {c.layer for c in mine})
        T = max(S, max(c.first_row + c.shape[3] for c in mine))
        if batch is not None and not 0 <= batch < B:
            raise ValueError(f"there is no batch element {batch}; there are {B}")
        words = _is_word(queries) or _is_word(keys)
        texts: Sequence[int | None] = [batch]
        if words and batch is None:
            texts = range(B)
        for b in texts:
            pieces = _pieces(run, number, b) if words else ()
            both = _spans("queries", queries, pieces, T), _spans("keys", keys, pieces, S)
            for spans, name in zip(both, seen, strict=True):
                seen[name] |= {number} if spans else set()
            if all(both):
                found.append(Places(number, b, *both))
    if not found:
        for place, name in ((queries, "queries"), (keys, "keys")):
            if not seen[name]:
                where = f"any of the {len(wanted)} windows"
                if len(wanted) == 1:
                    several = len({c.sequence for c in run.calls}) > 1
                    where = f"window {wanted[0]}, whose positions" if several else "the text"
                raise ValueError(
                    f"{place!r} is not in {where}; a word of it, a position (7) or span (3:9)"
                )
        raise ValueError(
            f"no head looks from one window to another: {_said(queries)!r} is in window "
            f"{_listed(seen['queries'])}, and {_said(keys)!r} in {_listed(seen['keys'])}"
        )
    return found


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _keys(calls: Sequence[Call], layer: int) -> int:
    return max(c.key_start + c.shape[4] for c in calls if c.layer == layer)


def _pieces(run: Kept, number: int, batch: int | None) -> list[str]:
    """The text of every token of a text. Raises ValueError where it is not known."""
    ids = run.tokens.get(number)
    if ids is None:
        raise ValueError(
            f"which tokens sequence {number} has is not known, so no word can be found in it: "
            "positions (7) and spans (3:9) can"
        )
    row = ids if ids.ndim == 1 else ids[batch or 0]
    if not any(token in run.pieces for token in row.tolist()):
        raise ValueError(
            "what the tokens of this run say is not known, so no word can be found: "
            "run.label(tokenizer) takes it from a tokenizer, and positions (7) need none"
        )
    return [run.pieces.get(token, "") for token in row.tolist()]


def _spans(name: str, place: Place, pieces: Sequence[str], size: int) -> Spans:
    """The spans of a place in an axis of this size; none for a word that is not there."""
    if isinstance(place, str) and _is_word(place):
        return tuple((a, b) for a, b in spans_of(place, pieces) if b <= size)
    if isinstance(place, str):
        given, (first, _, last) = place, place.strip().partition(":")
        place = (int(first), int(last or int(first) + 1))
        if not place[0] < place[1] <= size:
            raise ValueError(f"{given} is no place among the {size} tokens of the text")
    elif cells.is_integer(place):
        place = (int(place), int(place) + 1)
    return (cells.span_of(name, place, size),)


# How much lies there ------------------------------------------------------------------------------


def _of_layer(calls: Sequence[Call], places: Sequence[Places]) -> list[list[float]]:
    """Of each head of a layer the sums of mass and of its uniform share, and the rows."""
    total, kept = torch.zeros(3, len(calls[0].kept_heads), dtype=torch.float64), list[range]()
    with torch.no_grad():
        for number in sorted({place.sequence for place in places}):
            joined = join([c.part() for c in calls if c.sequence == number])
            for place in places:
                if place.sequence == number:
                    total += _sums(joined, place, kept)
    if not kept:
        q0, q1 = places[0].queries[0]
        first, last = (int(joined.positions[at]) for at in (0, -1))
        raise ValueError(f"queries {q0} to {q1}: rows were kept from {first} to {last + 1} only")
    return total.T.tolist()


def _sums(joined: Joined, place: Places, kept: list[range]) -> Tensor:
    """The same of one text, (3, H); adds to `kept` the rows that there are."""
    amap, bound, at = joined.map, joined.map._bound, joined.positions
    pick = slice(None) if place.batch is None else slice(place.batch, place.batch + 1)
    total = torch.zeros(3, bound.H, dtype=torch.float64)
    for q0, q1 in place.queries:
        inside = ((at >= q0) & (at < q1)).nonzero()
        if not len(inside):
            continue
        rows = int(inside[0]), int(inside[-1]) + 1
        kept.append(range(*rows))
        counted = amap._rows_that_see(*rows)[:, :, slice(*rows)]
        if bound.query_mask is not None:
            counted = counted & bound.query_mask[:, None, slice(*rows)]
        mass, share = torch.zeros(2, *counted.shape, dtype=torch.float64)
        for cols in place.keys:
            mass += amap._mass(rows, cols)[:, :, slice(*rows)].double()
            share += _visible(amap, rows, cols)
        share /= _visible(amap, rows, (0, bound.S)).clamp(min=1)
        for n, x in enumerate((mass, share, torch.ones_like(mass))):
            total[n] += x.masked_fill(~counted, 0.0)[pick].sum(dim=(0, 2))
    return total


def _visible(amap: AttentionMap, rows: tuple[int, int], cols: tuple[int, int]) -> Tensor:
    """How many keys of a span each row may see, broadcastable to (B, H, rows)."""
    bound, (j0, j1) = amap._bound, cols
    step = max(1, (1 << 22) // max(bound.B * (j1 - j0), 1))
    found = []
    for i0 in range(*rows, step):
        i1 = min(i0 + step, rows[1])
        hidden = bound.hidden(i0, i1, j0, j1)
        if hidden is None:
            found.append(torch.full((bound.B, 1, i1 - i0), float(j1 - j0)))
        else:
            seen = (j1 - j0) - hidden.sum(dim=-1, dtype=torch.float64)
            found.append(seen.expand(bound.B, bound.H, i1 - i0))
    return torch.cat([x.expand(bound.B, bound.H, -1).double() for x in found], dim=-1)
