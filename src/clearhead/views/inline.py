"""Pictures as text inside an HTML page: heatmaps and histograms. No file, no script.

Whatever comes from a run (tokens, names, notes) passes through `escaped_text`, and styles are
classes only, so that the page's content policy can forbid inline styles and all scripts.
"""

from __future__ import annotations

import base64
import html
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clearhead.run.calls import head_place
from clearhead.views.heads import texts_fit, token_texts
from clearhead.views.labels import columns, escaped, is_invisible, readable, thinned

if TYPE_CHECKING:
    from clearhead.cells import Pooled
    from clearhead.map import AttentionMap
    from clearhead.run import Run

BLOCKS = 240  # rows and columns of a heatmap at most: a longer map is pooled
PLOT = 320  # units of a heatmap's longer side
EM = 9.5  # font size of the labels of an axis, in the same units
LETTER = 0.602 * EM  # of a monospaced font
NAMED_ROWS = 96  # up to so many rows each say in a tooltip what they read
HIDDEN, BROKEN_CELL, SHADES = 0, 1, 254  # palette: hidden, no weight at all, then 0..1


def escaped_text(value: object) -> str:
    """Text for an HTML page, for an attribute as well: what is shown is what was there.

    Control, zero-width and other invisible characters and lone surrogates become Python escapes.
    """
    shown = "".join(escaped(c) if is_invisible(c) else c for c in str(value))
    return html.escape(shown, quote=True)


# What of a map is drawn ---------------------------------------------------------------------------


def pooled_map(seen: AttentionMap, batch: int = 0) -> Pooled:
    """The largest weights of a map (B, 1, T, S) of a text in at most BLOCKS x BLOCKS blocks.

    Raises ValueError for a map without a cell.
    """
    T, S = seen.shape[-2:]
    if not all(seen.shape):
        what = f"{T} x {S} tokens" if seen.shape[0] else "no text"
        raise ValueError(f"the map of {what} has no cells")
    down, across = (-(-size // -(-size // BLOCKS)) for size in (T, S))
    return seen.pooled(batch, 0, shape=(down, across))


def pooling(seen: AttentionMap, pooled: Pooled, batch: int = 0) -> str:
    """How a picture differs from the map, in words: made smaller, or one text of several."""
    (T, S), (n, m) = seen.shape[-2:], pooled.values.shape
    said = []
    if (n, m) != (T, S):
        size = f"{-(-T // n)} x {-(-S // m)}"
        exact = T % n == 0 and S % m == 0
        said.append(f"each pixel is the largest weight of {'' if exact else 'up to '}{size} tokens")
    if seen.shape[0] > 1:
        which = f"text {batch}" if batch else "the first"
        said.append(f"{which} of {seen.shape[0]} texts")
    return "; ".join(said)


@dataclass(frozen=True)
class Axis:
    """The queries or the keys of a map: their positions in the sequence, and texts where known."""

    at: Sequence[int]
    texts: Sequence[str] | None

    def __len__(self) -> int:
        return len(self.at)

    def names(self, step: int, limit: int, undrawable: frozenset[str] = frozenset()) -> list[str]:
        """Labels of every `step`-th; with the position where some have none or there are gaps."""
        places = range(0, len(self), step)
        if self.texts is None:
            return [str(self.at[i]) for i in places]
        bare = step == 1 and list(self.at) == list(range(len(self)))
        texts = [readable(self.texts[i], limit, undrawable) for i in places]
        return texts if bare else [f"{self.at[i]}: {t}" for i, t in zip(places, texts, strict=True)]

    def said(self, i: int) -> str:
        """One of them with its raw text, for a tooltip."""
        return f"{self.at[i]}" if self.texts is None else f"{self.texts[i]!r} ({self.at[i]})"


def axes_of(
    run: Run, name: str, seen: AttentionMap, sequence: int = 0, batch: int = 0
) -> tuple[Axis, Axis]:
    """The queries and the keys of the map of a head in a text."""
    S = seen.shape[-1]
    layer, _ = head_place(name)
    texts = token_texts(run, sequence, batch)
    at = run.positions(name, sequence=sequence).tolist()
    calls = [call for call in run.calls if call.sequence == sequence]
    known, keys_known = texts_fit(calls, layer, len(texts), S, at)
    queries = Axis(at, [texts[i] for i in at] if known else None)
    return queries, Axis(range(S), texts[:S] if keys_known else None)


# Pixels -------------------------------------------------------------------------------------------


@cache
def palette() -> tuple[bytes, bytes]:
    """PLTE and tRNS of a heatmap: paper shines through hidden cells; then viridis from 0 to 1."""
    from matplotlib import colormaps

    colors = colormaps["viridis"]([n / (SHADES - 1) for n in range(SHADES)], bytes=True)
    return bytes((0, 0, 0, 255, 45, 85)) + colors[:, :3].tobytes(), b"\0"


def png(indices: Tensor) -> str:
    """(n, m) palette indices as a PNG in a data URI; the same indices give the same text."""
    n, m = indices.shape
    raw = b"".join(b"\0" + bytes(row) for row in indices.to(torch.uint8).tolist())
    colors, clear = palette()
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", m, n, 8, 3, 0, 0, 0)), (b"PLTE", colors),
        (b"tRNS", clear), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""),
    )  # fmt: skip
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def palette_indices(pooled: Pooled) -> Tensor:
    """Which color each block of a map has: hidden, no weight (NaN or outside of 0..1), or one.

    The color goes with the square root of the weight: in a long text most weights are small.
    """
    values = pooled.values.float()
    sound = (values >= -1e-3) & (values <= 1 + 1e-3)  # NaN is in neither
    shade = (values.nan_to_num(0.0).clamp(0, 1).sqrt() * (SHADES - 1)).round().long() + 2
    shade = shade.masked_fill(~sound, BROKEN_CELL)
    return shade.masked_fill((pooled.visible <= 0) & (values == 0), HIDDEN)


