"""Pictures: what is drawn is read back from the Figure and from its pixels."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from clearhead.views import curves, labels, plots

WORDS = ["the", "cat", "sat", "on", "the", "mat", ".", "and"]
HOSTILE = ["the", "$cat$", "sat_on", '"the"', "\\frac{1}{2}", "a" * 100, "\n", "\x1b[31m", "\ud800"]
VIRIDIS = (np.array(matplotlib.colormaps["viridis"].colors) * 255).round().astype(int)


def causal(heads: int, size: int) -> np.ndarray:
    """(H, T, T) causal softmax of random scores, sharper from head to head."""
    scores = np.random.default_rng(0).normal(size=(heads, size, size))
    scores *= np.linspace(0.5, 4, heads)[:, None, None]
    weights = np.exp(scores) * np.tri(size)
    return weights / weights.sum(-1, keepdims=True)


def words(size: int) -> list[str]:
    return [WORDS[i % 8] for i in range(size)]


def seen(size: int) -> np.ndarray:
    return np.tri(size, dtype=bool)


def drawn(figure: Figure) -> np.ndarray:
    """(height, width, 3) what the picture shows, as integers from 0 to 255."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].astype(int)  # type: ignore[attr-defined]


def at(image: np.ndarray, ax: Any, row: float, column: float) -> np.ndarray:
    """Color near the upper left corner of a cell, clear of the number in its middle."""
    x, y = ax.transData.transform((column - 0.3, row - 0.3))
    return image[len(image) - 1 - int(y), int(x)]


def off_viridis(color: np.ndarray) -> int:
    """Distance of a color from the nearest one of the color scale."""
    return int(np.abs(VIRIDIS - color).sum(-1).min())


def panels(figure: Figure) -> list[Any]:
    """The axes that hold a map, without the color bar."""
    return [ax for ax in figure.axes if ax.images]


def texts(figure: Figure) -> list[Text]:
    return [t for t in figure.findobj(Text) if t.get_text()]


def says(figure: Figure) -> str:
    return " | ".join(t.get_text() for t in texts(figure))


def tick_texts(axis: Any) -> list[str]:
    return [t.get_text() for t in axis.get_ticklabels()]


# ------------------------------------------------------------------------------- one token


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("$cat$", "$cat$"),
        ("sat_on\\n", "sat_on\\n"),
        ("\n", "\\n"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\ud800x", "\\ud800x"),
        ("a\u200bb", "a\\u200bb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u034fb\u3164", "a\\u034fb…"),
        ("\xa0", "\\xa0"),
        ("", '""'),
        ("  ", '"  "'),
        (" the", " the"),
        ("a" * 100, "a" * 11 + "…"),
        ("\n" * 100, "\\n" * 5 + "…"),
        ("漢字" * 9, "漢字漢字漢…"),
        ("e\u0301", "e\u0301"),
        ("\u0301", "\u25cc\u0301"),
        ("Ġcat", "Ġcat"),
        ("مرحبا", "مرحبا"),
        ("\u2764\ufe0f", "\u2764\\ufe0f"),
    ],
)
def test_a_token_is_one_line_of_visible_characters(text: str, shown: str) -> None:
    assert plots.readable(text, 12) == shown


def test_no_text_is_wider_than_its_limit() -> None:
    everything = "".join(map(chr, range(0, 0x30000, 7)))
    for limit in (1, 2, 7, 30):
        for start in range(0, len(everything), 61):
            shown = plots.readable(everything[start : start + 40], limit)
            assert 0 < labels.columns(shown) <= limit
            assert shown.isprintable()
    with pytest.raises(ValueError, match="limit is 0"):
        plots.readable("the", 0)


# ------------------------------------------------------------------------------ the labels


def test_tokens_are_drawn_literally_and_never_as_mathematics() -> None:
    size = len(HOSTILE)
    figure = plots.heatmap_grid(causal(1, size), HOSTILE, "$a_b$ \\alpha\n", seen(size))
    want = ["the", "$cat$", "sat_on", '"the"', "\\frac{1}{2}", "a" * 15 + "…", "\\n", "\\x1b[31m"]
    for ax in panels(figure):
        assert tick_texts(ax.xaxis) == tick_texts(ax.yaxis) == [*want, "\\ud800"]
    assert "$a_b$ \\alpha\\n" in says(figure)
    assert not any(t.get_parse_math() or t.get_usetex() for t in texts(figure))
    assert plots.png_bytes(figure)


