"""What a person sees of a check: the report as text, the table of a folder, and the page."""

import base64
import csv
import hashlib
import io
import math
import re
from html.parser import HTMLParser

import pytest
import torch

from clearhead.checker.diagnosis import Convention, Diagnosis, Example, Found, Tried
from clearhead.views import squares
from clearhead.views.beside import part_of
from clearhead.views.diagnosis import FIELDS, csv_text, lines, row, table
from clearhead.views.diagnosis_page import folder_page, page
from clearhead.views.labels import columns, is_invisible
from clearhead.views.style import contrast, shades

HOSTILE = '</script><b>x\x1b[31mred\x1b[0m\nnext\u202e\ud800 & "q" \'' + "long" * 500
SCALE = Found(
    "scale-missing", "scale", "the scores are not divided by sqrt(d_head)",
    "Scores grow like sqrt(d_head): hardly a gradient comes back.",
    "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
    why="it gives the very numbers that were answered to all 8 probes",
    look=((12, "scores = q @ k.T"),),
)  # fmt: skip
FUTURE = Found(
    "mask-future-one", "mask", "each query sees one key of the future",
    "Training looks perfect, and generation does not work.", "torch.tril(ones) with diagonal=0",
    "in all heads", "likely", "it explains all 8 probes", ("triu with diagonal=2",),
    ("mask-other",),
)  # fmt: skip
CAUTION = Found(
    "empty-uniform", "a row that sees nothing",
    "a query that may see nothing gets the average of everything", "Hidden values come through.",
    "fill such a row with 0", sure="seen", look=((14, "np.where(mask, s, -1e9)"),), caution=True,
)  # fmt: skip
RULES = (
    Convention("layout", "q, k, v (heads, tokens, d_head)"),
    Convention("scale", "none", "mistake"),
    Convention("mask", "True or 1 hides", "different"),
    Convention("window", "W keys", "unknown"),
)
TRIED = (
    Tried("plain", "random numbers", "wrong", 0.3),
    Tried("one token", "", "right", 2.3e-7),
    Tried("shared key heads", "each serves two", "refused", None, "it raised: shapes do not fit"),
)


def example(got, want, **more) -> Example:
    inputs = more.pop("inputs", (("q", torch.eye(2)), ("k", torch.eye(2))))
    return Example("2 tokens, one head of size 2 (plain)", inputs, got, want, **more)


def wrong(*mistakes: Found, **more) -> Diagnosis:
    got, want = torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[0.4, 0.6], [0.5, 0.5]])
    weights = {"want_weights": want[None], "got_weights": got[None]}
    fields = {"conventions": RULES, "tried": TRIED, "example": example(got, want, **weights)}
    return Diagnosis("attention", "sdp", "wrong", mistakes, **fields | more)


def text_of(d: Diagnosis, **options) -> str:
    """The report, which fits a terminal whatever is in it."""
    said = lines(d, **options)
    assert said and all(columns(line) <= 80 and line == line.rstrip() for line in said)
    assert not any(is_invisible(c) for line in said for c in line)
    return "\n".join(said)


def words(text: str) -> str:
    return " ".join(text.split())


# The report -------------------------------------------------------------------------------------


def test_right_is_said_in_a_line_with_its_proof():
    tried = (Tried("plain", "", "right", 2.3e-7), Tried("mask", "", "right", 1e-8))
    d = Diagnosis("attention", "sdp", "right", (), (CAUTION,), RULES[:1], tried)
    said = text_of(d, file="hw.py")
    assert said.splitlines()[0] == "attention: right. 2 probes, worst difference 2e-07"
    assert "gets the average of everything [empty-uniform] (hw.py:14)" in words(said)
    assert "q, k, v (heads, tokens, d_head)" in said and "=== The mistake" not in said


def test_one_mistake_says_what_it_does_how_sure_it_is_where_it_is_and_how_to_mend_it():
    said = text_of(wrong(SCALE), file="hw.py")
    assert said.startswith("attention: wrong. 1 mistake\n\n=== The mistake [scale-missing] ===\n")
    for part in (
        "The scores are not divided by sqrt(d_head).", SCALE.does, SCALE.mend,
        "Certain: it gives the very numbers that were answered to all 8 probes.",
        "hw.py:12 scores = q @ k.T", "1 right, 1 wrong, 1 could not be asked",
    ):  # fmt: skip
        assert part in words(said)
    assert "line 12" in text_of(wrong(SCALE))


