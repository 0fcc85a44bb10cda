"""The table of heads: what a row says, in which order, how it lines up, and as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from clearhead.engine import attention
from clearhead.map import AttentionMap
from clearhead.roles import ROLES, UNCLEAR, UNTESTED
from clearhead.rule import Rule
from clearhead.run import Run
from clearhead.run.calls import COLUMNS, FIGURES, KEPT, Call, Check
from clearhead.stats import HeadStats
from clearhead.views import heads
from clearhead.views.labels import columns
from clearhead.views.terminal import Terminal

WORDS = ["the", " cat", " sat", " on", " the", " mat", ".", " and"]
HOSTILE = [
    "</script><b>x", "</scRIPt>", 'a"b onmouseover=1', "<img src=x onerror=1>", "&amp;", "<!--",
    "back\\slash", "new\nline", "\ud800", "Ġcat", "Ċ", "Ã¡", "🐈", "漢字", "مرحبا", "]]>", "'; x='",
    "{x}", "\x1b[31m", "a\u202eb",
]  # fmt: skip


def make_run(
    n_layers: int = 2, n_heads: int = 4, T: int = 14, keep: str = "qk",
    texts: Sequence[str] | None = None, batch: int = 1, **rule: Any,
) -> Run:  # fmt: skip
    """A Run of random causal attention, sharper from head to head, with roles given by hand."""
    stream = torch.Generator().manual_seed(T)
    words = [WORDS[i % 8] for i in range(T)] if texts is None else list(texts)
    rule = Rule(**{"causal": True} | rule)
    run = Run("tiny", [(f"blocks.{n}.attend", 0) for n in range(n_layers)], n_layers, keep=keep)
    calls = []
    for n in range(n_layers):
        q, k = torch.randn(2, batch, n_heads, T, 8, generator=stream)
        q *= torch.linspace(0.5, 6, n_heads)[:, None, None]
        attended = attention(q, k, None, rule)
        run.stats[n] = HeadStats.of(attended, AttentionMap(q, k, rule, lse=attended))
        kept = dict(zip(KEPT, (q, k), strict=True)) if keep == "qk" else {}
        kept |= {name: getattr(attended, name) for name in FIGURES}
        shape = (batch, n_heads, n_heads, T, T, 8)
        check = Check(64, 3e-7, 1e-6)
        calls.append(Call(f"blocks.{n}.attend", 0, n, 0, "sdpa", shape, 8, rule, kept, check))
        for h in range(n_heads):
            run.roles[f"{n}.{h}"] = {"role": "unclear", "mass": None, "uniform": None}
    run.calls = calls
    ids = {word: i for i, word in enumerate(dict.fromkeys(words))}
    run.tokens[0] = torch.tensor([[ids[word] for word in words]] * batch)
    run.pieces = {i: word for word, i in ids.items()}
    run.versions = {"clearhead": "0.1.0", "torch": "2.13"}
    if n_layers > 1 and n_heads > 2:
        run.roles["1.1"] = {"role": "induction", "mass": 0.71, "uniform": 0.02}
        run.roles["0.2"] = {"role": "previous token", "mass": 0.93, "uniform": 0.04}
        run.roles["0.0"] = {"role": "broad", "mass": 0.9, "uniform": 1.0}
    return run


def body(lines: Sequence[str]) -> list[str]:
    """The header and the rows of a table."""
    first = next(i for i, line in enumerate(lines) if line.startswith("head "))
    return list(lines[first : first + lines[first:].index("")])


def names(lines: Sequence[str]) -> list[str]:
    return [line.split()[0] for line in body(lines)[1:] if not line.endswith(")x")]


# ------------------------------------------------------------------------------- the table


def test_the_first_two_lines_say_what_ran_and_how_closely_it_was_verified() -> None:
    first, second, blank, *_ = heads.table(make_run())
    assert first == "tiny  2 x 4 heads  14 tokens: the| cat| sat| on| the| mat|.| and|the| cat| ..."
    assert second.startswith("checked  2 calls replayed, worst output difference 3e-07")
    assert blank == ""
    assert heads.table(make_run())[-1] == heads.CAVEAT


def test_a_row_says_what_the_record_says() -> None:
    run = make_run()
    head, row = body(heads.table(run, top=1, width=88))[:2]
    record = next(r for r in heads.rows(run) if r["head"] == "1.1")
    assert head.split() == [
        "head", "does", "there", "(equal)", "entropy", "first", "(equal)", "dist", "max",
    ]  # fmt: skip
    assert row.startswith("1.1   induction     .71 ( .02)  ")
    value = record["normalized_entropy"]
    bar = "█" * round(heads.BAR * value) + "·" * (heads.BAR - round(heads.BAR * value))
    assert f"{bar}  {value:.2f}".replace(" 0.", " .") in row
    first, equal = (f"{record[key]:.2f}"[1:] for key in ("first_key", "first_key_uniform"))
    assert f"{first} ( {equal})" in row
    assert row.split()[-2:] == [f"{record['distance']:.1f}", f"{record['max_score']:.1f}"]


def test_named_roles_come_first_by_their_mass_over_an_equal_share_then_the_focused() -> None:
    order = names(heads.table(make_run()))
    assert order[:3] == ["1.1", "0.2", "0.0"]
    entropy = {r["head"]: r["normalized_entropy"] for r in heads.rows(make_run())}
    rest = [entropy[name] for name in order[3:]]
    assert rest == sorted(rest)
    assert len(order) == 8


@pytest.mark.parametrize("column", [*heads.SHOWN, *COLUMNS])
def test_any_column_sorts_either_way(column: str) -> None:
    found = heads.rows(make_run(3, 11))
    key = heads.SHOWN.get(column, column)
    up, down = (heads.in_order(found, sign + column) for sign in ("", "-"))
    values, back = ([r[key] for r in rows if r[key] is not None] for rows in (up, down))
    if key == "head":
        values, back = ([[*map(int, v.split("."))] for v in vs] for vs in (values, back))
    words = key in ("head", "module", "role", "layer", "index")
    assert values == sorted(values, reverse=not words)
    assert back == sorted(back, reverse=words)
    for rows in (up, down):
        assert len(rows) == 33
        blanks = [r[key] is None for r in rows]
        assert blanks == sorted(blanks), "None must come last"


def test_an_unknown_column_is_one_clear_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"no column 'entrpy' to sort by; did you mean entropy\? There are does, there",
    ):
        heads.table(make_run(), sort="entrpy")
    with pytest.raises(ValueError, match="top is 0"):
        heads.table(make_run(), top=0)


def test_more_heads_are_counted_and_the_flag_that_shows_them_is_named() -> None:
    lines = heads.table(make_run(), top=3)
    assert "5 more: --top 8" in lines
    assert not any("more:" in line for line in heads.table(make_run(), top=8))


@pytest.mark.parametrize("width", [None, 72, 80, 100])
@pytest.mark.parametrize("layer", [1, 12, 123])
def test_columns_line_up_and_nothing_is_wider_than_asked(width: int | None, layer: int) -> None:
    run = make_run()
    run.model = "a-model-of-a-very-long-name/" * 5
    run.sites += [run.sites[0]] * (layer - 1)
    run.stats[layer] = run.stats.pop(1)
    long = "a role of a very long name, indeed"
    run.roles[f"{layer}.1"] = {"role": long, "mass": 1.0, "uniform": 0.0}
    run.roles[f"{layer}.2"] = {"role": None, "mass": None, "uniform": None}
    lines = heads.table(run, width=width)
    assert max(map(columns, lines)) <= (width or 80)
    header, *rows = body(lines)
    assert len(rows) == 8
    assert len({columns(line) for line in rows if not line.endswith("-")}) == 1
    end = header.index("(equal)") + len("(equal)")
    assert all(line[end : end + 2] == "  " for line in rows)
    assert all(line[header.index("does") - 1] == " " for line in rows)


def test_what_does_not_apply_is_a_dash_and_nan_is_never_shown() -> None:
    run = make_run(keep="stats")
    for n, stats in run.stats.items():
        metrics = dict(stats.metrics)
        for name in ("distance", "first_key", "first_key_uniform"):
            del metrics[name]
        nothing = torch.full((4,), math.nan, dtype=torch.float64)
        metrics["max_score"] = replace(metrics["max_score"], maximum=nothing)
        run.stats[n] = replace(stats, metrics=metrics)
    lines = heads.table(run)
    assert all(line.split()[-3:] == ["-", "-", "-"] for line in body(lines)[1:])
    assert "nan" not in "\n".join(lines).lower()


def test_huge_numbers_do_not_break_the_columns() -> None:
    sizes = (0.04, -0.01, 99.94, 99.96, 31415.9, 1e9, -2.5e30, None, math.nan)
    shown = ["0.0", "0.0", "99.9", "100", "31416", "1e+09", "-2e+30", "-", "-"]
    assert [heads.number(x) for x in sizes] == shown
    shares = (0.0, 0.714, 0.996, 1.0, None, math.nan)
    assert [heads.share(x) for x in shares] == [".00", ".71", "1.00", "1.00", "-", "-"]


def test_tokens_and_names_cannot_break_a_line() -> None:
    run = make_run(T=len(HOSTILE), texts=HOSTILE)
    run.model = "a\nb\x1b[31m"
    run.roles["1.0"] = {"role": "x\ny", "mass": 0.5, "uniform": 0.1}
    for line in heads.table(run, width=100):
        assert line.isprintable() or line == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_terminal_of_any_encoding_shows_it(encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    Terminal(out, out).lines(heads.table(make_run(T=len(HOSTILE), texts=HOSTILE)))
    out.flush()
    shown = raw.getvalue().decode(encoding)
    assert ("###" if encoding != "utf-8" else "███") in shown
    assert len(shown.splitlines()) == len(heads.table(make_run(T=len(HOSTILE), texts=HOSTILE)))


def test_a_probe_is_named_as_such() -> None:
    run = make_run()
    for role in run.roles.values():
        role["source"] = "probe"
    lines = heads.table(run)
    assert "probe (equal)" in body(lines)[0]
    assert any(line.startswith("probe: mean weight") for line in lines)


def test_a_record_says_where_its_role_was_measured_and_the_same_mass_in_the_text() -> None:
    run = make_run()
    run.roles["1.1"] |= {"source": "probe", "text_mass": 0.38}
    (row,) = [row for row in heads.rows(run) if row["head"] == "1.1"]
    assert (row["role_mass"], row["role_source"], row["role_text"]) == (0.71, "probe", 0.38)
    assert heads.rows(run)[0]["role_source"] is None
    assert "1.1,blocks.1.attend," in heads.csv_text(run)
    assert ",probe,0.38\n" in heads.csv_text(run)
    assert heads.in_order(heads.rows(run), "text")[0]["head"] == "1.1"


def test_a_run_without_heads_or_tokens_is_still_a_table() -> None:
    run = make_run()
    run.tokens, run.pieces = {}, {}
    assert heads.table(run)[0] == "tiny  2 x 4 heads"
    run.stats, run.calls = {}, ()
    assert "no heads: nothing was observed" in heads.table(run)


def test_a_corpus_says_how_much_it_was() -> None:
    run = make_run()
    run.tokens, run.read = {}, {"texts": 3, "windows": 9, "tokens": 4210}
    assert heads.table(run)[0] == "tiny  2 x 4 heads  4,210 tokens in 3 texts"
    run.read = {"texts": 1, "windows": 9, "tokens": 4210}
    assert heads.table(run)[0] == "tiny  2 x 4 heads  4,210 tokens in 1 text"


def test_windows_of_a_text_are_counted() -> None:
    run = make_run()
    run.tokens[1] = run.tokens[0][:, :5]
    assert heads.table(run)[0].startswith("tiny  2 x 4 heads  19 tokens in 2 windows: the|")


def test_several_texts_are_counted() -> None:
    (first, *_) = heads.table(make_run(batch=3))
    assert first.startswith("tiny  2 x 4 heads  42 tokens in 3 texts: the|")


# --------------------------------------------------------------------------- what stands out


def test_what_stands_out_has_the_best_head_of_each_role_and_no_second_broad_one() -> None:
    run = make_run(3, 8)
    for n in range(3):
        for h in range(8):
            run.roles[f"{n}.{h}"] = {"role": "broad", "mass": 0.9, "uniform": 1.0}
    run.roles["2.1"] = {"role": "self", "mass": 0.6, "uniform": 0.1}
    for h in range(4):
        run.roles[f"1.{h}"] = {"role": "induction", "mass": 0.5 + h / 10, "uniform": 0.01}
    found = heads.standouts(heads.rows(run), 6)
    assert [row["head"] for row in found[:5]] == ["1.3", "1.2", "1.1", "1.0", "2.1"]
    assert [row["role"] for row in found[5:]] == ["broad"]
    few = {row["role"] for row in heads.standouts(heads.rows(run), 3)}
    assert few == {"induction", "self", "broad"}


# ------------------------------------------------------------------------------ JSON and CSV


def test_records_are_strict_json_with_the_documented_keys_in_order() -> None:
    run = make_run()
    stats = run.stats[0]
    bad = replace(stats.metrics["entropy"], count=torch.zeros(4, dtype=torch.int64))
    run.stats[0] = replace(stats, metrics={**stats.metrics, "entropy": bad})
    run.roles["0.2"]["mass"] = math.nan
    found = heads.rows(run)
    assert found[2]["role_mass"] is None
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert all(tuple(row) == COLUMNS for row in found)
    assert found[0]["entropy"] is None
    assert [row["head"] for row in found] == [f"{n}.{h}" for n in range(2) for h in range(4)]
    assert all(type(row["rows"]) is int and type(row["max_score"]) is float for row in found)


def test_csv_reads_back_as_the_records() -> None:
    run = make_run()
    run.sites = [('a,"b"\nc', 0), ("d\ud800", 0)]
    text = heads.csv_text(run)
    text.encode()
    back = list(csv.DictReader(io.StringIO(text)))
    assert tuple(back[0]) == COLUMNS
    for got, row in zip(back, heads.rows(run), strict=True):
        for name, value in row.items():
            if name == "module":
                assert got[name] == value.replace("\ud800", "\\ud800")
            else:
                assert got[name] == ("" if value is None else str(value))


def test_the_columns_of_the_table_name_columns_of_the_records() -> None:
    assert set(heads.SHOWN.values()) <= set(COLUMNS)


def test_every_role_has_words() -> None:
    assert set(heads.READS) == set(ROLES)
    assert set(heads.UNNAMED) == {UNCLEAR, UNTESTED}
