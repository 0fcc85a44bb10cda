"""HeadStats: against figures that a hand can check, a dense float64 count, and its own laws."""

import json
import math
from dataclasses import fields, replace
from itertools import permutations
from types import ModuleType

import numpy as np
import pytest
import torch
from chance import some
from hypothesis import given
from hypothesis import strategies as st
from mutants import copies

import clearhead.moments
import clearhead.stats
from clearhead.engine import attention, tiles
from clearhead.map import AttentionMap
from clearhead.moments import MAP, ROW, bin_edges
from clearhead.rule import Rule
from clearhead.stats import FEW, HeadStats

LN2, LN3 = math.log(2), math.log(3)
COUNTS = ("rows", "pad_rows", "empty_rows", "nonfinite_rows")


def stats_of(q, k, rule, amap=True, m=clearhead.stats, distance=False) -> HeadStats:
    attended = attention(q, k, None, rule, distance=distance)
    return m.HeadStats.of(attended, AttentionMap(q, k, rule) if amap else None)


def equal_scores(T, S, B=1, H=1, G=None, dtype=torch.float32):
    """q = 0: every visible key weighs the same, exactly."""
    k = torch.linspace(-1, 1, B * (G or H) * S * 2).view(B, G or H, S, 2)
    return torch.zeros(B, H, T, 2, dtype=dtype), k.to(dtype)


def close(got, wanted, tolerance=1e-6):
    assert got == pytest.approx(wanted, rel=tolerance, abs=tolerance)


def assert_same(a, b, tolerance=1e-12):
    """Counts, extremes and histograms equal, moments to rounding."""
    a, b = a.to_tensors(), b.to_tensors()
    assert a.keys() == b.keys()
    for name in a:
        if a[name].is_floating_point():
            torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert torch.equal(a[name], b[name]), name


# What a hand can check ---------------------------------------------------------------------------


LEFT, RIGHT = [False, False, True, True], [True, True, False, False]


@pytest.mark.quick
@pytest.mark.parametrize("real", [LEFT, RIGHT])
def test_padding_to_either_side_gives_the_same_numbers(real):
    padding_gives_the_same_numbers(real)


def padding_gives_the_same_numbers(real, m=clearhead.stats):
    q, k = equal_scores(4, 4)
    real = torch.tensor([real])
    (head,) = stats_of(q, k, Rule(causal=True, key_mask=real, query_mask=real), m=m).summary()
    wanted = {
        "rows": 2, "pad_rows": 2, "empty_rows": 0, "nonfinite_rows": 0,
        "entropy": 0.346574, "normalized_entropy": 0.5, "max_prob": 0.75, "sink_mass": 0,
        "max_score": 0, "distance": 0.25, "first_key": 0.5, "previous": 0.5, "self_mass": 0.75,
        "first_key_uniform": 0.5, "previous_uniform": 0.5, "self_mass_uniform": 0.75,
    }  # fmt: skip
    assert head == pytest.approx(wanted, abs=1e-6)


@pytest.mark.quick
@pytest.mark.parametrize("distance", [False, True])
def test_causal_rows_one_by_one(distance):
    causal_rows(distance)


def causal_rows(distance, m=clearhead.stats):
    """Rows see 1, 2, 3 keys: ln 1, ln 2, ln 3."""
    stats = stats_of(*equal_scores(3, 3), Rule(causal=True), m=m, distance=distance)
    entropy = stats.metrics["entropy"]
    mean = (LN2 + LN3) / 3
    close(entropy.mean.item(), mean)
    close(entropy.variance.item(), (LN2**2 + LN3**2) / 3 - mean**2)
    close((entropy.minimum.item(), entropy.maximum.item()), (0, LN3))
    assert entropy.histogram.nonzero()[:, 1].tolist() == [0, 8, 12]  # bits 0, 1, 1.58 in eighths
    close(stats.mean("distance").item(), (0 + 1 / 2 + 1) / 3)
    # 1/2 and 1 lie on edges and count in the bins that begin there.
    assert stats.metrics["distance"].histogram.nonzero()[:, 1].tolist() == [0, 13, 17]
    # The first row sees nothing but the first key: it has no choice and is left out.
    assert stats.metrics["first_key"].count.item() == 2
    close(stats.mean("first_key").item(), (1 / 2 + 1 / 3) / 2)
    assert stats.metrics["previous"].count.item() == 2
    assert stats.metrics["self_mass"].count.item() == 3
    close(stats.mean("self_mass").item(), (1 + 1 / 2 + 1 / 3) / 3)
    # 1/2 lies on an edge and counts in the bin that begins there.
    assert stats.metrics["self_mass"].histogram.nonzero()[:, 1].tolist() == [21, 32, 63]


