"""Comparing runs: laws, closed forms, which head left its range first, and how it is shown."""

from __future__ import annotations

import csv
import doctest
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from mutants import copies

import clearhead.comparing
from clearhead.comparing import COLUMNS, GRAIN, Comparison, compare, load_all, short_names
from clearhead.moments import MAP, ROW, Moments, bin_edges
from clearhead.run import Run
from clearhead.run.calls import Check
from clearhead.stats import HeadStats
from clearhead.views import comparison as view
from clearhead.views.labels import columns
from clearhead.views.terminal import Terminal

METRIC = "normalized_entropy"
CLEAN = Check(64, 3e-7, 1e-6)
HOSTILE = [
    "a\nb", "\x1b[31mred", "\ud800", "a\u202eb", "</script>", "漢字" * 30, "", "x" * 300, '=1+1,"',
    "e\u0301" * 50,
]  # fmt: skip


def stats_of(*heads: Sequence[float | None], metrics: Sequence[str] = ROW) -> HeadStats:
    """The statistics of heads whose rows had these values; None is a row that is not counted."""
    rows = [[x for x in head if x is not None] for head in heads]
    n, none = torch.tensor([len(row) for row in rows]), torch.zeros(len(rows), dtype=torch.int64)
    return HeadStats({m: moments_of(m, rows) for m in metrics}, (), n, none, none, none)


def moments_of(metric: str, heads: Sequence[Sequence[float]]) -> Moments:
    edges = bin_edges(metric)[1:-1].contiguous()
    rows = [torch.tensor(head, dtype=torch.float64) for head in heads]
    bins = [torch.bucketize(x, edges, right=True).bincount(minlength=len(edges) + 1) for x in rows]
    mean = torch.stack([x.sum() / max(len(x), 1) for x in rows])
    m2 = torch.stack([(x - m).square().sum() for x, m in zip(rows, mean, strict=True)])
    low = torch.tensor([min(head, default=math.inf) for head in heads]).double()
    high = torch.tensor([max(head, default=-math.inf) for head in heads]).double()
    return Moments(torch.tensor([len(x) for x in rows]), mean, m2, low, high, torch.stack(bins))


def run_of(*layers: HeadStats, modules: Sequence[str] | None = None, **more) -> Run:
    names = [f"blocks.{n}.attention" for n in range(len(layers))] if modules is None else modules
    more = {"checked": [(name, CLEAN) for name in names]} | more
    more = {"tokens": {0: torch.tensor([[1, 2, 3]])}, "versions": {"torch": "2.6"}} | more
    sites = [(name, 0) for name in names]
    return Run("a model", sites, len(names), stats=dict(enumerate(layers)), **more)


def values(n: int, seed: int, power: float = 1.0) -> list[float]:
    """Numbers in 0..1, the nearer to 0 the larger the power."""
    stream = torch.Generator().manual_seed(seed)
    return (torch.rand(n, generator=stream, dtype=torch.float64) ** power).tolist()


def three() -> list[tuple[str, Run]]:
    """Three checkpoints: head 0.1 collapses at the second and comes back, 1.0 explodes at the
    third, 0.0 stays."""
    still, wide = values(60, 0), [0.5 + 0.2 * (x - 0.5) for x in values(60, 1)]
    collapsed, exploded = [x / 5 for x in wide], [0.97 + x / 50 for x in wide]
    steps = [(wide, wide), (collapsed, wide), (wide, exploded)]
    return [
        (f"step-{n}", run_of(stats_of(still, a), stats_of(b, still)))
        for n, (a, b) in enumerate(steps, start=1)
    ]


# Laws: each takes the module, so that wrong copies of it can be judged by them -------------------


def a_run_against_itself_moves_nothing(m) -> None:
    skewed = [0.0] * 97 + [1.0] * 3  # its mean lies beyond the 95 % quantile of its rows
    run = run_of(stats_of(values(50, 1), skewed, [0.25] * 9, [1e-9, 1e-9]))
    for row in m.compare([("A", run), ("B", run), ("C", run)]).rows:
        assert (row.moved, row.effect, row.share, row.left) == (0, 0, 0, None)
        assert row.effects == (0, 0, 0)


def turning_the_order_round_turns_the_sign(m) -> None:
    a, b = (run_of(stats_of(values(40, s), values(30, s + 1, 3))) for s in (1, 11))
    there, back = m.compare([("A", a), ("B", b)]), m.compare([("B", b), ("A", a)])
    for one, other in zip(there.rows, back.rows, strict=True):
        assert one.moved == -other.moved != 0
        assert one.effect == -other.effect != 0
        assert one.share == other.share > 0
        assert one.means == other.means[::-1]
        assert one.spreads == other.spreads[::-1]