def test_two_mistakes_are_numbered_and_doubts_are_said():
    said = words(text_of(wrong(SCALE, FUTURE)))
    assert "wrong. 2 mistakes" in said
    assert "=== Mistake 1 of 2 [scale-missing] ===" in said
    assert "=== Mistake 2 of 2 [mask-future-one] ===" in said
    assert "Each query sees one key of the future (in all heads)." in said
    assert "Likely: it explains all 8 probes; it may also be mask-other." in said
    assert "triu with diagonal=2" in said


def test_conventions_say_which_are_merely_different():
    said = text_of(wrong(SCALE)).splitlines()
    at = said.index("=== How it does things ===")
    assert said[at + 1 : at + 7] == [
        "layout  q, k, v (heads, tokens, d_head)",
        "scale   none [a mistake]",
        "mask    True or 1 hides [different]",
        "window  W keys [not seen]",
        "different: others do otherwise, and this is as good",
        "not seen: nothing that was asked shows it",
    ]


def test_the_example_marks_the_rows_that_differ():
    said = text_of(wrong(SCALE)).splitlines()
    at = said.index("The output (* marks the rows that differ):")
    assert said[at + 2 : at + 4] == [
        "*    0 0.250 0.750     0.400 0.600",
        "     1 0.500 0.500     0.500 0.500",
    ]
    assert "  q (2 x 2)    k (2 x 2)" in said and "   1 0          1 0" in said
    assert "The weights behind it (* marks the rows that differ):" in said


def test_refused_probes_are_listed_on_request():
    assert "shapes do not fit" not in text_of(wrong(SCALE))
    said = words(text_of(wrong(SCALE), all=True))
    assert "refused: shared key heads (each serves two): it raised: shapes do not fit" in said
    assert "wrong, off by 0.3: plain" in said


def test_what_is_not_explained_is_admitted():
    d = wrong(unexplained="It is not right on 3 of 8 probes.", nearest=("no scale: 2 of 8 probes",))
    said = words(text_of(d))
    assert "attention: wrong. No mistake we know explains it" in said
    assert "It is not right on 3 of 8 probes. Nearest to it comes: - no scale: 2 of 8" in said
    assert "Compute the example below by hand" in said
    both = words(text_of(wrong(SCALE, unexplained="More.")))
    assert "wrong. 1 mistake, and more that no mistake we know explains" in both
    assert "Compute the example" not in text_of(wrong(unexplained="So.", example=None))


def test_what_could_not_be_tried_says_why_and_where():
    d = Diagnosis("f", "sdp", "untried", trouble="it raised: KeyError: 'q'", trouble_at=(3, "x[q]"))
    assert text_of(d, file="a.py").splitlines() == [
        "f: it could not be tried", "", "It raised: KeyError: 'q'.", "where          a.py:3  x[q]",
    ]  # fmt: skip
    assert "Nobody said why." in text_of(Diagnosis("", "", "untried"))


def test_five_mistakes_in_large_arrays_fit_two_screens():
    got = torch.randn(4, 9, 30, generator=torch.Generator().manual_seed(0))
    big = example(got, got + 1, inputs=(("x", got[0]),))
    found = [Found(f"name-{n}", "", "it is wrong", "It harms. " * 20, "mend") for n in range(9)]
    said = text_of(wrong(*found, example=big)).splitlines()
    assert len(said) <= 80
    assert "And 4 more: name-5, name-6, name-7, name-8." in said
    assert "=== Mistake 9 of 9 [name-8] ===" in text_of(wrong(*found, example=big), all=True)


# Numbers ----------------------------------------------------------------------------------------


