"""The pictures of a run as files: all heads as a grid, and the maps of those that stand out.

One cell a head, colored by its entropy, with its role; and for each head that stands out its map,
pooled where it is long. PNG and SVG from the same figure.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from clearhead.run.calls import head_place
from clearhead.run.looks import Looks, Places
from clearhead.views.heads import named, proof, rows, share, sizes, standouts
from clearhead.views.inline import Axis, axes_of, pooled_map, pooling
from clearhead.views.labels import DPI, readable, text_width, thinned, use_fonts
from clearhead.views.looks import where
from clearhead.views.page import BROKEN, HATCH, INK, MUTED, PAPER, SIGNS, Room, house_style, page
from clearhead.views.plots import png_bytes
from clearhead.views.style import css_color, shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clearhead.cells import Pooled
    from clearhead.run import Run

Row = Mapping[str, Any]
SIDE = 720  # pixels of a map's longer side
TICKS = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
MOST_TEXTS = 1024  # cells of a grid that say their number


def pictures(run: Run, looks: Looks | None = None) -> dict[str, bytes]:
    """File name -> bytes: heads.png and heads.svg, and head-3.5.png and head-3.5.svg of each head
    that stands out, where q and k were kept; with `looks`, of run.between, of those that look there
    most, that place outlined.

    Names are safe and distinct; the same run gives the same bytes. Raises ValueError for a run
    without heads.
    """
    found = rows(run)
    files = _both("heads", heads_figure(run))
    shown = standouts(found) if run.keep == "qk" else []
    if looks is not None:
        by_name = {row["head"]: row for row in found}
        shown = [by_name[head] for head, *_ in looks[: len(shown)]]
    for row in shown:
        try:
            figure = map_figure(run, row, looks)
        except ValueError:  # of this head nothing was kept
            continue
        files |= _both(f"head-{row['head']}", figure)
    return files


def _both(name: str, figure: Figure) -> dict[str, bytes]:
    return {f"{name}.png": png_bytes(figure), f"{name}.svg": svg_bytes(figure)}


def svg_bytes(figure: Figure) -> bytes:
    """The figure as an SVG in memory, without a date. The same figure gives the same bytes."""
    with house_style():
        import matplotlib
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        buffer, canvas = io.BytesIO(), figure.canvas
        try:
            with matplotlib.rc_context({"svg.hashsalt": "clearhead"}):
                FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None, "Creator": None})
        finally:
            figure.set_canvas(canvas)
    return buffer.getvalue()


# All heads ----------------------------------------------------------------------------------------


@house_style()
def heads_figure(run: Run) -> Figure:
    """Layers down, heads across: each head's entropy, and its role where that is clear."""
    from matplotlib.colors import LinearSegmentedColormap

    found = rows(run)
    if not found:
        raise ValueError("this run has no heads: nothing was observed")
    layers = sorted({row["layer"] for row in found})
    places = {row["head"]: _place(row, layers) for row in found}
    n, m = len(layers), max(x for _, x in places.values()) + 1
    entropy = np.full((n, m), np.nan)
    for row in found:
        value = row["normalized_entropy"]
        entropy[places[row["head"]]] = np.nan if value is None else value
    undrawable = use_fonts([run.model, *(row["role"] or "" for row in found)])
    wide, high = (176, 76) if m <= 12 else (62, 44) if m <= 24 else (40, 32)
    said = (
        "entropy: 0 (dark) all weight on one token, 1 (pale) the same on every token; "
        "bold: what the head does is clear"
    )
    notes = [("", proof(run)), ("", said)]
    title = f"{readable(run.model, 60, undrawable)}: {sizes(found)}"
    room = Room(1, 1, (m * wide, n * high), 70, 20, 20, (0, 0), 56)
    figure, (ax,) = page(title, notes, room, undrawable)
    backs = [css_color(back) for back, _ in shades(dark=False)]
    colors = LinearSegmentedColormap.from_list("entropy", backs).with_extremes(bad=PAPER)
    ax.imshow(np.ma.masked_invalid(entropy), cmap=colors, vmin=0, vmax=1, aspect="auto",
              interpolation="nearest", extent=(-0.5, m - 0.5, n - 0.5, -0.5))  # fmt: skip
    ax.vlines(np.arange(1, m) - 0.5, -0.5, n - 0.5, color="white", linewidth=1)
    ax.hlines(np.arange(1, n) - 0.5, -0.5, m - 0.5, color="white", linewidth=1)
    for row in found if len(found) <= MOST_TEXTS else ():
        _say(ax, row, places[row["head"]], m <= 12, undrawable)
    step = thinned(n, n * high * 72 / DPI)[0]
    ax.set_yticks(range(0, n, step), [str(layer) for layer in layers[::step]])
    step = thinned(m, m * wide * 72 / DPI, 16)[0]
    ax.set_xticks(range(0, m, step), [str(h) for h in range(0, m, step)])
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="head", ylabel="layer")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def _place(row: Row, layers: Sequence[int]) -> tuple[int, int]:
    return layers.index(row["layer"]), head_place(row["head"])[1]