def figures_are_those_of_the_rows(m) -> None:
    for seed in range(4):
        for metric in ("normalized_entropy", "entropy", "max_score"):
            size = 1 if metric == "normalized_entropy" else 9
            x, y = ([size * v for v in values(n, seed + n, 2)] for n in (31, 47))
            runs = [("A", run_of(stats_of(x, y))), ("B", run_of(stats_of(y, x)))]
            (row, _) = m.compare(runs, metric).rows
            spread = math.sqrt((statistics.pvariance(x) + statistics.pvariance(y)) / 2)
            moved = statistics.fmean(y) - statistics.fmean(x)
            assert row.counted == (31, 47)
            # Sums of 47 numbers in float64: some 50 roundings of numbers of the size of the spread.
            assert row.moved == pytest.approx(moved, rel=1e-12, abs=1e-13)
            assert row.effect == pytest.approx(moved / spread, rel=1e-12, abs=1e-13)
            assert row.spreads == pytest.approx((statistics.pstdev(x), statistics.pstdev(y)), 1e-12)
            assert row.share == pytest.approx(moved_share(metric, x, y), abs=1e-14)
            assert row.low == pytest.approx(statistics.fmean(x) - statistics.pstdev(x), rel=1e-12)
            assert row.high == pytest.approx(statistics.fmean(x) + statistics.pstdev(x), rel=1e-12)


def moved_share(metric, x, y) -> float:
    edges = bin_edges(metric)[1:-1].tolist()
    where = [[sum(v >= edge for edge in edges) for v in values] for values in (x, y)]
    bins = set(where[0]) | set(where[1])
    return sum(abs(where[0].count(b) / len(x) - where[1].count(b) / len(y)) for b in bins) / 2


def rows_that_are_all_alike_have_a_finite_effect(m) -> None:
    for x, y in ((0.5, 0.5), (0.5, 0.75), (1.0, 0.0)):
        runs = [("A", run_of(stats_of([x] * 5))), ("B", run_of(stats_of([y] * 5)))]
        (row,) = m.compare(runs).rows
        assert row.effect == (y - x) / 0.01
        assert row.left == (None if x == y else "B")
    runs = [("A", run_of(stats_of([300.0] * 5))), ("B", run_of(stats_of([400.0] * 5)))]
    (row,) = m.compare(runs, "max_score").rows
    assert row.effect == pytest.approx(100 / 4)  # a hundredth of the larger mean


def rounding_is_no_news(m) -> None:
    runs = [("A", run_of(stats_of([0.3] * 5))), ("B", run_of(stats_of([0.3 + 1e-7] * 5)))]
    (row,) = m.compare(runs).rows
    assert 0 < row.effect < 1e-4
    assert row.left is None


def a_text_told_twice_changes_nothing(m) -> None:
    x, y = values(16, 3), values(16, 4, 3)  # 16 and 32 rows divide without rounding
    runs = [("A", run_of(stats_of(x))), ("B", run_of(stats_of(y)))]
    twice = [("A", run_of(stats_of(x))), ("B", run_of(stats_of(y).merge(stats_of(y))))]
    (row,), (other,) = (m.compare(each).rows for each in (runs, twice))
    assert other.counted == (16, 32)
    assert other.effect == pytest.approx(row.effect, rel=1e-14)
    assert other.share == row.share
    assert other.moved == row.moved


def merged_runs_compare_as_the_runs_of_all_rows(m) -> None:
    x, y, z, w = (values(n, n, 1 + n / 30) for n in (13, 29, 7, 41))
    parts = [("A", stats_of(x) + stats_of(y)), ("B", stats_of(z) + stats_of(w))]
    whole = [("A", stats_of(x + y)), ("B", stats_of(z + w))]
    (row,), (other,) = (
        m.compare([(name, run_of(s)) for name, s in each]).rows for each in (parts, whole)
    )
    assert row.effect == pytest.approx(other.effect, rel=1e-12)
    assert row.share == other.share
    assert (row.low, row.high) == pytest.approx((other.low, other.high), rel=1e-12)


def a_metric_of_another_scale_has_the_same_effect(m) -> None:
    x, y = values(40, 5), values(40, 6, 2)
    rows = []
    for scale in (1, 8):
        runs = [(n, run_of(stats_of([scale * v for v in u]))) for n, u in (("A", x), ("B", y))]
        rows += m.compare(runs, "max_score").rows
    assert rows[1].moved == 8 * rows[0].moved
    assert rows[1].effect == rows[0].effect


