"""The lazy map against a dense softmax that is written out here, masks and all."""

import math

import pytest
import torch
from chance import randn, some
from hypothesis import given
from hypothesis import strategies as st

from clearhead import cells as cells_module
from clearhead import map as map_module
from clearhead.engine import attention, native, tiles
from clearhead.engine.tiled import FEWEST
from clearhead.engine.tiles import Scores
from clearhead.map import AttentionMap, Pooled
from clearhead.rule import Rule


@pytest.fixture(params=["real tiles", "tiny tiles"])
def tile_size(request, monkeypatch):
    """Every law twice: each head in one tile, and in many that fit nothing."""
    if request.param == "tiny tiles":
        for module in (map_module, cells_module, tiles):
            monkeypatch.setattr(module, "KEYS", 5)
            monkeypatch.setattr(module, "ELEMENTS", 35)


laws = pytest.mark.usefixtures("tile_size")


# An independent judge ----------------------------------------------------------------------------


def dense(q, k, rule):
    """Weights, scores and which cells are visible, (B, H, T, S) in float64, cell by cell."""
    (B, H, T, D), (_, G, S, _) = q.shape, k.shape
    q, k = q.double(), k.double().repeat_interleave(H // G, dim=1)
    scores = (q @ k.mT) * (1 / math.sqrt(D) if rule.scale is None else rule.scale)
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    offset = S - T if rule.offset is None else rule.offset
    offset = torch.as_tensor(offset).expand(B)
    visible = torch.ones(B, H, T, S, dtype=torch.bool)
    for b in range(B):
        own = torch.arange(T) + offset[b]
        back = own[:, None] - torch.arange(S)  # (T, S), how far the key lies behind the query
        if rule.alibi is not None:
            scores[b] -= rule.alibi.double()[:, None, None] * back
        if rule.causal:
            visible[b] &= back >= 0
        if isinstance(rule.window, tuple):
            visible[b] &= (back <= rule.window[0]) & (back >= -rule.window[1])
        elif rule.window is not None:
            visible[b] &= back < rule.window
        if rule.key_mask is not None:
            visible[b] &= rule.key_mask[b]
        if rule.segments is not None:
            for i, at in enumerate(own.tolist()):
                inside = 0 <= at < S
                mine = rule.segments[b] == rule.segments[b, at] if inside else torch.zeros(S) > 0
                visible[b, :, i] &= mine
    if rule.mask is not None:
        visible &= rule.mask
    if rule.bias is not None:
        visible &= (rule.bias > torch.finfo(rule.bias.dtype).min).expand(B, H, T, S)
        scores = scores + rule.bias.double()
    scores = scores.masked_fill(~visible, -torch.inf)
    logits = scores
    if rule.sinks is not None:
        sink = rule.sinks.double()[None, :, None, None].expand(B, H, T, 1)
        logits = torch.cat([scores, sink], dim=-1)
    weights = torch.softmax(logits, dim=-1)[..., :S].nan_to_num(0.0)  # NaN: a row that sees nothing
    return weights, scores, visible


@st.composite
def problems(draw, dtypes=(torch.float64,)):
    """q, k and a Rule with any of its fields, of prime sizes."""
    B, G = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2]))
    H = G * draw(st.sampled_from([1, 3]))
    T, S = draw(st.sampled_from([1, 2, 7, 13, 23])), draw(st.sampled_from([1, 3, 11, 17, 29]))
    D, dtype = draw(st.sampled_from([1, 5])), draw(st.sampled_from(dtypes))
    seed = draw(st.integers(0, 1000))
    stream = torch.Generator().manual_seed(seed)

    def maybe(make):
        return make() if draw(st.integers(0, 3)) == 0 else None

    def coins(*shape):
        return torch.rand(*shape, generator=stream) < 0.8

    def bias():
        values = torch.randn(1, H, T, S, generator=stream)
        values[torch.rand(values.shape, generator=stream) < 0.2] = -torch.inf
        return values

    causal = draw(st.booleans())
    windows = [None, (3, 0), (0, 2), (4, 4)] + ([1, 3, 40] if causal else [])
    offset = maybe(lambda: draw(st.integers(-3, 9)))
    if offset is None:
        offset = maybe(lambda: torch.randint(-2, 9, (B,), generator=stream))
    rule = Rule(
        scale=maybe(lambda: 0.7),
        causal=causal,
        offset=offset,
        window=draw(st.sampled_from(windows)),
        softcap=maybe(lambda: 1.5),
        alibi=maybe(lambda: torch.rand(H, generator=stream)),
        sinks=maybe(lambda: torch.randn(H, generator=stream)),
        key_mask=maybe(lambda: coins(B, S)),
        query_mask=maybe(lambda: coins(B, T)),
        segments=maybe(lambda: torch.randint(0, 3, (B, S), generator=stream).sort(dim=1).values),
        mask=maybe(lambda: coins(B, 1, T, S)),
        bias=maybe(bias),
    )
    q, k = randn(B, H, T, D, seed=seed, dtype=dtype), randn(B, G, S, D, seed=seed + 1, dtype=dtype)
    return q, k, rule


