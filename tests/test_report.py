"""The report and the pictures of a run: what they say, that they are whole, safe and readable."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from programs import ROOT
from test_heads_view import HOSTILE, make_run

from clearhead.cells import Pooled
from clearhead.map import AttentionMap
from clearhead.rule import Rule
from clearhead.run.calls import Check
from clearhead.views import grid, heads, inline, report, style
from clearhead.views.labels import escaped, is_invisible

ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "article", "h1",
    "h2", "h3", "p", "span", "code", "small", "div", "table", "caption", "thead", "tbody", "tr",
    "th", "td", "dl", "dt", "dd", "ul", "li", "svg", "pattern", "rect", "image", "text", "path",
}  # fmt: skip
VOID = {"meta"}


class Page(HTMLParser):
    """The tags, attributes and texts of a page; complains of tags that do not fit together."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    @property
    def says(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]

    def with_class(self, name: str) -> int:
        return sum(name in classes.split() for classes in self.attributes("class"))


def pixels(uri: str) -> tuple[np.ndarray, np.ndarray]:
    """(palette indices, palette) of a PNG in a data URI, read without our own code."""
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + size]
        assert data[at + 8 + size : at + 12 + size] == struct.pack(">I", zlib.crc32(kind + body))
        chunks[kind] = body
        at += 12 + size
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color) == (8, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:].astype(int), np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)


def maps_of(page: Page) -> list[np.ndarray]:
    """The heatmaps of a page, without the color scale."""
    shown = [pixels(uri)[0] for uri in page.attributes("href")]
    return [image for image in shown if len(image) > 1]


def visible(text: str) -> str:
    return "".join(escaped(c) if is_invisible(c) else c for c in text)


# ------------------------------------------------------------------------ one file, and safe


def test_the_page_is_one_file_that_asks_for_nothing() -> None:
    text = report.report_html(make_run())
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert "http:" not in text and "https:" not in text
    assert "@import" not in text and "url(" not in style.style_sheet()
    assert all(uri.startswith("data:image/png;base64,") for uri in page.attributes("href"))
    assert not page.attributes("src") and not page.attributes("style")
    assert all(fill.startswith("url(#h") for fill in page.attributes("fill"))
    assert not [a for _, attrs in page.tags for a in attrs if a.startswith("on")]


