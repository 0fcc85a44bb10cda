"""One head's map pooled at every zoom: squares of 2^z x 2^z weights, in tiles of 256 x 256 pixels.

One pass over the head gives the level `base` and all that are coarser; finer tiles are computed
where somebody looks. What was computed is kept within a budget of bytes.

Letters: T queries, S keys; z a level, at which a pixel is 2^z queries by 2^z keys.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.map import AttentionMap
from clearhead.viewer.codes import Codes, encode

TILE = 256  # pixels to a side of a tile
FINEST = 4096  # pixels to a side of the level that one pass makes, at most
ROWS = 1024  # queries between two looks at whether somebody still waits
ENCODED = 1 << 18  # pixels that are turned into codes at once
REDUCE = ("max", "mean")

Step = Callable[[float], None]


def level_within(T: int, S: int, side: int) -> int:
    """The finest level at which a map has `side` pixels, a power of two, to a side at most."""
    return max(0, (max(T, S, 1) - 1).bit_length() - (side - 1).bit_length())


def top_level(T: int, S: int) -> int:
    """The level at which the whole map is one tile."""
    return level_within(T, S, TILE)


def base_level(T: int, S: int) -> int:
    """The level that a pass over the map makes: 0 for a map of up to 4096, else 3 or more."""
    z = level_within(T, S, FINEST)
    return max(3, z) if z else 0


def n_tiles(size: int, z: int) -> int:
    """How many tiles an axis of `size` has at a level; 1 for an empty one."""
    return max(1, -(-size // (TILE << z)))


# Pixels -------------------------------------------------------------------------------------------


def exact_tile(amap: AttentionMap, reduce: str, z: int, ty: int, tx: int) -> Codes:
    """One tile of a map (1, 1, T, S), from its weights: (256, 256); 0 beyond the map."""
    T, S = amap.shape[-2:]
    side = TILE << z
    rows, cols = (
        (min(t * side, size), min((t + 1) * side, size)) for t, size in ((ty, T), (tx, S))
    )
    return _padded(_exact(amap, reduce, z, rows, cols))


def exact_level(amap: AttentionMap, reduce: str, z: int) -> Codes:
    """All pixels of a level of a map (1, 1, T, S), from its weights."""
    T, S = amap.shape[-2:]
    return _exact(amap, reduce, z, (0, T), (0, S))


def _exact(
    amap: AttentionMap, reduce: str, z: int, rows: tuple[int, int], cols: tuple[int, int]
) -> Codes:
    return _codes(*_pixels(amap, rows, cols, z, reduce), rows, cols, z, reduce)


def levels(amap: AttentionMap, reduce: str, step: Step, threads: int = 1) -> dict[int, Codes]:
    """The levels from base to top of a map (1, 1, T, S), by one pass over it.

    `step` is told how much is done, in 0..1, some ten times a second; what it raises ends the pass.
    """
    T, S = amap.shape[-2:]
    z = base_level(T, S)
    n, m = -(-T >> z), -(-S >> z)
    values, seen = torch.zeros(n, m, dtype=amap.dtype), torch.zeros(n, m, dtype=torch.bool)
    codes: Codes = np.zeros((n, m), "<u2")

    def work(mine: AttentionMap, i0: int, i1: int) -> None:
        j1 = min(-(-mine._bound.keys(i0, i1)[1] >> z << z), S)  # behind it nobody sees anything
        where = slice(i0 >> z, -(-i1 >> z)), slice(0, -(-j1 >> z))
        values[where], seen[where] = _pixels(mine, (i0, i1), (0, j1), z, reduce)
        codes[where] = _codes(values[where], seen[where], (i0, i1), (0, j1), z, reduce)

    _by_bands(amap, 1 << z, work, step, threads)
    found = {z: codes}
    for level in range(z + 1, top_level(T, S) + 1):
        step(0.99)
        values, seen = _halved(values, reduce), _halved(seen, "max")
        found[level] = _codes(values, seen, (0, T), (0, S), level, reduce)
    return found


def received(amap: AttentionMap, step: Step, threads: int = 1) -> NDArray[np.float32]:
    """The sum of each key's weights over the real queries of a map (1, 1, T, S): (S,)."""
    T, S = amap.shape[-2:]
    real = torch.ones(T, dtype=torch.bool)
    if amap.rule.query_mask is not None:
        real = amap.rule.query_mask[0].cpu()
    total, lock = torch.zeros(S, dtype=torch.float64), threading.Lock()

    def work(mine: AttentionMap, i0: int, i1: int) -> None:
        j0, j1 = mine._bound.keys(i0, i1)
        for a, b in _runs(real[i0:i1]) if j0 < j1 else ():
            rows = (i0 + a, i0 + b)
            part = mine.pooled(0, 0, rows=rows, cols=(j0, j1), shape=(1, j1 - j0), reduce="sum")
            with lock:
                total[j0:j1] += part.values[0]

    _by_bands(amap, 1, work, step, threads)
    return total.to(torch.float32).numpy()