def the_first_run_that_is_outside_is_named(m) -> None:
    found = m.compare(three())
    rows = {row.head: row for row in found.rows}
    assert list(rows) == ["0.0", "0.1", "1.0", "1.1"]
    assert [(r.head, r.left, r.left_at, r.side) for r in found.first] == [
        ("0.1", "step-2", 1, "below"), ("1.0", "step-3", 2, "above"),
    ]  # fmt: skip
    assert rows["0.1"].effect == 0  # it came back, but it had left
    assert rows["0.1"].effects[1] < -5
    assert rows["0.0"].left is None
    again = m.compare([*three(), ("step-4", three()[2][1])])
    assert [(row.head, row.left) for row in again.first] == [("0.1", "step-2"), ("1.0", "step-3")]


def a_head_collapses_towards_rows_that_were_collapsed_already(m) -> None:
    """As the induction head of the model in the box does: its 5 % quantile is nearly 0."""
    before = [0.0] * 12 + [0.2 + 0.4 * x for x in values(28, 8)]
    runs = [("A", run_of(stats_of(before))), ("B", run_of(stats_of([0.001] * 40)))]
    assert stats_of(before).quantile(METRIC, 0.05).item() < 1 / 64
    (row,) = m.compare(runs).first
    assert row.side == "below"


def those_that_leave_together_are_sorted_by_their_effect_there(m) -> None:
    wide = [0.5 + 0.2 * (x - 0.5) for x in values(60, 1)]
    a = run_of(stats_of(wide, wide, wide))
    b = run_of(stats_of([x / 2 for x in wide], [x / 50 for x in wide], [x + 0.1 for x in wide]))
    found = m.compare([("A", a), ("B", b), ("C", a)])
    assert [row.head for row in found.first] == ["0.1", "0.0", "0.2"]


def what_has_no_value_is_none_and_passed_over(m) -> None:
    nothing, some, other = [None] * 4, [0.4, 0.5, 0.6], [0.0, 0.0, 0.01]
    a = run_of(stats_of(some, some, nothing))
    b = run_of(stats_of(nothing, other, some))
    c = run_of(stats_of(other, nothing, some))
    first, second, third = m.compare([("A", a), ("B", b), ("C", c)]).rows
    assert first.means[1] is first.spreads[1] is first.effects[1] is None
    assert (first.left, first.effect < -1) == ("C", True)
    assert (second.left, second.moved, second.effect, second.share) == ("B", None, None, None)
    assert third.low is third.high is third.left is third.moved is third.share is None


LAWS = [
    a_run_against_itself_moves_nothing, turning_the_order_round_turns_the_sign,
    figures_are_those_of_the_rows, rows_that_are_all_alike_have_a_finite_effect,
    rounding_is_no_news, a_text_told_twice_changes_nothing,
    merged_runs_compare_as_the_runs_of_all_rows, a_metric_of_another_scale_has_the_same_effect,
    the_first_run_that_is_outside_is_named,
    a_head_collapses_towards_rows_that_were_collapsed_already,
    those_that_leave_together_are_sorted_by_their_effect_there,
    what_has_no_value_is_none_and_passed_over,
]  # fmt: skip

MUTANTS = [
    ("end.mean - begin.mean", "begin.mean - end.mean"),
    ("(begin.variance + end.variance, 0.0) / 2", "(begin.variance + end.variance, 0.0)"),
    ("(begin.variance + end.variance, 0.0) / 2", "(begin.variance, 0.0)"),
    ("math.sqrt(max(begin.variance", "(max(begin.variance"),
    ("max(spread, _grain(begin.mean, end.mean))", "(spread or 1.0)"),
    ("_grain(begin.mean, end.mean)", "_grain()"),
    ("max(begin.spread or 0.0, _grain(begin.mean))", "begin.spread"),
    ("max(begin.spread or 0.0, _grain(begin.mean))", "2 * begin.spread"),
    (".abs().sum().item() / 2", ".abs().sum().item()"),
    (".abs().sum().item() / 2", ".abs().max().item()"),
    ("found.histogram.double() / found.count.clamp(min=1)[:, None]", "found.histogram.double()"),
    ("low <= x.mean <= high", "low <= x.mean"),
    ("low <= x.mean <= high", "x.mean <= high"),
    ("next(gone, None)", "(list(gone) or [None])[-1]"),
    ("return at, -abs(row.effects[at] or 0.0)", "return at, -abs(row.effect or 0.0)"),
    ("return at, -abs(row.effects[at] or 0.0)", "return -abs(row.effects[at] or 0.0), at"),
    ("last - first", "first - last"),
    ('"below" if mean <', '"below" if mean >'),
    ("math.sqrt(max(self.variance, 0.0))", "max(self.variance, 0.0)"),
    ("mean if n and math.isfinite(mean) else None", "mean"),
]


def copy_of(old: str = "", new: str = "") -> ModuleType:
    return copies(old, new, clearhead.comparing)[0]