def test_the_content_policy_allows_the_style_sheet_by_its_hash_and_no_script() -> None:
    text = report.report_html(make_run())
    (sheet,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    (policy,) = [p for p in Page(text).attributes("content") if "default-src" in p]
    assert "default-src 'none'" in policy
    assert f"style-src 'sha256-{digest}';" in policy
    assert "script-src" not in policy and "unsafe" not in policy


@pytest.mark.parametrize("hostile", HOSTILE)
def test_whatever_comes_from_a_run_is_shown_literally(hostile: str) -> None:
    calm = Page(report.report_html(make_run(texts=["a"] * 14)))
    run = make_run(texts=[hostile] * 14)
    run.model = hostile
    run.sites = [(hostile, 0)] * 2
    run.notes = [hostile]
    run.versions = {hostile: hostile}
    run.roles["1.1"] = {"role": hostile, "mass": 0.5, "uniform": 0.1}
    run.roles["1.2"] = {"role": "induction", "mass": 0.7, "uniform": 0.1}
    run.checked = [(hostile, Check(0, 0, 0, hostile))]
    text = report.report_html(run)
    text.encode()
    page = Page(text)
    shape = [(tag, sorted(attrs)) for tag, attrs in page.tags if tag != "li"]
    assert {tag for tag, _ in shape} <= ALLOWED
    known = {(tag, *attrs) for tag, attrs in [(t, sorted(a)) for t, a in calm.tags]}
    assert {(tag, *attrs) for tag, attrs in shape} <= known | {("ul",), ("small",)}
    shown = visible(hostile)
    places = [t for t in page.texts if shown in t]
    assert f"Attention heads of {shown}" in places
    assert sum(t == shown for t in places) >= 14 + 8 + 1, "tokens, modules and a note"
    assert f"{shown} {shown}" in page.says
    assert f"0: {visible(repr(hostile))}" in page.attributes("title")


def test_the_same_run_gives_the_same_bytes() -> None:
    assert report.report_html(make_run()) == report.report_html(make_run())


def test_writing_makes_the_folder_and_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "r.html"
    report.write_report(make_run(), target)
    assert target.read_text("utf-8") == report.report_html(make_run())
    assert [p.name for p in target.parent.iterdir()] == ["r.html"]
    make_run().report(str(target))
    broken = make_run()
    broken.stats[0] = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        report.write_report(broken, target)
    assert target.read_text("utf-8") == report.report_html(make_run())
    with pytest.raises(OSError, match="nothing can be written there"):
        report.write_report(make_run(), target / "c.html")


# ------------------------------------------------------------------------------ what it says


def test_it_says_what_ran_what_was_verified_and_what_it_does_not_mean() -> None:
    page = Page(report.report_html(make_run()))
    assert page.says.index("Attention heads of tiny") < page.says.index("checked 2 calls replayed")
    assert "2 x 4 heads, 14 tokens" in page.says
    assert "Of 8 heads, 3 do something that has a name: induction (1), previous" in page.says
    assert heads.CAVEAT in page.says
    assert "clearhead 0.1.0, torch 2.13" in page.says
    assert page.with_class("tokens") == 1


def test_what_was_measured_in_a_probe_is_said_to_be_and_beside_it_stands_the_text() -> None:
    run = make_run()
    for role in run.roles.values():
        role["source"] = "probe"
    run.roles["1.1"]["text_mass"] = 0.38
    said = Page(report.report_html(run)).says
    assert "in the probe: .71 of its weight, where equal attention would put .02; in this" in said
    assert "there and equal are those in random tokens that repeat" in said
    assert "; in this text" not in Page(report.report_html(make_run())).says


def test_every_number_of_every_head_is_in_the_table() -> None:
    run = make_run()
    text = report.report_html(run)
    table = text[text.index("<table class=all>") : text.index("</table>", text.index("class=all>"))]
    lines = re.findall(r"<tr><th scope=row>(.*?)</tr>", table, re.DOTALL)
    names = [name for name in report.COLUMNS if name != "sink_mass"]
    for line, row in zip(lines, heads.rows(run), strict=True):
        cells = [re.sub("<.*?>", "", cell) for cell in re.split("</t[hd]>", line)[:-1]]
        for name, cell in zip(names, cells, strict=True):
            value = row[name]
            if value is None:
                assert cell == "-"
            elif isinstance(value, str):
                assert cell == value
            else:
                assert float(cell.replace(",", "")) == pytest.approx(value, abs=0.0501)


def test_a_learned_sink_has_its_column() -> None:
    with_sink = report.report_html(make_run(sinks=torch.ones(4)))
    assert ">sink</th>" in with_sink
    assert ">sink</th>" not in report.report_html(make_run())


def test_every_column_and_every_role_is_explained() -> None:
    text = report.report_html(make_run())
    explained = set(re.findall("<dt>(.*?)</dt><dd>.", text))
    columns = {name for name, _ in report.COLUMNS.values()}
    assert columns | set(heads.READS) | set(heads.UNNAMED) <= explained


def test_maps_show_the_weights() -> None:
    run = make_run(1, 1)
    (image,) = maps_of(Page(report.report_html(run)))
    dense = run.map("0.0").dense()[0, 0].numpy()
    shade = np.rint(np.sqrt(dense) * 253) + 2
    assert np.abs(np.where(np.tri(14) > 0, shade, 0) - image).max() <= 1
    assert ((image == 0) == (np.tri(14) == 0)).all(), "hidden cells show the paper"


@pytest.mark.parametrize(("T", "said"), [(480, "2 x 2"), (500, "up to 3 x 3"), (240, None)])
def test_a_long_map_is_pooled_and_says_how(T: int, said: str | None) -> None:
    run = make_run(1, 1, T)
    page = Page(report.report_html(run))
    (image,) = maps_of(page)
    dense = run.map("0.0").dense()[0, 0]
    n = len(image)
    assert n <= inline.BLOCKS
    edges = [T * i // n for i in range(n + 1)]
    for i, j in ((0, 0), (n - 1, 0), (n // 2, n // 3), (n - 1, n - 1)):
        block = dense[edges[i] : edges[i + 1], edges[j] : edges[j + 1]]
        assert abs(float(block.max()) ** 0.5 * 253 + 2 - image[i, j]) <= 1
    line = f"each pixel is the largest weight of {said} tokens"
    assert (line in page.says) == (said is not None)
    assert ("each pixel" in page.says) == (said is not None)


def test_cells_that_are_no_weights_have_a_color_of_their_own() -> None:
    values = torch.tensor([[0.0, float("nan")], [1.5, 1.0], [0.0, 0.25]])
    seen = torch.tensor([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    found = inline.palette_indices(Pooled(values, seen, (0, 3), (0, 2), "max"))
    assert found.tolist() == [[0, 1], [1, 255], [2, round(0.5 * 253) + 2]]
    _, colors = pixels(inline.png(found))
    viridis = (np.array(matplotlib.colormaps["viridis"].colors) * 255).round()
    assert np.abs(colors[1].astype(int) - viridis).sum(axis=1).min() > 100
    assert np.abs(colors[[2, 255]] - viridis[[0, 255]]).max() <= 1


def test_a_row_of_nan_is_drawn_as_such() -> None:
    run = make_run(1, 1)
    run.calls[0].tensors["q"][0, 0, 5] = float("nan")
    run.calls[0].tensors["lse"][0, 0, 5] = float("nan")
    (image,) = maps_of(Page(report.report_html(run)))
    assert (image[5, :6] == 1).all() and (image[5, 6:] == 0).all()
    assert (image[[4, 6]] != 1).all()


@pytest.mark.parametrize("T", [1, 2, 12, 60, 512, 2000])
def test_labels_are_thinned_keep_true_indices_and_do_not_overlap(T: int) -> None:
    page = Page(report.report_html(make_run(1, 1, T)))
    ticks = [attrs for tag, attrs in page.tags if tag == "text" and attrs["class"] == "tick end"]
    down = [float(a["y"] or 0) for a in ticks if "y" in a]
    across = [float((a["transform"] or "")[10:].split()[0]) for a in ticks if "transform" in a]
    for places in (down, across):
        assert min(T, 12) <= len(places) <= 30
        assert (np.diff(places) >= inline.EM).all()
    run = make_run(1, 1, T)
    found = [re.fullmatch(r"(\d+): (.*)", t) for t in page.texts]
    labels = [(int(m[1]), m[2]) for m in found if m]
    assert bool(labels) == (T > 25)
    assert all(run.pieces[int(run.tokens[0][0, n])] == word for n, word in labels)


def test_without_q_and_k_everything_but_maps_is_there_and_the_way_to_them() -> None:
    page, full = (Page(report.report_html(make_run(keep=keep))) for keep in ("stats", "qk"))
    assert not maps_of(page) and len(maps_of(full)) == 8
    assert "clearhead inspect MODEL --keep qk --save RUN" in page.says
    assert "--keep qk" not in full.says
    assert "observe(" not in page.says, "said once, and not for every head"
    headings = [[t for t in p.texts if t in ("All heads at a glance", "Every head", "Notes")]
                for p in (page, full)]  # fmt: skip
    assert headings[0] == headings[1] != []
    assert page.with_class("hill") == full.with_class("hill") == 2


def test_a_head_whose_q_and_k_were_not_kept_says_so_and_the_others_are_drawn() -> None:
    run = make_run()
    call = run.calls[0]
    some = {**call.tensors, "q": call.tensors["q"][:, :1], "k": call.tensors["k"][:, :1]}
    run.calls = [replace(call, tensors=some, heads=(0,)), run.calls[1]]
    page = Page(report.report_html(run))
    assert len(maps_of(page)) == 5
    assert "head 2 has no map; heads 0 have one" in page.says


def test_sampled_rows_and_cross_attention_are_labeled_by_what_is_known() -> None:
    run = make_run(1, 1)
    call = run.calls[0]
    rows = torch.tensor([3, 7, 11])
    tensors = {n: x if n == "k" else x[:, :, rows] for n, x in call.tensors.items()}
    run.calls = [replace(call, rows=rows, tensors=tensors)]
    queries, keys = inline.axes_of(run, "0.0", run.map("0.0"))
    assert queries.names(1, 9) == ["3:  on", "7:  and", "11:  on"]
    assert keys.names(1, 9)[:2] == ["the", " cat"]
    assert queries.said(0) == "' on' (3)"
    run.calls = [replace(call, cross=True)]
    queries, keys = inline.axes_of(run, "0.0", run.map("0.0"))
    assert queries.names(5, 9) == keys.names(5, 9) == ["0", "5", "10"]
    assert maps_of(Page(report.report_html(run)))


def test_what_a_decoder_reads_is_not_labeled_by_the_words_of_its_encoder() -> None:
    run = make_run(1, 1)
    (call,) = run.calls
    own = replace(call, layer=0, rule=Rule())  # the encoder's: all 14 tokens
    mine = replace(call, layer=1, rule=Rule(causal=True))
    to = replace(call, layer=2, rule=Rule(), cross=True)
    calls = [own, mine, to]
    assert [heads.texts_fit(calls, layer, 14, 14, range(14)) for layer in (0, 1, 2)] == [
        (True, True), (False, False), (False, True),
    ]  # fmt: skip
    assert heads.texts_fit([mine], 1, 14, 14, range(14)) == (True, True)
    assert heads.texts_fit([mine], 1, 15, 14, range(14)) == (True, True), "a generation's last"
    assert heads.texts_fit([mine], 1, 16, 14, range(14)) == (False, False)


def test_of_several_texts_the_first_is_drawn_and_it_says_so() -> None:
    assert "the first of 3 texts" in Page(report.report_html(make_run(1, 1, batch=3))).says


def test_a_batch_of_none_is_still_a_page_and_pictures() -> None:
    run = make_run(1, 2, batch=0)
    run.tokens[0] = torch.zeros(0, 14, dtype=torch.int64)
    page = Page(report.report_html(run))
    assert "1 x 2 heads" in page.says
    assert not page.with_class("tokens")
    assert heads.token_texts(run) == []
    assert heads.table(run)[0] == "tiny  1 x 2 heads  0 tokens in 0 texts"
    assert set(grid.pictures(run)) == {"heads.png", "heads.svg"}


def test_what_is_hatched_is_said_only_where_something_is() -> None:
    hidden, open_ = (report.report_html(make_run(causal=causal)) for causal in (True, False))
    assert "Hatched: hidden from that row" in hidden
    assert "Hatched" not in open_
    assert "square root of the weight" in hidden and "square root of the weight" in open_
    figure = grid.map_figure(make_run(), heads.rows(make_run())[0])
    assert "square root" in " ".join(text.get_text() for text in figure.texts)


def test_twelve_heads_fit_on_a_page_as_wide_as_a_screen() -> None:
    """72 rem are 1,152 pixels, less the margins and the numbers of layers."""
    sheet = style.style_sheet()
    assert "main{max-width:72rem;" in sheet
    (narrowest,) = re.findall(r"\.map td\{min-width:([\d.]+)rem", sheet)
    assert 12 * (16 * float(narrowest) + 2) + 60 < 16 * (72 - 2.5)
    small, *_ = re.findall(r"\.map small\{(.*?)\}", sheet)
    assert "nowrap" not in small, "a name that is too long breaks"


def test_a_run_without_anything_is_still_a_page() -> None:
    run = make_run()
    run.calls, run.stats, run.tokens, run.roles, run.versions = (), {}, {}, {}, {}
    assert "Of 0 heads, 0 do something" in Page(report.report_html(run)).says


def test_seventy_two_heads_stay_small() -> None:
    run = make_run(6, 12, 512)
    text = report.report_html(run)
    assert len(text) < 3_000_000
    assert len(maps_of(Page(text))) == 12


# ------------------------------------------------------------------------ for everybody's eyes


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_the_shades_of_entropy_can_be_read_and_shades_grow_evenly(dark: bool) -> None:
    found = style.shades(dark)
    assert len(found) == style.LEVELS
    assert all(style.contrast(back, ink) >= 4.5 for back, ink in found)
    lights = [style.contrast(back, (0, 0, 0)) for back, _ in found]
    assert lights == sorted(lights, reverse=dark), "one direction, so that grey paper shows it too"
    assert style.contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert style.contrast((118, 118, 118), (255, 255, 255)) == pytest.approx(4.54, abs=0.01)


def test_text_on_the_page_can_be_read_by_day_and_by_night() -> None:
    for sheet in (style._COLORS, style._NIGHT):
        colors = {
            name: tuple(int(part * (2 if len(part) == 1 else 1), 16) for part in re.findall(
                "." if len(value) == 3 else "..", value))
            for name, value in re.findall(r"--(\w+):#(\w+)", sheet)
        }  # fmt: skip
        for text in ("ink", "muted", "accent", "warn"):
            for back in ("page", "wash"):
                assert style.contrast(colors[text], colors[back]) >= 4.5, (text, back)  # type: ignore[arg-type]
    assert "prefers-color-scheme:dark" in style.style_sheet()
    assert style.style_sheet().index("@media print") > style.style_sheet().index("--page:#14191d")
    assert "@media screen and (prefers-color-scheme:dark)" in style.style_sheet(), "paper is light"


def test_classes_that_are_used_have_a_style() -> None:
    pages = [Page(report.report_html(run)) for run in (make_run(), make_run(1, 14, keep="stats"))]
    used = {name for page in pages for classes in page.attributes("class")
            for name in classes.split()}  # fmt: skip
    assert {"e0", "small", "missing"} <= used
    assert {name for name in used if f".{name}" not in style.style_sheet()} <= {"word", "none"}
    assert "map small" in pages[1].attributes("class")


def test_a_reader_of_the_screen_finds_the_way() -> None:
    page = Page(report.report_html(make_run()))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = page.attributes("id")
    assert len(set(ids)) == len(ids)
    assert set(page.attributes("aria-labelledby")) <= set(ids)
    assert all("scope" in attrs for tag, attrs in page.tags if tag == "th")
    for tag, attrs in page.tags:
        if tag == "svg":
            assert attrs["role"] == "img" and ("aria-label" in attrs or "aria-labelledby" in attrs)
    tables = [tag for tag, _ in page.tags if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * 2
    assert page.attributes("tabindex") == ["0", "0"], "what scrolls can be reached by keyboard"
    assert page.tags[0] == ("html", {"lang": "en"})


def test_entropies_are_distributed_as_the_statistics_say() -> None:
    run = make_run()
    text = report.report_html(run)
    hills = re.findall(r'<svg class="hill".*?</svg>', text)
    for hill, stats in zip(hills, run.stats.values(), strict=True):
        counts = stats.metrics["normalized_entropy"].histogram.sum(dim=0).view(32, 2).sum(dim=1)
        heights = [44 - float(y) for y in re.findall(r"L[\d.]+ ([\d.]+)h", hill)]
        np.testing.assert_allclose(heights, 40 * counts / counts.max(), atol=0.06)
        assert hill.count('class="mark"') == 4
        assert f"entropies of {int(counts.sum())} rows" in hill


# ---------------------------------------------------------------------------------- pictures


def test_pictures_are_whole_files_with_safe_names_and_always_the_same() -> None:
    run = make_run(2, 1)
    found = grid.pictures(run)
    names = ["head-0.0", "head-1.0"]
    assert set(found) == {f"{n}.{kind}" for n in ["heads", *names] for kind in ("png", "svg")}
    for name, content in found.items():
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")
            assert b"<script" not in content and b"<dc:date>" not in content
    assert grid.pictures(make_run(2, 1)) == found


def test_names_of_modules_do_not_become_names_of_files() -> None:
    run = make_run(2, 1)
    run.sites = [("layers.0:self/attn", 0), ("../layers.0:self\\attn", 0)]
    run.calls = [replace(call, module=run.sites[call.layer][0]) for call in run.calls]
    assert {name.split(".png")[0] for name in grid.pictures(run) if name.endswith(".png")} == {
        "heads", "head-0.0", "head-1.0",
    }  # fmt: skip


def test_without_q_and_k_there_is_the_grid_alone() -> None:
    assert set(grid.pictures(make_run(keep="stats"))) == {"heads.png", "heads.svg"}
    run = make_run()
    run.stats, run.calls = {}, ()
    with pytest.raises(ValueError, match="no heads"):
        grid.pictures(run)


def test_the_grid_says_entropy_and_role_of_every_head() -> None:
    run = make_run()
    figure = grid.heads_figure(run)
    said = [t.get_text() for t in figure.findobj(matplotlib.text.Text)]
    for row in heads.rows(run):
        assert heads.share(row["normalized_entropy"]) in said
    assert "induction" in said and "previous token" in said
    assert any(text.startswith("checked") for text in said)
    (image,) = figure.axes[0].images
    assert image.get_array().shape == (2, 4)
    assert image.get_array()[1, 1] == heads.rows(run)[5]["normalized_entropy"]


def test_a_map_has_true_labels_and_says_how_it_was_pooled() -> None:
    run = make_run(1, 1, 500)
    figure = grid.map_figure(run, heads.rows(run)[0])
    ax = figure.axes[0]
    said = " ".join(t.get_text() for t in figure.findobj(matplotlib.text.Text))
    assert "each pixel is the largest weight of up to 3 x 3 tokens" in said
    places, names = ax.get_xticks(), [t.get_text() for t in ax.get_xticklabels()]
    assert 10 < len(places) <= 60
    for place, name in zip(places, names, strict=True):
        assert name == f"{int(place)}: {run.pieces[int(run.tokens[0][0, int(place)])]}"
    shown = ax.images[0].get_array()
    assert shown.shape == (167, 167) and shown.mask[0, -1] and not shown.mask[-1, 0]


def test_hostile_texts_and_missing_fonts_do_not_stop_pictures() -> None:
    run = make_run(1, 2, texts=HOSTILE, T=len(HOSTILE))
    run.model = HOSTILE[0] + HOSTILE[7] + HOSTILE[8] + "$a_b$"
    run.roles["0.0"] = {"role": "$x^2$\n", "mass": 0.5, "uniform": 0.1}
    with pytest.warns(UserWarning, match="no installed font can draw"):
        found = grid.pictures(run)
    assert all(len(content) > 1000 for content in found.values())


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    before = dict(matplotlib.rcParams)
    grid.pictures(make_run(1, 1))
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys; import clearhead.views.report, clearhead.views.heads\n"
        "assert not {'matplotlib', 'rich'} & set(sys.modules), 'a heavy import'\n"
        "import clearhead.views.grid; assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT / "src")},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_empty_map_is_refused_by_name() -> None:
    empty = AttentionMap(torch.zeros(1, 1, 0, 4), torch.zeros(1, 1, 3, 4))
    with pytest.raises(ValueError, match="0 x 3 tokens has no cells"):
        inline.pooled_map(empty)
