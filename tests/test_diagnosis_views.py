"""What a person sees of a check: the report as text, the table of a folder, and the page."""

import csv
import io
import math
import re

import pytest
import torch

from clearhead.checker.diagnosis import Convention, Diagnosis, Example, Found, Tried
from clearhead.views.beside import part_of
from clearhead.views.diagnosis import FIELDS, csv_text, lines, row, table
from clearhead.views.labels import columns, is_invisible

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
        "hw.py:12 scores = q @ k.T", "1 right, 1 wrong, 1 refused",
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
    assert "wrong, off by 3e-01: plain" in said


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
    said = text_of(wrong(SCALE, example=example(got, want + 1e-8)))
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
    assert "The output has the shape (2 x 3) and should have (3 x 2):" in said
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
        "file  name       verdict  mistakes",
        "b.py  attention  wrong    scale-missing mask-future-one",
        "a.py  g          right    -",
        "c.py  h          untried  it raised: x",
        "d.py  attention  wrong    ?",
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
    assert table([]) == [
        "file  name  verdict  mistakes",
        "",
        "0 files: 0 right, 0 wrong, 0 untried.",
    ]
