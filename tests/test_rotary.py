"""Rotary embedding: laws that hold for it alone, wrong copies that break them, and the models'."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from clearhead import rotary
from clearhead.rotary import PAIRINGS, apply_rotary, rotary_cos_sin, rotary_frequencies

LAWS = []
F64 = torch.float64


@dataclass(frozen=True)
class Rotary:
    """What is judged: the three functions, or wrong ones in their place."""

    frequencies: Callable = rotary_frequencies
    cos_sin: Callable = rotary_cos_sin
    apply: Callable = apply_rotary

    def turn(self, x: Tensor, positions: Tensor, pairing: str, d_rotary: int | None = None):
        d_rotary = x.shape[-1] if d_rotary is None else d_rotary
        return self.apply(x, *self.cos_sin(positions, d_rotary, dtype=F64), pairing)


def law(function):
    LAWS.append(function)
    return function


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=0, check_dtype=False)


def pairs(x: Tensor, pairing: str) -> Tensor:
    """The pairs as complex numbers, (..., D/2)."""
    a, b = x.chunk(2, dim=-1) if pairing == "halves" else (x[..., 0::2], x[..., 1::2])
    return torch.complex(a, b)


# Laws -------------------------------------------------------------------------------------------


@law
def frequencies_are_powers_of_the_base(m: Rotary) -> None:
    close(m.frequencies(8, 10000.0, dtype=F64), torch.tensor([1, 0.1, 0.01, 0.001], dtype=F64))
    close(m.frequencies(2, 5.0), torch.ones(1))
    close(m.frequencies(4, 500000.0, dtype=F64)[1], torch.tensor(500000.0, dtype=F64) ** -0.5)


@law
def it_is_the_product_with_a_complex_number(m: Rotary) -> None:
    x, positions = randn(2, 3, 7, 10), torch.arange(7) + 5
    for pairing in PAIRINGS:
        n = torch.arange(5, dtype=F64)
        angle = positions[:, None] * 10000.0 ** (-2 * n / 10)
        wanted = pairs(x, pairing) * torch.polar(torch.ones_like(angle), angle)
        close(pairs(m.turn(x, positions, pairing), pairing), wanted)


@law
def length_is_kept(m: Rotary) -> None:
    x = randn(2, 3, 7, 10)
    for pairing in PAIRINGS:
        turned = m.turn(x, torch.arange(7) * 1000, pairing)
        close(pairs(turned, pairing).abs(), pairs(x, pairing).abs())


@law
def a_product_depends_on_the_distance_alone(m: Rotary) -> None:
    q, k = randn(11, 6), randn(11, 6, seed=1)
    positions = torch.arange(11)
    for pairing in PAIRINGS:
        here = m.turn(q, positions, pairing) @ m.turn(k, positions, pairing).T
        there = m.turn(q, positions + 37, pairing) @ m.turn(k, positions + 37, pairing).T
        close(here, there)
        same = (
            m.turn(q[:1].expand(11, 6), positions, pairing)
            @ m.turn(k[:1].expand(11, 6), positions, pairing).T
        )  # the same two vectors everywhere: constant along every diagonal
        close(same[1:, 1:], same[:-1, :-1])
        assert (same[0, 1:] - same[1:, 0]).abs().max() > 0.1, "left and right are not the same"


@law
def position_zero_stays(m: Rotary) -> None:
    x = randn(2, 3, 4, 6)
    for pairing in PAIRINGS:
        assert torch.equal(m.turn(x, torch.zeros(4, dtype=torch.int64), pairing), x)
        assert torch.equal(m.turn(x, torch.arange(4), pairing)[:, :, 0], x[:, :, 0])


@law
def the_pairings_are_a_permutation_of_each_other(m: Rotary) -> None:
    x, positions = randn(2, 3, 5, 8), torch.arange(5)
    order = torch.arange(8).view(4, 2).T.flatten()  # 0 2 4 6 1 3 5 7
    turned = m.turn(x, positions, "interleaved")
    close(m.turn(x[..., order], positions, "halves"), turned[..., order])
    assert (m.turn(x, positions, "halves") - turned).abs().max() > 0.1


@law
def the_rest_is_untouched(m: Rotary) -> None:
    for dtype in (F64, torch.float32, torch.bfloat16, torch.float16):
        x, positions = randn(2, 3, 5, 10).to(dtype), torch.arange(5)
        for pairing in PAIRINGS:
            turned = m.turn(x, positions, pairing, d_rotary=4)
            assert turned.dtype == dtype
            assert torch.equal(turned[..., 4:], x[..., 4:])
            assert torch.equal(turned[..., :4], m.turn(x[..., :4], positions, pairing))


@law
def each_sequence_has_its_own_positions(m: Rotary) -> None:
    x = randn(3, 2, 5, 6)
    positions = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [0, 0, 0, 1, 2]])
    for pairing in PAIRINGS:
        turned = m.turn(x, positions, pairing)
        for b in range(3):
            close(turned[b], m.turn(x[b], positions[b], pairing))
            close(turned[b, 1], m.turn(x[b, 1], positions[b], pairing))


@pytest.mark.parametrize("rule", LAWS, ids=lambda rule: rule.__name__)
def test_law(rule):
    rule(Rotary())


# Wrong copies -----------------------------------------------------------------------------------


def other(pairing: str) -> str:
    return PAIRINGS[1 - PAIRINGS.index(pairing)]


def at_the_end(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    R = 2 * cos.shape[-1]
    return torch.cat((x[..., :-R], apply_rotary(x[..., -R:], cos, sin, pairing)), dim=-1)


def slow_frequencies(d_rotary: int, base: float = 10000.0, **options) -> Tensor:
    return rotary_frequencies(2 * d_rotary, base, **options)[: d_rotary // 2]


ours = Rotary()
MUTANTS = {
    "the sign of the sine": replace(
        ours, apply=lambda x, cos, sin, pairing: apply_rotary(x, cos, -sin, pairing)
    ),
    "the other pairing": replace(
        ours, apply=lambda x, cos, sin, pairing: apply_rotary(x, cos, sin, other(pairing))
    ),
    "always halves": replace(
        ours, apply=lambda x, cos, sin, pairing: apply_rotary(x, cos, sin, "halves")
    ),
    "positions from 1": replace(ours, cos_sin=lambda p, *a, **k: rotary_cos_sin(p + 1, *a, **k)),
    "sine and cosine exchanged": replace(
        ours, apply=lambda x, cos, sin, pairing: apply_rotary(x, sin, cos, pairing)
    ),
    "one frequency for all": replace(
        ours, cos_sin=lambda p, d, **k: tuple(t[..., :1].expand(*p.shape, d // 2) for t in
                                              rotary_cos_sin(p, d, **k))
    ),
    "frequencies at half speed": replace(ours, frequencies=slow_frequencies),
    "a mirror, not a turn": replace(
        ours,
        apply=lambda x, cos, sin, pairing: apply_rotary(
            x * (torch.arange(x.shape[-1]) < cos.shape[-1]).to(x).mul(2).sub(1), cos, sin, pairing
        ),
    ),
    "no sine": replace(
        ours, apply=lambda x, cos, sin, pairing: apply_rotary(x, cos, 0 * sin, pairing)
    ),
    "the last numbers, not the first": replace(ours, apply=at_the_end),
    "the first sequence's positions for all": replace(
        ours, cos_sin=lambda p, *a, **k: rotary_cos_sin(p[:1].expand_as(p) if p.ndim == 2 else p,
                                                        *a, **k)
    ),
    "through half precision": replace(
        ours,
        apply=lambda x, cos, sin, pairing: apply_rotary(x.half(), cos, sin, pairing).to(x.dtype),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_copy_breaks_a_law(name):
    broken = []
    for rule in LAWS:
        try:
            rule(MUTANTS[name])
        except AssertionError:
            broken.append(rule.__name__)
    assert broken


# Precision, gradients, views ----------------------------------------------------------------------


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(pairing, dtype):
    x = randn(2, 3, 50, 16).to(dtype)
    cos, sin = rotary_cos_sin(torch.arange(50), 16, dtype=F64)
    exact = apply_rotary(x.double(), cos, sin, pairing)
    got = apply_rotary(x, *rotary_cos_sin(torch.arange(50), 16), pairing)
    assert got.dtype == dtype
    ulp = torch.finfo(dtype).eps * exact.abs().clamp(min=1)
    slack = 60 * torch.finfo(torch.float32).eps  # angles of up to 50 radians in float32
    assert ((got.double() - exact).abs() <= ulp / 2 + slack * 4).all()


def test_angles_far_out_are_exact_in_float64():
    positions = torch.tensor([131071])
    exact, _ = rotary_cos_sin(positions, 64, dtype=F64)
    single, _ = rotary_cos_sin(positions, 64)
    assert single.dtype == torch.float32
    assert exact.dtype == F64
    n = torch.arange(32, dtype=F64)
    close(exact[0], torch.cos(131071 * 10000.0 ** (-n / 32)), atol=1e-9)
    assert 1e-6 < (single - exact).abs().max() < 131071 * 2e-7


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_gradients(pairing):
    x = randn(2, 2, 3, 6).requires_grad_()
    cos, sin = rotary_cos_sin(torch.arange(3), 4, dtype=F64)
    assert torch.autograd.gradcheck(lambda x: apply_rotary(x, cos, sin, pairing), x)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_views_are_fine_and_stay_as_they_are(pairing):
    x = randn(2, 5, 3, 8).transpose(1, 2)
    before, tables = x.clone(), rotary_cos_sin(torch.arange(5), 6, dtype=F64)
    turned = apply_rotary(x, *tables, pairing)
    assert torch.equal(turned, apply_rotary(x.contiguous(), *tables, pairing))
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (0, 4)])
def test_empty_axes(shape):
    tables = rotary_cos_sin(torch.arange(shape[-2]), 4)
    assert apply_rotary(torch.zeros(shape), *tables).shape == shape


def test_positions_may_be_fractions():
    cos, _ = rotary_cos_sin(torch.tensor([0.5, 1.0]), 2, dtype=F64)
    close(cos[:, 0], torch.tensor([0.5, 1.0], dtype=F64).cos())


# Against the models' own --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models():
    """transformers' llama and gptj, offline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        from transformers.models.gptj import modeling_gptj
        from transformers.models.llama import configuration_llama, modeling_llama
    return modeling_llama, configuration_llama, modeling_gptj


