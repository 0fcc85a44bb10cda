"""From here to there: where words stand, whatever the tokenizer, and what heads lay on them."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from itertools import accumulate, pairwise

import dense
import pytest
import torch
from test_heads_view import HOSTILE, make_run
from test_report import ALLOWED, Page
from test_run import a_run, call_of, randn, run_of

from clearhead.rule import Rule
from clearhead.run.looks import Places
from clearhead.run.words import delimiters_of, pieces_of, spans_of
from clearhead.views import grid, looks, report
from clearhead.views.labels import columns

TEXT = "the cat (a big one) didn't move. \"Cat!\" said the Café cat-keeper's cat, and the catfish"

# Where words stand --------------------------------------------------------------------------------


def cut(text: str, seed: int) -> list[str]:
    """A text in pieces, cut anywhere."""
    at = sorted(random.Random(seed).sample(range(1, len(text)), len(text) // 3))
    return [text[i:j] for i, j in pairwise([0, *at, len(text)])]


def wordpieces(text: str, seed: int) -> list[str]:
    """As BERT does: words and marks, long words in two, the second with ##."""
    found = []
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        half = random.Random(seed).randrange(1, len(word)) if len(word) > 4 else len(word)
        found += [word[:half], f"##{word[half:]}"] if half < len(word) else [word]
    return ["[CLS]", *found, "[SEP]"]


WAYS = {
    "spaces": lambda seed: cut(f" {TEXT}", seed),
    "no space first": lambda seed: cut(TEXT, seed),
    "byte level": lambda seed: [x.replace(" ", "Ġ") for x in cut(f" {TEXT}", seed)],
    "sentence pieces": lambda seed: [x.replace(" ", "▁") for x in cut(f" {TEXT}", seed)],
    "characters": lambda seed: list(TEXT),
    "word pieces": lambda seed: wordpieces(TEXT, seed),
}
TIMES = {
    "cat": 4, "CAT": 4, "the": 3, "fish": 0, "catfish": 1, "(": 1, ")": 1, "didn't": 1,
    "cat-keeper": 1, "(a big one)": 1, "the cat": 1, "the  cat": 1, "move.": 1,
    '"Cat!"': 1, "café": 1, "thecat": 0,
    "!": 1, "a": 1, "keeper's cat": 1, "one) did": 0,
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("word", TIMES)
def test_a_word_is_found_in_every_place_and_in_no_other(word: str, way: str) -> None:
    for seed in range(8):
        pieces = WAYS[way](seed)
        bare = [re.sub("^##|[Ġ▁ ]", "", piece) for piece in pieces]
        text, ends = "".join(bare).lower(), [0, *accumulate(map(len, bare))]
        compact = re.sub(r"\s", "", word).lower()
        found = spans_of(word, pieces)
        # Two places in one token are one span of it.
        few = way not in ("word pieces", "characters")
        assert len(found) == TIMES[word] or (0 < len(found) < TIMES[word] and few)
        assert all(before[1] <= after[0] for before, after in pairwise(found))
        for a, b in found:
            assert compact in text[ends[a] : ends[b]]
            assert compact not in text[ends[a + 1] : ends[b]], "it begins in the first token"
            assert compact not in text[ends[a] : ends[b - 1]], "it ends in the last"


@pytest.mark.parametrize("word", ["", "  ", "\n"])
def test_what_is_no_word_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match="is no word: it has no visible character"):
        spans_of(word, ["a", " b"])


def test_places_in_one_token_are_one_and_words_that_stand_together_are_no_two() -> None:
    assert spans_of("a", ["a-a", " a"]) == [(0, 1), (1, 2)]
    assert spans_of("ab c", [" a", "b", " c ab", " c"]) == [(0, 4)]
    assert spans_of("the cat", [" thecat", " is", " the", "cat"]) == []
    assert spans_of("the cat", [" the", "\n", "cat"]) == [(0, 3)]


class Library:
    """A tokenizer as those of the transformers library: its decode drops a first space."""

    all_special_ids = (0,)
    names = ("<s>", "▁the", "▁cat", "s", ".", "\ufffd")

    def decode(self, tokens):
        return "".join(self.names[n] for n in tokens).replace("▁", " ").removeprefix(" ")

    def convert_ids_to_tokens(self, token):
        return "<0xE6>" if token == 5 else self.names[token]