@pytest.mark.parametrize("size", [12, 60, 512, 2000])
def test_long_axes_are_thinned_evenly_and_keep_true_indices(size: int) -> None:
    figure = plots.heatmap_grid(np.full((size, size), 1 / size), words(size), "long")
    (ax,) = panels(figure)
    for axis in (ax.xaxis, ax.yaxis):
        places, names = axis.get_ticklocs(), tick_texts(axis)
        assert len(places) == len(names) <= 60
        assert len(places) >= min(size, 20)
        assert len(set(np.diff(places))) == 1
        for place, name in zip(places, names, strict=True):
            word = words(size)[int(place)]
            assert name == (word if len(places) == size else f"{int(place)}: {word}")
    assert len(figure.findobj()) < 5000, "an artist for every cell?"


def test_thinning_takes_the_smallest_round_step_that_leaves_60_readable_labels() -> None:
    assert labels.thinned(8, 1000) == (1, labels.LARGEST)
    assert labels.thinned(60, 1000)[0] == 1
    assert labels.thinned(61, 1000)[0] == 2
    assert labels.thinned(500, 10_000)[0] == 10
    assert labels.thinned(2000, 300)[0] == 50
    assert labels.thinned(3, 1) == (5, labels.SMALLEST)


def test_repeated_tokens_stay_apart() -> None:
    (ax,) = panels(plots.heatmap_grid(causal(1, 8), WORDS, "two times the"))
    assert [ax.get_xticks()[i] for i, t in enumerate(tick_texts(ax.xaxis)) if t == "the"] == [0, 4]


@pytest.mark.parametrize(("heads", "size"), [(1, 8), (4, 8), (1, 60), (17, 60), (2, 500)])
def test_labels_do_not_overlap(heads: int, size: int) -> None:
    figure = plots.heatmap_grid(np.zeros((heads, size, size)), words(size), "title")
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    ax = panels(figure)[0] if heads <= 16 else panels(figure)[12]  # a corner that has both axes
    ends = []
    for axis, across in ((ax.xaxis, "x"), (ax.yaxis, "y")):
        named = [t for t in axis.get_ticklabels() if t.get_text()]
        boxes = [t.get_window_extent(renderer) for t in named]
        assert len(boxes) >= 8
        assert all(5.5 <= t.get_size() <= 8.5 for t in named)
        spans = sorted((getattr(b, across + "0"), getattr(b, across + "1")) for b in boxes)
        for (_, before), (after, _) in pairwise(spans):
            assert after >= before
        ends += boxes
    assert min(box.x0 for box in ends) > 0
    assert min(box.y0 for box in ends) > 0


@pytest.mark.parametrize(("heads", "size"), [(1, 60), (5, 4), (17, 1)])
def test_no_text_leaves_the_page_or_touches_another(heads: int, size: int) -> None:
    tokens = ["extraordinarily" if i % 5 == 0 else w for i, w in enumerate(words(size))]
    weights = np.tile(np.eye(size), (heads, 1, 1))
    figures = [plots.heatmap_grid(weights, tokens, "a title " * 9, seen(size))]
    if size > 1:
        entropy = np.zeros((heads, size))
        figures += [plots.entropy_curves(entropy, "a title " * 9, tokens=tokens)]
    if heads == 1:
        figures += [plots.scaling_figure(measured(16, 1024), 1024)]
    for figure in figures:
        renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
        figure.canvas.draw()
        inside = {id(t) for ax in figure.axes for t in ax.texts}
        shown = [t for t in texts(figure) if t.get_visible() and id(t) not in inside]
        boxes = [(t.get_window_extent(renderer).padded(-1), t.get_text()) for t in shown]
        boxes = [(b, t) for b, t in boxes if b.width > 0 and b.height > 0]
        page = figure.bbox
        for box, text in boxes:
            assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page.x1 and box.y1 <= page.y1, text
        corners = np.array([[b.x0, b.y0, b.x1, b.y1] for b, _ in boxes])
        x0, y0, x1, y1 = corners.T
        touch = (x0 < x1[:, None]) & (x0[:, None] < x1) & (y0 < y1[:, None]) & (y0[:, None] < y1)
        pairs = [(boxes[i][1], boxes[j][1]) for i, j in np.argwhere(np.triu(touch, 1))]
        assert not pairs


