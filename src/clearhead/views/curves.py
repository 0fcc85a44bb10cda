"""Pictures of curves: entropy under its ceiling, and the experiment about scaling the scores.

Hatched paper means the same as in the heatmaps: nothing can be here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clearhead.views.labels import DPI, check_labels, text_width, thinned, tick_names, use_fonts
from clearhead.views.page import (
    BAND,
    BLUE,
    BROKEN,
    GREEN,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PLUM,
    Room,
    end_labels,
    grid,
    house_style,
    page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]
MAX_PANELS = 64
CURVES = (BLUE, ORANGE, GREEN, PLUM)  # up to so many heads share one panel
KINDS = ("unscaled", "scaled")
OUT_OF_REACH = "no row can be above log(number of keys it sees)"


@house_style()
def entropy_curves(
    entropy: ArrayLike,
    title: str,
    ceiling: ArrayLike | None = None,
    tokens: Sequence[str] | None = None,
) -> Figure:
    """Entropy of every query row in nats, each head under the ceiling that no row can pass.

    `entropy` is (H, T) or (T,); `ceiling` (T,) is the largest entropy that each row could have,
    log(number of keys it sees): by default log(1) ... log(T), which is a causal mask. `tokens`, T
    of them, label the axis where there is room for all. Up to 4 heads share a panel, more get one
    each, at most 64. Values that are not finite leave a gap and are counted in a note, and so are
    rows above the ceiling. Raises ValueError for other shapes.
    """
    curves, top = _curves(entropy, ceiling)
    heads, size = curves.shape
    names = [] if tokens is None else check_labels(tokens, size, f"entropy has {size} rows")
    alone = heads == 1 or (heads <= len(CURVES) and size <= 60)
    count = 1 if alone else min(heads, MAX_PANELS)
    columns = 2 if count in (2, 4) else grid(count)
    panel = {1: (1050, 480), 2: (640, 330)}.get(columns, (400, 250) if columns <= 4 else (270, 180))
    step, font = thinned(size, (panel[0] - 20) * 72 / DPI)
    names = names if step == 1 and columns <= 4 else []
    undrawable = use_fonts([title, *names])
    labels = tick_names(names, 1, 12, undrawable)
    flat = text_width(labels, font) < 0.9 * panel[0] / size
    tall = 0 if flat else round(text_width(labels, font))
    ends = [(_last(head), f"head {h}  {_mean(head)}") for h, head in enumerate(curves[:MAX_PANELS])]
    right = round(text_width([text for _, text in ends], 9)) + 30 if alone else 0
    gap = (44, 62)
    room = Room(count, columns, panel, 80, 50 + tall, right, gap, 12 if alone else 34)
    figure, axes = page(title, _entropy_notes(curves, top, alone), room, undrawable)
    for index, ax in enumerate(axes):
        _ceiling(ax, top, float(curves.max(where=np.isfinite(curves), initial=0)), alone)
        if alone:
            for head, color in zip(curves, CURVES, strict=False):
                _curve(ax, head, top, color)
            end_labels(ax, size + 0.5, [(*e, c) for e, c in zip(ends, CURVES, strict=False)])
        else:
            low, high = np.fmin.reduce(curves), np.fmax.reduce(curves)
            ax.fill_between(np.arange(1, size + 1), low, high, color=BAND, linewidth=0)
            _curve(ax, curves[index], top, BLUE)
            ax.set_title(ends[index][1])
        if labels:
            ax.set_xticks(range(1, size + 1), labels, size=font, rotation=0 if flat else 90)
        else:
            _position_ticks(ax, size, panel[0])
        ax.tick_params(labelleft=index % columns == 0, labelbottom=index + columns >= count)
    axes[0].set_ylabel("entropy, nats")
    axes[(count - 1) // columns * columns].set_xlabel("position of the query, from 1")
    return figure


def _curves(entropy: ArrayLike, ceiling: ArrayLike | None) -> tuple[Array, Array]:
    """Entropies (H, T) and ceiling (T,), checked."""
    curves = np.atleast_2d(_real(entropy, "entropy"))
    if curves.ndim != 2 or not curves.size:
        raise ValueError(
            f"entropy has shape {curves.shape}: it must be (H, T), one curve a head, and not empty"
        )
    size = curves.shape[1]
    top = np.log(np.arange(1, size + 1)) if ceiling is None else _real(ceiling, "ceiling")
    if top.shape != (size,):
        raise ValueError(
            f"ceiling has shape {top.shape} but entropy has {size} rows a head: it must be "
            f"({size},), the log of the number of keys that each row sees"
        )
    # log(0) for a row that sees nothing; such a row has entropy 0.
    top = np.maximum(top, 0)
    if not np.isfinite(top).all():
        raise ValueError("ceiling holds NaN or inf: it is the log of a number of keys, in nats")
    return curves, top


def _real(values: ArrayLike, name: str) -> Array:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} is {array.dtype}: it must be real numbers, in nats")
    return array.astype(np.float64)


def _entropy_notes(curves: Array, top: Array, alone: bool) -> list[tuple[str, str]]:
    """What a reader of the curves has to know, worst first."""
    notes = []
    if bad := int((~np.isfinite(curves)).sum()):
        notes += [("", f"NaN or infinite: {bad:,} values, left as gaps")]
    if above := int((curves > top + 1e-3).sum()):
        notes += [("broken", f"above the ceiling: {above:,} rows (without a causal mask, rows "
                             "see more keys than this ceiling says)")]  # fmt: skip
    if not alone:
        notes += [("hidden", f"out of reach: {OUT_OF_REACH}"), ("range", "range over all heads")]
    if len(curves) > MAX_PANELS:
        notes += [("", f"{MAX_PANELS} of {len(curves)} heads")]
    return notes


def _mean(head: Array) -> str:
    sound = head[np.isfinite(head)]
    return f"mean {sound.mean():.2f}" if sound.size else "no finite value"


def _last(head: Array) -> float:
    sound = head[np.isfinite(head)]
    return float(sound[-1]) if sound.size else 0.0


def _ceiling(ax: Axes, top: Array, largest: float, named: bool) -> None:
    """The dashed ceiling, and above it the hatched region where no row can be."""
    size = len(top)
    x = np.array([0.5, *range(1, size + 1), size + 0.5])
    y = np.array([top[0], *top, top[-1]])
    high = max(1.22 * y.max(), 1.22 * largest, 0.5)
    ax.fill_between(x, y, high, facecolor=PAPER, edgecolor=HATCH, hatch="////", linewidth=0)
    ax.plot(x, y, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xlim=(0.5, size + 0.5), ylim=(-0.04 * high, high))
    if named:
        ax.text(0.012, 0.965, OUT_OF_REACH, transform=ax.transAxes, size=8.5, color=MUTED, va="top",
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 2})  # fmt: skip
    ticks = [*range(int(high) + 1)] if high > 1 else [0, 0.25, 0.5]
    ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
    ax.spines[["top", "right"]].set_visible(False)


def _curve(ax: Axes, head: Array, top: Array, color: str) -> None:
    """One head's entropies, points while they are few; rows above the ceiling get a ring."""
    size = len(head)
    above = np.flatnonzero(head > top + 1e-3)
    ax.plot(above + 1, head[above], linestyle="none", marker="o", markersize=7,
            markeredgecolor=BROKEN, markerfacecolor="none")  # fmt: skip
    head = np.where(np.isfinite(head), head, np.nan)
    ax.plot(np.arange(1, size + 1), head, color=color, linewidth=1.4 if size <= 120 else 0.7,
            marker="o" if size <= 30 else "", markersize=3.5, clip_on=False)  # fmt: skip