def test_empty_rows_are_left_out_and_counted():
    mask = torch.tensor([[True, True, True], [False, False, False], [True, True, True]])
    for sinks in (None, torch.zeros(1)):
        stats = stats_of(*equal_scores(3, 3), Rule(mask=mask, sinks=sinks))
        assert [getattr(stats, name).item() for name in COUNTS] == [2, 0, 1, 0]
        outcomes = 3 + (sinks is not None)
        close(stats.mean("entropy").item(), math.log(outcomes))
        close(stats.mean("sink_mass").item(), (sinks is not None) / 4)
        close(stats.mean("max_prob").item(), 1 / outcomes)
        assert stats.metrics["entropy"].count.item() == 2


@pytest.mark.parametrize("distance", [False, True])
def test_a_sink_is_divided_out_of_the_distance_alone(distance):
    """One causal row of two keys with equal scores and a sink: weights 1/3, distances 1 and 0."""
    q, k = equal_scores(1, 2)
    (head,) = stats_of(q, k, Rule(causal=True, sinks=torch.zeros(1)), distance=distance).summary()
    close(head["sink_mass"], 1 / 3)
    close(head["distance"], 1 / 2)
    close(head["previous"], 1 / 3)
    close(head["previous_uniform"], 1 / 2)
    # A sink that takes all but e^-40 in float32, where 1 - sink_mass is 0.
    rule = Rule(causal=True, sinks=torch.full((1,), 40.0))
    (head,) = stats_of(q, k, rule, distance=distance).summary()
    close(head["distance"], 1 / 2)


def test_non_finite_rows_are_located_and_never_averaged_in():
    q, k = equal_scores(5, 5, B=2, H=2)
    k[1, 0, 3] = math.nan  # rows 3 and 4 of batch 1, head 0 see it
    k[0, 1, 0] = math.inf  # every row of batch 0, head 1 does
    stats = stats_of(q, k, Rule(causal=True))
    assert stats.nonfinite_rows.tolist() == [2, 5]
    assert stats.rows.tolist() == [8, 5]
    assert stats.nonfinite_at == ((1, 0, 3), (1, 0, 4), (0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 1, 3))
    assert sum(h == 1 for _, h, _ in stats.nonfinite_at) == FEW
    close(stats.mean("entropy")[0].item(), (math.log(120) + math.log(6)) / 8)
    close(stats.mean("entropy")[1].item(), math.log(120) / 5)
    assert all(moments.mean.isfinite().all() for moments in stats.metrics.values())
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    hidden = stats_of(q, k, Rule(causal=True, query_mask=real))
    assert (hidden.nonfinite_rows.tolist(), hidden.pad_rows.tolist()) == ([0, 5], [2, 2])


def test_first_key_is_that_of_the_own_document():
    first_key_of_the_own_document()


def first_key_of_the_own_document(m=clearhead.stats):
    """Documents 7 7 7 | 3 3 with a pad at the head of the first: first keys 1 and 3."""
    q, k = equal_scores(5, 5)
    real = torch.tensor([[False, True, True, True, True]])
    segments = torch.tensor([[7, 7, 7, 3, 3]])
    rule = Rule(causal=True, segments=segments, key_mask=real, query_mask=real)
    stats = stats_of(q, k, rule, m=m)
    assert stats.metrics["first_key"].count.item() == 2  # rows 2 and 4
    close(stats.mean("first_key").item(), 0.5)
    assert stats.metrics["previous"].count.item() == 2
    close(stats.mean("entropy").item(), LN2 / 2)
    one = replace(rule, segments=None)  # one document 1 2 3 4 of real keys
    close(stats_of(q, k, one, m=m).mean("first_key").item(), (1 / 2 + 1 / 3 + 1 / 4) / 3)


def test_a_window_that_hides_the_first_key():
    """Only the rows that see it count: with a window of 2, row 1 alone has a choice."""
    stats = stats_of(*equal_scores(6, 6), Rule(causal=True, window=2))
    assert stats.metrics["first_key"].count.item() == 1
    close(stats.mean("first_key").item(), 0.5)
    stats = stats_of(*equal_scores(6, 6), Rule(causal=True, window=1))
    assert stats.mean("first_key").isnan().all()  # no row has it: none, and not zero
    assert stats.summary()[0]["first_key"] is None


