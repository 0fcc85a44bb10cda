"""The page of a picture: the house style, and a title, a grid of panels and notes laid out on it.

matplotlib is imported only inside the functions, and pyplot never. All sizes are pixels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clearhead.views.labels import DPI, LINE, readable, text_width, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 36  # white space around a page, in pixels
INK, MUTED, FAINT = "#1b2a34", "#66737d", "#c3cad0"
PAPER, HATCH, BAND = "#efede7", "#cfcbc1", "#dbe3e8"
BROKEN = "#ff2d55"  # what no weight can be, NaN for one; in no part of viridis
BLUE, ORANGE, GREEN, PLUM = "#0072b2", "#d55e00", "#009e73", "#a8478a"  # after Okabe and Ito
SKY = "#56b4e9"  # theirs
SIGNS: dict[str, dict[str, Any]] = {
    "hidden": {"facecolor": PAPER, "edgecolor": HATCH, "hatch": "//////", "linewidth": 0.6},
    "broken": {"facecolor": BROKEN, "edgecolor": "none"},
    "range": {"facecolor": BAND, "edgecolor": "none"},
    "outlined": {"facecolor": "none", "edgecolor": "#d55e00", "linewidth": 1.6},
}


@contextmanager
def house_style() -> Iterator[None]:
    """matplotlib's defaults and ours, whatever the caller has set; the backend stays untouched."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "pictures need matplotlib, which is not installed: pip install matplotlib",
            name="matplotlib",
        ) from error
    style = {k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")}
    style |= {
        "axes.edgecolor": FAINT, "axes.labelcolor": MUTED, "axes.labelsize": 8.5,
        "axes.linewidth": 0.6, "axes.titlecolor": INK, "axes.titlelocation": "left",
        "axes.titlesize": 9, "axes.titlepad": 5, "axes.axisbelow": True,
        "font.family": ["DejaVu Sans"], "hatch.color": HATCH, "hatch.linewidth": 0.6,
        "text.color": INK, "text.parse_math": False, "xtick.color": FAINT,
        "xtick.labelcolor": INK, "xtick.labelsize": 8, "xtick.major.size": 2.5,
        "xtick.major.width": 0.6, "ytick.color": FAINT, "ytick.labelcolor": INK,
        "ytick.labelsize": 8, "ytick.major.size": 2.5, "ytick.major.width": 0.6,
    }  # fmt: skip
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    # A fallback family without a regular weight is said again for every size; it does not matter.
    log.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(style):
            yield
    finally:
        log.setLevel(level)


def grid(count: int) -> int:
    """Columns for this many panels: at most 4 up to 16 panels, then at most 8, rows evenly full."""
    rows = -(-count // (4 if count <= 16 else 8))
    return -(-count // rows)


def page(
    title: str,
    notes: Sequence[tuple[str, str]],
    room: Room,
    undrawable: frozenset[str] = frozenset(),
) -> tuple[Figure, list[Axes]]:
    """A figure with its title on top, the panels in a grid and the notes at its foot.

    A note is (sign, text): the sign is a key of SIGNS, for a swatch before the text, or "".
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    rows, columns = -(-room.count // room.columns), room.columns
    (wide, high), (gap_x, gap_y) = room.panel, room.gap
    title = readable(title, 400, undrawable) if title.strip() else ""
    width = 2 * MARGIN + room.left + columns * (wide + gap_x) - gap_x + room.right
    width = max(width, min(720, round(text_width([title], 12.5)) + 2 * MARGIN + 4))
    lines = wrapped(title, 12.5, width - 2 * MARGIN)
    feet = [(sign if i == 0 else sign and "below", line) for sign, text in notes
            for i, line in enumerate(wrapped(text, 8, width - 2 * MARGIN - 30))]  # fmt: skip
    top = MARGIN + 34 * len(lines) + room.head
    height = top + rows * (high + gap_y) - gap_y + room.bottom + 24 * len(feet) + MARGIN
    # A thousandth more, since the canvas rounds down.
    figure = Figure(((width + 1e-3) / DPI, (height + 1e-3) / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    x1, y1 = figure.bbox.width, figure.bbox.height
    for i, line in enumerate(lines):
        y = height - MARGIN - 34 * i
        figure.text(MARGIN / x1, y / y1, line, size=12.5, va="top")
    for i, (sign, line) in enumerate(reversed(feet)):
        y = MARGIN - 6 + 24 * i
        if sign in SIGNS:
            box = (MARGIN / x1, (y - 8) / y1)
            figure.add_artist(Rectangle(box, 21 / x1, 16 / y1, **SIGNS[sign]))
        x = MARGIN + (30 if sign else 0)
        figure.text(x / x1, y / y1, line, size=8, color=MUTED, va="center_baseline")
    axes = []
    for index in range(room.count):
        row, column = divmod(index, columns)
        x = MARGIN + room.left + column * (wide + gap_x)
        y = height - top - row * (high + gap_y) - high
        axes.append(figure.add_axes((x / x1, y / y1, wide / x1, high / y1)))
    return figure, axes


@dataclass(frozen=True)
class Room:
    """What a page needs to know about its panels; all sizes in pixels."""

    count: int
    columns: int
    panel: tuple[int, int]  # inside of one panel, width and height
    left: int  # labels outside the grid
    bottom: int
    right: int
    gap: tuple[int, int]  # between panels, across and down
    head: int = 34  # titles of the first row of panels


def end_labels(ax: Axes, x: float, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names right of curves that end at `x`, each (y, text, color), moved apart if they touch."""
    gap = 9 * LINE * DPI / 72
    # From the lowest up; of equals the first named ends up on top.
    order = sorted(range(len(ends)), key=lambda i: (ends[i][0], -i))
    ends = [ends[i] for i in order]
    where = [float(ax.transData.transform((x, y))[1]) for y, _, _ in ends]
    placed: list[float] = []
    for y in where:
        placed.append(max(y, placed[-1] + gap) if placed else y)
    middle = (sum(placed) - sum(where)) / len(ends) if ends else 0
    for (y, text, color), at, to in zip(ends, where, placed, strict=True):
        ax.annotate(
            text, (x, y), (8, (to - middle - at) * 72 / DPI), textcoords="offset points",
            color=color, size=9, va="center", annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
