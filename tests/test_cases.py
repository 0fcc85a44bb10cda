"""Faults that people met in comparable tools, as small inputs with the right values.

The trick used throughout: with q = 0 every visible score is equal, so n visible keys weigh 1/n each
and the entropy is ln n in any dtype. The entropy itself tells which keys were visible.
"""

import math

import pytest
import torch

from clearhead import AttentionMap, Rule, attention
from clearhead.engine import tiles

LN = {n: math.log(n) for n in range(1, 10)}
pytestmark = pytest.mark.quick


def equal_scores(T, S=None, v=None, rule=None, B=1, dtype=torch.float32, **options):
    """One head with q = 0."""
    S = T if S is None else S
    q, k = torch.zeros(B, 1, T, 4, dtype=dtype), torch.randn(B, 1, S, 4).to(dtype)
    if v is not None:
        v = torch.as_tensor(v, dtype=dtype).view(1, 1, S, 1).expand(B, 1, S, 1)
    return attention(q, k, v, rule, **options)


def scores_of(*scores, v=None, **options):
    """One query over keys with exactly these scores."""
    k = torch.tensor(scores, dtype=torch.float32).view(-1, 1)
    v = None if v is None else torch.tensor(v, dtype=torch.float32).view(-1, 1)
    return attention(torch.ones(1, 1), k, v, Rule(scale=1.0, **options), top=True)


def check(got, wanted, atol=1e-6):
    wanted = torch.as_tensor(wanted, dtype=got.dtype)
    torch.testing.assert_close(got.reshape(wanted.shape), wanted, atol=atol, rtol=0)


# Masks --------------------------------------------------------------------------------------------