def both_ways(q, k, rule):
    """The map that knows lse, and the one that finds it out."""
    return AttentionMap(q, k, rule, attention(q, k, None, rule).lse), AttentionMap(q, k, rule)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b.to(a.dtype), rtol=tolerance, atol=tolerance)


# Every figure is that of the dense map -----------------------------------------------------------


@pytest.mark.quick
@given(problems())
@some(25)
@laws
def test_the_map_is_the_dense_softmax(problem):
    q, k, rule = problem
    weights, scores, visible = dense(q, k, rule)
    for m in both_ways(q, k, rule):
        assert m.shape == weights.shape
        close(m.dense(), weights)
        close(m.scores[...], scores)
        assert not m.dense()[~visible].any()


def indices(size):
    ints = st.integers(-size, size - 1)
    ends = st.none() | st.integers(-size - 3, size + 3)
    steps = st.sampled_from([None, 1, 2, 3, -1, -2, 40])
    return ints | st.builds(slice, ends, ends, steps)


@given(problems(), st.data())
@some(25)
@laws
def test_an_index_reads_the_slice_of_the_dense_map(problem, data):
    q, k, rule = problem
    weights, scores, _ = (x.numpy() for x in dense(q, k, rule))
    index = tuple(data.draw(indices(size)) for size in weights.shape)
    cut = data.draw(st.integers(0, 4))  # an Ellipsis in place of some of them
    if data.draw(st.booleans()):
        index = (*index[:cut], ..., *index[data.draw(st.integers(cut, 4)) :])
    else:
        index = index[:cut]
    for m in both_ways(q, k, rule):
        close(m[index], torch.tensor(weights[index].copy()))
        close(m.scores[index], torch.tensor(scores[index].copy()))
        assert m[index].dtype == torch.float64


@given(problems(), st.data())
@some(25)
@laws
def test_pooled_is_the_dense_map_pooled(problem, data):
    q, k, rule = problem
    weights, _, visible = dense(q, k, rule)
    B, H, T, S = weights.shape
    b, h = data.draw(st.integers(0, B - 1)), data.draw(st.integers(0, H - 1))
    rows = tuple(sorted(data.draw(st.tuples(st.integers(0, T), st.integers(0, T)))))
    cols = tuple(sorted(data.draw(st.tuples(st.integers(0, S), st.integers(0, S)))))
    shape = data.draw(st.tuples(st.integers(1, 30), st.integers(1, 30)))
    for m in both_ways(q, k, rule):
        for reduce in ("max", "mean", "sum"):
            pooled = m.pooled(b, h, rows=rows, cols=cols, shape=shape, reduce=reduce)
            values, seen = by_hand(weights[b, h], visible[b, h], rows, cols, shape, reduce)
            close(pooled.values, values)
            close(pooled.visible, seen)