def test_caches_filled_to_different_lengths():
    """Row 0 stands at 1 and at 3; each sees the keys up to there."""
    q, k = equal_scores(1, 4, B=2)
    stats = stats_of(q, k, Rule(causal=True, offset=torch.tensor([1, 3])))
    close(stats.mean("entropy").item(), (LN2 + 2 * LN2) / 2)
    close(stats.mean("distance").item(), ((0 + 1) / 2 + (0 + 1 + 2 + 3) / 4) / 2)
    close(stats.mean("self_mass").item(), (1 / 2 + 1 / 4) / 2)


def test_without_a_map_its_metrics_are_absent():
    stats = stats_of(*equal_scores(3, 3), Rule(causal=True), amap=False)
    assert set(stats.metrics) == set(ROW)
    for name in MAP:
        assert stats.mean(name) is None
        assert stats.quantile(name, 0.5) is None
        assert stats.summary()[0][name] is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    q, k = equal_scores(1, 1000, dtype=dtype)
    stats = stats_of(q, k, Rule())
    assert stats.metrics["entropy"].mean.dtype == torch.float64
    close(stats.mean("entropy").item(), math.log(1000), 1e-5)
    assert stats.metrics["entropy"].maximum.item() <= math.log(1000) + 1e-5


def test_leading_axes_and_empty_axes():
    q, k = equal_scores(3, 3)
    whole = stats_of(q, k, Rule(causal=True))
    assert_same(whole, stats_of(q[0], k[0], Rule(causal=True)))
    assert_same(whole, stats_of(q[0, 0], k[0, 0], Rule(causal=True)))
    for B, T, S in [(0, 3, 3), (1, 0, 3), (1, 3, 0)]:
        stats = stats_of(torch.zeros(B, 2, T, 2), torch.zeros(B, 1, S, 2), Rule())
        assert stats.rows.tolist() == [0, 0]
        assert stats.empty_rows.tolist() == ([3, 3] if S == 0 else [0, 0])
        assert stats.summary()[0]["entropy"] is None


def test_what_comes_out_is_plain_under_inference_mode_autocast_and_gradients():
    q, k = equal_scores(4, 4)
    wanted = stats_of(q, k, Rule(causal=True))
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        stats = stats_of(q, k, Rule(causal=True))
    assert not any(x.is_inference() for x in stats.to_tensors().values())
    assert_same(stats, wanted)
    stats = stats_of(q.requires_grad_(), k, Rule(causal=True))
    assert not any(x.requires_grad for x in stats.to_tensors().values())


# Against a dense count ---------------------------------------------------------------------------


class Case:
    """A random problem in float64; `options` are the fields of its Rule."""

    def __init__(self, B, G, group, T, S, options, seed) -> None:
        g = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        def often(*shape):
            return torch.rand(*shape, generator=g) < 0.75

        H = G * group
        self.q, self.k = normal(B, H, T, 3), normal(B, G, S, 3)
        possible = {
            "scale": 0.7, "causal": True, "offset": torch.randint(-1, S, (B,), generator=g),
            "window": (1, 2), "softcap": 1.5, "alibi": normal(H), "sinks": normal(H),
            "key_mask": often(B, S), "query_mask": often(B, T),
            "segments": torch.randint(0, 3, (B, S), generator=g) * 5 - 4,
            "mask": often(B, 1, T, S), "bias": normal(H, T, S).masked_fill(~often(H, T, S), -1e999),
        }  # fmt: skip
        self.rule = Rule(**{name: possible[name] for name in options})

    def part(self, b=slice(None), i=slice(None)):
        """q, k and Rule of some batch elements and some rows, slices."""
        rule, T = self.rule, self.q.shape[2]
        offset = self.k.shape[2] - T if rule.offset is None else rule.offset[b]
        changed = {"offset": offset + (i.start or 0)}
        cut = {
            "key_mask": lambda x: x[b], "segments": lambda x: x[b], "query_mask": lambda x: x[b, i],
            "mask": lambda x: x[b, :, i], "bias": lambda x: x[:, i],
        }  # fmt: skip
        for name, by in cut.items():
            if getattr(rule, name) is not None:
                changed[name] = by(getattr(rule, name))
        return self.q[b, :, i], self.k[b], replace(rule, **changed)