def _by_bands(
    amap: AttentionMap, side: int, work: Callable[[AttentionMap, int, int], None], step: Step,
    threads: int,
) -> None:  # fmt: skip
    """Have work(map, i0, i1) done for all rows, in bands of whole pixels, the last ones first.

    Each thread has a map of its own. What one of them raises ends all, and is raised here.
    """
    T = amap.shape[-2]
    high = max(side, ROWS // side * side)
    spans = [(i0, min(i0 + high, T)) for i0 in range(0, T, high)]
    costs = {span: 1 + span[1] - span[0] + _n_seen(amap, *span) for span in spans}
    whole, done, lock = sum(costs.values()), 0, threading.Lock()
    raised: list[BaseException] = []

    def run() -> None:
        nonlocal done
        mine = amap.head(0, 0)
        try:
            while True:
                with lock:
                    if raised or not spans:
                        return
                    span = spans.pop()
                step(0.98 * done / whole)
                work(mine, *span)
                with lock:
                    done += costs[span]
        except BaseException as error:
            raised.append(error)

    others = [
        threading.Thread(target=run, daemon=True) for _ in range(min(threads, len(spans)) - 1)
    ]
    for thread in others:
        thread.start()
    run()
    for thread in others:
        thread.join()
    if raised:
        raise raised[0]


def _n_seen(amap: AttentionMap, i0: int, i1: int) -> int:
    """How many cells these rows have between the first and the last key that any of them sees."""
    first, last = amap._bound.keys(i0, i1)
    return (i1 - i0) * (last - first)


def _pixels(
    amap: AttentionMap, rows: tuple[int, int], cols: tuple[int, int], z: int, reduce: str
) -> tuple[Tensor, Tensor]:
    """A rectangle that begins at a pixel: the largest weight or the sum of each pixel, and whether
    any of its cells is seen; each (n, m)."""
    n, m = (-(-(stop - start) >> z) for start, stop in (rows, cols))
    values, seen = torch.zeros(n, m, dtype=amap.dtype), torch.zeros(n, m, dtype=torch.bool)
    how = "max" if reduce == "max" else "sum"
    for r, down, i in _whole(rows, z):
        for c, across, j in _whole(cols, z):
            size = (i.stop - i.start, j.stop - j.start)
            found = amap.pooled(0, 0, rows=(r, down), cols=(c, across), shape=size, reduce=how)
            values[i, j], seen[i, j] = found.values, found.visible > 0
    return values, seen


def _whole(span: tuple[int, int], z: int) -> Iterator[tuple[int, int, slice]]:
    """A span in whole pixels, and what is left over at its end as one: start, stop, pixels."""
    start, stop = span
    n = (stop - start) >> z
    if n:
        yield start, start + (n << z), slice(0, n)
    if start + (n << z) < stop:
        yield start + (n << z), stop, slice(n, n + 1)


def _areas(rows: tuple[int, int], cols: tuple[int, int], z: int) -> Tensor:
    """How many cells of the map each pixel of a rectangle has: (n, m)."""
    sizes = []
    for start, stop in (rows, cols):
        edges = torch.arange(start, stop, 1 << z)
        sizes.append((stop - edges).clamp(max=1 << z).to(torch.float64))
    return sizes[0][:, None] * sizes[1]


def _halved(x: Tensor, reduce: str) -> Tensor:
    """Two by two pixels as one; a NaN spoils it."""
    x = torch.nn.functional.pad(x, (0, x.shape[1] % 2, 0, x.shape[0] % 2))
    four = x[::2, ::2], x[1::2, ::2], x[::2, 1::2], x[1::2, 1::2]
    if x.dtype == torch.bool:
        return four[0] | four[1] | four[2] | four[3]
    if reduce == "mean":
        return (four[0] + four[1]) + (four[2] + four[3])
    return torch.maximum(torch.maximum(four[0], four[1]), torch.maximum(four[2], four[3]))


def _codes(
    values: Tensor, seen: Tensor, rows: tuple[int, int], cols: tuple[int, int], z: int, reduce: str
) -> Codes:
    """The codes of a rectangle of pixels that cover these rows and columns."""
    codes: Codes = np.zeros(values.shape, "<u2")
    high = max(1, ENCODED // max(values.shape[1], 1))
    for i in range(0, len(values), high):
        some = values[i : i + high]
        if reduce == "mean":
            here = rows[0] + (i << z), min(rows[0] + ((i + len(some)) << z), rows[1])
            some = some / _areas(here, cols, z)
        codes[i : i + high] = encode(some, seen[i : i + high])
    return codes


def cut(level: Codes, ty: int, tx: int) -> Codes:
    """One tile of a level: (256, 256); 0 beyond the map."""
    return _padded(level[ty * TILE : (ty + 1) * TILE, tx * TILE : (tx + 1) * TILE])


def _padded(codes: Codes) -> Codes:
    if codes.shape == (TILE, TILE):
        return np.ascontiguousarray(codes)
    tile = np.zeros((TILE, TILE), "<u2")
    tile[: codes.shape[0], : codes.shape[1]] = codes
    return tile


def _runs(real: Tensor) -> Iterator[tuple[int, int]]:
    """The runs of True: start, stop."""
    edges = torch.nn.functional.pad(real.to(torch.int8), (1, 1)).diff().nonzero()[:, 0].tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)


# What is kept -------------------------------------------------------------------------------------


class Cache:
    """Arrays by key, the ones used last, of `budget` bytes together at most."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._held: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable) -> NDArray[Any] | None:
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def put(self, key: Hashable, array: NDArray[Any]) -> None:
        """Keep it, if it fits at all; what was not used for longest goes."""
        with self._lock:
            if (old := self._held.pop(key, None)) is not None:
                self.nbytes -= old.nbytes
            if array.nbytes > self.budget:
                return
            while self.nbytes + array.nbytes > self.budget:
                self.nbytes -= self._held.popitem(last=False)[1].nbytes
            self._held[key] = array
            self.nbytes += array.nbytes