def test_nan_is_named_and_a_row_of_it_differs():
    got, want = torch.tensor([[math.nan, 1.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    said = text_of(wrong(SCALE, example=example(got, want + 1e-7)))
    assert re.search(r"^\*    0 +NaN 1\.000 +0\.000 1\.000$", said, re.M)
    assert re.search(r"^     1 0\.500", said, re.M)


@pytest.mark.parametrize(
    ("got", "want", "shown"),
    [
        ([[1.0]], [[2.0]], "1     2"),
        ([[0.5]], [[0.50004]], "0.50000     0.50004"),
        ([[1e30]], [[-1e30]], "1.00e+30     -1.00e+30"),
        ([[1e-30]], [[2e-30]], "1.00e-30     2.00e-30"),
        ([[math.inf]], [[-math.inf]], "inf     -inf"),
        ([[1e30, 1.0]], [[1e30, 2.0]], "1.00e+30 1.00e+00     1.00e+30 2.00e+00"),
        ([[-0.00001]], [[1.0]], "0.000     1.000"),
        (7.0, 8.0, "7     8"),
        ([1.5, 2.5], [1.5, 3.5], "1.500 2.500     1.500 3.500"),
        ([[True]], [[False]], "1     0"),
        ([[1 + 2j]], [[1 - 2j]], "1.000+2.000j     1.000-2.000j"),
    ],
)
def test_as_many_digits_as_show_the_difference(got, want, shown):
    got, want = torch.tensor(got), torch.tensor(want)
    said = text_of(wrong(SCALE, example=example(got, want)))
    assert re.search(rf"^\*    0 +{re.escape(shown).replace('     ', ' +')}$".replace(r"\ ", " +"),
                     said, re.M), said  # fmt: skip


def test_a_large_array_is_cut_to_where_it_differs():
    want = torch.zeros(3, 40, 60)
    got = want.clone()
    got[1, 30, 50] = 1.0
    part = part_of(got, want)
    assert part.head == (1,) and 30 in part.rows and 50 in part.columns
    assert len(part.rows) == len(part.columns) == 8 and int(part.differs.sum()) == 1
    assert re.match(r"head 1, rows \d+ to \d+ of 40, columns \d+ to \d+ of 60", part.cut)
    said = text_of(wrong(SCALE, example=example(got, want)))
    assert "The output, head 1, rows" in said and re.search(r"^\*   30 0 ", said, re.M)


def test_arrays_of_other_shapes_are_shown_one_by_one():
    said = text_of(wrong(SCALE, example=example(torch.ones(2, 3), torch.ones(3, 2))))
    assert "The output has the shape (2 x 3), and should have (3 x 2):" in said
    for shape in ((0, 3), (2, 0), (0,), (2, 0, 3), (0, 2, 3)):
        empty = torch.ones(shape)
        text_of(wrong(SCALE, example=example(empty, empty, inputs=(("q", empty),))))


def test_inputs_are_those_of_the_head_that_is_shown():
    got = torch.zeros(4, 2, 2)
    got[3, 0, 0] = 1.0
    k = torch.stack((torch.full((2, 2), 5.0), torch.full((2, 2), 7.0)))
    said = text_of(wrong(SCALE, example=example(got, torch.zeros(4, 2, 2), inputs=(("k", k),))))
    assert "k (2 x 2 x 2): head 1" in said and " 7 7" in said and " 5 5" not in said


# Hostile text -----------------------------------------------------------------------------------


def hostile() -> Diagnosis:
    found = Found(*[HOSTILE] * 6, sure=HOSTILE, why=HOSTILE, also=(HOSTILE,), or_else=(HOSTILE,),
                  look=((10**12, HOSTILE), (2, "\t")))  # fmt: skip
    numbers = torch.tensor([[1e30, math.nan], [-1e30, 1e-30]])
    shown = Example(HOSTILE, ((HOSTILE, numbers),), numbers, -numbers, numbers, -numbers, HOSTILE)
    return Diagnosis(
        HOSTILE, HOSTILE, "wrong", (found, found), (found,),
        (Convention(HOSTILE, HOSTILE, HOSTILE), Convention("", "")),
        (Tried(HOSTILE, HOSTILE, "refused", 1e300, HOSTILE),), shown, HOSTILE, (HOSTILE,),
        (HOSTILE,), HOSTILE, (10**12, HOSTILE),
    )  # fmt: skip


@pytest.mark.parametrize("every", [False, True])
def test_hostile_text_cannot_leave_its_place(every):
    text_of(hostile(), file=HOSTILE, all=every)
    wide = Found("漢字" * 40, "", "漢字" * 200, "é" * 300, "漢" * 90, look=((1, "字" * 200),))
    text_of(wrong(wide), file="目" * 90, all=every)


# A folder ---------------------------------------------------------------------------------------


def test_a_folder_is_a_line_each():
    found = [
        row(wrong(SCALE, FUTURE), "b.py"),
        row(Diagnosis("g", "sdp", "right", seconds=1.234), "a.py"),
        row(Diagnosis("h", "", "untried", trouble="it raised: x"), "c.py"),
        row(wrong(unexplained="So.\nit is"), "d.py"),
    ]
    assert table(found) == [
        "file  verdict  mistakes",
        "b.py  wrong    scale-missing mask-future-one",
        "a.py  right    -",
        "c.py  untried  it raised: x",
        "d.py  wrong    ?",
        "",
        "4 files: 1 right, 2 wrong, 1 untried.",
    ]
    read = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert list(read[0]) == list(FIELDS)
    assert read[0]["mistakes"] == "scale-missing mask-future-one"
    assert read[1]["seconds"] == "1.23" and read[3]["trouble"] == "So.\nit is"


def test_a_folder_of_hostile_names_keeps_its_lines():
    found = [row(hostile(), HOSTILE)]
    said = table(found)
    assert len(said) == 4 and all(columns(line) <= 80 for line in said)
    (read,) = csv.DictReader(io.StringIO(csv_text(found)))
    assert read["name"] == HOSTILE.replace("\ud800", "\\ud800")
    assert all(line.isprintable() for line in read["trouble"].split("\n"))
    assert table([]) == [
        "file  verdict  mistakes",
        "",
        "0 files: 0 right, 0 wrong, 0 untried.",
    ]


# The page ---------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """What a page holds: its text, its elements, and whether all of them are closed in order."""

    VOID = ("meta", "br", "img", "hr")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing, inside of {self.open}"

    def handle_data(self, data):
        if "style" not in self.open:
            self.said.append(data)

    def tags(self, name: str, **attrs: str) -> list[dict[str, str | None]]:
        return [a for tag, a in self.found if tag == name and attrs.items() <= a.items()]


def read(text: str) -> Reader:
    """The page, which is whole, fetches nothing, and whose identifiers are unique and known."""
    found = Reader(text)
    names = [a["id"] for _, a in found.found if "id" in a]
    assert len(names) == len(set(names))
    known = {a["aria-labelledby"] for _, a in found.found if "aria-labelledby" in a}
    known |= {a["href"][1:] for a in found.tags("a")}
    assert known <= set(names)
    assert {tag for tag, _ in found.found} <= {
        "html", "head", "meta", "title", "style", "body", "main", "header", "section", "article",
        "h1", "h2", "h3", "h4", "h5", "p", "code", "dl", "dt", "dd", "div", "span", "b", "a", "ul",
        "li", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption",
        "svg", "rect", "text", "pattern", "details", "summary",
    }  # fmt: skip
    for tag, attrs in found.found:
        assert not any(name == "style" or name.startswith("on") for name in attrs), (tag, attrs)
        assert not attrs.get("src") and (attrs.get("href") or "#").startswith("#")
    assert "url(" not in re.sub(r"url\(#\w+\)", "", text) and "http:" not in text
    text.encode("utf-8")
    assert not any(is_invisible(c) for c in text if c != "\n")
    return found


def said(found: Reader) -> str:
    return words(" ".join(found.said))


def test_the_page_of_what_is_right():
    tried = (Tried("plain", "random", "right", 2.3e-7),)
    d = Diagnosis("attention", "sdp", "right", (), (CAUTION,), RULES, tried, seconds=1.24)
    found = read(page(d, "hw.py"))
    assert "attention: right. 1 probe, worst difference 2e-07" in said(found)
    assert "hw.py:14" in said(found) and "1.2 s" in said(found) and "hw.py" in said(found)
    assert "Different: others do otherwise, and this is as good." in said(found)
    assert not found.tags("svg")


def test_the_page_of_mistakes_holds_all_that_the_report_does():
    found = read(page(wrong(SCALE, FUTURE), "hw.py"))
    for part in (
        "1. The scores are not divided by sqrt(d_head) [scale-missing]", SCALE.does, SCALE.mend,
        "2. Each query sees one key of the future (in all heads) [mask-future-one]",
        "it may also be mask-other", "triu with diagonal=2", "hw.py:12 scores = q @ k.T",
        "2 tokens, one head of size 2 (plain).", "a mistake", "shapes do not fit",
        "3 probes (right answers known): 1 right, 1 wrong, 1 could not be asked (shared",
    ):  # fmt: skip
        assert part in said(found)
    offs = [a for a in found.tags("td") if a.get("class") == "num off"]
    assert len(offs) == 4  # two numbers of the first row, got and want
    assert said(found).count("≠ 0") == 2 and "≠ 1" not in said(found)


def test_the_maps_have_the_shades_of_their_numbers():
    text = page(wrong(SCALE))
    cells = [a["class"] for a in read(text).tags("rect") if (a.get("class") or "")[:4] == "cell"]
    # Got .25 .75 .5 .5, want .4 .6 .5 .5; the difference from -.15 to .15.
    assert cells == ["cell w2", "cell w8", "cell w5", "cell w5", "cell w4", "cell w6", "cell w5",
                     "cell w5", "cell d0", "cell d10", "cell d5", "cell d5"]  # fmt: skip
    assert "query 0, key 1: +0.150" in text and "-0.15, too little" in text
    assert "NaN" not in text and "outside of 0 to 1" not in text


def test_what_is_no_weight_is_seen_and_named():
    got = torch.tensor([[[math.nan, 3.0], [-0.5, math.inf]]])
    want = torch.tensor([[[1.0, 0.0], [0.5, 0.5]]])
    d = wrong(SCALE, example=example(got[0], want[0], got_weights=got, want_weights=want))
    found = read(page(d))
    cells = [a for a in found.tags("rect") if (a.get("class") or "").startswith("cell")]
    assert sum(a["class"] == "cell odd" for a in cells) == 2 + 2 + 1  # got, difference, legend
    assert [a["class"] for a in cells if "out" in a["class"]] == [
        "cell out w10", "cell out w10", "cell out w0",
    ]  # fmt: skip
    assert "NaN or infinite" in said(found) and "outside of 0 to 1" in said(found)
    assert "query 0, key 0: NaN" in said(found) and "query 1, key 1: inf" in said(found)


def test_what_is_not_explained_and_what_could_not_be_tried_are_said_on_the_page():
    d = wrong(unexplained="It is not right.", nearest=("no scale: 2 of 8 probes",), example=None)
    found = read(page(d))
    assert "No mistake we know explains it" in said(found) and "no scale: 2 of 8" in said(found)
    d = Diagnosis("f", "sdp", "untried", trouble="it raised: x", trouble_at=(3, "x[q]"))
    found = read(page(d, "a.py"))
    assert "it could not be tried" in said(found) and "a.py:3 x[q]" in said(found)


@pytest.mark.parametrize("shape", [(1, 1), (1,), (), (3, 40, 60), (2, 3, 5, 4), (0, 3), (2, 0, 3)])
def test_arrays_of_any_size_have_a_page(shape):
    got, want = torch.ones(shape), torch.zeros(shape)
    shown = example(got, want, got_weights=got, want_weights=want, inputs=(("q", got),))
    found = read(page(wrong(SCALE, example=shown, pictures={"map": got})))
    assert len(found.tags("rect")) < 4 * 48 * 48 + 99
    if shape == (3, 40, 60):
        assert "head 0, columns 0 to 47 of 60" in said(found)
    read(page(wrong(SCALE, example=example(got, torch.ones(7, 2)))))


def test_hostile_text_stays_text_on_the_page():
    for text in (page(hostile(), HOSTILE), folder_page([hostile()] * 2, [HOSTILE] * 2)):
        found = read(text)
        for raw in ("<b>x", "</script", "\x1b", "\u202e", "\ud800", '"q"', "'long"):
            assert raw not in text.split("</style>")[1]
        assert "</script><b>x\\x1b[31mred\\x1b[0m\\nnext\\u202e\\ud800 &" in said(found)
        assert not found.tags("script") and len(text) < 200_000


def test_a_folder_is_a_table_and_a_section_each():
    d = Diagnosis("h", "", "untried", trouble="it raised: x")
    found = read(folder_page([wrong(SCALE), wrong(SCALE, FUTURE), d], ["a.py", "b.py", "c.py"]))
    assert said(found).startswith("3 files: 0 right, 2 wrong, 1 untried")
    assert [a["href"] for a in found.tags("a")] == ["#d0", "#d1", "#d2", *["#all"] * 3]
    assert len(found.tags("details")) == 2  # nothing was asked of the third
    assert "b.py attention wrong scale-missing, mask-future-one" in said(found)
    assert "c.py h untried it raised: x" in said(found)
    read(folder_page([], []))
    with pytest.raises(ValueError, match="1 diagnoses but 2 files"):
        folder_page([d], ["a", "b"])


def test_the_same_diagnosis_gives_the_same_page_under_a_policy_that_allows_its_style_alone():
    text = page(wrong(SCALE))
    assert text == page(wrong(SCALE))
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in text
    assert "prefers-color-scheme:dark" in style and "@media print" in style


def test_numbers_can_be_read_on_every_shade():
    for dark, stops in ((False, squares.LIGHT), (True, squares.DARK)):
        for found in (shades(dark), shades(dark, stops)):
            assert all(contrast(back, ink) >= 4.5 for back, ink in found)