# ------------------------------------------------------------------------------- the grid


@pytest.mark.parametrize(
    ("heads", "rows", "columns"),
    [(1, 1, 1), (4, 1, 4), (5, 2, 3), (32, 4, 8)],
)
def test_the_grid_has_a_numbered_panel_a_head_and_one_color_bar(
    heads: int, rows: int, columns: int
) -> None:
    figure = plots.heatmap_grid(causal(heads, 3), WORDS[:3], "A title", seen(3))
    maps = panels(figure)
    assert [ax.get_title(loc="left") for ax in maps] == [f"head {h}" for h in range(heads)]
    assert len({round(ax.get_position().x0, 4) for ax in maps}) == columns
    assert len({round(ax.get_position().y0, 4) for ax in maps}) == rows
    assert len(figure.axes) == heads + 1
    assert all(ax.images[0].get_clim() == (0, 1) for ax in maps)
    assert all(ax.images[0].get_cmap().name == "viridis" for ax in maps)
    assert figure.texts[0].get_text() == "A title"
    assert figure.texts[0].get_position()[1] > max(ax.get_position().y1 for ax in maps)


def test_png_bytes_are_a_png_of_the_figure_and_always_the_same() -> None:
    def draw() -> Figure:
        return plots.heatmap_grid(causal(2, 3), WORDS[:3], "again", seen(3))

    figure = draw()
    data = plots.png_bytes(figure)
    assert data.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", data[16:24]) == figure.canvas.get_width_height()
    assert b"tIME" not in data
    assert b"tEXt" not in data
    assert data == plots.png_bytes(figure) == plots.png_bytes(draw())