def _position_ticks(ax: Axes, size: int, pixels: int) -> None:
    """Round positions below the axis, and 1 where it does not touch the next."""
    step, _ = thinned(size, pixels * 72 / DPI, each=12 + 6 * len(str(size)))
    ticks = [1, *range(step, size + 1, step)] if step > 2 else range(1, size + 1, step)
    ax.set_xticks(ticks, [str(t) for t in ticks])


# ---------------------------------------------------------------------------------- scaling


@house_style()
def scaling_figure(rows: Sequence[Mapping[str, Any]], n_keys: int) -> Figure:
    """Why scores are divided by sqrt(d_head): four measurements against the head size.

    Each row is {"d_head": int, "score_std": standard deviation of q.k, "scaled": s, "unscaled": s}
    with s = {"entropy": mean, in nats, "max_prob": mean largest weight, "gradient": share of a
    random push of +-1 on the weights that arrives at the scores}, all for q and k with
    unit-variance components and a softmax over `n_keys` keys. Raises ValueError, naming the row,
    for numbers that are missing or not finite.
    """
    if not rows or n_keys < 1:
        raise ValueError(f"{len(rows)} rows over {n_keys} keys: at least 1 of each is needed")
    rows = sorted(rows, key=lambda row: _number(row, "d_head"))
    sizes = np.array([_number(row, "d_head") for row in rows])
    std = np.array([_number(row, "score_std") for row in rows])
    root, one = np.sqrt(sizes), np.ones_like(sizes)
    pairs = {key: [np.array([_number(row, kind, key) for row in rows]) for kind in KINDS]
             for key in ("entropy", "max_prob", "gradient")}  # fmt: skip
    panels = (
        ("1  the scores: standard deviation of q\u00b7k", [std, std / root], root,
         "\u221ad_head"),
        ("2  the weights: entropy of a row, nats", pairs["entropy"], np.log(n_keys) * one,
         f"log({n_keys:,}), all keys alike"),
        ("3  largest weight of a row", pairs["max_prob"], one,
         "1, all on one key"),
        ("4  gradient that gets through: share of a push", pairs["gradient"], one,
         "1, all of it"),
    )  # fmt: skip
    notes = [
        ("", f"q and k: unit-variance components; softmax over {n_keys:,} keys; means over rows"),
        ("", "4: the share of a random push of \u00b11 on the weights that the softmax passes on "
             "to the scores"),
    ]  # fmt: skip
    room = Room(4, 2, (460, 270), 46, 70, 130, (200, 84), 44)
    figure, axes = page("Why attention divides its scores by \u221ad_head", notes, room)
    for ax, (title, pair, limit, name) in zip(axes, panels, strict=True):
        _scaling_panel(ax, sizes, pair, limit, name)
        ax.set_title(title)
    for ax in axes[2:]:
        ax.set_xlabel("d_head, the size of a head")
    return figure