cases = st.builds(
    Case,
    B=st.sampled_from([1, 2, 3]), G=st.sampled_from([1, 2]), group=st.sampled_from([1, 3]),
    T=st.sampled_from([1, 5, 7]), S=st.sampled_from([1, 5, 11]),
    options=st.sets(st.sampled_from([f.name for f in fields(Rule)]), max_size=5),
    seed=st.integers(0, 1000),
)  # fmt: skip


def one_row(case, b, h, i):
    """The figures of one row from its list of weights, or why it has none. Nothing of ours."""
    rule, (_, H, T, D), S = case.rule, case.q.shape, case.k.shape[2]
    if rule.query_mask is not None and not rule.query_mask[b, i]:
        return "pad_rows"
    at = i + (S - T if rule.offset is None else int(rule.offset[b]))
    mine = range(S)
    if rule.segments is not None:
        own = rule.segments[b, at] if 0 <= at < S else None
        mine = [j for j in range(S) if own is not None and rule.segments[b, j] == own]
    mine = [j for j in mine if rule.key_mask is None or rule.key_mask[b, j]]
    scores = {}
    for j in mine:
        if rule.causal and j > at:
            continue
        if rule.window and not at - rule.window[0] <= j <= at + rule.window[1]:
            continue
        if rule.mask is not None and not rule.mask[b, 0, i, j]:
            continue
        if rule.bias is not None and rule.bias[h, i, j] == -math.inf:
            continue
        k_row = case.k[b, h // (H // case.k.shape[1]), j]
        s = float(case.q[b, h, i] @ k_row) * (D**-0.5 if rule.scale is None else rule.scale)
        s = s if rule.softcap is None else rule.softcap * math.tanh(s / rule.softcap)
        s -= 0 if rule.alibi is None else float(rule.alibi[h]) * (at - j)
        scores[j] = s + (0 if rule.bias is None else float(rule.bias[h, i, j]))
    if not scores:
        return "empty_rows"
    e = {j: math.exp(s) for j, s in scores.items()}
    sink = 0 if rule.sinks is None else math.exp(rule.sinks[h])
    p = {j: x / (sum(e.values()) + sink) for j, x in e.items()}
    sink /= sum(e.values()) + sink
    outcomes = [*p.values()] + ([sink] if rule.sinks is not None else [])
    entropy = -sum(x * math.log(x) for x in outcomes)
    row = {
        "entropy": entropy, "max_score": max(scores.values()), "max_prob": max(p.values()),
        "normalized_entropy": entropy / math.log(len(outcomes)) if len(outcomes) > 1 else 0,
        "sink_mass": sink, "distance": sum(x * abs(at - j) for j, x in p.items()) / (1 - sink),
    }  # fmt: skip
    keys = {"previous": at - 1, "self_mass": at}
    if len(p) > 1:
        keys["first_key"] = min(mine)
    for name, j in keys.items():
        if j in p:
            row |= {name: p[j], f"{name}_uniform": 1 / len(p)}
    return row


def agrees_with_a_dense_count(case, distance, m=clearhead.stats):
    stats = stats_of(case.q, case.k, case.rule, m=m, distance=distance)
    B, H, T, _ = case.q.shape
    for h in range(H):
        rows = [one_row(case, b, h, i) for b in range(B) for i in range(T)]
        counted = [row for row in rows if isinstance(row, dict)]
        seen = [getattr(stats, name)[h].item() for name in COUNTS]
        assert seen == [len(counted), rows.count("pad_rows"), rows.count("empty_rows"), 0]
        for name in stats.metrics:
            got = {key: x[h].numpy() for key, x in vars(stats.metrics[name]).items()}
            x = np.array([row[name] for row in counted if name in row])
            assert got["count"] == got["histogram"].sum() == len(x), name
            if len(x):
                summary = [got["mean"], got["m2"] / len(x), got["minimum"], got["maximum"]]
                close(summary, [x.mean(), x.var(), x.min(), x.max()], 1e-9)
            for edge, below in zip(
                bin_edges(name).tolist()[1:-1], got["histogram"].cumsum()[:-1], strict=True
            ):
                assert (x < edge - 1e-9).sum() <= below <= (x < edge + 1e-9).sum(), (name, edge)


@pytest.mark.quick
@some(60)
@given(cases, st.sampled_from([1, 2, 4, 512]), st.sampled_from([1, 16, 1 << 19]))
def test_agrees_with_a_dense_count(case, keys, elements):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "KEYS", keys)
        patch.setattr(tiles, "ELEMENTS", elements)
        for distance in (False, True):
            agrees_with_a_dense_count(case, distance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-14)])
