"""Which cells of a map: indices, spans and blocks, and what one tile says about them."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Integral
from typing import TypeGuard

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine import native
from clearhead.engine.tiles import (
    ELEMENTS,
    KEYS,
    TALL,
    LogSum,
    Scores,
    blocks,
    chunks,
    weights_,
)
from clearhead.rule import Rule
from clearhead.softmax import absorb, empty, finish

Span = tuple[int, int] | slice
Where = tuple[slice, slice, slice]

CALL = 1 << 14  # asking for a tile costs as much as computing this many of its cells

# Indices ------------------------------------------------------------------------------------------


def parse(index: object, shape: tuple[int, ...]) -> tuple[list[range], set[int]]:
    """The indices that are asked for on each axis, and the axes that an integer drops."""
    given = list(index) if isinstance(index, tuple) else [index]
    dots = [at for at, x in enumerate(given) if x is Ellipsis]
    fits = all(x is Ellipsis or isinstance(x, slice) or is_integer(x) for x in given)
    if not fits or len(dots) > 1 or len(given) - len(dots) > len(shape):
        raise IndexError(
            f"an AttentionMap of shape {shape} takes at most {len(shape)} indices, integers and "
            f"slices, and one Ellipsis; got {', '.join(map(_shown, given))}"
        )
    at = dots[0] if dots else len(given)
    rest = [slice(None)] * (len(shape) - len(given) + len(dots))
    picked, dropped = [], set()
    for axis, x in enumerate([*given[:at], *rest, *given[at + 1 :]]):
        if isinstance(x, slice):
            picked.append(range(*x.indices(shape[axis])))
        else:
            i = place(x, axis, shape)
            picked.append(range(i, i + 1))
            dropped.add(axis)
    return picked, dropped


def place(i: object, axis: int, shape: tuple[int, ...]) -> int:
    """An index along an axis, counted from the front."""
    size, name = shape[axis], "BHTS"[axis - len(shape)]
    if not is_integer(i):
        raise IndexError(f"axis {axis} ({name}) takes an integer here; got {_shown(i)}")
    if not -size <= i < size:
        raise IndexError(
            f"index {i} is out of range for axis {axis} ({name}) of size {size} (map {shape})"
        )
    return int(i) % size


def span_of(name: str, span: object, size: int) -> tuple[int, int]:
    """start, stop of a span of an axis of this size."""
    if isinstance(span, slice) and span.step in (None, 1):
        start, stop, _ = span.indices(size)
        return start, max(start, stop)
    if isinstance(span, tuple) and len(span) == 2 and all(map(is_integer, span)):
        start, stop = map(int, span)
        if 0 <= start <= stop <= size:
            return start, stop
    raise ValueError(
        f"{name} must be (start, stop) with 0 <= start <= stop <= {size}, or a slice without a "
        f"step; got {span!r}"
    )


def pieces(
    wanted: range, within: tuple[int, int], across: int, limit: int, apart: bool = False
) -> Iterator[tuple[int, int, slice]]:
    """Spans i0:i1 that hold the `wanted` indices that lie `within`, and their places in the result.

    A span holds what lies between them too, unless that is more, `across` cells each, than a call
    for each index costs, or `apart` says so.
    """
    step, up = abs(wanted.step), wanted if wanted.step > 0 else wanted[::-1]
    alone = step > 1 and (apart or (step - 1) * across > CALL)
    n = 1 if alone else max(1, limit // step)
    end = bisect_left(up, within[1])
    for a in range(bisect_left(up, within[0]), end, n):
        b = min(a + n, end)
        place = slice(a, b) if wanted.step > 0 else slice(len(up) - b, len(up) - a)
        yield up[a], up[b - 1] + 1, place


def is_integer(x: object) -> TypeGuard[int]:
    return isinstance(x, Integral) and not isinstance(x, bool)


def _shown(x: object) -> str:
    return f"a {type(x).__name__}" if isinstance(x, Tensor | list) else repr(x)


def readable(n_bytes: int) -> str:
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(n_bytes.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{n_bytes / 1024**power:.4g} {units[power]}"


# Blocks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pooled:
    """Part of one head's map, block by block.

    values      (n, m) each block's largest weight, mean or sum, as `reduce` says
    visible     (n, m) the share of each block's cells that the rule lets through, in 0..1
    rows, cols  (start, stop) of what is pooled. Block row i covers the rows from
                rows[0] + (rows[1] - rows[0]) * i // n to where the next one begins; columns alike
    """

    values: Tensor
    visible: Tensor
    rows: tuple[int, int]
    cols: tuple[int, int]
    reduce: str


def pool(
    scores: Scores, lse_of: Callable[[int, int], LogSum],
    spans: tuple[tuple[int, int], tuple[int, int]], shape: tuple[int, ...], reduce: str,
) -> Pooled:  # fmt: skip
    """AttentionMap.pooled of one head whose rows i0:i1 have lse_of(i0, i1), (rows,).

    A tile holds whole blocks, or a part of one block: reducing it is mostly a reshape.
    """
    (r0, r1), (c0, c1) = spans
    down, across = _edges(r0, r1, shape[0]), _edges(c0, c1, shape[1])
    size = (len(down) - 1, len(across) - 1)
    values = torch.zeros(size, dtype=scores.dtype, device=scores.k.device)
    visible = torch.zeros_like(values, dtype=torch.int64)
    areas = _areas(_lengths(down), _lengths(across), values.device)
    for i0, i1, r in _whole_blocks(down, r0, r1, min(TALL, ELEMENTS // KEYS)):
        lse = lse_of(i0, i1)
        first, last = scores.bound.keys(i0, i1)
        heights = _sizes(down, r, i0, i1)
        wide = max(KEYS, ELEMENTS // (i1 - i0))
        for j0, j1, c in _whole_blocks(across, max(first, c0), min(last, c1), wide):
            hidden = scores.bound.hidden(i0, i1, j0, j1)
            hidden = None if hidden is None else hidden[0, 0]
            sizes = heights, _sizes(across, c, j0, j1)
            whole = (i0, i1, j0, j1) == (
                down[r.start],
                down[r.stop],
                across[c.start],
                across[c.stop],
            )
            visible[r, c] += areas[r, c] if whole else _areas(*sizes, values.device)
            if hidden is not None:
                # As floats, exact in a tile: torch's sums of integers take 20 times as long.
                counts = hidden.expand(i1 - i0, j1 - j0).to(values.dtype)
                visible[r, c] -= _by_block(counts, sizes, torch.sum).to(torch.int64)
            weights = rectangle(scores, (i0, i1), (j0, j1), lse)
            if reduce == "max":
                largest = _by_block(weights, sizes, torch.amax)
                torch.maximum(values[r, c], largest, out=values[r, c])
            else:
                values[r, c] += _by_block(weights, sizes, torch.sum)
    if reduce == "mean":
        values /= areas
    return Pooled(values, visible.to(values.dtype) / areas, (r0, r1), (c0, c1), reduce)


def _by_block(
    x: Tensor, sizes: tuple[list[int], list[int]], reduce: Callable[..., Tensor]
) -> Tensor:
    """x (rows, keys) in blocks of these heights and widths, each reduced to one number."""
    for size in sizes:  # the rows, then the columns as rows
        if min(size) == max(size):
            x = reduce(x.unflatten(0, (len(size), size[0])), dim=1)
        else:
            x = torch.stack([reduce(part, dim=0) for part in x.split(size)])
        x = x.T
    return x


def _edges(start: int, stop: int, n: int) -> list[int]:
    """Where n blocks of start:stop begin, and its end; as many blocks as places if n is more."""
    n = min(n, stop - start)
    return [start + (stop - start) * i // max(n, 1) for i in range(n + 1)]


def _whole_blocks(
    edges: list[int], start: int, stop: int, limit: int
) -> Iterator[tuple[int, int, slice]]:
    """Cut start:stop into pieces of whole blocks, or a larger block into pieces: i0, i1, blocks."""
    if start >= stop:
        return
    at, last = bisect_right(edges, start) - 1, bisect_left(edges, stop)
    while at < last:
        end = min(max(bisect_right(edges, edges[at] + limit) - 1, at + 1), last)
        if edges[end] - edges[at] <= limit:
            yield edges[at], edges[end], slice(at, end)
        else:
            lowest, highest = max(edges[at], start), min(edges[end], stop)
            for i in range(lowest, highest, limit):
                yield i, min(i + limit, highest), slice(at, end)
        at = end


def _lengths(edges: list[int]) -> list[int]:
    return [b - a for a, b in pairwise(edges)]


def _sizes(edges: list[int], blocks: slice, i0: int, i1: int) -> list[int]:
    """How much of i0:i1 lies in each of some blocks, the first and the last of which it may cut."""
    sizes = _lengths(edges[blocks.start : blocks.stop + 1])
    sizes[0] -= max(i0 - edges[blocks.start], 0)
    sizes[-1] -= max(edges[blocks.stop] - i1, 0)
    return sizes


def _areas(heights: list[int], widths: list[int], device: torch.device) -> Tensor:
    """The number of cells in each block, (n, m)."""
    high, wide = (torch.tensor(x, dtype=torch.int64, device=device) for x in (heights, widths))
    return high[:, None] * wide


# Tiles of one head --------------------------------------------------------------------------------


def rule_of_head(rule: Rule, b: int, h: int, full: tuple[int, ...]) -> Rule:
    """What a rule says to one head of a call of shape (B, H, T, S) = full, as a call of its own."""
    parts: dict[str, Tensor | int] = {}
    for name in ("alibi", "sinks", "key_mask", "query_mask", "segments", "mask", "bias"):
        value = getattr(rule, name)
        if value is None:
            continue
        if name in ("mask", "bias"):
            parts[name] = value.detach().expand(full)[b : b + 1, h : h + 1]
        else:
            mine = h if name in ("alibi", "sinks") else b
            parts[name] = value.detach()[mine : mine + 1]
    if isinstance(rule.offset, Tensor):
        parts["offset"] = int(rule.offset[b])
    return replace(rule, **parts)  # type: ignore[arg-type]


def known_lse(lse: Tensor, low: Tensor | None, wanted: tuple[int, ...], like: Tensor) -> LogSum:
    """The lse of rows that somebody else has computed, as that of queries `like` (B, H, T, D)."""
    if not lse.is_floating_point() or lse.shape != wanted:
        raise ValueError(
            f"lse must hold floats {wanted}, one for each row; got {lse.dtype} "
            f"{tuple(lse.shape)}. Pass what attention(q, k, None, rule) returns, or leave it out"
        )
    dtype = torch.promote_types(like.dtype, torch.float32)
    low = torch.zeros_like(lse) if low is None else low
    return LogSum(*(x.detach().to(like.device, dtype).reshape(like.shape[:-1]) for x in (lse, low)))


def rectangle(
    scores: Scores, rows: tuple[int, int], cols: tuple[int, int], lse: LogSum | None
) -> Tensor:
    """Weights of one head's rows i0:i1, whose lse this is, for the keys j0:j1, or without lse the
    scores: (rows, keys), used up by the next call."""
    if not native.hindrance((scores.q, scores.k), scores.bound.rule):
        return native.cells(scores.q[:, 0], scores.k, scores.bound, rows, cols, lse)[0, 0]
    tile, hidden = scores.tile(scores.queries(*rows), *rows, *cols)
    if lse is None:
        return tile[0]
    return weights_(tile[0], lse, None if hidden is None else hidden[0, 0])


def tiles(
    q: Tensor, k: Tensor, bound: BoundRule,
    spans: tuple[tuple[int, int], tuple[int, int]], lse: LogSum | None,
) -> Iterator[tuple[Where, int, Tensor]]:  # fmt: skip
    """The tiles of a rectangle of all heads' maps: (b, h, rows), first key, weights (b, h, rows,
    keys) by the lse of all rows, or scores without; used up by the next."""
    rows, cols = spans
    if native.hindrance((q, k), bound.rule):
        for chunk in chunks(bound):
            scores = Scores(q, k, bound, chunk)
            for i0, i1, some in blocks(bound, chunk, rows, cols):
                queries, where = scores.queries(i0, i1), (chunk.b, chunk.h, slice(i0, i1))
                for j0, j1 in some:
                    tile, hidden = scores.tile(queries, i0, i1, j0, j1)
                    tile = scores.by_head(tile, i1 - i0)
                    yield where, j0, tile if lse is None else weights_(tile, lse[where], hidden)
        return
    most = max(1, ELEMENTS // max(1, bound.B * bound.H))  # cells of a head in a tile
    high = max(1, min(TALL, most // KEYS))
    for i0 in range(*rows, high):
        i1 = min(i0 + high, rows[1])
        first, last = bound.keys(i0, i1)
        first, last, wide = max(first, cols[0]), min(last, cols[1]), max(1, most // (i1 - i0))
        known = None if lse is None else lse[:, :, i0:i1]
        for j0 in range(first, last, wide):
            span = j0, min(j0 + wide, last)
            where = slice(0, bound.B), slice(0, bound.H), slice(i0, i1)
            yield where, j0, native.cells(q, k, bound, (i0, i1), span, known)


def lse_of_rows(scores: Scores, i0: int, i1: int) -> LogSum:
    """lse of some rows of one head, (rows,); NaN for a row that sees a key that is not finite."""
    if not native.hindrance((scores.q, scores.k), scores.bound.rule):
        found = native.lse_of_rows(scores.q[:, 0], scores.k, scores.bound, i0, i1)
        if found is not None:
            return found
    queries = scores.queries(i0, i1)
    part = empty((1, i1 - i0), 0, queries)
    spoiled = queries.new_zeros(i1 - i0, dtype=torch.bool)
    first, last = scores.bound.keys(i0, i1)
    step = max(KEYS, ELEMENTS // (i1 - i0))
    for j0 in range(first, last, step):
        j1 = min(j0 + step, last)
        tile, hidden = scores.tile(queries, i0, i1, j0, j1)
        bad = ~scores.k[0, 0, j0:j1].isfinite().all(dim=-1)
        if bad.any():
            spoiled |= (bad if hidden is None else bad & ~hidden[0, 0]).any(dim=-1)
        absorb(part, tile, masked=True, room=scores.room(1, *tile.shape[1:]))
    sink = scores.bound.sinks
    done = finish(part, None if sink is None else sink[:, None])
    return LogSum(done.lse[0].masked_fill(spoiled, torch.nan), done.lse_low[0])


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis (all, if it is shorter) and where, the first of equals."""
    if k < scores.shape[-1]:
        values, at = scores.topk(k + 1)
        # topk takes any of equals: rows that hold some are sorted.
        tied = (values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)
        again = tied.any(dim=-1)
        values, at = values[..., :k], at[..., :k]
        if again.any():
            ordered, order = scores[again].sort(dim=-1, descending=True, stable=True)
            values[again], at[again] = ordered[:, :k], order[:, :k]
        return values, at
    return torch.sort(scores, dim=-1, descending=True, stable=True)