def broken(m: ModuleType) -> list[str]:
    found = []
    for law in LAWS:
        try:
            law(m)
        except (AssertionError, TypeError, ValueError, ZeroDivisionError):
            found.append(law.__name__)
    return found


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law(law) -> None:
    law(clearhead.comparing)


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_a_wrong_copy_breaks_a_law(old, new) -> None:
    assert broken(copy_of(old, new))


def test_an_unchanged_copy_breaks_none() -> None:
    assert broken(copy_of()) == []


# Which heads are the same, and what else differs -------------------------------------------------


def one(*modules: str, n_heads: int = 2, seed: int = 0, **more) -> Run:
    heads = [values(9, seed + h) for h in range(n_heads)]
    return run_of(*[stats_of(*heads)] * len(modules), modules=modules, **more)


def test_heads_that_only_some_runs_have_are_listed() -> None:
    a, b = one("x.0", "x.1", "x.2"), one("x.0", "x.2", n_heads=1)
    a.roles["2.0"], b.roles["1.0"] = {"role": "self"}, {"role": "broad"}
    found = compare([("A", a), ("B", b)])
    assert [row.roles for row in found.rows] == [(None, None), ("self", "broad")]
    assert [row.head for row in found.rows] == ["0.0", "2.0"]  # x.2 is layer 1 of B
    lacking = [("0.1", "x.0", ("B",)), ("1.0", "x.1", ("B",)), ("1.1", "x.1", ("B",)),
               ("2.1", "x.2", ("B",))]  # fmt: skip
    assert sorted(found.missing) == lacking
    back = compare([("B", b), ("A", a)])
    assert [row.head for row in back.rows] == ["0.0", "1.0"]
    assert [row.module for row in back.rows] == ["x.0", "x.2"]
    assert sorted(back.missing) == lacking


@pytest.mark.parametrize("order", [1, -1])
def test_what_a_wrapper_puts_before_a_name_does_not_matter(order: int) -> None:
    plain = one("blocks.0.attention", "blocks.1.attention", "blocks.11.attention")
    wrapped = one(*(f"module._orig_mod.{name}" for name, _ in plain.sites))
    runs = [("plain", plain), ("wrapped", wrapped), ("again", plain)][::order]
    assert [row.head for row in compare(runs).rows] == ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    assert compare(runs).missing == ()


def test_a_name_that_ends_like_several_is_none_of_them() -> None:
    with pytest.raises(ValueError, match="no head is in all runs"):
        compare([("A", one("attention")), ("B", one("x.0.attention", "x.1.attention"))])
    names = ["decoder.attention", "attention"]
    for order in (names, names[::-1]):  # a name that is the same goes before one that ends alike
        found = compare([("A", one("attention", seed=7)), ("B", one(*order, seed=7))])
        assert [(row.head, row.module, row.moved) for row in found.rows] == [
            ("0.0", "attention", 0), ("0.1", "attention", 0),
        ]  # fmt: skip
        assert {module for _, module, _ in found.missing} == {"decoder.attention"}


def test_the_calls_of_a_module_that_is_called_repeatedly_are_places_of_their_own() -> None:
    runs = []
    for n, seed in enumerate((1, 5)):
        run = run_of(stats_of(values(9, seed)), stats_of(values(9, seed + 1)))
        run.sites = [("module." * n + "shared.attention", call) for call in (0, 1)]
        runs.append((str(n), run))
    rows = compare(runs).rows
    assert [(row.head, row.index) for row in rows] == [("0.0", 0), ("1.0", 1)]
    wanted = [statistics.fmean(values(9, seed)) for seed in (5, 6)]
    assert [row.means[1] for row in rows] == pytest.approx(wanted)