@some(60)
@given(cases, st.sampled_from([1, 2, 4, 512]), st.sampled_from([1, 16, 1 << 19]))
def test_one_pass_and_single_keys_find_the_same(dtype, tolerance, case, keys, elements):
    """Scores of about 10, added up in another order, are off by some 2e-6, and so are weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "KEYS", keys)
        patch.setattr(tiles, "ELEMENTS", elements)
        q, k = case.q.to(dtype), case.k.to(dtype)
        one, other = (stats_of(q, k, case.rule, distance=flag) for flag in (False, True))
        assert one.metrics.keys() == other.metrics.keys()
        for name, mine in one.metrics.items():
            theirs = other.metrics[name]
            assert torch.equal(mine.count, theirs.count), name
            for part in ("mean", "m2", "minimum", "maximum"):
                pair = getattr(theirs, part), getattr(mine, part)
                torch.testing.assert_close(*pair, rtol=tolerance, atol=tolerance)


def test_padding_of_each_batch_element_its_own_first_key():
    """Batch elements that begin at keys 0, 3 and 5: single keys, one by one, in all heads alike."""
    g = torch.Generator().manual_seed(7)
    q, k = torch.randn(3, 4, 150, 8, generator=g), torch.randn(3, 2, 150, 8, generator=g)
    real = torch.arange(150) >= torch.tensor([[0], [3], [5]])
    rule = Rule(causal=True, key_mask=real, query_mask=real)
    one, other = (stats_of(q, k, rule, distance=flag) for flag in (False, True))
    for name in MAP:
        torch.testing.assert_close(other.mean(name), one.mean(name), rtol=1e-6, atol=1e-6)
    assert other.metrics["first_key"].count.tolist() == [149 + 146 + 144] * 4


# Laws --------------------------------------------------------------------------------------------


def split_equals_whole(case, m=clearhead.stats):
    """Over batch elements, over rows, in two calls each."""
    whole = stats_of(*case.part(), m=m)
    B, _, T, _ = case.q.shape
    for axis, n in (("b", B), ("i", T)):
        for at in range(n + 1):
            halves = [
                stats_of(*case.part(**{axis: part}), m=m) for part in (slice(at), slice(at, None))
            ]
            assert_same(halves[0].merge(halves[1]), whole, 1e-11)


@some(15)
@given(cases)
def test_split_equals_whole(case):
    split_equals_whole(case)


def merge_is_lawful(parts, m=clearhead.stats):
    a, b, c = parts
    assert_same((a + b) + c, a + (b + c))
    assert_same(a + b, b + a)
    empty = m.HeadStats.empty(a.n_heads)
    for same in (a + empty, empty + a, empty + a + empty):
        assert_same(same, a, 0)
    wanted = a + b + c
    for x, y, z in permutations(parts):
        assert_same(x.merge(y).merge(z), wanted)


@some(15)
@given(st.integers(0, 1000), st.booleans())
def test_merge_is_lawful(seed, amap):
    options = {"causal", "key_mask", "query_mask", "mask", "sinks", "offset"}
    parts = []
    for n, size in enumerate((1, 5, 7)):
        case = Case(2, 1, 3, size, 7, options, seed + n)
        case.k[:1, :, 3] = math.nan  # with non-finite rows, whose places must agree too
        parts.append(stats_of(case.q, case.k, case.rule, amap))
    merge_is_lawful(parts)


def test_a_long_history_loses_no_digits():
    """Hundreds of merges of values far from 0, against numpy over all of them at once."""
    g = torch.Generator().manual_seed(0)
    bias = 1e6 + torch.randn(300, generator=g, dtype=torch.float64)
    q, k = equal_scores(1, 1, dtype=torch.float64)
    total = HeadStats.empty(1)
    for x in bias:
        total += stats_of(q, k, Rule(bias=x.view(1, 1)), amap=False)
    got = total.metrics["max_score"]
    close(got.mean.item(), bias.numpy().mean(), 1e-14)
    close(got.variance.item(), bias.numpy().var(), 1e-9)


# Mutants: each of these must fail one of the checks above ----------------------------------------


def the_checks(m: ModuleType) -> None:
    padding_gives_the_same_numbers(LEFT, m)
    padding_gives_the_same_numbers(RIGHT, m)
    for distance in (False, True):
        causal_rows(distance, m)
    first_key_of_the_own_document(m)
    for seed in range(6):
        for options in (
            {"causal", "sinks", "mask", "query_mask"}, {"offset", "segments"}, {"key_mask"},
        ):  # fmt: skip
            case = Case(2, 1, 2, 5, 7, options, seed)
            agrees_with_a_dense_count(case, False, m)
            agrees_with_a_dense_count(case, True, m)
    split_equals_whole(case, m)


def copy_of_stats(old="", new="") -> ModuleType:
    return copies(old, new, clearhead.moments, clearhead.stats)[-1]


def test_an_unchanged_copy_passes():
    the_checks(copy_of_stats())


MUTANTS = {
    "no delta in the variance": (" + d.square() * share * self.count", ""),
    "mean of means": ("self.mean + d * share", "(self.mean + other.mean) / 2"),
    "pads counted": ("real &= attended", "real |= attended"),
    "empty rows taken for non-finite":
        ("bad = real & sees & finite, real & sees", "bad = real & finite, real"),
    "rows without a choice": ('["visible"] > 1', '["visible"] > 0'),
    "keys that are not there": ("counted & ~weight.isnan()", "counted"),
    "keys mixed up": (".unbind(-1), strict", ".flip(-1).unbind(-1), strict"),
    "edges on the wrong side": ("right=True", "right=False"),
    "bins off by one": ("edges[1:-1]", "edges[2:]"),
    "equal bins' edges on the wrong side":
        ("(x * n_bins).long()", "(x * n_bins - 1).ceil().long()"),
    "absent in a bin": ("cell.masked_fill_(absent", "cell.masked_fill(absent"),
    "the least of the absent": ("x.masked_fill_(absent, math.inf)", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_copy_is_found(name):
    wrong = copy_of_stats(*MUTANTS[name])
    with pytest.raises(AssertionError):
        the_checks(wrong)


# Histograms and readings -------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [*ROW, *MAP])
def test_bins_are_sorted_and_cover_what_can_be(metric):
    edges = bin_edges(metric)
    assert (edges.diff() > 0).all()
    assert edges.dtype == torch.float64
    top = {"entropy": math.log(2**24), "distance": 2.0**24, "max_score": 2.0**20}.get(metric, 1.0)
    close(edges[-1].item(), top, 1e-12)
    assert edges[0] == (-(2.0**20) if metric == "max_score" else 0)


def test_out_of_range_values_count_in_the_end_bins():
    bias = torch.tensor([[-1e30], [1e30], [0.0], [-0.01]])
    stats = stats_of(*equal_scores(4, 1), Rule(bias=bias))
    scores = stats.metrics["max_score"]
    n, middle = scores.histogram.shape[1], scores.histogram.shape[1] // 2
    assert scores.histogram.nonzero()[:, 1].tolist() == [0, middle - 1, middle, n - 1]
    assert scores.histogram.sum() == scores.count == 4
    wanted = bias.double()
    assert (scores.minimum.item(), scores.maximum.item()) == (wanted.min(), wanted.max())
    assert stats.quantile("max_score", 0).item() == wanted.min()
    assert stats.quantile("max_score", 1).item() == wanted.max()


def test_quantiles_are_right_to_within_a_bin():
    g = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 2, 300, 4, generator=g), torch.randn(2, 2, 300, 4, generator=g)
    attended = attention(q, k, None, Rule(causal=True))
    stats = HeadStats.of(attended)
    for name in ("entropy", "max_prob", "max_score"):
        x = getattr(attended, name).double().transpose(0, 1).flatten(1)
        edges = bin_edges(name)
        for p in (0, 0.01, 0.25, 0.5, 0.9, 1):
            exact = x.quantile(p, dim=1, interpolation="lower")
            got = stats.quantile(name, p)
            width = edges[torch.bucketize(exact, edges).clamp(1, len(edges) - 1)]
            width = width - edges[torch.bucketize(exact, edges).clamp(1, len(edges) - 1) - 1]
            assert ((got - exact).abs() <= 2 * width + 1e-6).all(), (name, p, got, exact)
    assert HeadStats.empty(3).quantile("entropy", 0.5).isnan().all()


def test_a_summary_is_strict_json():
    q, k = equal_scores(4, 4, H=2)
    k[0, 0] = math.nan  # head 0 has no row at all
    for stats in (HeadStats.empty(2), stats_of(q, k, Rule()), stats_of(q, k, Rule(), amap=False)):
        heads = stats.summary()
        assert json.loads(json.dumps(heads, allow_nan=False)) == heads
        assert [set(head) for head in heads] == [{*COUNTS, *ROW, *MAP}] * 2
        assert heads[0]["entropy"] is heads[0]["max_score"] is heads[0]["distance"] is None
        assert heads[0]["rows"] == 0


def test_max_score_is_summed_up_by_its_largest():
    stats = stats_of(*equal_scores(2, 1), Rule(bias=torch.tensor([[-3.0], [5.0]])))
    assert stats.summary()[0]["max_score"] == 5
    close(stats.mean("max_score").item(), 1)


@pytest.mark.parametrize("amap", [True, False])
def test_there_and_back_through_tensors(amap):
    q, k = equal_scores(4, 4, H=2)
    k[0, 0, 2] = math.nan
    stats = stats_of(q, k, Rule(causal=True), amap)
    stored = stats.to_tensors()
    assert all(x.is_contiguous() for x in stored.values())
    again = HeadStats.from_tensors(stored)
    assert_same(again, stats, 0)
    assert again.nonfinite_at == stats.nonfinite_at
    assert_same(again + stats, stats + stats, 0)


# What is refused ---------------------------------------------------------------------------------


def refusal(function, *args) -> str:
    with pytest.raises(ValueError) as error:
        function(*args)
    return str(error.value)


def test_other_numbers_of_heads_do_not_merge():
    said = refusal(HeadStats.empty(2).merge, HeadStats.empty(12))
    assert said.startswith("statistics of 2 heads cannot be merged with those of 12: ")


def test_with_and_without_a_map_do_not_merge():
    q, k = equal_scores(3, 3)
    with_map, without = stats_of(q, k, Rule()), stats_of(q, k, Rule(), amap=False)
    for a, b, which in ((with_map, without, "first"), (without, with_map, "second")):
        said = refusal(a.merge, b)
        assert f"only the {which} of the two statistics has distance, first_key, previous" in said
        assert said.endswith("give both their map, as in HeadStats.of(attended, amap), or neither")
    # A call in which everything is padding has nothing to say, and goes with either.
    pads = Rule(query_mask=torch.zeros(1, 3, dtype=torch.bool))
    for amap in (True, False):
        nothing = stats_of(q, k, pads, amap)
        for other in (with_map, without):
            for merged in (nothing + other, other + nothing):
                assert merged.metrics.keys() == other.metrics.keys()
                assert (merged.rows.item(), merged.pad_rows.item()) == (3, 3)


def test_the_map_of_another_call_is_refused():
    q, k = equal_scores(3, 3)
    attended = attention(q, k, None, Rule(causal=True))
    said = refusal(HeadStats.of, attended, AttentionMap(q, k, Rule()))
    assert "under Rule(), but the call was (1, 1, 3, 3) under Rule(causal=True)" in said
    said = refusal(HeadStats.of, attended, AttentionMap(q[:, :, :2], k, Rule(causal=True)))
    assert said.startswith("the map is (1, 1, 2, 3) under")


def test_names_and_shares_that_are_none():
    stats = HeadStats.empty(1)
    for function in (bin_edges, stats.mean):
        said = refusal(function, "entropi")
        assert said.startswith("no metric is called 'entropi'; there are entropy, normalized_")
    assert refusal(stats.quantile, "entropy", 1.5).endswith("in [0, 1]; got 1.5")


def test_tensors_that_are_no_statistics():
    stored = HeadStats.empty(1).to_tensors()
    del stored["entropy.m2"]
    assert refusal(HeadStats.from_tensors, stored).endswith(
        "no head statistics: entropy.m2 missing"
    )
    stored = HeadStats.empty(1).to_tensors()
    stored["max_prob.histogram"] = torch.zeros(1, 9, dtype=torch.int64)
    said = refusal(HeadStats.from_tensors, stored)
    assert said == "max_prob was stored in 9 bins; this version has 64"
