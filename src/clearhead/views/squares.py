"""A small matrix as a picture: a colored square for each number, and the number in it.

Weights go from paper at 0 to blue at 1; a difference from blue, too little, over nothing to orange,
too much. What is no number is hatched and named, what lies outside of 0..1 has a border.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from clearhead.views.inline import escaped_text
from clearhead.views.labels import columns, thinned
from clearhead.views.style import LEVELS, css_color, shades

SIDE = 48  # rows and columns that are drawn at most
SPELLED = 8  # rows and columns up to which squares hold their numbers
PLOT, EM = 320, 11
# From too little over nothing to too much, on white and on black.
LIGHT = ((33, 102, 172), (244, 243, 239), (176, 74, 12))
DARK = ((108, 172, 232), (38, 45, 50), (240, 146, 84))


def style() -> str:
    """The style sheet of squares: light, dark where that is preferred, and light on paper."""
    light, dark = (_colors(mode) for mode in (False, True))
    return f"{light}{_SHEET}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _colors(dark: bool) -> str:
    both = (("w", shades(dark)[::-1]), ("d", shades(dark, DARK if dark else LIGHT)))
    return "".join(
        f".{kind}{n}{{fill:{css_color(back)}}}.{kind}{n}+text{{fill:{css_color(ink)}}}"
        for kind, pairs in both
        for n, (back, ink) in enumerate(pairs)
    )


_SHEET = """
.squares{display:block;width:100%;max-width:24rem;height:auto}
.squares text{font:11px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
text-anchor:middle}
.squares text.small{font-size:9.5px}
.squares text.tick{fill:var(--muted)}.squares text.tick.end{text-anchor:end}
.squares text.tick.start{text-anchor:start}
.squares text.axis{font-family:system-ui,sans-serif;fill:var(--muted)}
.squares .odd+text{fill:var(--ink)}
.squares .cell{stroke:var(--page);stroke-width:1}
.squares .out{stroke:var(--warn);stroke-width:2.5}
.scale.squares{width:20rem;margin:0 0 .4rem}
"""


def level(value: float, least: float, most: float) -> int:
    """The shade of a number between two bounds, or at one of them."""
    share = (value - least) / (most - least)
    return round((LEVELS - 1) * min(max(share, 0.0), 1.0))


def strange(values: Tensor) -> tuple[bool, bool]:
    """Whether any number is NaN or infinite, and whether any lies outside of 0..1."""
    sound = values[values.isfinite()]
    outside = bool(((sound < -1e-3) | (sound > 1 + 1e-3)).any())
    return sound.numel() < values.numel(), outside


def squares(
    values: Tensor, texts: Sequence[Sequence[str]], rows: range, cols: range, name: str, uid: str,
    span: float | None = None, axes: tuple[str, str] = ("query", "key"),
) -> str:  # fmt: skip
    """(n, m) real numbers as an SVG figure; `texts` are the numbers as they are written.

    Weights, from 0 to 1; with `span` a difference, from -span to span. `uid` is an identifier that
    no other figure of the page has.
    """
    n, m = values.shape
    side = PLOT / max(n, m, 3)
    wide, high = side * m, side * n
    left = max(columns(str(i)) for i in (*rows[-1:], 0)) * 0.62 * EM + 26
    parts = [
        f'<svg class="squares" viewBox="0 0 {left + PLOT + 4:g} {high + 36:g}" role="img" '
        f'aria-labelledby="{uid}"><title id="{uid}">{escaped_text(name)}</title>{_hatch(uid)}'
    ]
    spelled = n <= SPELLED and m <= SPELLED
    for i, row in enumerate(values.tolist()):
        for j, value in enumerate(row):
            said = f"{axes[0]} {rows[i]}, {axes[1]} {cols[j]}: {texts[i][j]}"
            look = _look(value, span, uid)
            parts.append(
                f'<rect {look} x="{left + j * side:.4g}" y="{2 + i * side:.4g}" '
                f'width="{side:.4g}" height="{side:.4g}"><title>{escaped_text(said)}</title></rect>'
            )
            if spelled:
                at = f'x="{left + (j + 0.5) * side:.4g}" y="{6 + (i + 0.5) * side:.4g}"'
                text = texts[i][j] if len(texts[i][j]) <= 6 else _short(value)
                small = " class=small" if len(text) > 5 and side < 48 else ""
                parts.append(f"<text{small} {at}>{escaped_text(text)}</text>")
    parts += _axes(rows, cols, side, left, high, wide, axes)
    return "".join(parts) + "</svg>"


def _hatch(uid: str) -> str:
    return (
        f'<pattern id="{uid}p" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="paper" width="5" height="5"/>'
        '<rect class="hatch" width="1.4" height="5"/></pattern>'
    )


def _look(value: float, span: float | None, uid: str) -> str:
    if not math.isfinite(value):
        return f'class="cell odd" fill="url(#{uid}p)"'
    if span is not None:
        return f'class="cell d{level(value, -span, span)}"'
    out = " out" * (not -1e-3 <= value <= 1 + 1e-3)
    return f'class="cell{out} w{level(value, 0, 1)}"'


def _short(value: float) -> str:
    """A number in at most six letters, where its own text is longer."""
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.2f}" if 0.005 <= abs(value) < 100 or not value else f"{value:.0e}"
    return text.replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _axes(
    rows: range, cols: range, side: float, left: float, high: float, wide: float,
    axes: tuple[str, str],
) -> list[str]:  # fmt: skip
    parts = []
    for at, size, shown in ((0, high, rows), (1, wide, cols)):
        step, _ = thinned(max(len(shown), 1), size, EM * (1.4 if at == 0 else 2.2))
        for i in range(0, len(shown), step):
            middle = (i + 0.5) * side
            where = (
                f'class="tick end" x="{left - 4:.4g}" y="{6 + middle:.4g}"' if at == 0
                else f'class="tick" x="{left + middle:.4g}" y="{high + 15:.4g}"'
            )  # fmt: skip
            parts.append(f"<text {where}>{shown[i]}</text>")
    down = f"translate(11 {2 + high / 2:.4g}) rotate(-90)"
    parts.append(f'<text class="axis" transform="{down}">{axes[0]}</text>')
    parts.append(
        f'<text class="axis" x="{left + wide / 2:.4g}" y="{high + 31:.4g}">{axes[1]}</text>'
    )
    return parts


def legend(uid: str, span: float | None = None, odd: bool = False, outside: bool = False) -> str:
    """The colors of weights, or of a difference, and what the other marks mean."""
    kind, ends = ("w", ("0", "0.5", "1"))
    said = "weights: from paper at 0 to blue at 1"
    if span is not None:
        most = f"{span:.2g}"
        kind, ends = "d", (f"-{most}, too little", "0", f"+{most}, too much")
        said = f"difference, got minus want: from {ends[0]}, blue, to {ends[2]}, orange"
    said += ", hatched: NaN or infinite" * odd + ", with a border: outside of 0 to 1" * outside
    each, parts = 300 / LEVELS, []
    for n in range(LEVELS):
        parts.append(f'<rect class="{kind}{n}" x="{10 + n * each:.4g}" width="{each:.4g}" '
                     'height="12"/>')  # fmt: skip
    for at, text, anchor in zip((10, 160, 310), ends, ("start", "", "end"), strict=True):
        parts.append(f'<text class="tick {anchor}" x="{at}" y="26">{text}</text>')
    marks = [("hatch", "NaN or infinite")] * odd + [("border", "outside of 0 to 1")] * outside
    for i, (mark, text) in enumerate(marks):
        y = 36 + 20 * i
        parts.append(
            f'{_hatch(uid)}<rect class="cell odd" fill="url(#{uid}p)" x="10" y="{y}" width="14" '
            'height="14"/>'
            if mark == "hatch"
            else f'<rect class="cell out w{LEVELS - 1}" x="10" y="{y}" width="14" height="14"/>'
        )
        parts.append(f'<text class="tick start" x="32" y="{y + 11}">{text}</text>')
    high = 30 + 20 * len(marks) + 4 * bool(marks)
    return (
        f'<svg class="scale squares" viewBox="0 0 320 {high}" role="img" '
        f'aria-label="{escaped_text(said)}">{"".join(parts)}</svg>'
    )
