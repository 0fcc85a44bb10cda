"""The edges of the engine: huge scores, hidden NaNs, ties, nothing at all, and memory."""

import gc
import math
import sys
import threading
import weakref

import dense
import numpy as np
import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead import bench, cells
from clearhead.bound import BoundRule
from clearhead.engine import output, tiles
from clearhead.lags import ByLag
from clearhead.map import AttentionMap

LOWEST = torch.finfo(torch.float32).min


def normal(*shape: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# Large scores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("constant", [-1e9, -1e4, 1e6, 1e9])
def test_a_constant_on_all_scores_changes_no_weight_and_no_gradient(constant):
    """float32 holds a score of 1e9 to 64, and its lse too: log of the number of keys drowns."""
    q, k, v = torch.zeros(1, 1, 3, 4), normal(1, 1, 1000, 4), normal(1, 1, 1000, 2, seed=1)
    plain, shifted = ch.Rule(), ch.Rule(bias=torch.full((1000,), constant))

    def figures(rule: ch.Rule) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        a = ch.attention(*leaves, rule, received=True)
        (a.out.sum() + a.entropy.sum()).backward()
        alone, given = ch.AttentionMap(q, k, rule), ch.AttentionMap(q, k, rule, lse=a)
        stats = ch.HeadStats.of(a, given)
        return [
            a.max_prob, a.received, a.entropy, alone[0, 0], given[0, 0], given.top(3)[0],
            given.between((0, 3), (0, 500)), given.on_key(7), given.received(),
            given.pooled(0, 0, shape=(3, 10)).values, given.pooled(0, 0, reduce="sum").values,
            stats.mean("first_key"), stats.mean("distance"), *(x.grad for x in leaves),
        ]  # fmt: skip

    for got, want in zip(figures(shifted), figures(plain), strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=2e-5)


def test_weights_of_two_large_scores_are_those_of_their_difference():
    q, k = torch.ones(1, 1), torch.tensor([[1048576.0], [1048575.0]])
    a = ch.attention(q, k, None, ch.Rule(scale=1.0))
    want = torch.tensor([[1.0, 0.0]]).softmax(-1)
    for lse in (a, None):
        torch.testing.assert_close(ch.AttentionMap(q, k, ch.Rule(scale=1.0), lse)[:], want)
    torch.testing.assert_close(a.max_prob, want[:, 0])


def test_gradients_of_large_scores_lose_no_more_than_the_dense_way():
    q, k = 60 * normal(1, 2, 9, 8), 60 * normal(1, 2, 9, 8, seed=1)
    v, push = normal(1, 2, 9, 3, seed=2), normal(1, 2, 9, 3, seed=3)
    rule = ch.Rule(causal=True, bias=torch.full((9,), 1e5))

    def grads(attend, dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        a = attend(*leaves, rule)
        return torch.autograd.grad((a.out * push).sum() + a.entropy.sum(), leaves)

    def dense32(q, k, v, rule):
        return dense.attend(q, k, v, rule, dtype=torch.float32)

    exact = grads(dense.attend, torch.float64)
    for ours, theirs, truth in zip(
        grads(ch.attention, torch.float32), grads(dense32, torch.float32), exact, strict=True
    ):
        loss = (theirs - truth).abs().max()
        assert (ours - truth).abs().max() <= 4 * loss + 1e-6


@pytest.mark.parametrize("low", [-2.5e38, -3e38])
def test_a_score_far_below_float32s_middle_weighs_nothing(low):
    q, k = torch.ones(1, 1, requires_grad=True), torch.tensor([[0.0], [low]], requires_grad=True)
    a = ch.attention(q, k, torch.tensor([[1.0], [7.0]]), ch.Rule(scale=1.0))
    assert (a.out.item(), a.entropy.item(), a.max_prob.item()) == (1.0, 0.0, 1.0)
    (a.out.sum() + a.entropy.sum()).backward()
    assert torch.equal(k.grad, torch.zeros(2, 1))
    assert q.grad.item() == 0.0
    b = ch.attention(q, k * 0, None, ch.Rule(scale=1.0, bias=torch.tensor([0.0, low])))
    assert b.entropy.item() == 0.0


def test_a_row_whose_scores_all_overflow_is_nan_throughout():
    q, k = torch.full((2, 1), 1e30), torch.full((3, 1), -1e30)
    q[0] = 0.0
    a = ch.attention(q, k, torch.ones(3, 1), ch.Rule(scale=1.0))
    for name in ("out", "lse", "entropy", "max_score", "mean_key"):
        rows = getattr(a, name).reshape(2)
        assert rows[0].isfinite()
        assert rows[1].isnan(), name
    assert a.visible.tolist() == [3.0, 3.0]
    assert output(q, k, torch.ones(3, 1), ch.Rule(scale=1.0))[1].isnan()


def test_products_that_overflow_beside_a_hidden_key_are_not_taken_for_tame():
    q, k = torch.full((2, 4), 1e20), torch.full((2, 4), 1e20)
    k[1] = -1e20  # row 0 sees a score of +inf and hides one of -inf
    a = ch.attention(q, k, torch.ones(2, 1), ch.Rule(causal=True))
    assert a.out.isnan().all()
    q = torch.tensor([[1e20, 1e20], [1.0, 1.0]])
    k = torch.tensor([[1.0, 1.0], [1e20, -1e20]])  # inf - inf at a hidden place
    a = ch.attention(q, k, torch.ones(2, 1), ch.Rule(causal=True))
    assert a.out[0].item() == 1.0


def test_normalized_entropy_stays_in_its_range():
    q, k = torch.zeros(50, 1), torch.zeros(1000, 1)
    assert ch.attention(q, k, None, ch.Rule(causal=True)).normalized_entropy.max() <= 1


# What is hidden, and what is not finite -----------------------------------------------------------


@pytest.mark.parametrize("which", ["k", "v", "both"])
def test_a_nan_is_seen_in_keys_alone_and_in_values_alone(which):
    q, k, v = (normal(6, 4, seed=n) for n in range(3))
    for name, x in (("k", k), ("v", v)):
        if which in (name, "both"):
            x[3, 1] = torch.nan
    a = ch.attention(q, k, v, ch.Rule(causal=True))
    assert a.out.isnan().any(-1).tolist() == [False] * 3 + [True] * 3
    assert a.entropy.isnan().tolist() == [False] * 3 + [True] * 3


@pytest.mark.parametrize("what", ["k", "v", "q"])
def test_gradients_of_what_no_spoiled_row_sees_stay_finite(what):
    q, k, v = (normal(1, 1, 6, 4, seed=n, dtype=torch.float64) for n in range(3))
    {"q": q, "k": k, "v": v}[what][0, 0, 5] = torch.nan
    bias = torch.zeros(6, 6, dtype=torch.float64)
    for x in (q, k, v, bias):
        x.requires_grad_()
    a = ch.attention(q, k, v, ch.Rule(causal=True, window=2, bias=bias))
    a.out[:, :, :5].sum().backward()
    for x in (k, v):
        assert x.grad[0, 0].isnan().any(-1).tolist()[:4] == [False] * 4
    assert bias.grad[:5].isfinite().all()
    assert bias.grad[5, :4].tolist() == [0.0] * 4


@pytest.mark.parametrize("sink", [-math.inf, LOWEST])
def test_a_sink_that_is_switched_off_takes_nothing(sink):
    q, k, v = (normal(1, 1, 3, 4, seed=n) for n in range(3))
    sinks = torch.tensor([sink], requires_grad=True)
    seen = torch.tensor([[False, True, True]])
    a = ch.attention(q, k, v, ch.Rule(sinks=sinks, causal=True, key_mask=seen))
    assert a.sink_mass[0, 0, 1:].tolist() == [0.0, 0.0]
    assert a.sink_mass[0, 0, 0].item() == (0.0 if sink == -math.inf else 1.0)
    (a.out.sum() + 10 * a.entropy.sum()).backward()
    assert sinks.grad.tolist() == [0.0]


def test_the_top_key_of_equals_is_the_lowest_across_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "KEYS", 3)
    monkeypatch.setattr(tiles, "ELEMENTS", 3)
    a = ch.attention(torch.zeros(7, 2), torch.zeros(11, 2), None, ch.Rule(causal=True), top=True)
    assert a.top_key.tolist() == [0] * 7


# Nothing at all -----------------------------------------------------------------------------------


def test_values_of_no_width_have_gradients_too():
    q, k, v = normal(2, 4), normal(2, 4, seed=1), normal(2, 0)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    a = ch.attention(*leaves)
    assert a.out.shape == (2, 0)
    (a.out.sum() + a.entropy.sum()).backward()
    assert v.grad.shape == (2, 0)
    assert q.grad.abs().sum() > 0


def test_documents_of_no_keys_leave_empty_rows():
    rule = ch.Rule(segments=torch.zeros(1, 0, dtype=torch.long))
    a = ch.attention(normal(1, 1, 3, 4), normal(1, 1, 0, 4), normal(1, 1, 0, 4), rule)
    assert a.out.abs().sum() == 0
    assert a.visible.tolist() == [[[0.0] * 3]]


@pytest.mark.parametrize("window", [10**30, (10**30, 0), (0, 10**30)])
def test_a_window_wider_than_any_integer_of_a_tensor(window):
    q = normal(1, 1, 9, 4)
    rule = ch.Rule(causal=window == 10**30, window=window)
    seen = ch.attention(q, q, None, rule).visible[0, 0].tolist()
    assert seen == (
        [float(9 - i) for i in range(9)] if window == (0, 10**30) else [i + 1.0 for i in range(9)]
    )


# What it lives among ------------------------------------------------------------------------------


def test_max_prob_is_a_figure_and_has_no_gradient():
    q = normal(3, 4).requires_grad_()
    a = ch.attention(q, q)
    assert a.entropy.requires_grad
    assert not a.max_prob.requires_grad


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_a_bias_that_was_changed_before_the_way_back_is_noticed(name):
    q, x = normal(1, 1, 3, 4), torch.zeros(1, requires_grad=True)
    a = ch.attention(q, q, q, ch.Rule(**{name: x}))
    with torch.no_grad():
        x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        a.out.sum().backward()


def test_autocast_around_the_way_back_changes_no_bit():
    def grad(outside: bool) -> Tensor:
        q = normal(1, 2, 40, 8).requires_grad_()
        out = ch.attention(q, q, q).out
        with torch.autocast("cpu", torch.bfloat16, enabled=outside):
            out.sum().backward()
        return q.grad

    assert torch.equal(grad(True), grad(False))


def test_one_map_in_many_threads_gives_each_its_own_weights():
    T, H = 60, 8
    q, k = normal(1, H, T, 8), normal(1, H, T, 8, seed=1)
    rule = ch.Rule(causal=True, alibi=torch.arange(H, dtype=torch.float32))
    want = ch.AttentionMap(q, k, rule)[0]
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        shared, found = ch.AttentionMap(q, k, rule), torch.zeros(H, T, T)

        def read(head: int) -> None:
            for i in range(T):
                found[head, i] = shared[0, head, i]

        threads = [threading.Thread(target=read, args=(head,)) for head in range(H)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(switching)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(shared.dense()[0], want)


@pytest.mark.parametrize("order", [(64, 64, 8, 8), (8, 8, 64, 64)])
def test_what_depends_on_lags_may_be_made_while_it_is_being_made(order):
    """As by another thread, at the worst moment: in the middle of making a larger, or smaller."""
    made, within = [], []

    def entry(lag):
        if within:
            made.append(both.tile(*within.pop()))
        return lag

    def lags(lead, rows, keys):
        return lead + torch.arange(rows)[:, None] - torch.arange(keys)

    rows, keys, other_rows, other_keys = order
    both = ByLag(entry, torch.device("cpu"))
    both.tile(0, 4, 4)
    within.append((1, other_rows, other_keys))
    assert torch.equal(both.tile(2, rows, keys), lags(2, rows, keys))
    assert torch.equal(made[0], lags(1, other_rows, other_keys))
    for size in ((4, 4), (rows, keys), (other_rows, other_keys)):
        assert torch.equal(both.tile(3, *size), lags(3, *size))


def test_a_map_is_read_while_another_thread_finds_out_about_all_rows(monkeypatch):
    q = normal(1, 1, 40, 4)
    want = ch.AttentionMap(q, q)[0, 0]
    shared = ch.AttentionMap(q, q)
    found_out, computed = AttentionMap._lse_of, cells.lse_of_rows

    def meanwhile(scores, i0, i1):
        found_out(shared, 0, 40)
        return computed(scores, i0, i1)

    monkeypatch.setattr(cells, "lse_of_rows", meanwhile)
    torch.testing.assert_close(shared[0, 0], want)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_query_that_is_not_finite_has_a_row_of_nan_throughout(bad):
    q = normal(1, 1, 3, 4)
    q[0, 0, 1, 0] = bad
    a = ch.attention(q, normal(1, 1, 4, 4, seed=1), normal(1, 1, 4, 4), distance=True)
    for name in ("out", "lse", "entropy", "max_score", "mean_key", "distance", "key_scores"):
        assert getattr(a, name)[0, 0, 1].isnan().all(), name
        assert getattr(a, name)[0, 0, 0].isfinite().all(), name


def test_an_offset_may_be_an_integer_of_numpy():
    q, k = normal(1, 2, 5, 4), normal(1, 2, 9, 4, seed=1)
    for causal in (False, True):
        a, b = (
            ch.attention(q, k, k, ch.Rule(causal=causal, offset=offset), distance=True)
            for offset in (2, np.int64(2))
        )
        assert torch.equal(a.distance, b.distance)
        assert torch.equal(a.key_scores.nan_to_num(9.0), b.key_scores.nan_to_num(9.0))


def test_statistics_refuse_the_map_of_another_rule_of_the_same_shapes():
    q = normal(2, 5, 4)
    lower, upper = torch.ones(5, 5, dtype=torch.bool).tril(), torch.ones(5, 5).triu().bool()
    a = ch.attention(q, q, None, ch.Rule(mask=lower))
    ch.HeadStats.of(a, ch.AttentionMap(q, q, ch.Rule(mask=lower.clone())))
    with pytest.raises(ValueError, match="pass AttentionMap"):
        ch.HeadStats.of(a, ch.AttentionMap(q, q, ch.Rule(mask=upper)))


def test_distance_keeps_its_digits_beside_a_sink_that_takes_all_but_everything():
    q = torch.zeros(1, 1, 4, 4)
    means = []
    for sink in (0.0, 120.0):
        rule = ch.Rule(causal=True, sinks=torch.tensor([sink]))
        a = ch.attention(q, q, None, rule)
        means.append(ch.HeadStats.of(a, ch.AttentionMap(q, q, rule, a)).mean("distance").item())
    assert means == pytest.approx([0.75, 0.75], rel=1e-6)


# Memory and devices -------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["forward", "backward", "received", "statistics", "map"])
def test_nothing_of_the_size_of_the_map_is_made(way):
    T, H = 4096, 2
    q, k, v = (normal(1, H, T, 8, seed=n) for n in range(3))
    rule = ch.Rule(causal=True)

    def call() -> dict[str, Tensor]:
        if way == "backward":
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            a = ch.attention(*leaves, rule)
            (a.out.sum() + a.entropy.sum()).backward()
            return {}
        a = ch.attention(q, k, v, rule, received=way == "received")
        if way == "statistics":
            ch.HeadStats.of(a, ch.AttentionMap(q, k, rule, a))
        if way == "map":
            ch.AttentionMap(q, k, rule, a).pooled(0, 0, shape=(64, 64))
        return {}

    extra, _ = bench.memory_of(call)
    assert extra < H * T * T * 4 / 8  # twenty megabytes of 134


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_gives_what_the_cpu_gives():
    q, k, v = (normal(2, 4, 300, 64, seed=n) for n in range(3))
    rule = ch.Rule(causal=True, window=77, key_mask=normal(2, 300) > -1)  # its masks stay behind
    here = ch.attention(q, k, v, rule, received=True, top=True)
    there = ch.attention(q.cuda(), k.cuda(), v.cuda(), rule, received=True, top=True)
    for name, x in vars(here).items():
        if isinstance(x, Tensor):
            torch.testing.assert_close(getattr(there, name).cpu(), x, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", ["half", "transposed"])
def test_what_a_tile_needed_is_freed_with_its_scores(layout):
    """Without waiting for the garbage collector: on a GPU that would be memory that is missing."""
    k = torch.randn(2, 2, 300, 8)
    k = k.half() if layout == "half" else k.transpose(1, 2).contiguous().transpose(1, 2)
    bound = BoundRule(ch.Rule(), k, k)
    gc.disable()
    try:
        scores = tiles.Scores(k, k, bound, next(tiles.chunks(bound)))
        scores.tile(scores.queries(0, 9), 0, 9, 0, 9)
        alive = weakref.ref(scores)
        del scores
        assert alive() is None
    finally:
        gc.enable()