def test_the_text_of_tokens_keeps_the_space_that_decode_drops() -> None:
    pieces = pieces_of(Library(), [1, 2, 3, 5, 4, 0])
    assert pieces == {0: "<s>", 1: " the", 2: " cat", 3: "s", 4: ".", 5: "<0xE6>"}
    assert spans_of("cats", [pieces[n] for n in (0, 1, 2, 3, 4)]) == [(2, 4)]
    tokens = torch.tensor([[0, 1, 2, 4]])
    assert delimiters_of(tokens, pieces, {0}).tolist() == [[True, False, False, True]]
    assert delimiters_of(tokens, {}).tolist() == [[False] * 4]


# What lies there ----------------------------------------------------------------------------------

WORDS = ["a", " cat", " sat", ".", " the", " dog", "s"]
IDS = torch.tensor([[4, 1, 2, 3, 0, 1, 6, 3, 5, 6, 1], [5, 6, 2, 4, 4, 5, 6, 3, 4, 2, 2]])
QUERIES = {0: [(1, 2), (10, 11)], 1: []}  # " cat", and not " cats"


def a_text(**more):
    """Two texts a sequence, of which the second has no cat; two sequences, two layers."""
    calls = []
    for number in range(2):
        for layer in range(2):
            q, k = (randn(2, n, 11, 3, seed=9 * layer + number + n) for n in (4, 2))
            calls.append(
                call_of(q, k, Rule(causal=True), layer=layer, number=number, sequence=number,
                        module=f"m.{layer}")
            )  # fmt: skip
    tokens = {0: IDS, 1: IDS.roll(1, dims=1)}
    return run_of(calls, tokens=tokens, pieces=dict(enumerate(WORDS)), **more)


def judged(run, places: list[Places]) -> dict[str, tuple[float, float]]:
    """Mass and uniform share of every head, densely, over the rows of all places."""
    sums: dict[str, list[float]] = {}
    for at in places:
        for c in (c for c in run.calls if c.sequence == at.sequence):
            p = dense.attend(c.tensors["q"], c.tensors["k"], None, c.rule).p
            for h in range(4):
                total = sums.setdefault(f"{c.layer}.{h}", [0.0, 0.0, 0])
                for i in sorted({i for a, b in at.queries for i in range(a, b)}):
                    keys = sorted({j for a, b in at.keys for j in range(a, b)})
                    total[0] += p[at.batch or 0, h, i, keys].sum().item()
                    total[1] += sum(j <= i for j in keys) / (i + 1)
                    total[2] += 1
    return {head: (mass / n, share / n) for head, (mass, share, n) in sums.items()}


