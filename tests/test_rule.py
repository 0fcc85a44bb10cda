"""What a Rule accepts, refuses and says, and which tiles it lets the loop skip."""

import math

import dense
import pytest
import torch

from clearhead import Rule, attention
from clearhead.bound import BoundRule


def bound(rule, B=2, H=4, T=5, S=7):
    return BoundRule(rule, torch.zeros(B, H, T, 3), torch.zeros(B, H, S, 3))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"softcap": 0.0}, ["softcap must be above 0"]),
        ({"softcap": math.nan}, ["softcap must be a finite number", "nan"]),
        ({"scale": math.inf}, ["scale must be a finite number"]),
        ({"window": 3}, ["needs causal=True", "(2, 2)"]),
        ({"window": 0, "causal": True}, ["1 or more", "got 0"]),
        ({"window": (1, -1)}, ["(1, -1)"]),
        ({"window": (1, 2, 3)}, ["(1, 2, 3)"]),
        ({"mask": torch.ones(5, 7)}, ["mask must be boolean", "bias", "float32"]),
        ({"mask": torch.ones(5, 7, dtype=torch.int64)}, ["mask must be boolean", "mask.bool()"]),
        ({"key_mask": torch.ones(2, 7, dtype=torch.int64)}, ["key_mask must be boolean"]),
        ({"bias": torch.ones(5, 7, dtype=torch.int64)}, ["bias must hold floats", "mask"]),
        ({"segments": torch.ones(2, 7)}, ["segments must hold integers"]),
        ({"offset": torch.zeros(2, 2, dtype=torch.int64)}, ["(B,) integer tensor"]),
        ({"sinks": torch.ones(4, dtype=torch.bool)}, ["sinks must hold floats"]),
    ],
)
def test_no_rule_at_all(fields, words):
    with pytest.raises(ValueError) as refusal:
        Rule(**fields)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    "fields", [{"window": 1.5}, {"offset": 1.0}, {"mask": [[True]]}, {"offset": True}]
)
def test_no_type_for_a_rule(fields):
    with pytest.raises(TypeError, match=next(iter(fields))):
        Rule(**fields)


def test_every_wrong_shape_is_named_with_the_shapes_it_should_fit():
    rule = Rule(
        alibi=torch.ones(3), key_mask=torch.ones(2, 5, dtype=torch.bool), bias=torch.ones(6, 7)
    )
    with pytest.raises(ValueError) as refusal:
        bound(rule)
    for word in (
        "alibi must be (H,) = (4,), got (3,)",
        "key_mask must be (B, S) = (2, 7), got (2, 5)",
        "bias must broadcast to (B, H, T, S) = (2, 4, 5, 7), got (6, 7)",
        "q (2, 4, 5, 3), k (2, 4, 7, 3)",
    ):
        assert word in str(refusal.value)


@pytest.mark.parametrize("far", [1 << 70, -(1 << 61), torch.tensor([0, (1 << 63) - 1])])
def test_an_offset_beyond_all_positions_is_refused(far):
    q = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match=r"offset must be within 2\^60 of 0, a key position; got"):
        attention(q, q, q, Rule(causal=True, offset=far))


def test_repr_is_one_readable_line():
    rule = Rule(causal=True, window=4, bias=torch.zeros(5, 7), offset=0)
    assert repr(rule) == "Rule(causal=True, offset=0, window=4, bias=float32(5, 7))"
    assert repr(Rule()) == "Rule()"


def test_rules_are_frozen_and_replaceable():
    import dataclasses

    rule = Rule(causal=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.causal = False
    assert dataclasses.replace(rule, window=2).window == 2


@pytest.mark.parametrize(("T", "S"), [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_from_sdpa_means_what_sdpa_means(T, S, is_causal):
    q, k, v = torch.randn(1, 2, T, 4), torch.randn(1, 2, S, 4), torch.randn(1, 2, S, 4)
    masks = [None] if is_causal else [None, torch.rand(T, S) > 0.3, torch.randn(T, S)]
    for mask in masks:
        if mask is not None and mask.dtype == torch.bool:
            mask[:, 0] = True
        theirs = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=is_causal, scale=0.3
        )
        ours = attention(q, k, v, Rule.from_sdpa(mask, is_causal, scale=0.3))
        torch.testing.assert_close(ours.out, theirs)


def test_from_sdpa_refuses_ones_and_zeros_as_numbers_to_add():
    with pytest.raises(ValueError, match=r"only 0.0 and 1.0.*hides nothing.*bool"):
        Rule.from_sdpa(torch.tensor([[1.0, 0.0]]))
    with pytest.raises(ValueError, match="attn_mask must be boolean, or floats"):
        Rule.from_sdpa(torch.tensor([[1, 0]]))
    Rule.from_sdpa(torch.zeros(2, 2))  # hides nothing, and says so
    Rule.from_sdpa(torch.ones(2, 2))
    Rule(bias=torch.tensor([[1.0, 0.0]]))  # an explicit bias is never guessed at


RULES = [
    {"causal": True},
    {"causal": True, "window": 3},
    {"window": (2, 1)},
    {"causal": True, "offset": 0},
    {"causal": True, "offset": torch.tensor([0, 4])},
    {"causal": True, "window": 2, "offset": torch.tensor([-3, 30])},
    {"key_mask": torch.arange(23).expand(2, 23) >= torch.tensor([[3], [9]])},
    {"segments": torch.arange(23).expand(2, 23) // 5, "causal": True},
    {"segments": torch.arange(23).expand(2, 23) // 5},
]


@pytest.mark.parametrize("fields", RULES, ids=lambda fields: "+".join(fields))
def test_blocks_that_nobody_sees_are_skipped_and_no_others(fields):
    """Exactly: the span of keys is no wider than what some query of the block sees."""
    rule = Rule(**fields)
    mine, sees = bound(rule, T=19, S=23), dense.visible(rule, 2, 4, 19, 23)
    for i0, i1 in ((0, 1), (0, 6), (5, 9), (12, 19), (18, 19)):
        for b in range(2):
            columns = sees[b, :, i0:i1].flatten(0, 1).any(dim=0).nonzero()
            if len(columns) and rule.key_mask is None:
                span = (int(columns[0]), int(columns[-1]) + 1)
                assert mine.keys(i0, i1, slice(b, b + 1)) == span
        everywhere = sees[:, :, i0:i1].flatten(0, 2).any(dim=0).nonzero()
        j0, j1 = mine.keys(i0, i1)
        if len(everywhere):
            assert j0 <= int(everywhere[0]) <= int(everywhere[-1]) < j1
        for a, b in ((0, 23), (3, 11), (j0, j1)):
            hidden = mine.hidden(i0, i1, a, b)
            if hidden is None:
                assert sees[:, :, i0:i1, a:b].all()
            else:
                assert torch.equal(~hidden.expand(2, 4, i1 - i0, b - a), sees[:, :, i0:i1, a:b])


def test_a_tile_that_everybody_sees_has_no_mask():
    causal = bound(Rule(causal=True, window=20), T=64, S=64)
    assert causal.hidden(10, 20, 1, 10) is None
    assert causal.hidden(10, 20, 5, 12) is not None