@pytest.mark.parametrize("base", [10000.0, 500000.0])
def test_llama_to_the_bit(models, base):
    llama, configuration, _ = models
    config = configuration.LlamaConfig(
        hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )  # fmt: skip
    q, k = randn(2, 4, 300, 16, dtype=torch.float32), randn(2, 2, 300, 16, dtype=torch.float32)
    positions = torch.stack((torch.arange(300), torch.arange(300) + 4000))
    table = llama.LlamaRotaryEmbedding(config)(q, positions)
    theirs = llama.apply_rotary_pos_emb(q, k, *table)
    cos, sin = rotary_cos_sin(positions, 16, base)
    assert torch.equal(cos, table[0][..., :8])
    assert torch.equal(sin, table[1][..., :8])
    assert torch.equal(apply_rotary(q, cos, sin), theirs[0])
    assert torch.equal(apply_rotary(k, cos, sin), theirs[1])
    with pytest.raises(AssertionError):
        close(apply_rotary(q, cos, sin, "interleaved"), theirs[0], atol=0.1)


def test_gptj_to_the_bit(models):
    _, _, gptj = models
    x = randn(2, 5, 3, 12, dtype=torch.float32)  # (B, T, H, D) there
    cos, sin = rotary_cos_sin(torch.arange(5).expand(2, 5), 12)
    theirs = gptj.apply_rotary_pos_emb(x, sin, cos).transpose(1, 2)
    assert torch.equal(apply_rotary(x.transpose(1, 2), cos, sin, "interleaved"), theirs)