def test_words_are_counted_in_every_text_that_has_both() -> None:
    run = a_text()
    found = run.between("cat", "the")
    assert found.places == [
        Places(0, 0, ((1, 2), (10, 11)), ((0, 1),)),
        Places(1, 0, ((0, 1), (2, 3)), ((1, 2),)),
    ]
    wanted = judged(run, found.places)
    assert {h: pytest.approx((m, u), abs=1e-6) for h, m, u in found} == wanted
    assert [m for _, m, _ in found] == sorted((m for _, m, _ in found), reverse=True)
    both = run.between("dogs", "sat")
    assert [(p.sequence, p.batch) for p in both.places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert both.places[1].queries == ((0, 2), (5, 7))
    assert {h: pytest.approx((m, u), abs=1e-6) for h, m, u in both} == judged(run, both.places)


def test_a_sequence_and_a_text_of_the_batch_can_be_chosen() -> None:
    run = a_text()
    (one,) = run.between("dogs", "sat", sequence=1, batch=1).places
    assert (one.sequence, one.batch) == (1, 1)
    assert {h: pytest.approx((m, u), abs=1e-6)
            for h, m, u in run.between("dogs", "sat", 1, 1)} == judged(run, [one])  # fmt: skip
    assert len(run.between("dogs", "sat", batch=0).places) == 2
    (first,) = run.between("dogs", 3, batch=1).places  # a position is one of the first sequence
    assert (first.sequence, first.keys) == (0, ((3, 4),))


@pytest.mark.parametrize("place", [7, "7", (7, 8), slice(7, 8), "7:8", torch.tensor(7).item()])
def test_positions_can_be_said_in_many_ways(place) -> None:
    run = a_text()
    assert run.between(place, "2:5") == run.between((7, 8), (2, 5)) == run.between(7, slice(2, 5))


def test_what_is_nowhere_is_told_apart() -> None:
    run = a_text()
    apart = a_text()
    apart.tokens = {0: IDS.masked_fill(IDS == 2, 3), 1: IDS.masked_fill(IDS == 1, 3)}
    bare, blind, dumb = a_text(), a_text(), a_text()
    bare.calls = [c for c in bare.calls if c.sequence == 1]
    blind.tokens, dumb.pieces = {}, {}
    for ask, words in (
        (lambda: run.between("fish", "cat"), "'fish' is not in any of the 2 windows"),
        (lambda: run.between("cat", "fish", 0), "'fish' is not in window 0"),
        (lambda: run.between("cat", "fish", 0, 1), "'cat' is not in window 0"),
        (lambda: apart.between("cat", "sat"), "no head looks from one window to another: 'cat' is "
                                              "in window 0, and 'sat' in 1"),
        (lambda: run.between("99", "cat"), "99 is no place among the 11 tokens"),
        (lambda: run.between("5:5", "cat"), "5:5 is no place among the 11 tokens"),
        (lambda: run.between(11, 0), "queries must be"),
        (lambda: run.between(-1, 0), "queries must be"),
        (lambda: run.between("cat", "?!#", 7), "no q and k of sequence 7"),
        (lambda: bare.between(1, 0), "no q and k of sequence 0"),
        (lambda: blind.between("cat", "sat"), "which tokens sequence 0 has is not known"),
        (lambda: dumb.between("cat", "sat"), r"run.label\(tokenizer\) takes it from a tokenizer"),
        (lambda: run.between(" ", "sat"), "is no word"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words) as caught:
            ask()
        assert "\n" not in str(caught.value)
    assert blind.between(3, 1) == run.between(3, 1)


def test_label_takes_what_is_not_known_and_refuses_what_is_no_tokenizer() -> None:
    run = a_text()
    run.pieces = {4: "THE"}
    run.label(type("T", (), {"pieces": lambda self, ids: [WORDS[n] for n in ids],
                             "decode": lambda self, ids: ""})())  # fmt: skip
    assert run.pieces == {**dict(enumerate(WORDS)), 4: "THE"}
    with pytest.raises(TypeError, match=r"a tokenizer has decode.*got a str"):
        run.label("gpt2")


def test_a_word_of_a_token_that_no_row_read_is_no_place() -> None:
    """The last token of a generation is never read."""
    run = a_text()
    run.tokens = {
        n: torch.cat([ids, torch.full((2, 1), 5)], dim=1) for n, ids in run.tokens.items()
    }
    run.pieces[5] = " zebra"
    with pytest.raises(ValueError, match="'zebra' is not in any of the 2 windows"):
        run.between("zebra", "cat")


# How it is shown ----------------------------------------------------------------------------------


def test_the_table_says_where_and_how_much() -> None:
    run = make_run(1, 4)
    run.roles["0.2"] = {"role": "previous token", "mass": 0.9, "uniform": 0.1}
    found = run.between("sat", "the")
    lines = looks.table(run, found, top=2)
    assert lines[0] == "tiny  from 'sat' (token 2, 10) to 'the' (0, 4, 12)"
    assert lines[1].startswith("checked  1 call replayed")
    assert lines[3].split() == ["head", "mass", "equal", "does"]
    for line, (head, mass, equal) in zip(lines[4:6], found, strict=False):
        assert line.split()[:3] == [head, f"{mass:.2f}"[1:], f"{equal:.2f}"[1:]]
    assert lines[6] == "2 more: --top 4"
    assert "window" not in "\n".join(lines)
    assert looks.table(run, run.between(2, "3:5"))[0].startswith("tiny  from 'sat' (token 2) to")
    with pytest.raises(ValueError, match="top is 0"):
        looks.table(run, found, top=0)


def test_windows_and_texts_are_named() -> None:
    run = a_text()
    line = looks.where(run, run.between("cat", "the"))
    assert line == (
        "from 'cat' to 'the', in 2 of 4 texts (text 0 of batch 0: 1, 10 to 0; "
        "text 0 of batch 1: 0, 2 to 1)"
    )
    run.calls = [c for c in run.calls if c.sequence == 0]
    line = looks.where(run, run.between("cat", "the"))
    assert line == "from 'cat' (token 1, 10) to 'the' (0), in text 0 of 2"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_words_are_shown_literally_on_a_line_and_a_page(hostile: str) -> None:
    run = make_run(texts=[hostile, " b"] * 7)
    run.roles["1.1"] = {"role": hostile, "mass": 0.5, "uniform": 0.1}
    found = run.between(0, 1)
    found.here = hostile
    lines = looks.table(run, found, width=70)
    assert all(line.isprintable() and columns(line) <= 70 for line in lines)
    text = report.report_html(run, found)
    text.encode()
    page = Page(text)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    json.dumps(looks.record(run, found), allow_nan=False)
    looks.csv_text(run, found).encode()


def test_the_page_shows_the_ranking_and_what_the_first_heads_read() -> None:
    run = make_run(2, 4)
    found = run.between("mat", "cat")
    page, without = Page(report.report_html(run, found)), Page(report.report_html(run))
    assert "From “mat” to “cat”" in page.texts
    assert "From" not in "".join(without.texts)
    assert page.with_class("strip") == looks.STRIPS
    assert page.with_class("bar") == 8
    at = page.texts.index("From “mat” to “cat”")
    named = [text for text in page.texts[at:] if re.fullmatch(r"\d\.\d", text)][:8]
    assert named == [head for head, *_ in found]
    head = found[0][0]
    weights = run.map(head).dense()[0, 0, [5, 13]].mean(dim=0)
    titles = [title for title in page.attributes("title") if " gets " in title][:14]
    for i, title in enumerate(titles):
        assert title.startswith(f"{i}: ")
        assert title.endswith(f" gets {f'{weights[i]:.2f}'.replace('0.', '.', 1)}")


def test_a_strip_of_a_long_text_shows_what_is_around() -> None:
    run = make_run(1, 1, 600)
    words = [f" w{i}" for i in range(600)]
    run.tokens = {0: torch.arange(600)[None]}
    run.pieces = dict(enumerate(words))
    page = Page(report.report_html(run, run.between("w500", "w40")))
    shown = [int(title.split(":")[0]) for title in page.attributes("title") if " gets " in title]
    assert shown == [*range(16, 65), *range(476, 525)]


def test_pictures_outline_the_place_in_the_heads_that_look_there_most() -> None:
    run = a_text()
    run.stats = {n: a_run().stats[n] for n in (0, 1)}
    found = run.between("cat", "the", sequence=1)
    files = grid.pictures(run, found)
    assert {name for name in files if name.startswith("head-")} == {
        f"head-{head}.{kind}" for head, *_ in found for kind in ("png", "svg")
    }
    row = {"head": found[0][0], "role": None}
    figure = grid.map_figure(run, row, found)
    boxes = [p.get_bbox() for p in figure.axes[0].patches]
    assert [(b.x0, b.x1, b.y0, b.y1) for b in boxes] == [
        (0.5, 1.5, -0.5, 0.5), (0.5, 1.5, 1.5, 2.5),
    ]  # fmt: skip
    shown = figure.axes[0].images[0].get_array()
    weights = run.map(row["head"], sequence=1)[0, 0].sqrt().numpy()
    assert abs(shown - weights).max() < 1e-6


def test_records_hold_the_same() -> None:
    run = make_run()
    found = run.between("mat", "cat")
    record = looks.record(run, found)
    assert record["places"] == [
        {"sequence": 0, "batch": 0, "from": [[5, 6], [13, 14]], "to": [[1, 2], [9, 10]]}
    ]
    rows = list(csv.DictReader(io.StringIO(looks.csv_text(run, found))))
    assert [(r["head"], float(r["mass"]), float(r["uniform"])) for r in rows] == list(found)
    assert [r["head"] for r in record["heads"]] == [r["head"] for r in rows]
