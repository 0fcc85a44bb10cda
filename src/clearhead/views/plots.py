"""Pictures: heatmaps of the weights, and the door to the curves (curves.py) and the PNG.

Plain arrays in, a matplotlib Figure out; `png_bytes` turns it into a file's bytes. matplotlib is
imported only when a picture is drawn, pyplot never, and every picture is built under matplotlib's
own defaults, so the caller's style, backend and open figures neither matter nor change.

All layout is in pixels at 150 dpi: a heatmap cell then covers a whole number of pixels, or a
pixel a whole number of cells, and what is shown is decided here rather than by resampling.
One sign runs through all pictures: hatched paper means "no weight can be here".
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clearhead.views.curves import entropy_curves, scaling_figure
from clearhead.views.labels import (
    DPI,
    check_labels,
    readable,
    text_width,
    thinned,
    tick_names,
    use_fonts,
)
from clearhead.views.page import (
    BROKEN,
    HATCH,
    INK,
    MUTED,
    PAPER,
    Room,
    grid,
    house_style,
    page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["entropy_curves", "heatmap_grid", "png_bytes", "readable", "scaling_figure"]

MAX_PANELS = 64


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG in memory, rendered with Agg: no display, no file, no time stamp.

    The same figure gives the same bytes.
    """
    with house_style():
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        buffer, canvas = io.BytesIO(), figure.canvas
        try:
            FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
        finally:
            figure.set_canvas(canvas)  # a figure of the caller's stays in its window
    return buffer.getvalue()


# ---------------------------------------------------------------------------------- heatmaps