BLOCKED = torch.tensor([[False] * 3, [True] * 3, [False] * 3])
SPELLINGS = {
    "bool": {"mask": ~BLOCKED},
    "-inf": {"bias": torch.zeros(3, 3).masked_fill(BLOCKED, -math.inf)},
    "finfo.min": {"bias": torch.zeros(3, 3).masked_fill(BLOCKED, torch.finfo(torch.float32).min)},
    "finfo.min of float16": {
        "bias": torch.zeros(3, 3).half().masked_fill(BLOCKED, torch.finfo(torch.float16).min)
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_fully_masked_row(spelling):
    rule = Rule(**SPELLINGS[spelling])
    a = equal_scores(3, v=[1, 2, 6], rule=rule, received=True, top=True)
    check(a.out, [3, 0, 3])
    check(a.entropy, [LN[3], 0, LN[3]])
    check(a.visible, [3, 0, 3])
    assert a.lse[0, 0, 1] == -math.inf
    assert a.max_score[0, 0, 1] == -math.inf
    check(a.max_prob, [1 / 3, 0, 1 / 3])
    check(a.mean_key, [1, 0, 1])
    check(a.effective_keys, [3, 0, 3])
    check(a.received, [2 / 3] * 3)
    assert a.top_key.flatten().tolist() == [0, -1, 0]


def test_fully_masked_row_with_a_sink():
    a = equal_scores(3, v=[1, 2, 6], rule=Rule(mask=~BLOCKED, sinks=torch.zeros(1)))
    check(a.out, [9 / 4, 0, 9 / 4])
    check(a.entropy, [LN[4], 0, LN[4]])
    check(a.sink_mass, [1 / 4, 1, 1 / 4])
    check(a.lse, [LN[4], 0, LN[4]])


@pytest.mark.parametrize("value", [-1e4, -1e9])
def test_large_negative_biases_are_ordinary_numbers(value):
    a = equal_scores(2, rule=Rule(bias=torch.tensor([[value, value], [0.0, value]])))
    check(a.visible, [2, 2])
    check(a.entropy, [LN[2], 0])


@pytest.mark.parametrize("T", [1000, 129, 257])
@pytest.mark.parametrize("size", [1, 16, 128, 1000])
def test_a_whole_key_tile_masked_and_the_row_not(T, size, monkeypatch):
    monkeypatch.setattr(tiles, "KEYS", size)
    monkeypatch.setattr(tiles, "ELEMENTS", 64 * size)
    near = torch.arange(T).view(T, 1) - torch.arange(T)
    # Spelled as a mask, so that no tile can be left out beforehand.
    a = equal_scores(T, v=torch.arange(T), rule=Rule(mask=(near >= 0) & (near < 4)))
    check(a.entropy[..., 3:], torch.full((T - 3,), LN[4]))
    torch.testing.assert_close(a.out[0, 0, 3:, 0], torch.arange(3, T) - 1.5, atol=0, rtol=1e-6)


def test_a_valid_score_below_somebodys_minus_infinity():
    q = torch.tensor([[-4.0]])
    k = torch.tensor([[30000.0], [30000.25], [0.0]])
    rule = Rule(scale=1.0, mask=torch.tensor([[True, True, False]]))
    a = attention(q, k, torch.tensor([[7.0], [8.0], [-9.0]]), rule)
    check(a.out, [7.268941])
    check(a.entropy, [0.582203])


def test_polarity():
    a = equal_scores(3, rule=Rule(mask=torch.ones(3, 3, dtype=torch.bool).tril()))
    check(a.entropy, [0, LN[2], LN[3]])


def test_a_mask_of_ones_and_zeros_is_not_added():
    with pytest.raises(ValueError, match="hides nothing"):
        Rule.from_sdpa(torch.tensor([[1.0, 0.0]]))
    for number in (torch.int64, torch.uint8):
        with pytest.raises(ValueError, match="mask must be boolean"):
            Rule(mask=torch.tensor([[1, 0]], dtype=number))


def test_mask_laid_on_keys():
    real = torch.tensor([True, True, False, False])
    a = equal_scores(4, rule=Rule(mask=real.view(1, 1, 1, 4)))
    check(a.entropy[0, 0, :2], [LN[2]] * 2)
    b = equal_scores(4, rule=Rule(key_mask=real.view(1, 4), query_mask=real.view(1, 4)))
    check(b.entropy[0, 0, :2], [LN[2]] * 2)


@pytest.mark.parametrize("real", [[1, 1, 0, 0], [0, 0, 1, 1]], ids=["right", "left"])
def test_left_and_right_padding_give_the_same_means(real):
    real = torch.tensor([real], dtype=torch.bool)
    a = equal_scores(4, rule=Rule(causal=True, key_mask=real, query_mask=real), received=True)
    assert a.entropy[0, 0][real[0]].mean().item() == pytest.approx(0.346574, abs=1e-6)
    assert a.received[0, 0][real[0]].tolist() == pytest.approx([1.5, 0.5])
    assert a.received[0, 0][~real[0]].tolist() == [0, 0]


def test_gradients_beside_a_masked_row():
    def gradients(rows, **rule):
        q = torch.zeros(1, 1, rows, 2, requires_grad=True)
        k = torch.arange(6.0).view(1, 1, 3, 2).requires_grad_()
        v = torch.tensor([1.0, 2.0, 6.0]).view(1, 1, 3, 1).requires_grad_()
        a = attention(q, k, v, Rule(**rule))
        seen = [0, 2] if rows == 3 else [0, 1]
        (a.out[0, 0, seen].square().sum() + a.entropy[0, 0, seen].sum()).backward()
        return q.grad[0, 0, seen], k.grad, v.grad

    for got, wanted in zip(gradients(3, mask=~BLOCKED), gradients(2), strict=True):
        assert got.isfinite().all()
        torch.testing.assert_close(got, wanted)


def test_more_keys_than_queries_and_more_queries_than_keys():
    check(equal_scores(2, 5, rule=Rule(causal=True)).entropy, [LN[4], LN[5]])
    check(equal_scores(1, 5, rule=Rule(causal=True)).entropy, [LN[5]])
    a = equal_scores(5, 2, rule=Rule(causal=True))
    check(a.visible, [0, 0, 0, 1, 2])
    check(a.entropy, [0, 0, 0, 0, LN[2]])
    check(equal_scores(2, 5, rule=Rule(causal=True, offset=0)).entropy, [0, LN[2]])


def test_prefill_in_chunks_with_a_cache():
    whole = equal_scores(6, rule=Rule(causal=True)).entropy.flatten()
    first = equal_scores(3, 3, rule=Rule(causal=True)).entropy.flatten()
    second = equal_scores(3, 6, rule=Rule(causal=True)).entropy.flatten()
    check(whole, [LN[n] for n in range(1, 7)])
    check(torch.cat([first, second]), [LN[n] for n in range(1, 7)])


def test_caches_filled_to_different_lengths():
    offset = torch.tensor([2, 0])
    a = equal_scores(2, 5, B=2, rule=Rule(causal=True, offset=offset))
    check(a.entropy, [[LN[3], LN[4]], [0, LN[2]]])


def test_window_off_by_one():
    a = equal_scores(6, rule=Rule(causal=True, window=3))
    check(a.entropy, [0, LN[2], LN[3], LN[3], LN[3], LN[3]])
    pair = equal_scores(6, rule=Rule(window=(1, 2)))
    check(pair.visible, [3, 4, 4, 4, 3, 2])


@pytest.mark.parametrize(("S", "visible"), [(3, 3), (4, 4), (5, 4)])
def test_window_edge_in_a_cache(S, visible):
    a = equal_scores(1, S, v=torch.arange(S), rule=Rule(causal=True, window=4))
    check(a.entropy, [LN[visible]])
    check(a.mean_key, [S - 1 - (visible - 1) / 2])  # the last keys, 1..4 of 0..4
    row = AttentionMap(torch.zeros(1, 1), torch.zeros(S, 1), a.rule)[0]
    assert row.nonzero()[:, 0].tolist() == list(range(S - visible, S))
    check(row[S - visible :], [1 / visible] * visible)


def test_packed_documents():
    segments = torch.tensor([[7, 7, 3, 3, 3]])
    a = equal_scores(5, rule=Rule(causal=True, segments=segments))
    check(a.visible, [1, 2, 1, 2, 3])


# Numbers ------------------------------------------------------------------------------------------


def test_zero_log_zero():
    hidden = torch.tensor([[0.0, -math.inf]])
    check(scores_of(0, 0, bias=hidden).entropy, [0])
    check(scores_of(0, 0, 0, bias=torch.tensor([[0.0, 0.0, -math.inf]])).entropy, [LN[2]])
    for a in (scores_of(0, -200), scores_of(0, 0, bias=hidden)):
        assert a.entropy.item() == 0.0
        assert math.copysign(1, a.entropy.item()) == 1.0
    half = torch.tensor([[65504.0], [-65504.0]], dtype=torch.float16)
    a = attention(torch.ones(1, 1, dtype=torch.float16), half, half, Rule(scale=1.0))
    check(a.entropy, [0])
    k = torch.tensor([[0.0], [-200.0]], requires_grad=True)
    attention(torch.ones(1, 1), k, k, Rule(scale=1.0)).entropy.sum().backward()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize(
    ("scores", "entropy"),
    [
        ([1e8, 1e8], 0.693147),
        ([1048576, 1048575], 0.582203),
        ([1e6] * 1000, 6.907755),
        ([2, 0], 0.365334),
        ([4, 0], 0.090095),
        ([0, -0.5], 0.662847),
    ],
)
def test_cancellation(scores, entropy):
    check(scores_of(*scores).entropy, [entropy], atol=2e-6)


def test_cancellation_across_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "KEYS", 1)
    monkeypatch.setattr(tiles, "ELEMENTS", 1)
    check(scores_of(1048575, 1048576).entropy, [0.582203], atol=2e-6)
    check(scores_of(*[1e6] * 100).entropy, [math.log(100)], atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_over_a_thousand_keys(dtype):
    entropy = equal_scores(1, 1000, dtype=dtype).entropy.item()
    assert entropy == pytest.approx(6.907755, abs=1e-5)
    assert entropy <= torch.tensor(1000.0).log().item()


def test_base_of_lse():
    check(equal_scores(1, 8).lse, [2.079442])


def test_fp16_overflow_before_the_softmax():
    q = torch.full((1, 128), 256.0, dtype=torch.float16)
    v = torch.tensor([[1.0], [3.0]], dtype=torch.float16)
    a = attention(q, q.expand(2, 128), v)
    check(a.out, [2.0])
    check(a.entropy, [LN[2]])


def test_softcap():
    check(scores_of(100, 0, softcap=1.0).entropy, [0.582203])
    a = scores_of(10000, 0, softcap=50.0)
    assert a.max_score.item() == pytest.approx(50.0)
    check(scores_of(50, softcap=50.0).max_score, [38.079708], atol=1e-5)
    # After the scale: 100 / 2 = 50; before bias and mask: the bias is not capped.
    q, k = torch.ones(1, 1), torch.tensor([[100.0], [0.0]])
    a = attention(q, k, None, Rule(scale=0.5, softcap=50.0, bias=torch.tensor([[1000.0, 0.0]])))
    check(a.max_score, [1038.079708], atol=1e-4)


def test_bias_is_not_multiplied_by_the_scale():
    rule = Rule(scale=0.25, bias=torch.tensor([[0.0, -2.0]]))
    a = equal_scores(1, 2, v=[1, 0], rule=rule)
    check(a.out, [0.880797])
    check(a.entropy, [0.365334])


def test_explicit_head_size():
    """Width 640 in 4 heads of 256: the scale is 1/16, whatever the width says."""
    q = torch.zeros(1, 4, 1, 256)
    q[..., 0] = 16.0
    k = torch.zeros(1, 4, 2, 256)
    k[:, :, 0, 0] = 2.0
    check(attention(q, k).entropy, [[0.365334]] * 4)


def test_learned_sink_is_a_sigmoid():
    q, k, v = (torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(s)) for s in range(3))
    sinks = torch.tensor([0.5, -1.0])
    plain, sunk = attention(q, k, v), attention(q, k, v, Rule(sinks=sinks))
    share = torch.sigmoid(plain.lse - sinks[:, None])
    torch.testing.assert_close(sunk.out, plain.out * share[..., None])
    torch.testing.assert_close(sunk.sink_mass, 1 - share, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_past_two_to_the_31_scores():
    a = equal_scores(46_400, rule=Rule(causal=True))
    assert a.entropy[0, 0, -1].item() == pytest.approx(10.745054, abs=1e-5)