def _say(
    ax: Axes, row: Row, place: tuple[int, int], roomy: bool, undrawable: frozenset[str]
) -> None:
    """Entropy and role in a cell, in the ink that can be read there."""
    y, x = place
    value = row["normalized_entropy"]
    ink = INK if value is None else css_color(shades(dark=False)[round(10 * value)][1])
    word = named(row) and roomy
    weight = "bold" if named(row) else "normal"
    size = 9 if roomy else 5.5
    ax.text(x, y - 0.16 * word, share(value), size=size, color=ink, weight=weight,
            ha="center", va="center")  # fmt: skip
    if word:
        role = readable(row["role"], 18, undrawable)
        ax.text(x, y + 0.22, role, size=6.8, color=ink, ha="center", va="center")


# One head -----------------------------------------------------------------------------------------


@house_style()
def map_figure(run: Run, row: Row, looks: Looks | None = None) -> Figure:
    """One head's map, rows queries and columns keys, pooled to what can be seen.

    With `looks` it is that of the first text in which they are, with outlines around them. Raises
    ValueError if q and k of the head were not kept.
    """
    at = Places(0, 0, (), ()) if looks is None else looks.places[0]
    seen = run.map(row["head"], sequence=at.sequence)
    pooled = pooled_map(seen, at.batch or 0)
    queries, keys = axes_of(run, row["head"], seen, at.sequence, at.batch or 0)
    T, S = len(queries), len(keys)
    wide = SIDE if T <= S else max(round(SIDE * S / T), 60)
    high = SIDE if S <= T else max(round(SIDE * T / S), 60)
    if max(T, S) < 24:  # tiny maps would look silly in a large panel
        wide, high = (max(60, side * max(T, S) // 24) for side in (wide, high))
    (x_step, x_font), (y_step, y_font) = (
        thinned(size, side * 72 / DPI) for size, side in ((S, wide), (T, high))
    )
    title = f"{run.model}, head {row['head']}: {row['role'] or '-'}"
    undrawable = use_fonts([title, *(queries.texts or ())[::y_step], *(keys.texts or ())[::x_step]])
    x_names, y_names = keys.names(x_step, 14, undrawable), queries.names(y_step, 14, undrawable)
    left, foot = (round(text_width(x, f)) + 46 for x, f in ((y_names, y_font), (x_names, x_font)))
    notes = [("", "color: the square root of the weight, which shows small ones"), ("", proof(run))]
    if said := pooling(seen, pooled, at.batch or 0):
        notes.insert(0, ("", said))
    if not bool((pooled.visible > 0).all()):
        notes.insert(0, ("hidden", "hidden from that row: nobody can read there"))
    if looks is not None:
        notes.insert(0, ("outlined", f"outlined: {where(run, looks)}"))
    room = Room(1, 1, (wide, high), left, foot, 120, (0, 0), 34)
    figure, (ax,) = page(title, notes, room, undrawable)
    _draw(ax, pooled, (T, S))
    _outline(ax, at, queries)
    ax.set_yticks(range(0, T, y_step), y_names, size=y_font)
    ax.set_xticks(range(0, S, x_step), x_names, size=x_font, rotation=90)
    ax.set(xlabel="key: the token that is read", ylabel="query: the token that reads")
    _color_bar(figure, ax, min(high, 480))
    return figure


def _draw(ax: Axes, pooled: Pooled, size: tuple[int, int]) -> None:
    """Weights by their square root, as in the report; hidden cells let the hatched paper show."""
    from matplotlib import colormaps

    values = pooled.values.numpy().astype(np.float64)
    sound = (values >= -1e-3) & (values <= 1 + 1e-3)
    shown = np.where(sound, np.sqrt(np.clip(np.nan_to_num(values), 0, 1)), 2)
    hidden = (pooled.visible.numpy() <= 0) & (values == 0)
    ax.patch.set(facecolor=PAPER, edgecolor=HATCH, hatch="////", linewidth=0)
    colors = colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0), over=BROKEN)
    box = (-0.5, size[1] - 0.5, size[0] - 0.5, -0.5)
    ax.imshow(np.ma.array(shown, mask=hidden), cmap=colors, vmin=0, vmax=1, aspect="auto",
              interpolation="nearest", extent=box)  # fmt: skip
    ax.spines[:].set_visible(False)


def _outline(ax: Axes, at: Places, queries: Axis) -> None:
    """A frame around what some queries lay on some keys."""
    from matplotlib.patches import Rectangle

    for q0, q1 in at.queries:
        rows = [n for n, position in enumerate(queries.at) if q0 <= position < q1]
        for k0, k1 in at.keys if rows else ():
            corner, high = (k0 - 0.5, rows[0] - 0.5), rows[-1] + 1 - rows[0]
            ax.add_patch(Rectangle(corner, k1 - k0, high, clip_on=False, **SIGNS["outlined"]))


def _color_bar(figure: Figure, ax: Axes, high: float) -> None:
    place = ax.get_position()
    width, height = figure.bbox.width, figure.bbox.height
    side = figure.add_axes((place.x1 + 28 / width, place.y1 - high / height, 16 / width,
                            high / height))  # fmt: skip
    bar = figure.colorbar(ax.images[0], cax=side)
    bar.outline.set_visible(False)
    bar.set_ticks([x**0.5 for x in TICKS], labels=[share(x) if x % 1 else str(x) for x in TICKS])
    side.set_title("weight", size=8, color=MUTED, pad=9)