@house_style()
def heatmap_grid(
    weights: ArrayLike, tokens: Sequence[str], title: str, visible: ArrayLike | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:  # fmt: skip
    """Attention weights as one heatmap a head, all on the same color scale from 0 to 1.

    `weights` is (T, T) or (H, T, T), row i the query, column j the key; `tokens` has T labels, or
    every n-th with its index where they would overlap. `visible` (T, T) bool says which cells a
    query may see at all: the others are hatched, whereas a weight of 0 is the darkest color. NaN,
    infinite weights and weights on hidden cells are marked and counted in a note. Where a panel
    has too few pixels for all cells, a dot shows the largest weight of its block, as a note says.
    `titles` has a name for each head, of one line or two; "head 0" and so on unless given. At most
    64 heads are drawn. Raises ValueError for other shapes and arrays that hold no real numbers.
    """
    maps, size = _maps(weights)
    names = check_labels(tokens, size, f"the map is {size} x {size}")
    seen = _seen(visible, size)
    named = [f"head {index}" for index in range(len(maps))] if titles is None else titles
    if len(named) != len(maps):
        raise ValueError(f"there are {len(named)} titles for {len(maps)} heads: give one for each")
    count = min(len(maps), MAX_PANELS)
    columns = 2 if count == 4 and size > 12 else grid(count)
    shared = columns > 4  # small panels: labels on the outer edges only
    block, cell = _resolution(size, columns)
    panel = -(-size // block) * cell
    step, font = thinned(size, size / block * cell * 72 / DPI)
    undrawable = use_fonts([title, *names[::step]])
    labels = tick_names(names, step, 10 if shared else 16, undrawable)
    flat = text_width(labels, font) < 0.9 * step * cell / block
    tall = round(30 if flat else text_width(labels, font) + 16)
    wide = round(text_width(labels, font) + 16)
    head = 8 if np.ndim(weights) == 2 else 58 if any("\n" in name for name in named) else 30
    gap = (20, head + 6) if shared else (wide + 28, tall + head + 14)
    room = Room(count, columns, (panel, panel), wide + 28, tall + 26, 110, gap, head)
    notes = _heat_notes(maps, seen, block)
    figure, axes = page(title, notes, room, undrawable)
    for index, ax in enumerate(axes):
        drawn = _pooled(maps[index], seen, block)
        _heatmap(ax, drawn, block, cell)
        outer = (index % columns == 0, index + columns >= count)
        for axis, outside in zip((ax.yaxis, ax.xaxis), outer, strict=True):
            if outside or not shared:
                axis.set_ticks(range(0, size, step), labels, size=font)
            else:
                axis.set_ticks([])
        ax.tick_params("x", rotation=0 if flat else 90)
        if np.ndim(weights) == 3:
            ax.set_title(named[index])
    long = panel > 400 and not shared
    axes[0].set_ylabel("query: the token that looks" if long else "query")
    axes[(count - 1) // columns * columns].set_xlabel(
        "key: the token that is looked at" if long else "key"
    )
    _color_bar(figure, axes[columns - 1 :: columns])
    return figure


def _maps(weights: ArrayLike) -> tuple[NDArray[Any], int]:
    """The weights as (H, T, T), and T; ValueError unless they are square maps of real numbers."""
    maps = np.asarray(weights)
    if maps.dtype.kind not in "fiub":
        raise ValueError(f"weights are {maps.dtype}: a map needs real numbers between 0 and 1")
    if maps.ndim not in (2, 3) or maps.shape[-1] != maps.shape[-2]:
        raise ValueError(
            f"weights have shape {maps.shape}: a map is (T, T) or (H, T, T), queries by keys; "
            "of a batch pass one element"
        )
    if not maps.size:
        raise ValueError(f"weights have shape {maps.shape}: there is nothing to draw")
    return maps.reshape(-1, *maps.shape[-2:]), maps.shape[-1]


def _seen(visible: ArrayLike | None, size: int) -> NDArray[np.bool_]:
    """Which cells may be seen, (T, T); all of them without a mask."""
    seen = np.ones((size, size), dtype=bool) if visible is None else np.asarray(visible)
    if seen.dtype != bool or seen.shape != (size, size):
        raise ValueError(
            f"visible is {seen.dtype} of shape {seen.shape}: it must be bool of shape "
            f"({size}, {size}), True where the query may see the key (for a 0/1 mask: mask > 0)"
        )
    return seen


def _resolution(size: int, columns: int) -> tuple[int, int]:
    """(cells per block, pixels per block) for a map of this size in a grid of this many columns."""
    small, large = {1: (600, 960), 2: (480, 720), 3: (400, 600), 4: (350, 560)}.get(
        columns, (225, 360)
    )
    # Long maps get larger panels; tiny ones would look silly in a large one.
    share = np.clip(np.log(size / 8) / np.log(60 / 8), 0, 1)
    pixels = min(small + share * (large - small), 105 + 135 * size)
    # Never below 2 pixels: a lone bright cell has to survive a smaller screen.
    block = int(np.ceil(2 * size / (1.25 * pixels)))
    return block, max(2, round(pixels / np.ceil(size / block)))


def _pooled(head: NDArray[Any], seen: NDArray[np.bool_], block: int) -> Any:
    """The largest weight of each block: 2 where one is broken, masked where nothing is visible."""
    head = head.astype(np.float32)
    sound = np.where(_is_weight(head), np.clip(head, 0, 1), 2)
    cells = np.where(seen, sound, np.where(_leaks(head, seen), 2, -1))
    count = -(-len(head) // block)
    cells = np.pad(cells, (0, count * block - len(head)), constant_values=-1)
    # One reduction serves all three, since broken > weight > hidden.
    cells = cells.reshape(count, block, count, block).max(axis=(1, 3))
    return np.ma.masked_less(cells, 0)


def _is_weight(head: NDArray[Any]) -> NDArray[np.bool_]:
    """Cells that hold a number between 0 and 1, give or take what half precision loses."""
    return np.asarray((head >= -1e-3) & (head <= 1 + 1e-3))


def _leaks(head: NDArray[Any], seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells that hold a weight although nobody may see them: a bug in the mask."""
    return np.asarray(~seen & np.isfinite(head) & (np.abs(head) > 1e-6))


def _heatmap(ax: Axes, drawn: Any, block: int, cell: int) -> None:
    """One panel: hidden cells let the hatched paper shine through, broken ones are crossed."""
    from matplotlib import colormaps

    count = len(drawn)
    edge = count * block - 0.5
    ax.patch.set(facecolor=PAPER, edgecolor=HATCH, hatch="////", linewidth=0)
    colors = colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0), over=BROKEN)
    ax.imshow(drawn, cmap=colors, vmin=0, vmax=1, interpolation="nearest", aspect="auto",
              extent=(-0.5, edge, edge, -0.5))  # fmt: skip
    if count <= 24 and count > 1:
        lines = np.arange(1, count) - 0.5
        ax.vlines(lines, -0.5, edge, color="white", linewidth=0.8)
        ax.hlines(lines, -0.5, edge, color="white", linewidth=0.8)
    y, x = np.nonzero(drawn.filled(0) > 1)
    if len(x) <= 500:  # a cross in cells that have room for it, a ring around the others
        look = ("x", "white", min(9, cell * 0.2)) if cell >= 16 else ("o", BROKEN, 7)
        middle = (block - 1) / 2
        ax.plot(x * block + middle, y * block + middle, linestyle="none", marker=look[0],
                markeredgecolor=look[1], markersize=look[2], markerfacecolor="none")  # fmt: skip
    size = min(9.0, cell * 72 / DPI * 0.36)
    if count <= 10 and size >= 6:
        for (i, j), weight in np.ndenumerate(drawn.filled(2)):
            if weight <= 1:
                text = f"{weight:.2f}".replace("0.", ".", 1)
                color = "white" if weight < 0.6 else INK
                ax.text(j, i, text, size=size, color=color, ha="center", va="center_baseline")
    ax.spines[:].set_visible(False)


def _color_bar(figure: Figure, last: Sequence[Axes]) -> None:
    """The one color bar, right of the last panel of each row: as tall as the first rows."""
    width, height = figure.bbox.width, figure.bbox.height
    top, x = last[0].get_position().y1, last[0].get_position().x1 + 28 / width
    feet = [ax.get_position().y0 for ax in last]
    foot = [y for y in feet if (top - y) * height <= 720 or y == feet[0]][-1]
    ax = figure.add_axes((x, foot, 16 / width, top - foot))
    bar = figure.colorbar(last[0].images[0], cax=ax)
    bar.outline.set_visible(False)
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", ".25", ".5", ".75", "1"])
    ax.set_title("weight", size=8, color=MUTED, pad=9)


def _heat_notes(maps: NDArray[Any], seen: NDArray[np.bool_], block: int) -> list[tuple[str, str]]:
    """What a reader of the picture has to know, worst first."""
    counts = {"NaN": 0, "infinite": 0, "on hidden cells": 0, "below 0 or above 1": 0}
    heads = set()
    for index, head in enumerate(maps):
        faults = (
            np.isnan(head) & seen,
            np.isinf(head) & seen,
            _leaks(head, seen),
            ~_is_weight(head) & np.isfinite(head) & seen,
        )
        for name, fault in zip(counts, faults, strict=True):
            counts[name] += int(fault.sum())
            heads |= {index} if fault.any() else set()
    notes = []
    if any(counts.values()):
        found = ", ".join(f"{n:,} {name}" for name, n in counts.items() if n)
        which = ", ".join(map(str, sorted(heads)[:8])) + ", ..." * (len(heads) > 8)
        notes += [("broken", f"not weights: {found} in head {which}")]
    if not seen.all():
        notes += [("hidden", "hidden by the mask: no head can put weight here (0 is dark violet)")]
    if block > 1:
        notes += [("", f"each dot is the largest of {block} x {block} weights")]
    if len(maps) > MAX_PANELS:
        notes += [("", f"{MAX_PANELS} of {len(maps)} heads")]
    return notes