def by_hand(weights, visible, rows, cols, shape, reduce):
    n, m = min(shape[0], rows[1] - rows[0]), min(shape[1], cols[1] - cols[0])
    values, seen = torch.zeros(n, m).double(), torch.zeros(n, m).double()
    for i in range(n):
        for j in range(m):
            block = (
                slice(*(rows[0] + (rows[1] - rows[0]) * x // n for x in (i, i + 1))),
                slice(*(cols[0] + (cols[1] - cols[0]) * x // m for x in (j, j + 1))),
            )
            values[i, j] = getattr(weights[block], reduce)()
            seen[i, j] = visible[block].double().mean()
    return values, seen


@given(problems())
@some(25)
@laws
def test_what_rows_and_keys_do_is_the_dense_map_summed_up(problem):
    q, k, rule = problem
    weights, _, _ = dense(q, k, rule)
    B, H, T, S = weights.shape
    real = torch.ones(B, T).bool() if rule.query_mask is None else rule.query_mask
    offset = torch.as_tensor(S - T if rule.offset is None else rule.offset).expand(B)
    for m in both_ways(q, k, rule):
        close(m.received(), (weights * real[:, None, :, None]).sum(dim=2))
        for j in {0, S // 2, S - 1, -1}:
            close(m.on_key(j), weights[..., j])
        for n in (-2, 0, 1, 5):
            line = torch.zeros(B, H, T).double()
            for b in range(B):
                for i in range(T):
                    j = i + int(offset[b]) - n
                    if 0 <= j < S:
                        line[b, :, i] = weights[b, :, i, j]
            close(m.on_lag(n), line)


@given(problems(), st.data())
@some(25)
@laws
def test_between_is_the_mean_over_real_rows_that_see_anything(problem, data):
    q, k, rule = problem
    weights, _, visible = dense(q, k, rule)
    _, _, T, S = weights.shape
    rows = tuple(sorted(data.draw(st.tuples(st.integers(0, T), st.integers(0, T)))))
    cols = tuple(sorted(data.draw(st.tuples(st.integers(0, S), st.integers(0, S)))))
    counted = visible.any(dim=-1)
    if rule.query_mask is not None:
        counted = counted & rule.query_mask[:, None]
    mass = weights[..., slice(*cols)].sum(dim=-1).masked_fill(~counted, torch.nan)
    expected = mass[..., slice(*rows)].nanmean(dim=-1)
    for m in both_ways(q, k, rule):
        torch.testing.assert_close(m.between(rows, cols), expected, equal_nan=True)
        as_slices = m.between(slice(*rows), slice(*cols))
        torch.testing.assert_close(as_slices, expected, equal_nan=True)


@given(problems(), st.integers(1, 9))
@some(25)
@laws
def test_top_is_the_dense_map_sorted(problem, n):
    q, k, rule = problem
    weights, scores, visible = dense(q, k, rule)
    n_keys = weights.shape[-1]
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :n]
    missing = n - order.shape[-1]
    order = torch.nn.functional.pad(order, (0, missing))
    seen = torch.arange(n) < visible.sum(dim=-1, keepdim=True)
    values = weights.gather(-1, order).masked_fill(~seen, 0.0)
    for m in both_ways(q, k, rule):
        found, keys = m.top(n)
        assert found.shape == keys.shape == (*weights.shape[:-1], n)
        assert keys.max() < n_keys
        close(found, values)
        assert torch.equal(keys, order.masked_fill(~seen, -1))


def test_top_across_many_tiles_and_ties():
    # Scores of few values, all in one tile or in several: the lowest keys come first.
    k = torch.tensor([3.0, 1, 3, 2, 1, 3, 0] * 257)[:, None]
    m = AttentionMap(torch.ones(5, 1), k, Rule(scale=1.0, causal=True))
    values, keys = m.top(9)
    assert keys[-1].tolist() == [0, 2, 5, 7, 9, 12, 14, 16, 19]
    assert torch.equal(values, values[:, :1].expand_as(values))
    flat = AttentionMap(torch.zeros(5, 1), k)
    assert flat.top(1024)[1][0].tolist() == list(range(1024))
    assert flat.top(8)[1][3].tolist() == list(range(8))


@pytest.mark.parametrize("rule", [Rule(causal=True), Rule(window=(300, 90))], ids=repr)
def test_over_tiles_of_their_real_size(rule):
    T, S = 1153, 1301
    q, k = randn(1, 1, T, 3, seed=1), randn(1, 1, S, 3, seed=2)
    weights, _, visible = dense(q, k, rule)
    known, m = both_ways(q, k, rule)
    close(m[0, 0, ::-211, ::-331], weights[0, 0].flip(0, 1)[::211, ::331], 1e-5)
    close(known[0, 0, 1000:T:7, 300:1300], weights[0, 0, 1000:T:7, 300:1300], 1e-5)
    close(m.dense(), weights, 1e-5)
    for shape, reduce in (((97, 64), "max"), ((1153, 13), "mean"), ((1, 1301), "sum")):
        pooled = known.pooled(0, 0, shape=shape, reduce=reduce)
        row = (torch.arange(1, T + 1) * shape[0] - 1) // T  # the block that each one lies in
        col = (torch.arange(1, S + 1) * shape[1] - 1) // S
        at = (row[:, None] * shape[1] + col).flatten()
        how = {"max": "amax"}.get(reduce, reduce)
        for found, cells, by in ((pooled.values, weights, how), (pooled.visible, visible, "mean")):
            expected = torch.zeros(shape[0] * shape[1]).double()
            expected.scatter_reduce_(0, at, cells.flatten().double(), by, include_self=False)
            close(found.flatten(), expected, 1e-4)


@pytest.mark.parametrize("T", [64, 300])
def test_single_keys_weigh_what_they_weigh_in_a_tile(T):
    """Where a score is 1e9, the order of a sum decides: exp of its last digit is 0 or infinite."""
    k = 1e4 * randn(1, 2, 300, 64)
    q = k[:, :, :1] + 100 * randn(1, 2, T, 64, seed=1)  # all look at key 0, with all their weight
    rule = Rule(causal=True, offset=0)
    m = AttentionMap(q, k, rule, attention(q, k, None, rule))
    close(m.on_key(0), torch.ones(1, 2, T), 1e-6)
    close(m.on_key(299), torch.zeros(1, 2, T), 1e-6)
    close(m.on_lag(0), torch.eye(1, T).expand(1, 2, T), 1e-6)


# Conventions -------------------------------------------------------------------------------------


def test_fewer_axes_give_a_map_of_fewer_axes():
    q, k = randn(2, 7, 3), randn(2, 11, 3)
    four, three, two = (AttentionMap(q[at], k[at]) for at in (None, ..., 0))
    assert (four.shape, three.shape, two.shape) == ((1, 2, 7, 11), (2, 7, 11), (7, 11))
    for name, args in (
        ("dense", ()), ("received", ()), ("on_key", (3,)), ("on_lag", (1,)),
        ("between", ((2, 5), (1, 9))),
    ):  # fmt: skip
        whole = getattr(four, name)(*args)
        close(getattr(three, name)(*args), whole[0], 1e-6)
        close(getattr(two, name)(*args), whole[0, 0], 1e-6)
    assert torch.equal(three.top(2)[1], four.top(2)[1][0])
    assert torch.equal(two.top(2)[1], four.top(2)[1][0, 0])
    for m, head in ((four, (0, 1)), (three, (1,)), (four, (-1, -1))):
        close(m.pooled(*head).values, four[0, 1], 1e-6)
    close(two.pooled().values, two[...], 1e-6)
    assert three[-1, 2, 3].shape == () and three[1:, 2].shape == (1, 11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_results_are_float32_or_float64_without_gradient(dtype):
    q, k = randn(5, 3, dtype=dtype).requires_grad_(), randn(5, 3, dtype=dtype).requires_grad_()
    bias = torch.zeros(5, requires_grad=True)
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    m = AttentionMap(q, k, Rule(bias=bias))
    results = (m[...], m.scores[1], m.pooled().values, m.pooled().visible, m.top(2)[0], m.on_lag(0))
    for x in (*results, m.received(), m.on_key(0), m.between((0, 2), (1, 3))):
        assert x.dtype == wanted == m.dtype and not x.requires_grad
    close(m.dense(), dense(q.detach()[None, None], k.detach()[None, None], Rule())[0][0, 0], 1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        again = AttentionMap(q, k)
        close(again[1:3], m[1:3], 1e-6)
        assert again[1:3].dtype == wanted


def test_made_in_inference_mode_it_works_outside_and_the_other_way_round():
    with torch.inference_mode():
        q, k = randn(1, 1, 7, 3), randn(1, 1, 7, 3)
        m, known = AttentionMap(q, k), AttentionMap(q, k, lse=attention(q, k).lse)
        first = m[0, 0, 2:4]
    x = m[0, 0, 1:6]
    close(x[1:3], first, 1e-6)
    for lazy in (m, known):
        (lazy[0, 0] * torch.ones(7, requires_grad=True)).sum().backward()
        lazy.pooled(0, 0), lazy.top(), lazy.received(), lazy.on_key(1), lazy.on_lag(1)


def test_a_row_that_sees_nothing_is_zero_and_beside_a_sink_too():
    q, k = torch.zeros(1, 2, 5, 3), torch.zeros(1, 1, 2, 3)
    for sinks in (None, torch.zeros(2)):
        m = AttentionMap(q, k, Rule(causal=True, sinks=sinks))
        a, b = (1.0, 1 / 2) if sinks is None else (1 / 2, 1 / 3)
        expected = torch.tensor([[0, 0]] * 3 + [[a, 0], [b, b]])
        close(m[0, 1], expected, 1e-6)
        values, keys = m.top(2)
        assert keys[0, 0].tolist() == [[-1, -1]] * 3 + [[0, -1], [0, 1]]
        assert not values[0, 0, :3].any()
        assert not m.pooled(0, 0).values[:3].any() and not m.pooled(0, 0).visible[:3].any()
        # Empty rows are left out of the mean.
        close(m.between((0, 5), (0, 1)), torch.full((1, 2), (a + b) / 2), 1e-6)
        assert m.between((0, 3), (0, 2)).isnan().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@laws
def test_a_row_is_nan_where_it_sees_a_bad_key_and_only_there(bad):
    q, k = randn(1, 1, 6, 3, seed=3), randn(1, 1, 6, 3, seed=4)
    clean = AttentionMap(q, k, Rule(causal=True)).dense()
    k[0, 0, 4] = bad
    for m in both_ways(q, k, Rule(causal=True)):
        for weights in (m.dense(), torch.stack([m[0, 0, i] for i in range(6)])[None, None]):
            close(weights[..., :4, :], clean[..., :4, :], 1e-6)
            for i in (4, 5):
                assert weights[0, 0, i, : i + 1].isnan().all()
                assert not weights[0, 0, i, i + 1 :].any()
        for reduce in ("max", "sum"):
            pooled = m.pooled(0, 0, shape=(3, 3), reduce=reduce).values
            assert pooled.isnan().tolist() == [[False] * 3] * 2 + [[True] * 3]
            single = m.pooled(0, 0, reduce=reduce).values  # every cell a block, hidden ones too
            assert torch.equal(single.isnan(), m.dense()[0, 0].isnan())
        assert m.top(2)[1][0, 0, 4:].tolist() == [[-1, -1]] * 2
        assert m.top(2)[0][0, 0].isnan().any(dim=-1).tolist() == [False] * 4 + [True] * 2
        assert m.between((0, 4), (0, 6)).item() == pytest.approx(1.0)
        assert m.between((3, 5), (0, 6)).isnan().all()


def test_empty_axes():
    for B, T, S in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        m = AttentionMap(torch.ones(B, 2, T, 5), torch.ones(B, 1, S, 5), Rule(causal=True))
        assert m.dense().shape == m.scores[...].shape == m.shape == (B, 2, T, S)
        assert m.top(3)[1].shape == (B, 2, T, 3)
        assert S or (m.top(3)[1] == -1).all()
        assert m.received().shape == (B, 2, S) and m.on_lag(1).shape == (B, 2, T)
        if B:
            assert m.pooled(1, 1).values.shape == (T, S)
        assert m[:, :, 5:, 9:].numel() == 0


def test_more_blocks_than_places_are_as_many_as_places():
    m = AttentionMap(torch.zeros(5, 1), torch.zeros(7, 1))
    pooled = m.pooled(rows=(1, 4), cols=slice(2, 6), shape=(100, 3))
    assert isinstance(pooled, Pooled)
    assert pooled.values.shape == pooled.visible.shape == (3, 3)
    assert (pooled.rows, pooled.cols, pooled.reduce) == ((1, 4), (2, 6), "max")
    with pytest.raises(AttributeError):
        pooled.reduce = "sum"


# What it costs -----------------------------------------------------------------------------------


@pytest.fixture
def cells(monkeypatch):
    """Counts the cells of all tiles of scores, whoever computes them."""
    counted = []
    tile, of_kernel, lse_of_kernel = Scores.tile, native.cells, native.lse_of_rows

    def counting(self, queries, i0, i1, j0, j1):
        assert queries.shape[1] * (j1 - j0) <= 1 << 20
        counted.append(queries.shape[0] * queries.shape[1] * (j1 - j0))
        return tile(self, queries, i0, i1, j0, j1)

    def counting_too(q, k, bound, rows, cols, lse):
        assert (rows[1] - rows[0]) * (cols[1] - cols[0]) <= 1 << 20
        counted.append((rows[1] - rows[0]) * (cols[1] - cols[0]))
        return of_kernel(q, k, bound, rows, cols, lse)

    def counting_rows(q, k, bound, i0, i1):
        first, last = bound.keys(i0, i1)
        counted.append((i1 - i0) * (last - first))
        return lse_of_kernel(q, k, bound, i0, i1)

    monkeypatch.setattr(Scores, "tile", counting)
    monkeypatch.setattr(native, "cells", counting_too)
    monkeypatch.setattr(native, "lse_of_rows", counting_rows)
    return counted


@pytest.mark.quick
def test_a_tile_of_a_huge_map_costs_a_tile(cells):
    T = 200_000  # 149 GiB a head
    q = torch.zeros(1, 1, 1, 2).expand(1, 3, T, 2)
    lse = torch.log(torch.arange(1.0, T + 1)).expand(1, 3, T)
    m = AttentionMap(q, q, Rule(causal=True), lse)
    close(m[0, 2, -5:, -100:-50], torch.full((5, 50), 1 / T), 1e-5)
    close(m[0, 1, 150_000, 7], torch.tensor(1 / 150_001), 1e-5)
    assert sum(cells) <= 5 * 50 + 1
    assert m[0, 0, :100, 100_000:].count_nonzero() == 0
    assert sum(cells) <= 5 * 50 + 1  # hidden: not computed at all
    close(m.pooled(0, 0, rows=(T - 8, T), cols=(0, 80), shape=(2, 2)).values, 1 / torch.tensor(
        [[T - 7.0] * 2, [T - 3.0] * 2]), 1e-5)  # fmt: skip
    assert sum(cells) <= 1000


def test_lse_is_found_for_the_rows_asked_for_only(cells):
    T = 50_000
    q = torch.zeros(1, 2, T, 1)
    m = AttentionMap(q, q, Rule(causal=True, window=100))
    close(m[0, 1, 40_000:40_003, 39_990:40_000], torch.full((3, 10), 0.01), 1e-5)
    assert sum(cells) <= 3 * 102 + 3 * 10
    m[0, 1, 40_000:40_003, 39_990:40_000]
    assert sum(cells) <= 3 * 102 + 2 * 3 * 10  # found once
    cells.clear()
    m[0, 0, 30_000:35_000:1000, 0:5]
    assert sum(cells) <= 5 * 110
    cells.clear()
    m.between((20_000, 20_010), (0, T))
    assert sum(cells) <= 3 * 2 * 10 * 110


def test_apart_is_read_apart_when_that_is_less(cells):
    T = 100_000
    q = torch.zeros(T, 1)
    m = AttentionMap(q, q, lse=torch.zeros(T))
    assert m[::25_000, ::20_000].shape == (4, 5)
    assert sum(cells) <= 4 * T
    cells.clear()
    assert m[:1000:100, :].shape == (10, T)
    assert sum(cells) == 10 * T
    cells.clear()
    assert m[500:1500, ::50_000].shape == (1000, 2)
    assert sum(cells) == 2000
    cells.clear()
    assert m[:100:2, :100:2].shape == (50, 50)
    assert sum(cells) <= 100 * 100


def test_rows_and_keys_cost_no_map(cells):
    T = 4096
    q = torch.zeros(1, 2, T, 2)
    m = AttentionMap(q, q, Rule(causal=True), torch.zeros(1, 2, T))
    m.on_key(5)
    assert sum(cells) <= 2 * T * FEWEST
    cells.clear()
    m.on_lag(1)
    assert sum(cells) <= 2 * T * 64
    cells.clear()
    m.between((0, 10), (0, T))
    assert sum(cells) <= 2 * 10 * 10


def test_blocks_that_nobody_sees_are_not_computed(cells):
    T = 4096
    q = torch.zeros(T, 1)
    for rule, at_most in ((Rule(causal=True), 0.7), (Rule(causal=True, window=64), 0.4)):
        cells.clear()
        AttentionMap(q, q, rule, torch.zeros(T)).pooled(shape=(64, 64))
        assert sum(cells) <= at_most * T * T


def test_q_and_k_in_memory_mapped_files(tmp_path):
    q, k = randn(2, 7, 3, seed=5), randn(2, 11, 3, seed=6)
    mapped = []
    for name, x in (("q", q), ("k", k)):
        (tmp_path / name).write_bytes(x.numpy().tobytes())
        flat = torch.from_file(str(tmp_path / name), shared=False, size=x.numel())
        mapped.append(flat.view(x.shape))
    m, plain = AttentionMap(*mapped, Rule(causal=True)), AttentionMap(q, k, Rule(causal=True))
    assert m._q.data_ptr() == mapped[0].data_ptr() and m._k.data_ptr() == mapped[1].data_ptr()
    assert torch.equal(m.dense(), plain.dense())
    assert torch.equal(m.pooled(1, shape=(3, 3)).values, plain.pooled(1, shape=(3, 3)).values)
    assert torch.equal(m.top(3)[1], plain.top(3)[1])
    assert torch.equal(mapped[0], q) and torch.equal(mapped[1], k)


@pytest.mark.parametrize("known", [True, False])
def test_reading_a_tile_touches_only_its_part_of_a_file(tmp_path, known):
    # All but the part that is needed is NaN: whoever reads it and uses it shows.
    q, k = torch.full((1, 1, 999, 2), math.nan), torch.full((1, 1, 999, 2), math.nan)
    q[0, 0, 500:510], k[0, 0, 491:510] = 0.0, 0.0
    lse = torch.full((1, 1, 999), math.log(10)) if known else None
    m = AttentionMap(q, k, Rule(causal=True, window=10), lse)
    band = m[0, 0, 500:510, 480:515]
    assert (band > 0).sum(dim=-1).tolist() == [10] * 10
    close(band.sum(dim=-1), torch.ones(10), 1e-6)


# Errors ------------------------------------------------------------------------------------------


def small():
    return AttentionMap(torch.zeros(2, 3, 5, 1), torch.zeros(2, 3, 7, 1))


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ((0, 0, 5), "index 5 is out of range for axis 2 (T) of size 5"),
        ((0, 0, -6, 1), "index -6 is out of range for axis 2 (T) of size 5"),
        (2, "index 2 is out of range for axis 0 (B) of size 2"),
        ((..., 7), "index 7 is out of range for axis 3 (S) of size 7"),
        ((0, 0, 0, 0, 0), "takes at most 4 indices"),
        ((0, ..., 0, ...), "one Ellipsis"),
        (None, "integers and slices, and one Ellipsis; got None"),
        (True, "got True"),
        ((0, [1, 2]), "got 0, a list"),
        ((0, torch.tensor([1])), "got 0, a Tensor"),
        (1.5, "got 1.5"),
    ],
)
def test_an_index_that_is_none_says_why(index, words):
    for m in (small(), small().scores):
        with pytest.raises(IndexError) as error:
            m[index]
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda m: m.on_key(7), IndexError, "index 7 is out of range for axis 3 (S) of size 7"),
        (lambda m: m.on_key(1.0), IndexError, "takes an integer here; got 1.0"),
        (lambda m: m.pooled(0), IndexError, "pooled takes one head: b, h of a map (2, 3, 5, 7)"),
        (lambda m: m.pooled(0, 3), IndexError, "index 3 is out of range for axis 1 (H) of size 3"),
        (lambda m: m.pooled(0, 0, reduce="min"), ValueError, "'max', 'mean' or 'sum'; got 'min'"),
        (lambda m: m.pooled(0, 0, shape=(0, 5)), ValueError, "got (0, 5)"),
        (lambda m: m.pooled(0, 0, shape=(5,)), ValueError, "two integers of 1 or more"),
        (lambda m: m.pooled(0, 0, rows=(0, 6)), ValueError, "rows must be (start, stop) with 0 <="),
        (lambda m: m.pooled(0, 0, cols=(4, 2)), ValueError, "stop <= 7, or a slice without a step"),
        (lambda m: m.between(slice(0, 5, 2), (0, 1)), ValueError, "got slice(0, 5, 2)"),
        (lambda m: m.between((0, 1), 3), ValueError, "keys must be (start, stop)"),
        (lambda m: m.top(0), ValueError, "k must be an integer of 1 or more; got 0"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(call, kind, words):
    with pytest.raises(kind) as error:
        call(small())
    assert words in str(error.value)


def test_shapes_that_do_not_fit_are_named():
    q = torch.zeros(2, 3, 5, 1)
    with pytest.raises(ValueError, match="multiple of key heads"):
        AttentionMap(q, torch.zeros(2, 2, 7, 1))
    with pytest.raises(ValueError, match="alibi must be"):
        AttentionMap(q, q, Rule(alibi=torch.zeros(2)))
    with pytest.raises(ValueError) as error:
        AttentionMap(q, q, lse=torch.zeros(3, 5))
    assert "lse must hold floats (2, 3, 5), one for each row; got torch.float32 (3, 5)" in str(
        error.value
    )


def test_too_much_is_refused_before_it_is_allocated(cells):
    T = 1_000_000
    q = torch.zeros(1, 1, 1, 1).expand(1, 2, T, 1)
    m = AttentionMap(q, q, Rule(causal=True))
    assert m.nbytes_dense == 2 * T * T * 4
    for read in (lambda: m[0], lambda: m.scores[:, 1], lambda: m.dense(), lambda: m[0, 0, :300]):
        with pytest.raises(ValueError, match=r"[\d,]{9,} bytes .* more than max_bytes"):
            read()
    with pytest.raises(ValueError) as error:
        m.dense()
    assert "8,000,000,000,000 bytes (7.276 TiB), more than max_bytes = 268,435,456" in str(
        error.value
    )
    assert not cells
    assert small().dense(max_bytes=840).numel() == 210
    with pytest.raises(ValueError, match="840 bytes"):
        small().dense(max_bytes=839)
    with pytest.raises(ValueError, match="840 bytes"):
        AttentionMap(torch.zeros(2, 3, 5, 1), torch.zeros(2, 3, 7, 1), max_bytes=839)[:]


def test_repr_tells_shape_rule_and_size():
    m = AttentionMap(torch.zeros(2, 3, 5, 1), torch.zeros(2, 3, 7, 1), Rule(causal=True))
    assert repr(m) == (
        "AttentionMap((2, 3, 5, 7), torch.float32, Rule(causal=True), lse on demand, "
        "840 bytes if dense)"
    )
    m.top()
    assert "lse known" in repr(m)
