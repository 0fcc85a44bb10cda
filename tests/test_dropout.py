"""Dropout, and the output without figures: what a model in training asks of the engine."""

import pytest
import torch
from torch import Tensor

import clearhead as ch
from clearhead.engine import output, tiles


def inputs(T: int = 37, H: int = 4, G: int = 2, D: int = 8, dtype=torch.float32) -> list[Tensor]:
    stream = torch.Generator().manual_seed(3)
    return [
        torch.randn(2, n, T, D, generator=stream, dtype=dtype, requires_grad=True)
        for n in (H, G, G)
    ]


RULES = {
    "causal": ch.Rule(causal=True),
    "window": ch.Rule(causal=True, window=5),
    "capped": ch.Rule(softcap=2.0),
    "sinks": ch.Rule(causal=True, sinks=torch.tensor([0.0, 1.0, -1.0, 3.0])),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_output_is_that_of_attention_to_the_bit_with_its_gradients(rule):
    q, k, v = inputs()
    figures = ch.attention(q, k, v, rule)
    alone = output(q, k, v, rule)
    assert torch.equal(alone, figures.out)
    tiled = output(q, k, v, rule, impl="tiled")
    assert torch.equal(tiled, ch.attention(q, k, v, rule, impl="tiled").out)
    g = torch.randn_like(alone)
    for one, other in zip(
        torch.autograd.grad(alone, (q, k, v), g),
        torch.autograd.grad(figures.out, (q, k, v), g),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_output_keeps_the_leading_axes_and_keeps_out_a_hidden_nan():
    q, k, v = (x.detach()[0, 0] for x in inputs())
    assert output(q, k, v).shape == q.shape
    with pytest.raises(ValueError, match="auto, tiled, native; got 'fast'"):
        output(q, k, v, impl="fast")
    k[-1] = torch.nan
    out = output(q, k, v, ch.Rule(causal=True))
    assert out[:-1].isfinite().all()
    assert out[-1].isnan().all()


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr(tiles, "KEYS", 8)
    monkeypatch.setattr(tiles, "ELEMENTS", 8 * 64)


@pytest.mark.usefixtures("small_tiles")
def test_a_weight_is_dropped_or_grows_and_no_figure_notices():
    q, k, _ = (x.detach() for x in inputs(T=64, G=4))
    eye = torch.eye(64).expand(2, 4, 64, 64)  # the output is then the weights themselves
    rule = ch.Rule(causal=True)
    whole = ch.attention(q, k, eye, rule, impl="tiled")  # native knows no dropout
    torch.manual_seed(0)
    dropped = ch.attention(q, k, eye, rule, dropout=0.25)
    kept = dropped.out != 0
    torch.testing.assert_close(dropped.out[kept], whole.out[kept] / 0.75)
    seen = whole.out > 0
    share = (kept & seen).sum() / seen.sum()
    assert abs(share - 0.75) < 4 * (0.25 * 0.75 / seen.sum()) ** 0.5  # four standard deviations
    for name in ("lse", "entropy", "max_score", "mean_key", "visible", "sink_mass"):
        assert torch.equal(getattr(dropped, name), getattr(whole, name))


@pytest.mark.usefixtures("small_tiles")
def test_tiles_heads_and_calls_drop_apart_and_a_seed_drops_alike():
    zeros = torch.zeros(1, 4, 64, 8)
    eye = torch.eye(64).expand(1, 4, 64, 64)

    def kept() -> Tensor:
        return output(zeros, zeros, eye, dropout=0.5)[0] != 0

    torch.manual_seed(1)
    first, second = kept(), kept()
    torch.manual_seed(1)
    assert torch.equal(first, kept())
    patterns = [first, second]
    pieces = [
        x[h, i : i + 8, j : j + 8]
        for x in patterns
        for h in range(4)
        for i in range(0, 64, 8)
        for j in range(0, 64, 8)
    ]
    assert len({tuple(piece.flatten().tolist()) for piece in pieces}) == len(pieces)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("rule", [
    pytest.param(rule, id=name, marks=[] if name == "causal" else [pytest.mark.slow])
    for name, rule in RULES.items()
])  # fmt: skip
def test_gradients_through_dropout(rule):
    q, k, v = inputs(T=11, H=4, G=2, D=3, dtype=torch.float64)

    def dropped(*x: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        a = ch.attention(*x, rule, dropout=0.4)
        return a.out, a.entropy

    assert torch.autograd.gradcheck(dropped, (q, k, v))


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_a_probability_that_is_none_is_refused(p):
    q, k, v = inputs()
    with pytest.raises(ValueError, match="dropout must be at least 0 and below 1"):
        ch.attention(q, k, v, dropout=p)


def test_no_dropout_leaves_the_global_stream_alone():
    q, k, v = inputs()
    before = torch.get_rng_state()
    output(q, k, v)
    assert torch.equal(torch.get_rng_state(), before)
