"""The pyramid of a map: codes of weights, and every level and tile of it against dense float64."""

import math
import threading

import dense
import numpy as np
import pytest
import torch
from test_run import randn

from clearhead.engine import attention
from clearhead.map import AttentionMap
from clearhead.rule import Rule
from clearhead.viewer import pyramid
from clearhead.viewer.codes import HIDDEN, NO_NUMBER, ONE, SMALLEST, STEPS, ZERO, decode, encode

CASES = {  # T, S, H, G, rule
    "causal": (300, 300, 2, 1, Rule(causal=True)),
    "both ways": (257, 257, 1, 1, Rule()),
    "a window": (331, 331, 1, 1, Rule(causal=True, window=37)),
    "before and after": (277, 277, 1, 1, Rule(window=(5, 9))),
    "cross, wide": (19, 523, 2, 2, Rule()),
    "cross, high": (523, 19, 2, 2, Rule()),
    "top-left": (300, 211, 1, 1, Rule(causal=True, offset=0)),
    "sinks, softcap, alibi": (
        293, 293, 4, 2,
        Rule(causal=True, sinks=randn(4), softcap=3.0, alibi=randn(4).abs(), scale=0.7),
    ),
    "padding": (
        283, 283, 1, 1,
        Rule(causal=True, key_mask=torch.arange(283)[None] >= 70,
             query_mask=torch.arange(283)[None] >= 70),
    ),
    "rows that do not count": (
        283, 283, 2, 1, Rule(causal=True, query_mask=torch.arange(283)[None] % 90 > 30),
    ),
    "documents": (301, 301, 1, 1, Rule(causal=True, segments=(torch.arange(301) // 53)[None])),
    "a mask": (260, 260, 1, 1, Rule(mask=randn(260, 260) > 1.3)),
    "a bias": (260, 260, 2, 2, Rule(causal=True, bias=randn(1, 2, 260, 260, seed=3))),
    "one token": (1, 1, 1, 1, Rule(causal=True)),
    "sharp": (290, 290, 1, 1, Rule(causal=True, scale=9.0)),
}  # fmt: skip


@pytest.fixture(params=[4096, 64], ids=["small", "large"])
def finest(request, monkeypatch):
    """Maps as small ones, whose pass makes level 0, and as large ones, whose pass makes level 3."""
    monkeypatch.setattr(pyramid, "FINEST", request.param)
    if request.param == 64:
        monkeypatch.setattr(pyramid, "TILE", 16)
    monkeypatch.setattr(pyramid, "ROWS", 40)
    monkeypatch.setattr(pyramid, "ENCODED", 500)
    return request.param


def made(name, h=0):
    """The map of one head, and its weights and what is seen, densely, in float64."""
    T, S, H, G, rule = CASES[name]
    q, k = randn(1, H, T, 8, seed=1), randn(1, G, S, 8, seed=2)
    whole = AttentionMap(q, k, rule, attention(q, k, None, rule))
    judge = dense.attend(q, k, None, rule)
    return whole.head(0, h), judge, h


def pooled(p, sees, z, reduce):
    """Each pixel of a level: its weight in float64, and whether anything of it is seen."""
    (T, S), side = p.shape, 1 << z
    n, m = math.ceil(T / side), math.ceil(S / side)

    def squares(x):
        whole = torch.zeros(n * side, m * side, dtype=torch.float64)
        whole[:T, :S] = x
        return whole.view(n, side, m, side).transpose(1, 2).flatten(2)

    cells = squares(torch.ones(T, S)).sum(dim=-1)
    values = squares(p).amax(dim=-1) if reduce == "max" else squares(p).sum(dim=-1) / cells
    return values, squares(sees).bool().any(dim=-1)


def check(codes, values, seen):
    """Hidden where hidden; the weight within what float32 and half a code lose, or too small."""
    codes = torch.from_numpy(codes.astype(np.int64))
    assert torch.equal(codes == HIDDEN, ~seen)
    found = torch.from_numpy(decode(codes.numpy().astype("<u2")))
    off = (found - values).abs()
    assert bool((off <= values * 4e-4 + 2 * SMALLEST)[seen].all()), off.max()


def tile_of(values, seen, ty, tx):
    size = pyramid.TILE
    v, s = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.bool)
    part = slice(ty * size, (ty + 1) * size), slice(tx * size, (tx + 1) * size)
    h, w = values[part].shape
    v[:h, :w], s[:h, :w] = values[part], seen[part]
    return v, s


# Codes ------------------------------------------------------------------------------------------


def test_codes_of_known_weights():
    weights = torch.tensor(
        [1.0, 0.5, 0.25, SMALLEST, SMALLEST * 0.999999, 0.0, math.nan, 1.0000001]
    )
    wanted = [ONE, round(ONE - STEPS), round(ONE - 2 * STEPS), 2, ZERO, ZERO, NO_NUMBER, ONE]
    assert encode(weights).tolist() == wanted
    assert encode(torch.ones(2), torch.tensor([True, False])).tolist() == [ONE, HIDDEN]
    assert encode(torch.tensor([[math.nan]]), torch.tensor([[False]])).tolist() == [[HIDDEN]]


def test_every_code_comes_back_and_a_larger_weight_has_no_smaller_code():
    codes = np.arange(1 << 16, dtype="<u2")
    weights = decode(codes)
    assert np.array_equal(encode(torch.from_numpy(weights[1:]))[1:], codes[2:])
    assert np.all(np.diff(weights[1:ONE]) > 0)
    assert weights[HIDDEN] == weights[ZERO] == 0
    assert math.isnan(weights[NO_NUMBER])
    p = torch.linspace(0, 1, 100_001, dtype=torch.float64) ** 5
    assert np.all(np.diff(encode(p).astype(int)) >= 0)
    big = p > 1e-9
    assert np.abs(decode(encode(p))[big] / p[big].numpy() - 1).max() < 1.8e-4


# Levels and tiles -------------------------------------------------------------------------------


@pytest.mark.parametrize("reduce", pyramid.REDUCE)
@pytest.mark.parametrize("name", CASES)
def test_levels_and_tiles_are_the_dense_truth(name, reduce, finest):
    T, S, H, _, rule = CASES[name]
    amap, judge, h = made(name, h=H - 1)
    p, sees = judge.p[0, h], dense.visible(rule, 1, H, T, S)[0, h]
    base, top = pyramid.base_level(T, S), pyramid.top_level(T, S)
    levels = pyramid.levels(amap, reduce, lambda done: None, threads=2)
    assert list(levels) == list(range(base, top + 1))
    for z in range(top + 1):
        values, seen = pooled(p, sees, z, reduce)
        if z in levels:
            check(levels[z], values, seen)
        for ty in {0, pyramid.n_tiles(T, z) // 2, pyramid.n_tiles(T, z) - 1}:
            for tx in {0, pyramid.n_tiles(S, z) // 2, pyramid.n_tiles(S, z) - 1}:
                wanted = tile_of(values, seen, ty, tx)
                check(pyramid.exact_tile(amap, reduce, z, ty, tx), *wanted)
                if z in levels:
                    check(pyramid.cut(levels[z], ty, tx), *wanted)


@pytest.mark.parametrize("name", CASES)
def test_received_is_the_dense_truth(name, finest):
    H = CASES[name][2]
    amap, judge, h = made(name, h=H - 1)
    found = pyramid.received(amap, lambda done: None, threads=2)
    np.testing.assert_allclose(found, judge.received[0, h].numpy(), atol=1e-5, rtol=1e-5)


def test_levels_of_sizes():
    sizes = [1, 256, 257, 1024, 1025, 4096, 4097, 32_768, 32_769, 100_000, 1 << 20]
    assert [pyramid.top_level(n, 1) for n in sizes] == [0, 0, 1, 2, 3, 4, 5, 7, 8, 9, 12]
    assert [pyramid.base_level(1, n) for n in sizes] == [0, 0, 0, 0, 0, 0, 3, 3, 4, 5, 8]
    for n in sizes:
        z = pyramid.base_level(n, n)
        assert math.ceil(n / 2**z) <= 4096
        assert pyramid.n_tiles(n, pyramid.top_level(n, n)) == 1
    assert pyramid.n_tiles(0, 0) == 1


def test_a_nan_spoils_its_pixels_and_no_others(finest):
    T = 300
    q, k = randn(1, 1, T, 4), randn(1, 1, T, 4, seed=1)
    q[0, 0, 200] = math.nan
    amap = AttentionMap(q, k, Rule(causal=True), attention(q, k, None, Rule(causal=True)))
    for z, level in pyramid.levels(amap, "max", lambda done: None).items():
        spoiled = torch.from_numpy((level == NO_NUMBER).astype(int)).bool()
        row = torch.zeros_like(spoiled)
        row[200 >> z, : (200 >> z) + 1] = True
        assert torch.equal(spoiled, row)


def test_threads_and_bands_change_nothing(monkeypatch):
    amap, _, _ = made("causal")
    one = pyramid.levels(amap, "mean", lambda done: None, threads=1)
    monkeypatch.setattr(pyramid, "ROWS", 7)
    many = pyramid.levels(amap, "mean", lambda done: None, threads=5)
    for z, level in one.items():
        assert np.abs(level.astype(int) - many[z].astype(int)).max() <= 1


def test_progress_grows_and_what_step_raises_ends_all_threads(monkeypatch):
    monkeypatch.setattr(pyramid, "ROWS", 10)
    amap, _, _ = made("causal")
    seen = []
    pyramid.levels(amap, "max", seen.append)
    assert seen == sorted(seen)
    assert seen[0] == 0
    assert 0.9 < seen[-1] < 1

    class Enough(Exception):
        pass

    def step(done):
        if done > 0.3:
            raise Enough

    before = threading.active_count()
    with pytest.raises(Enough):
        pyramid.levels(amap, "max", step, threads=4)
    assert threading.active_count() == before


# What is kept -----------------------------------------------------------------------------------


def test_the_cache_keeps_what_was_used_last_within_its_budget():
    cache = pyramid.Cache(1000)
    for n in range(5):
        cache.put(n, np.zeros(200, "u1"))
    assert (cache.nbytes, len(cache)) == (1000, 5)
    assert cache.get(0) is not None  # and so 1 is the oldest
    cache.put(5, np.zeros(300, "u1"))
    assert cache.get(1) is cache.get(2) is None
    assert cache.get(0) is not None
    assert cache.nbytes == 900
    cache.put(0, np.zeros(250, "u1"))  # in its place
    assert cache.nbytes == 950
    cache.put(6, np.zeros(1001, "u1"))
    assert cache.get(6) is None
    assert (cache.nbytes, len(cache)) == (950, 4)


def test_one_head_as_a_map_of_its_own_has_the_same_weights():
    rule = Rule(causal=True, offset=torch.tensor([0, -2]), sinks=randn(4))
    q, k = randn(2, 4, 11, 3), randn(2, 2, 11, 3, seed=1)
    for lse in (None, attention(q, k, None, rule)):
        whole = AttentionMap(q, k, rule, lse)
        for b in range(2):
            for h in range(4):
                one = whole.head(b, h)
                assert one.shape == (1, 1, 11, 11)
                assert torch.equal(one.dense()[0, 0], whole[b, h])
    with pytest.raises(IndexError, match="index 4 is out of range"):
        whole.head(0, 4)
    with pytest.raises(IndexError, match="head takes one head: b, h"):
        whole.head(0)