def _number(row: Mapping[str, Any], *path: str) -> float:
    """One finite number out of a row; ValueError that names where it should have been."""
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, (int, float, np.number)) or not np.isfinite(value):
        raise ValueError(f"row {dict(row)}: {'.'.join(path)} is {value}, not a finite number")
    return float(value)


def _apart(sizes: Array) -> list[float]:
    """Those of the sizes, from the smallest up, that a logarithmic axis has room to name."""
    named = [float(sizes[0])]
    least = max(sizes[-1] / sizes[0], 1.0) ** (1 / 7)
    for size in sizes[1:]:
        if size >= named[-1] * least:
            named.append(float(size))
    return named


def _scaling_panel(ax: Axes, sizes: Array, pair: list[Array], limit: Array, name: str) -> None:
    """Without and with the division, and the dashed limit; logarithmic where the limit grows."""
    from matplotlib.ticker import NullLocator

    high, ends = float(np.max([*pair, limit])), np.array([sizes[0] / 1.35, sizes[-1] * 1.35])
    ax.set(xscale="log", xlim=ends)
    if name.startswith("\u221a"):
        low = max(1e-6, float(np.min(pair)))
        ticks = [t for t in 2.0 ** np.arange(-20, 40, 2) if low / 1.8 < t < high * 3]
        ax.set(yscale="log", ylim=(low / 1.8, high * 3.2))
        limits = np.sqrt(ends)
    else:
        step = 0.5 if high <= 1 else 1 if high <= 4 else 2
        ticks = list(np.arange(0, high + 1e-6, step))
        ax.set_ylim(-0.05 * max(high, 0.1), 1.28 * max(high, 0.1))
        limits = limit[[0, -1]]
    for axis, places in ((ax.yaxis, ticks), (ax.xaxis, _apart(np.unique(sizes)))):
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(places, [f"{t:.15g}" for t in places])
    # Above the curves, which hide it where they reach it.
    ax.plot(ends, limits, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=3)
    ax.text(0.02, 0.97, f"dashed: {name}", transform=ax.transAxes, size=8, color=MUTED, va="top")
    for values, color in zip(pair, (ORANGE, BLUE), strict=True):
        ax.plot(sizes, values, color=color, linewidth=1.8, marker="o", markersize=5)
    names = ("q\u00b7k", "q\u00b7k / \u221ad_head")
    end_labels(ax, ends[1], [(float(values[-1]), text, color) for values, text, color in
                               zip(pair, names, (ORANGE, BLUE), strict=True)])  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)