def test_what_cannot_be_compared_is_refused_in_one_line() -> None:
    a, b = ("A", one("x.0")), ("B\nC", one("y.0.attn", "y.1.attn"))
    for wrong, words in (
        (lambda: compare([a]), "two runs or more; got 1"),
        (lambda: compare([]), "two runs or more; got 0"),
        (lambda: compare([a, a]), "two runs are called 'A'"),
        (lambda: compare([a, ("B", a[1])], "entrpy"), "no metric is called 'entrpy'; there are"),
        (lambda: compare([a, b]), r"no head is in all runs.*'A' begins with 'x.0'; 'B\\nC' begins"),
        (lambda: compare([a, ("B", run_of())]), "'B' begins with None"),
        (lambda: compare([a, ("B", a[1])], "distance"), "no head has rows with distance both in"),
        (lambda: compare([a, ("B", a[1])]).sorted("role"), "no column 'role' to sort by"),
        (lambda: view.table(compare([a, ("B", a[1])]), top=0), "top is 0"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)


def test_metrics_of_the_map_can_be_compared_where_both_have_them() -> None:
    with_map = run_of(stats_of(values(9, 1), metrics=(*ROW, *MAP)))
    without = run_of(stats_of(values(9, 1)))
    assert compare([("A", with_map), ("B", with_map)], "distance").rows[0].moved == 0
    with pytest.raises(ValueError, match="no head has rows with distance"):
        compare([("A", with_map), ("B", without)], "distance")
    (row,) = compare([("A", with_map), ("B", without), ("C", with_map)], "distance").rows
    assert (row.means[1], row.moved) == (None, 0)


def test_what_else_differs_is_noted() -> None:
    a = one("x.0", keep="qk", pieces={1: "the"})
    assert compare([("A", a), ("B", a)]).notes == ()
    other = one("x.0", tokens={0: torch.tensor([[1, 2, 4]])}, versions={"torch": "2.7"})
    other.stats[0] = stats_of(values(7, 1), values(7, 2))
    retold = one("x.0", keep="qk", pieces={1: "THE"}, checked=[("x.0", Check(0, 0, 0, "dropout"))])
    notes = compare([("A", a), ("B", other), ("C", retold), ("D", a)]).notes
    assert notes == (
        "text: what A read in A, D; what B read in B; what C read in C",
        "most rows of a head: 9 in A, C, D; 7 in B",
        "kept: qk in A, C, D; stats in B",
        "verified: 1 call replayed, worst output difference 3e-07 (allowed 1e-06) in A, B, D; "
        "1 not verifiable (dropout) in C",
        "torch: 2.6 in A, C, D; 2.7 in B",
    )
    unknown = one("x.0", tokens={})
    (note,) = compare([("A", unknown), ("B", unknown)]).notes
    assert note == "text: one that nobody noted in A, B"
    (note,) = compare([("A", a), ("B", replace(a, checked=[]))]).notes
    assert note.startswith("verified: 1 call replayed") and note.endswith(
        "nothing was verified in B"
    )


def test_corpora_are_known_by_their_size() -> None:
    runs = [("A", one("x.0", tokens={}, read={"texts": 2, "windows": 3, "tokens": 40}))]
    runs.append(("B", one("x.0", tokens={}, read={"texts": 2, "windows": 3, "tokens": 41})))
    assert compare(runs).notes == (
        "text: 2 texts, 3 windows, 40 tokens in A; 2 texts, 3 windows, 41 tokens in B",
    )
    assert compare([runs[0], ("C", runs[0][1])]).notes == ()


def test_how_the_runs_were_verified_is_told_together_and_apart() -> None:
    worse = one("x.0", checked=[("x.0", Check(64, 0.5, 1e-6, calls=3))])
    found = compare([("A", one("x.0")), ("B", worse)])
    assert found.checked == tuple(run.checked_line() for run in (one("x.0"), worse))
    assert found.verified.startswith("4 calls replayed, worst output difference 0.5")
    assert "3 DISAGREE" in found.verified


@pytest.mark.parametrize("column", COLUMNS)
def test_any_column_sorts_either_way_and_none_comes_last(column: str) -> None:
    runs = []
    for n in range(3):
        heads = [values(20, 100 * n + h, 1 + h % 3) for h in range(11)]
        heads[4] = [None] * 3 if n == 2 else heads[4]
        runs.append((str(n), run_of(stats_of(*heads), stats_of(*heads))))
    found = compare(runs)
    for sign in ("", "-"):
        rows = found.sorted(sign + column)
        assert sorted(row.head for row in rows) == sorted(row.head for row in found.rows)
        known = [r for r in rows if r.as_dict()[column] is not None]
        assert rows[: len(known)] == known
        keys = [row.as_dict()["left_at" if column == "left" else column] for row in known]
        if column in ("effect", "moved"):
            keys = [abs(key) for key in keys]
        if column == "head":
            keys = [(row.layer, int(row.head.split(".")[1])) for row in known]
        downward = (column not in ("head", "left")) != bool(sign)
        assert keys == sorted(keys, reverse=downward)


# From the disk -----------------------------------------------------------------------------------


def test_saved_runs_are_loaded_under_short_names(tmp_path: Path) -> None:
    paths = []
    for n, run in enumerate(run for _, run in three()):
        run.save(tmp_path / f"step-{n}" / "run")
        paths.append(tmp_path / f"step-{n}" / "run")
    runs = load_all(paths)
    assert [name for name, _ in runs] == ["step-0", "step-1", "step-2"]
    saved, held = compare(runs), compare([(f"step-{n}", run) for n, (_, run) in enumerate(three())])
    assert saved == held
    with pytest.raises((OSError, ValueError), match="nowhere"):
        load_all([*paths, tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/a", "runs/b/"], ["a", "b"]),
        (["runs/a", "./runs/../runs/a"], ["a", "a (2)"]),
        (["x/run", "y/run", "y/z/run"], ["x", "y", "z"]),
        (["one/step/out/run", "two/step/out/run"], ["one", "two"]),
        (["a/x", "b/x", "y"], ["a/x", "b/x", "y"]),
        (["a/b/x", "c/b/x", "c/b/y"], ["a/b/x", "c/b/x", "y"]),
        (["runs/a"], ["a"]),
        ([], []),
    ],
)
def test_names_are_as_short_as_they_can_be(paths, names) -> None:
    assert short_names(paths) == names
    assert short_names([Path(path) for path in paths]) == names


def test_names_of_random_paths_are_unique_ends_of_them(tmp_path: Path) -> None:
    stream = torch.Generator().manual_seed(0)
    for _ in range(200):
        depths = torch.randint(1, 4, (5,), generator=stream).tolist()
        paths = [
            "/".join("ab"[x] for x in torch.randint(2, (n,), generator=stream)) for n in depths
        ]
        names = short_names(paths)
        assert len(set(names)) == len(names), paths
        for path, name in zip(paths, names, strict=True):
            assert f"/{name.split(' ')[0]}/" in f"{Path(path).absolute()}/"


# As it is shown ----------------------------------------------------------------------------------


def test_the_table_says_what_moved_and_who_left_first() -> None:
    runs = three()
    runs[0][1].roles["0.1"] = {"role": "broad"}
    runs[2][1].roles["0.1"] = {"role": "unclear"}
    lines = view.table(compare(runs))
    assert lines[0] == "compared  normalized entropy of 4 heads: step-1 -> step-2 -> step-3"
    assert lines[1] == "checked   6 calls replayed, worst output difference 3e-07 (allowed 1e-06)"
    assert lines[2] == ""
    assert lines[3].split() == [
        "head", "role", "first", "last", "moved", "effect", "share", "means", "left", "at",
    ]  # fmt: skip
    top, *rest = lines[4:8]
    assert top.split()[:4] == ["1.0", "-", ".50", ".98"]
    assert top.split()[4].startswith("+.4") and top.endswith("step-3, above")
    (gone,) = [line for line in rest if line.startswith("0.1")]
    assert "broad -> unclear" in gone and gone.endswith("step-2, below")
    assert gone.split()[4:9] == [".50", ".50", ".00", "0.0", ".00"]
    at = lines.index("collapsed first: head 0.1 at step-2 (normalized entropy .50 -> .10)")
    assert lines[at + 1] == "exploded first: head 1.0 at step-3 (normalized entropy .50 -> .98)"
    legend = " ".join(lines[at + 2 :])
    assert "rows of one text are no independent samples" in legend
    assert "p-value" not in legend and "significan" not in legend
    runs[0][1].roles["0.1"] = {"role": "previous token"}
    (gone,) = [line for line in view.table(compare(runs)) if line.startswith("0.1")]
    assert "previous token -> uncle… " in gone and gone.endswith(".00  step-2, below")  # no bars


def test_a_metric_that_is_no_entropy_falls_and_rises() -> None:
    wide = [8 + x for x in values(20, 1)]
    a = run_of(stats_of(wide, wide, wide, wide, wide, wide, wide))
    b = run_of(stats_of(wide, *[[x - 7 - h for x in wide] for h in range(6)]))
    lines = view.table(compare([("A", a), ("B", b), ("C", b)], "max_score"))
    (said,) = [line for line in lines if line.startswith("fell first")]
    assert said.startswith(
        "fell first: head 0.6 at B (max score 8.4 -> -3.6), and there too: 0.5, 0.4"
    )
    assert "more" in said + lines[lines.index(said) + 1]


def test_between_two_runs_nobody_is_first() -> None:
    wide = [0.5 + 0.2 * (x - 0.5) for x in values(60, 1)]
    ends = [wide, [x / 5 for x in wide], [x / 2 for x in wide], [0.97 + x / 50 for x in wide],
            [x + 0.2 for x in wide]]  # fmt: skip
    runs = [("A", run_of(stats_of(*[wide] * 5))), ("B", run_of(stats_of(*ends)))]
    lines = view.table(compare(runs))
    at = lines.index("collapsed in B: head 0.1 (.50 -> .10)")
    assert lines[at + 1 : at + 5] == [
        "narrowed in B: head 0.2 (.50 -> .25)", "exploded in B: head 0.3 (.50 -> .98)",
        "widened in B: head 0.4 (.50 -> .70)", "",
    ]  # fmt: skip
    assert "first: head" not in "\n".join(lines)
    assert lines[3].endswith("share  left")
    (gone,) = [line for line in lines if line.startswith("0.1")]
    assert gone.endswith("  below")
    nats = [[3 * x for x in head] for head in (wide, ends[1])]
    runs = [("A", run_of(stats_of(nats[0]))), ("B", run_of(stats_of(nats[1])))]
    assert "narrowed in B: head 0.0 (1.50 -> 0.30)" in view.table(compare(runs, "entropy"))


def test_a_move_within_what_the_rows_of_both_runs_differ_is_not_called_one() -> None:
    """It left the narrow range of the first run, and yet the rows of the two hardly differ."""
    still, wide = [0.30] * 40, [0.35 + 0.4 * (x - 0.5) for x in values(40, 2)]
    runs = [("A", run_of(stats_of(still))), ("B", run_of(stats_of(wide)))]
    for course in (runs, [*runs, ("C", runs[1][1])]):
        found = compare(course)
        assert found.rows[0].left == "B"
        assert abs(found.rows[0].effect) < 1
        (said,) = [line for line in view.table(found) if line.startswith("no head left")]
        assert said.startswith("no head left its range clearly")
        assert not any(word in line for line in view.table(found) for word in view.WORDS)


def test_a_head_that_left_and_went_on_is_named_by_where_it_came() -> None:
    wide = [0.5 + 0.2 * (x - 0.5) for x in values(60, 1)]
    course = [wide, [x - 0.1 for x in wide], [x / 10 for x in wide], [x / 4 for x in wide]]
    runs = [(f"step-{n}", run_of(stats_of(head))) for n, head in enumerate(course)]
    line = "collapsed first: head 0.0 at step-1 (normalized entropy .50 -> .40, then .05 at step-2)"
    assert line in " ".join(" ".join(view.table(compare(runs))).split())


def test_bars_reach_from_zero_to_the_largest_mean_where_there_is_no_scale() -> None:
    runs = [(str(x), run_of(stats_of([x, x]))) for x in (8.0, 4.0, 0.0)]
    assert any("  █▅▁  " in line for line in view.table(compare(runs, "max_score")))
    runs = [(str(x), run_of(stats_of([x, x]))) for x in (0.5, 0.25, 0.0)]
    assert any("  ▅▃▁  " in line for line in view.table(compare(runs)))


def test_whoever_left_first_is_said_first() -> None:
    wide = [0.5 + 0.2 * (x - 0.5) for x in values(60, 1)]
    low, high = [x / 5 for x in wide], [x + 0.4 for x in wide]
    steps = [(wide, wide, wide, wide), (wide, high, wide, wide), (low, high, low, wide),
             (low, high, low, low)]  # fmt: skip
    runs = [(f"step-{n}", run_of(stats_of(*heads))) for n, heads in enumerate(steps)]
    lines = view.table(compare(runs))
    at = lines.index("exploded first: head 0.1 at step-1 (normalized entropy .50 -> .90)")
    assert lines[at + 1] == (
        "collapsed first: head 0.0 at step-2 (normalized entropy .50 -> .10), and there"
    )
    assert lines[at + 2 : at + 4] == ["  too: 0.2", ""]


def test_nothing_moved_is_said() -> None:
    a = run_of(stats_of([0.3] * 5, values(9, 1)))
    b = run_of(stats_of([0.3 + 1e-7] * 5, values(9, 1)))
    assert "nothing moved: no mean at all" in view.table(compare([("A", a), ("B", a)]))
    assert "nothing moved: no mean by more than 1e-07" in view.table(compare([("A", a), ("B", b)]))
    c = run_of(stats_of([0.301] * 5, values(9, 1)))
    assert "no head left its range" in view.table(compare([("A", a), ("B", c)]))
    lines = view.table(compare([("A", a), ("B", c), ("C", a)]))
    assert "no head left its range" in lines  # it moved and came back


@pytest.mark.parametrize("width", [None, 72, 80, 81, 100, 130])
@pytest.mark.parametrize("metric", ["normalized_entropy", "max_score"])
def test_nothing_is_wider_than_asked_whatever_the_names(width, metric) -> None:
    runs = three()
    role = "a role of a very long name, indeed"
    for n, (_, run) in enumerate(runs):
        run.stats[123] = run.stats.pop(1)
        run.sites += [(f"blocks.{n}.attention", 0) for n in range(2, 124)]
        run.roles["0.1"] = {"role": f"{role} {n}"}
        run.roles["123.1"] = {"role": HOSTILE[n]}
        run.versions = {HOSTILE[n]: HOSTILE[-n]}
    for most in (2, 3):
        for name in HOSTILE:
            named = [(name, runs[0][1]), ("b", runs[1][1]), (name + "c", runs[2][1])][:most]
            lines = view.table(compare(named, metric), width=width)
            assert max(map(columns, lines)) <= (width or 80)
            assert all(line.isprintable() for line in lines)
    lines = view.table(compare([(str(n), run) for n, (_, run) in enumerate(runs)]), width=width)
    assert sum("…" in line for line in lines) >= 1  # the role


def test_huge_numbers_keep_the_columns() -> None:
    big = [-1.23456e30 * x for x in values(9, 1)]
    runs = [(n, run_of(stats_of(big))) for n in "ABC"]
    runs[1] = ("B", run_of(stats_of([-x for x in big])))
    for width in (72, 80, 120):
        lines = view.table(compare(runs, "max_score"), width=width)
        assert max(map(columns, lines)) <= width
        header, row = lines[lines.index("") + 1 :][:2]
        assert header.index("left at") == row.index("B, above")
        assert "  ▁█▁  " in row


def test_more_heads_are_counted_and_many_take_no_longer_than_they_must() -> None:
    runs = []
    for n in range(12):
        layers = [stats_of(*(values(5, 97 * n + 20 * i + h) for h in range(20))) for i in range(20)]
        runs.append((f"step-{n:04}", run_of(*layers)))
    found = compare(runs)
    lines = view.table(found)
    assert (
        lines[0] == "compared  normalized entropy of 400 heads: step-0000 -> 10 more -> step-0011"
    )
    assert "390 more: --top 400" in lines
    assert sum(line[:1].isdigit() for line in lines) == 11
    assert len(view.table(found, top=400)) == len(lines) + 389


def test_one_head_of_one_row() -> None:
    found = compare([(n, run_of(stats_of([v]))) for n, v in (("A", 0.5), ("B", 0.25))])
    (row,) = found.rows
    assert (row.moved, row.effect, row.share, row.left) == (-0.25, -25, 1, "B")
    lines = view.table(found)
    assert lines[0] == "compared  normalized entropy of 1 head: A -> B"
    (shown,) = [line for line in lines if line.startswith("0.0 ")]
    assert shown.split() == ["0.0", "-", ".50", ".25", "-.25", "-25.0", "1.00", "below"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_terminal_of_any_encoding_shows_it(encoding: str) -> None:
    runs = [(name, run) for name, (_, run) in zip(HOSTILE, three(), strict=False)]
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    lines = view.table(compare(runs))
    Terminal(out, out).lines(lines)
    out.flush()
    shown = raw.getvalue().decode(encoding).splitlines()
    assert len(shown) == len(lines)
    assert any(line.startswith("collapsed first: head 0.1 at ") for line in shown)


def test_records_are_strict_json_and_csv_holds_the_same() -> None:
    runs = [(name, run) for name, (_, run) in zip(HOSTILE[4:], three(), strict=False)]
    runs += [("\ud800", run_of(stats_of([None], values(4, 1)), stats_of([0.5], [0.5, None])))]
    runs[0][1].roles["0.1"] = {"role": "\ud800"}
    found = compare(runs)
    text = json.dumps(view.record(found), allow_nan=False)
    back = json.loads(text)
    assert back["names"] == [name for name, _ in runs]
    assert back["left_first"] == [row.head for row in found.first]
    assert back["heads"] == found.to_rows()
    assert all(len(row[key]) == 4 for row in back["heads"] for key in ("mean", "spread", "role"))
    assert back["heads"][0]["moved"] is None
    lines = list(csv.DictReader(io.StringIO(view.csv_text(found), newline="")))
    assert [line["head"] for line in lines] == [row.head for row in found.rows]
    assert lines[0]["moved"] == ""
    for line, row in zip(lines, found.rows, strict=True):
        names = [name.encode("utf-8", "backslashreplace").decode() for name, _ in runs]
        means = [line[f"mean {name}"] for name in names]
        assert [float(x) if x else None for x in means] == list(row.means)
    view.csv_text(found).encode("utf-8")


def test_missing_heads_are_told_in_the_table() -> None:
    found = compare([("A", one("x.0", "x.1", "x.2", "x.3")), ("B", one("x.0"))])
    text = " ".join(view.table(found))
    assert "heads that only some runs have: 1.0 (x.1) not in B; 1.1 (x.1) not in B;" in text
    assert "and 2 more" in text


def test_a_comparison_is_a_value() -> None:
    assert compare(three()) == compare(three())
    assert isinstance(compare(three()), Comparison)
    assert GRAIN == 0.01


def test_the_page_shows_what_comes_out() -> None:
    page = Path(__file__).parents[1] / "docs" / "comparing.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 5
    assert results.failed == 0