def test_every_cell_covers_whole_pixels_in_its_place() -> None:
    weights = causal(1, 37)
    figure = plots.heatmap_grid(weights, words(37), "cells")
    (ax,) = panels(figure)
    ax.tick_params(length=0)  # the marks reach a pixel into the panel
    x0, y0, x1, y1 = ax.get_window_extent().extents.round().astype(int)
    image = drawn(figure)[::-1][y0:y1][::-1, x0:x1]
    assert image.shape[0] == image.shape[1] == 37 * (image.shape[0] // 37)
    cell = image.shape[0] // 37
    blocks = image.reshape(37, cell, 37, cell, 3)
    assert np.abs(blocks - blocks[:, :1, :, :1]).max() <= 1
    want = VIRIDIS[np.clip((weights[0] * 256).astype(int), 0, 255)]
    assert np.abs(blocks[:, 0, :, 0] - want).max() <= 1


def test_single_cells_of_a_long_map_are_seen_and_the_pooling_is_said() -> None:
    weights = np.zeros((900, 900), dtype=np.float32)
    weights[737, 123], weights[800, 700] = 1, np.nan
    figure = plots.heatmap_grid(weights, words(900), "needles", seen(900))
    image, (ax,) = drawn(figure), panels(figure)

    def around(row: int, column: int) -> np.ndarray:
        x, y = ax.transData.transform((column, row)).astype(int)
        return image[len(image) - y - 4 : len(image) - y + 4, x - 4 : x + 4].reshape(-1, 3)

    assert (np.abs(around(737, 123) - VIRIDIS[-1]).max(-1) <= 1).sum() >= 4
    assert max(map(off_viridis, around(800, 700))) > 100
    assert max(map(off_viridis, around(600, 500))) <= 3
    assert "each dot is the largest of 2 x 2 weights" in says(figure)
    assert "each dot" not in says(plots.heatmap_grid(weights[:9, :9], words(9), "short"))


def test_more_than_64_heads_are_cut_aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plots.MAX_PANELS == curves.MAX_PANELS == 64
    for module in (plots, curves):
        monkeypatch.setattr(module, "MAX_PANELS", 6)  # the same with fewer panels to draw
    for count, note in ((7, True), (6, False)):
        figure = plots.heatmap_grid(np.ones((count, 1, 1)), ["a"], "many")
        assert len(panels(figure)) == 6
        assert ("6 of 7 heads" in says(figure)) is note
        lines = plots.entropy_curves(np.zeros((count, 2)), "many")
        assert len(lines.axes) == 6
        assert ("6 of 7 heads" in says(lines)) is note


# ---------------------------------------------------------------------------- what is drawn


@pytest.mark.parametrize("size", [8, 60])
def test_hidden_cells_differ_from_a_weight_of_zero(size: int) -> None:
    weights = np.zeros((size, size))
    figure = plots.heatmap_grid(weights, words(size), "zeros", seen(size))
    (ax,), image = panels(figure), drawn(figure)
    zero, hidden = at(image, ax, size - 2, 1), at(image, ax, 1, size - 2)
    assert np.abs(zero - VIRIDIS[0]).max() <= 1
    assert off_viridis(hidden) > 150
    assert hidden.min() > 190, "hidden cells are paper, not ink"
    assert "hidden by the mask" in says(figure)
    assert len(figure.artists) == 1, "a swatch beside the note"
    assert "hidden" not in says(plots.heatmap_grid(weights[:2, :2], ["a", "b"], "zeros"))


def test_what_is_no_weight_is_drawn_apart_and_named() -> None:
    weights = causal(4, 6)
    weights[:, 5, 2] = np.nan, np.inf, 1.5, -0.5
    figure = plots.heatmap_grid(weights, WORDS[:6], "broken", seen(6))
    image = drawn(figure)
    for ax in panels(figure):
        broken, sound, hidden = (at(image, ax, *cell) for cell in ((5, 2), (5, 3), (2, 5)))
        assert off_viridis(sound) <= 3
        assert off_viridis(broken) > 100
        assert np.abs(broken - hidden).sum() > 200
    note = "not weights: 1 NaN, 1 infinite, 2 below 0 or above 1 in head 0, 1, 2, 3"
    assert note in says(figure)
    assert len(figure.artists) == 2, "a swatch for these and one for hidden cells"


def test_nan_in_a_hidden_cell_is_hidden_and_a_weight_there_is_a_leak() -> None:
    weights = causal(1, 4)
    weights[0, 1, 2] = np.nan
    assert "not weights" not in says(plots.heatmap_grid(weights, WORDS[:4], "hidden", seen(4)))
    weights[0, 1, 2] = 0.25
    figure = plots.heatmap_grid(weights, WORDS[:4], "leak", seen(4))
    assert "not weights: 1 on hidden cells in head 0" in says(figure)
    image, (ax,) = drawn(figure), panels(figure)
    assert np.abs(at(image, ax, 1, 2) - at(image, ax, 1, 3)).sum() > 200


@pytest.mark.parametrize(
    ("weights", "numbers"),
    [
        (np.full((4, 4), 0.25), {".25"}),
        (np.zeros((3, 3)), {".00"}),
        (np.ones((1, 1)), {"1.00"}),
        (np.eye(3, dtype=int), {".00", "1.00"}),
        (np.eye(2, dtype=np.float16), {".00", "1.00"}),
    ],
    ids=["constant", "zero", "1x1", "int", "half"],
)
def test_plain_arrays_of_any_real_type_give_a_picture(
    weights: np.ndarray, numbers: set[str]
) -> None:
    figure = plots.heatmap_grid(weights, words(len(weights)), "plain")
    (ax,) = panels(figure)
    assert {t.get_text() for t in ax.texts} == numbers
    assert ax.images[0].get_clim() == (0, 1)
    color = at(drawn(figure), ax, 0, 0)
    want = VIRIDIS[min(255, int(float(weights[0, 0]) * 256))]
    assert np.abs(color - want).max() <= 1


# ------------------------------------------------------------------------------- the errors


@pytest.mark.parametrize(
    ("weights", "tokens", "says_what"),
    [
        (np.ones((8, 8)), WORDS[:7], r"7 labels but the map is 8 x 8.*start, end or padding"),
        (np.ones((8, 8)), WORDS * 3, r"24 labels but the map is 8 x 8.*another tokenizer"),
        (np.ones((2, 2)), "the cat", r"7 labels but the map is 2 x 2: tokens is one string"),
        (np.ones((1, 2, 8, 8)), WORDS, r"\(1, 2, 8, 8\).*\(T, T\) or \(H, T, T\).*one element"),
        (np.ones(8), WORDS, r"shape \(8,\)"),
        (np.ones((8, 7)), WORDS, r"shape \(8, 7\)"),
        (np.ones((0, 0)), [], r"shape \(0, 0\): there is nothing to draw"),
        (np.ones((0, 8, 8)), WORDS, r"shape \(0, 8, 8\): there is nothing to draw"),
        (np.ones((2, 2), dtype=complex), ["a", "b"], "complex128: a map needs real numbers"),
        (np.array([["a", "b"]] * 2), ["a", "b"], "<U1: a map needs real numbers"),
    ],
)
def test_wrong_maps_are_refused_by_name(
    weights: np.ndarray, tokens: Sequence[str], says_what: str
) -> None:
    with pytest.raises(ValueError, match=says_what):
        plots.heatmap_grid(weights, tokens, "wrong")


@pytest.mark.parametrize(
    ("visible", "says_what"),
    [(np.tri(8), r"float64.*must be bool.*mask > 0"), (seen(7), r"\(7, 7\).*\(8, 8\)")],
)
def test_wrong_masks_are_refused_by_name(visible: np.ndarray, says_what: str) -> None:
    with pytest.raises(ValueError, match=says_what):
        plots.heatmap_grid(np.ones((8, 8)), WORDS, "wrong", visible)


def test_wrong_entropies_are_refused_by_name() -> None:
    for entropy, ceiling, tokens, what in (
        (np.zeros((2, 2, 2)), None, None, r"\(2, 2, 2\): it must be \(H, T\)"),
        (np.zeros((2, 0)), None, None, "not empty"),
        (np.zeros((2, 3), dtype=complex), None, None, "entropy is complex128"),
        (np.zeros((2, 3)), np.zeros(4), None, r"ceiling has shape \(4,\) but entropy has 3 rows"),
        (np.zeros((2, 3)), np.full(3, np.nan), None, "ceiling holds NaN"),
        (np.zeros((2, 3)), None, ["a", "b"], "2 labels but entropy has 3 rows"),
    ):
        with pytest.raises(ValueError, match=what):
            plots.entropy_curves(entropy, "wrong", ceiling, tokens)


# --------------------------------------------------------------------------------- entropy


@pytest.mark.parametrize(("heads", "size"), [(1, 1), (1, 8), (4, 60), (5, 3), (2, 200)])
def test_curves_are_drawn_as_given_under_the_causal_ceiling(heads: int, size: int) -> None:
    entropy = np.random.default_rng(1).uniform(0, 1, (heads, size)) * np.log(np.arange(size) + 1)
    figure = plots.entropy_curves(entropy, "entropy")
    lines = [line.get_xydata() for ax in figure.axes for line in ax.lines]
    x = np.arange(1, size + 1)
    for head in entropy:
        assert any(np.array_equal(line, np.c_[x, head]) for line in lines)
    for ax in figure.axes:
        ceiling = ax.lines[0].get_xydata()
        assert np.allclose(ceiling[1:-1], np.c_[x, np.log(x)])
        assert ax.get_ylim()[1] > max(ceiling[:, 1])
        assert ax.collections[0].get_hatch()
    assert "no row can be above log(number of keys it sees)" in says(figure)
    for index, head in enumerate(entropy):
        assert f"head {index}  mean {head.mean():.2f}" in says(figure)
    assert "not" not in says(figure)


def test_gaps_and_rows_above_the_ceiling_are_named() -> None:
    entropy = np.zeros((2, 8))
    entropy[0, 3:5] = np.nan
    entropy[1, 2] = 2.0
    figure = plots.entropy_curves(entropy, "odd")
    rings = [
        line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_markersize() > 6
    ]
    assert [[3, 2]] in rings
    assert len(figure.artists) == 1, "a swatch beside the note"
    assert "NaN or infinite: 2 values" in says(figure)
    assert "above the ceiling: 1 rows" in says(figure)
    full = plots.entropy_curves(entropy, "full", ceiling=np.full(8, np.log(8)))
    assert "above the ceiling" not in says(full)
    assert plots.png_bytes(plots.entropy_curves(np.full((5, 3), np.nan), "nothing"))
    assert plots.png_bytes(plots.entropy_curves(np.zeros(8), "one", ceiling=np.full(8, -np.inf)))


def test_tokens_label_short_curves_and_positions_long_ones() -> None:
    short = plots.entropy_curves(np.zeros((1, 8)), "short", tokens=["$x$", *WORDS[1:]])
    assert tick_texts(short.axes[0].xaxis) == ["$x$", *WORDS[1:]]
    long = plots.entropy_curves(np.zeros((1, 500)), "long", tokens=words(500))
    assert tick_texts(long.axes[0].xaxis)[:3] == ["1", "50", "100"]


# --------------------------------------------------------------------------------- scaling


def measured(*sizes: int) -> list[dict[str, Any]]:
    return [
        {
            "d_head": d,
            "score_std": 1.01 * d**0.5,
            "scaled": {"entropy": 6.43, "max_prob": 0.02, "gradient": 0.99},
            "unscaled": {
                "entropy": 10 / d**0.5,
                "max_prob": 1 - 2 / d**0.5,
                "gradient": 3 / d**0.5,
            },
        }
        for d in sizes
    ]


@pytest.mark.parametrize("sizes", [(16, 64, 256, 1024), (64,)])
def test_the_scaling_figure_shows_every_number(sizes: tuple[int, ...]) -> None:
    rows = measured(*sizes)
    figure = plots.scaling_figure(rows[::-1], 1024)
    want: list[list[list[float]]] = [
        [[r["score_std"] for r in rows], [1.01 for r in rows]],
        *(
            [[r[kind][key] for r in rows] for kind in ("unscaled", "scaled")]
            for key in ("entropy", "max_prob", "gradient")
        ),
    ]
    for ax, pair in zip(figure.axes, want, strict=True):
        assert ax.get_xscale() == "log"
        for line, values in zip(ax.lines[1:], pair, strict=True):
            assert np.allclose(line.get_xdata(), sizes)
            assert np.allclose(line.get_ydata(), values)
        assert tick_texts(ax.xaxis) == [str(d) for d in sizes]
        assert {"q·k", "q·k / √d_head"} <= {t.get_text() for t in ax.texts}
    assert figure.axes[0].get_yscale() == "log"
    assert np.allclose(figure.axes[0].lines[0].get_ydata() ** 2, figure.axes[0].get_xlim())
    assert "log(1,024)" in says(figure)
    assert not any(t.get_parse_math() for t in texts(figure))


def test_scaling_rows_with_holes_are_refused_by_name() -> None:
    (row,) = measured(64)
    with pytest.raises(ValueError, match="0 rows over 8 keys"):
        plots.scaling_figure([], 8)
    with pytest.raises(ValueError, match=r"unscaled\.gradient is None"):
        plots.scaling_figure([{**row, "unscaled": {"entropy": 1, "max_prob": 1}}], 8)
    with pytest.raises(ValueError, match="score_std is nan"):
        plots.scaling_figure([{**row, "score_std": float("nan")}], 8)


# ----------------------------------------------------------------------------------- fonts


@pytest.fixture
def cat_font(tmp_path: Path) -> Iterator[str]:
    """A font of one box-shaped glyph, for U+1F408, known to matplotlib during a test."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pen = pytest.importorskip("fontTools.pens.ttGlyphPen").TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    box = pen.glyph()
    builder.setupGlyphOrder([".notdef", "cat"])
    builder.setupCharacterMap({0x1F408: "cat"})
    builder.setupGlyf({".notdef": box, "cat": box})
    builder.setupHorizontalMetrics({".notdef": (800, 0), "cat": (800, 0)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "A Cat Sans", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    path = str(tmp_path / "cat.ttf")
    builder.save(path)
    fonts = font_manager.fontManager.ttflist
    before = list(fonts)
    font_manager.fontManager.addfont(path)
    # And one that claims to be a font and is none, as color emoji fonts do for matplotlib.
    (tmp_path / "bitmap.ttf").write_bytes(b"no font")
    fonts.append(font_manager.FontEntry(str(tmp_path / "bitmap.ttf"), name="A Bitmap Sans"))
    yield "A Cat Sans"
    fonts[:] = before


@pytest.fixture
def no_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with no fonts but those that come with matplotlib."""
    ours = matplotlib.get_data_path()
    fonts = [e for e in font_manager.fontManager.ttflist if e.fname.startswith(ours)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)


@pytest.mark.usefixtures("no_fonts")
def test_characters_without_a_font_become_code_points_with_one_warning() -> None:
    tokens = ["🐈", "漢字", "the", "🐈", "مرحبا", "x🐈y"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = plots.heatmap_grid(causal(2, 6), tokens, "🐈 漢", seen(6))
        plots.png_bytes(figure)
    assert len(caught) == 1
    assert re.search(r"U\+1F408 CAT.*Install a font.*Noto Sans CJK", str(caught[0].message))
    assert caught[0].filename == __file__
    shown = ["U+1F408", "U+6F22 U+5B57", "the", "U+1F408", "مرحبا", "xU+1F408y"]
    assert tick_texts(panels(figure)[0].yaxis) == shown
    assert figure.texts[0].get_text() == "U+1F408 U+6F22"


def test_plain_tokens_and_covered_scripts_draw_without_a_warning() -> None:
    tokens = ["Ġcat", "naïve", "e\u0301", "مرحبا", "шапка", "a…b", "√2", "\ud800"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plots.png_bytes(plots.heatmap_grid(causal(1, 8), tokens, "plain", seen(8)))
        plots.png_bytes(plots.entropy_curves(np.zeros((1, 8)), "plain", tokens=tokens))


def test_an_installed_font_that_has_the_character_is_used(cat_font: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = plots.heatmap_grid(causal(1, 2), ["🐈", "the"], "🐈", seen(2))
        plots.png_bytes(figure)
    label = panels(figure)[0].get_yticklabels()[0]
    assert label.get_text() == "🐈"
    assert label.get_fontfamily() == ["DejaVu Sans", cat_font]


# ------------------------------------------------------------------------------ the caller


def test_the_callers_style_neither_matters_nor_changes() -> None:
    def draw() -> bytes:
        return plots.png_bytes(plots.heatmap_grid(causal(1, 4), WORDS[:4], "t", seen(4)))

    want = draw()
    odd = {"text.usetex": True, "axes.facecolor": "black", "font.size": 30, "savefig.dpi": 20,
           "axes.grid": True, "figure.autolayout": True, "text.parse_math": True}  # fmt: skip
    with matplotlib.rc_context(odd):
        before = dict(matplotlib.rcParams.items())
        assert draw() == want
        assert dict(matplotlib.rcParams.items()) == before


def test_a_callers_figure_keeps_its_canvas() -> None:
    figure = Figure()
    canvas = figure.canvas
    assert plots.png_bytes(figure).startswith(b"\x89PNG")
    assert figure.canvas is canvas


def test_importing_needs_no_matplotlib_and_drawing_no_display_and_no_pyplot() -> None:
    code = """
import sys
from clearhead.views import plots
assert not any(m in sys.modules for m in ("matplotlib", "torch", "rich"))
import matplotlib
backend = dict.__getitem__(matplotlib.rcParams, "backend")
plots.png_bytes(plots.heatmap_grid([[1.0]], ["the"], "t"))
assert dict.__getitem__(matplotlib.rcParams, "backend") is backend
assert "matplotlib.pyplot" not in sys.modules
import matplotlib.pyplot as plt
mine = plt.figure()
backend = plt.get_backend()
plots.png_bytes(plots.entropy_curves([[0.0]], "t"))
assert plt.get_fignums() == [mine.number] and plt.get_backend() == backend
print("drawn")
"""
    source = str(Path(plots.__file__).parents[2])
    environment = {**os.environ, "DISPLAY": ":99", "PYTHONPATH": source}
    environment.pop("MPLBACKEND", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "drawn\n", done.stderr


def test_without_matplotlib_the_command_that_installs_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        plots.heatmap_grid([[1.0]], ["the"], "t")


def test_heads_can_be_given_names():
    figure = plots.heatmap_grid(causal(2, 3), WORDS[:3], "t", titles=["1.2\nbefore", "1.2\nafter"])
    assert [ax.get_title("left") for ax in panels(figure)] == ["1.2\nbefore", "1.2\nafter"]
    with pytest.raises(ValueError, match="there are 1 titles for 2 heads"):
        plots.heatmap_grid(causal(2, 3), WORDS[:3], "t", titles=["1.2"])