def scale_bar() -> str:
    """The colors of a heatmap from 0 to 1."""
    shown, ticks = png(torch.arange(2, 2 + SHADES)[None]), (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)
    return (
        '<svg class="scale" viewBox="-12 0 344 26" role="img" aria-label="color scale of the '
        'weights, from 0, dark violet, to 1, bright yellow">'
        f'<image x="0" y="0" width="{PLOT}" height="9" preserveAspectRatio="none" href="{shown}"/>'
        + "".join(f'<text class="tick" x="{PLOT * x**0.5:.1f}" y="20">{x:g}</text>' for x in ticks)
        + "</svg>"
    )


# Heatmaps -----------------------------------------------------------------------------------------


def heatmap(pooled: Pooled, queries: Axis, keys: Axis, name: str, uid: str) -> str:
    """One head's map as an SVG figure: rows are queries, columns keys, labels thinned.

    `uid` is an identifier that no other figure of the page has.
    """
    n, m = pooled.values.shape
    T, S = len(queries), len(keys)
    high = PLOT if T == S else round(min(max(PLOT * T / S, 12), 1.25 * PLOT))
    (ys, y_names), (xs, x_names) = _ticks(queries, high), _ticks(keys, PLOT)
    left, foot = (round(max(map(columns, x), default=0) * LETTER) + 22 for x in (y_names, x_names))
    parts = [
        f'<svg viewBox="0 0 {left + PLOT + 6} {high + foot + 6}" role="img" '
        f'aria-labelledby="{uid}"><title id="{uid}">{escaped_text(name)}</title>'
        f'<pattern id="{uid}p" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="paper" width="5" height="5"/>'
        '<rect class="hatch" width="1.2" height="5"/></pattern>'
        f'<rect x="{left}" y="4" width="{PLOT}" height="{high}" fill="url(#{uid}p)"/>'
        f'<image x="{left}" y="4" width="{PLOT}" height="{high}" preserveAspectRatio="none" '
        f'image-rendering="pixelated" href="{png(palette_indices(pooled))}"/>'
    ]
    for y, text in zip(ys, y_names, strict=True):
        at = f'x="{left - 5}" y="{4 + y + 0.34 * EM:.1f}"'
        parts.append(f'<text class="tick end" {at}>{escaped_text(text)}</text>')
    for x, text in zip(xs, x_names, strict=True):
        where = f"translate({left + x + 0.34 * EM:.1f} {high + 9}) rotate(-90)"
        parts.append(f'<text class="tick end" transform="{where}">{escaped_text(text)}</text>')
    parts.append(
        f'<text class="axis" transform="translate(9 {4 + high / 2:g}) rotate(-90)">query</text>'
        f'<text class="axis" x="{left + PLOT / 2:g}" y="{high + foot + 2}">key</text>'
    )
    if (n, m) == (T, S) and n <= NAMED_ROWS:
        for i, said in enumerate(_rows_in_words(pooled, queries, keys)):
            at = f'x="{left}" y="{4 + high * i / n:.1f}" width="{PLOT}" height="{high / n:.1f}"'
            parts.append(f'<rect class="row" {at}><title>{escaped_text(said)}</title></rect>')
    return "".join(parts) + "</svg>"


def _ticks(axis: Axis, room: float) -> tuple[list[float], list[str]]:
    """Where the labels that have room stand, and what they say."""
    step, _ = thinned(len(axis), room, EM * 1.25)
    return [(i + 0.5) * room / len(axis) for i in range(0, len(axis), step)], axis.names(step, 12)


def _rows_in_words(pooled: Pooled, queries: Axis, keys: Axis) -> Iterable[str]:
    """What each row reads most: for its tooltip, with the raw text of the tokens."""
    most = min(3, len(keys))
    values, at = pooled.values.nan_to_num(0.0).sort(dim=1, descending=True, stable=True)
    for i, (weights, where) in enumerate(
        zip(values[:, :most].tolist(), at[:, :most].tolist(), strict=True)
    ):
        read = [f"{w:.2f} {keys.said(j)}" for w, j in zip(weights, where, strict=True) if w > 0]
        yield f"{queries.said(i)} reads {', '.join(read) or 'nothing'}"


# Histograms ---------------------------------------------------------------------------------------


def histogram(counts: Sequence[int], marks: Sequence[tuple[float, str]], name: str) -> str:
    """Counts in equal bins of 0..1 as a hill, with a tick under it for each head's mean."""
    wide, high, top = 600, 44, max([*counts, 1])
    step = wide / len(counts)
    path = "".join(
        f"L{n * step:.1f} {high - 40 * count / top:.1f}h{step:.1f}"
        for n, count in enumerate(counts)
    )
    ticks = "".join(
        f'<rect class="mark" x="{min(max(x, 0.0), 1.0) * wide - 1:.1f}" y="{high + 3}" width="2" '
        f'height="9"><title>{escaped_text(said)}</title></rect>'
        for x, said in marks
    )
    return (
        f'<svg class="hill" viewBox="-2 0 {wide + 4} {high + 14}" role="img" '
        f'aria-label="{escaped_text(name)}"><path d="M0 {high}{path}V{high}Z"/>'
        f'<rect class="base" x="0" y="{high}" width="{wide}" height="1"/>{ticks}</svg>'
    )