# Errors -------------------------------------------------------------------------------------------


def table(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.ones(shape), torch.zeros(shape)


x = torch.zeros(2, 3, 5, 8)
SHAPES = "(x [2, 3, 5, 8], cos [5, 4], sin [5, 4])"
MISTAKES = {
    "an odd size": (
        lambda: rotary_frequencies(7),
        "d_rotary must be even and at least 2: numbers turn in pairs; got 7",
    ),
    "no size": (lambda: rotary_frequencies(0), "at least 2: numbers turn in pairs; got 0"),
    "no base": (lambda: rotary_frequencies(4, 0.0), "base must be above 0; got 0.0"),
    "a coarse dtype": (
        lambda: rotary_cos_sin(torch.arange(3), 4, dtype=torch.bfloat16),
        "dtype must be torch.float32 or torch.float64: angles need the digits; got torch.bfloat16",
    ),
    "three axes of positions": (
        lambda: rotary_cos_sin(torch.zeros(1, 1, 3), 4),
        "positions must be numbers, (T,) or (B, T); got torch.float32 (1, 1, 3)",
    ),
    "a mask as positions": (
        lambda: rotary_cos_sin(torch.ones(3, dtype=torch.bool), 4),
        "positions must be numbers, (T,) or (B, T); got torch.bool (3,)",
    ),
    "pairing": (
        lambda: apply_rotary(x, *table(5, 4), "neox"),
        "pairing must be one of halves, interleaved; got 'neox'",
    ),
    "one axis": (lambda: apply_rotary(x[0, 0, 0], *table(5, 4)), "(T, D), (H, T, D) or (B, H, T, "),
    "integers": (
        lambda: apply_rotary(x.long(), *table(5, 4)),
        f"must hold floats; got torch.int64, torch.float32, torch.float32 {SHAPES}",
    ),
    "a table of all positions": (
        lambda: apply_rotary(x, *table(50, 4)),
        "must both be (T, R/2) or (B, T, R/2) with T = 5, a row for each position of x; index a "
        "table of all positions first: cos[positions] (x [2, 3, 5, 8], cos [50, 4], sin [50, 4])",
    ),
    "another batch": (lambda: apply_rotary(x, *table(3, 5, 4)), "(B, T, R/2) with T = 5"),
    "a batch of tables for no batch": (
        lambda: apply_rotary(x[0], *table(3, 5, 4)),
        "must both be (T, R/2) with T = 5",
    ),
    "sin of another size": (
        lambda: apply_rotary(x, torch.ones(5, 4), torch.ones(5, 3)),
        "(x [2, 3, 5, 8], cos [5, 4], sin [5, 3])",
    ),
    "each angle twice, too wide": (
        lambda: apply_rotary(x, *table(5, 8)),
        "cos of width R/2 = 8 turns R = 16 numbers, but x has D = 8 (x [2, 3, 5, 8], cos [5, 8], "
        "sin [5, 8]). A table that has each angle twice is halved first: cos[..., :R // 2] for "
        "halves, cos[..., ::2] for interleaved",
    ),
    "each angle twice, and we know": (
        lambda: apply_rotary(x, *table(5, 4), d_rotary=4),
        "cos is 4 wide, each angle written out twice: pass R/2 = 2 columns, cos[..., :R // 2] of "
        f"a table for halves, cos[..., ::2] of one for interleaved {SHAPES}",
    ),
    "another width": (
        lambda: apply_rotary(x, *table(5, 4), d_rotary=6),
        f"d_rotary = 6 needs cos and sin 3 wide, half of it {SHAPES}",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_said(name):
    act, words = MISTAKES[name]
    with pytest.raises(ValueError) as refusal:
        act()
    assert words in str(refusal.value)


def test_d_rotary_that_fits_changes_nothing():
    x, tables = randn(2, 3, 5, 8), rotary_cos_sin(torch.arange(5), 4, dtype=F64)
    assert torch.equal(apply_rotary(x, *tables, d_rotary=4), apply_rotary(x, *tables))
    assert rotary.PAIRINGS == ("halves", "interleaved")
