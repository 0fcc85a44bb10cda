"""Masks that models build, reduced to the rule that they came from: exactly or not at all."""

import gc
import math
import warnings
import weakref
from types import SimpleNamespace

import dense
import pytest
import torch
from chance import some
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead.bound import BoundRule
from clearhead.capture import guesses as guesses_module
from clearhead.capture import masks as masks_module
from clearhead.capture.masks import MaskCache, reduce_mask
from clearhead.rule import Rule

LOWEST = torch.finfo(torch.float32).min


@pytest.fixture(params=["real tiles", "tiny tiles"])
def tile_size(request, monkeypatch):
    """Every pattern twice: in one tile, and in many that fit nothing."""
    if request.param == "tiny tiles":
        monkeypatch.setattr(guesses_module, "ELEMENTS", 40)
        monkeypatch.setattr(masks_module, "ROWS", 3)


laws = pytest.mark.usefixtures("tile_size")


# What every reduction must obey ------------------------------------------------------------------


def visible(mask):
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min)


def exactly(mask, B, H, T, S, self_attention=True):
    """The reduced rule, after it was compared with the mask cell by cell, by two judges."""
    before = mask.clone()
    found = reduce_mask(mask, B, H, T, S, self_attention)
    rule, full = found.rule, (B, H, T, S)
    assert torch.equal(mask.nan_to_num(7.5), before.nan_to_num(7.5))
    wanted = visible(mask).expand(full)
    if not mask.isnan().any():  # of which dense.py has another opinion
        assert torch.equal(dense.visible(rule, *full), wanted)
    bound = BoundRule(rule, torch.zeros(B, H, T, 2), torch.zeros(B, H, S, 2))
    hidden = bound.hidden(0, T, 0, S)
    assert torch.equal(torch.zeros(full) > 0 if hidden is None else hidden.expand(full), ~wanted)
    added = mask.expand(full) if mask.is_floating_point() else torch.zeros(full)
    bias = torch.zeros(()) if rule.bias is None else rule.bias
    assert torch.equal(bias.expand(full)[wanted].nan_to_num(7.5), added[wanted].nan_to_num(7.5))
    kept = [x for x in (rule.mask, rule.bias) if x is not None]
    assert found.kept_bytes == sum(x.untyped_storage().nbytes() for x in kept)
    if not self_attention:
        assert rule.query_mask is None
    return found


def reduced(mask, B, H, T, S, self_attention=True, **fields):
    """Compared as above, nothing kept, and exactly these fields: a list stands for a tensor."""
    found = exactly(mask, B, H, T, S, self_attention)
    assert found.kept_bytes == 0
    wanted = {
        name: torch.tensor(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }
    assert found.rule.same_as(Rule(**wanted)), f"{found.rule} is not {Rule(**wanted)}"
    return found.rule


def band(T, S, low=None, high=None, offset=0):
    """(T, S): query i sees keys i + offset + low to i + offset + high."""
    ahead = torch.arange(S) - torch.arange(T)[:, None] - offset
    sees = torch.ones(T, S, dtype=torch.bool)
    if low is not None:
        sees &= ahead >= low
    if high is not None:
        sees &= ahead <= high
    return sees


def keys(S, *spans):
    """(B, 1, 1, S): for each batch element the keys from a to b - 1."""
    key = torch.arange(S)
    return torch.stack([(key >= a) & (key < b) for a, b in spans])[:, None, None]


def numbers(mask, kind):
    """A boolean mask as one of the ways in which models write it."""
    if kind == "bool":
        return mask
    dtype = getattr(torch, kind.split("-")[0])
    lowest = -math.inf if kind.endswith("inf") else torch.finfo(dtype).min
    one = torch.full((), -0.0 if kind.endswith("zero") else 0.0, dtype=dtype)
    return torch.where(mask, one, torch.full((), lowest, dtype=dtype))


KINDS = [
    "bool", "float32", "float32-inf", "float32-zero", "float16", "bfloat16-inf", "bfloat16",
    "float64",
]  # fmt: skip


# Each pattern that must be found ------------------------------------------------------------------


@laws
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [1, 2, 7, 19])
def test_nothing_hidden_and_causal(T, kind):
    for S in (1, 5, 7, 19, 23):
        everything = band(T, S)
        reduced(numbers(everything, kind), 2, 3, T, S)
        if S != 1:
            reduced(numbers(everything[None, None].expand(2, 3, T, S), kind), 2, 3, T, S)
        bottom_right, top_left = band(T, S, high=0, offset=S - T), band(T, S, high=0)
        if T > 1 and S > 1:
            reduced(numbers(bottom_right, kind), 2, 3, T, S, causal=True)
            where = {} if T == S else {"offset": 0}
            reduced(numbers(top_left, kind), 2, 3, T, S, causal=True, **where)


@laws
def test_any_offset_of_a_static_cache():
    for T in (1, 2, 5):
        for S in (5, 11):
            for offset in range(S - T):
                reduced(band(T, S, high=0, offset=offset), 2, 3, T, S, causal=True, offset=offset)
    reduced(band(1, 11, high=0, offset=10), 2, 3, 1, 11)
    reduced(band(3, 11, high=0, offset=8), 2, 3, 3, 11, causal=True)


@laws
def test_caches_filled_to_different_lengths():
    for T in (1, 2, 3):
        mask = torch.stack([band(T, 11, high=0, offset=o) for o in (2, 8, 5)])[:, None]
        reduced(mask, 3, 2, T, 11, causal=True, offset=[2, 8, 5])
    mask = torch.stack([band(5, 5, high=0, offset=o) for o in (0, -2)])[:, None]
    reduced(mask, 2, 2, 5, 5, causal=True, offset=[0, -2])
    # Windowed: the second is not filled as far as the window reaches.
    mask = torch.stack([band(3, 11, low=-3, high=0, offset=o) for o in (6, 1)])[:, None]
    reduced(mask, 2, 2, 3, 11, causal=True, window=4, offset=[6, 1])


@laws
@pytest.mark.parametrize("T", [7, 19])
def test_windows(T):
    for W in (1, 2, 5, T - 1):
        mask = band(T, T, low=1 - W, high=0)
        reduced(mask, 2, 3, T, T, causal=True, window=W)
        reduced(mask[2:], 2, 3, T - 2, T, causal=True, window=W)
        if W > 1:
            reduced(band(T, T, low=1 - W, high=W - 1), 2, 3, T, T, window=(W - 1, W - 1))
    reduced(band(T, T, low=-1, high=3), 1, 1, T, T, window=(1, 3))
    reduced(band(T, T, low=-2, high=2)[1:], 1, 1, T - 1, T, window=(2, 2))
    reduced(band(T, T, high=-1), 1, 1, T, T, causal=True, offset=-1)  # strictly the keys before
    reduced(band(T, T, low=-2), 1, 1, T, T, window=(2, 2 * T))
    reduced(band(T, T, high=2), 1, 1, T, T, window=(2 * T, 2))


@laws
def test_a_decode_step_in_a_sliding_cache():
    step = band(1, 11, low=-3, high=0, offset=10)
    reduced(step, 2, 3, 1, 11, causal=True, window=4)
    reduced(band(1, 11, low=-3, high=0, offset=7), 2, 3, 1, 11, causal=True, window=4, offset=7)
    reduced(band(1, 4, low=-3, high=0, offset=3), 2, 3, 1, 4)  # the cache holds the window only
    # Windows that end where they like: the keys before are padding.
    left = keys(11, (3, 11), (0, 11))
    reduced(left, 2, 3, 1, 11, key_mask=left[:, 0, 0].tolist())
    # Not of one sequence: encoder keys behind the last one are padding, not the future.
    right = keys(11, (0, 4), (0, 9))
    reduced(right, 2, 3, 1, 11, self_attention=False, key_mask=right[:, 0, 0].tolist())


@laws
@pytest.mark.parametrize("kind", KINDS)
def test_padding(kind):
    T = 11
    for spans in [((3, T), (0, T)), ((0, T), (0, 4)), ((2, 7), (10, T)), ((0, 1), (5, 6))]:
        real = keys(T, *spans)
        mask_of = {"key_mask": real[:, 0, 0].tolist()}
        both = {**mask_of, "query_mask": real[:, 0, 0].tolist()}
        args = (2, 3, T, T)
        reduced(numbers(band(T, T, high=0) & real, kind), *args, causal=True, **both)
        reduced(numbers(real.expand(2, 1, T, T), kind), *args, **both)
        reduced(numbers(real.expand(2, 1, T, T).clone(), kind), *args, **both)
        reduced(numbers(real, kind), *args, self_attention=False, **mask_of)
        reduced(numbers(real.expand(2, 3, 5, T), kind), 2, 3, 5, T, **mask_of)
        # Rows of padding that see nothing, as an encoder's outer product has them.
        for seen in (band(T, T), band(T, T, high=0)):
            found = exactly(numbers(seen & real & real.mT, kind), *args)
            assert found.kept_bytes == 0
            assert torch.equal(found.rule.query_mask, real[:, 0, 0])
            assert torch.equal(found.rule.key_mask, real[:, 0, 0])


@laws
def test_padding_with_a_window_or_a_cache():
    T, real = 13, keys(13, (4, 13), (0, 13), (0, 6))
    both = {"key_mask": real[:, 0, 0].tolist(), "query_mask": real[:, 0, 0].tolist()}
    reduced(band(T, T, low=-2, high=0) & real, 3, 1, T, T, causal=True, window=3, **both)
    reduced(band(T, T, low=-2, high=2) & real, 3, 1, T, T, window=(2, 2), **both)
    # The next four tokens, in a cache of 13 of which 9 are filled after that: the others are not
    # padding, nobody has come so far.
    left = keys(T, (4, T), (0, T))
    mask = band(4, T, high=0, offset=5) & left
    reduced(mask, 2, 1, 4, T, causal=True, offset=5, key_mask=left[:, 0, 0].tolist())


@laws
def test_padding_with_holes():
    T, real = 17, torch.ones(1, 17, dtype=torch.bool)
    real[0, [0, 3, 4, 9, 16]] = False
    both = {"key_mask": real.tolist(), "query_mask": real.tolist()}
    reduced(band(T, T, high=0) & real, 1, 1, T, T, causal=True, **both)
    reduced(band(T, T, low=-4, high=0) & real, 1, 1, T, T, causal=True, window=5, **both)


def test_a_window_that_only_one_row_shows():
    """Padding hides the edge of the window from all other rows, and from the first guess."""
    T = 101
    for last in (100, 40):
        real = torch.zeros(1, T, dtype=torch.bool)
        real[0, [30, last - 2, last]] = True
        mask = band(T, T, low=-7, high=0) & real
        both = {"key_mask": real.tolist(), "query_mask": real.tolist()}
        reduced(mask, 1, 1, T, T, causal=True, window=8, **both)
    first = keys(9, (0, 1))
    both = {"key_mask": first[:, 0, 0].tolist(), "query_mask": first[:, 0, 0].tolist()}
    # One key is seen by three rows: whether by those after it only, nothing shows.
    reduced(band(9, 9, -2, 0) & first, 1, 1, 9, 9, window=(2, 18), **both)


def test_documents_whose_padding_hides_the_edge_of_the_window():
    T, document, real = 19, torch.arange(19) // 10, torch.ones(1, 19, dtype=torch.bool)
    real[0, [3, 14]] = False
    mask = (document[:, None] == document) & band(T, T, -3, 0) & real
    segments = (document * 10)[None].tolist()
    both = {"key_mask": real.tolist(), "query_mask": real.tolist()}
    reduced(mask, 1, 1, T, T, causal=True, window=4, segments=segments, **both)


@laws
def test_documents():
    lengths = [1, 4, 2, 1, 6, 3]
    documents = torch.repeat_interleave(torch.arange(6), torch.tensor(lengths))
    starts = torch.repeat_interleave(torch.tensor([0, 1, 5, 7, 8, 14]), torch.tensor(lengths))
    T, same = 17, documents[:, None] == documents
    segments = starts[None].tolist()
    causal = same & band(T, T, high=0)
    reduced(causal, 1, 3, T, T, causal=True, segments=segments)
    reduced(same, 1, 3, T, T, segments=segments)
    reduced(same & band(T, T, -2, 0), 1, 1, T, T, causal=True, window=3, segments=segments)
    reduced(same & band(T, T, -2, 2), 1, 1, T, T, window=(2, 2), segments=segments)
    # One batch element packed, one padded; queries 9 to 16 only; padding behind.
    real = torch.ones(2, 1, 1, T, dtype=torch.bool)
    real[1, ..., 12:] = False
    both = torch.stack([causal, band(T, T, high=0)])[:, None] & real
    for mask, B, rows in ((both, 2, T), (causal[9:], 1, 8), (causal & real[1], 1, T)):
        found = exactly(mask, B, 1, rows, T)
        assert found.kept_bytes == 0
        assert found.rule.causal
        assert found.rule.segments is not None
    # Padding in which each row sees itself only is a document of one.
    alone = band(T, T, high=0)
    alone[12:] = torch.eye(T, dtype=torch.bool)[12:]
    assert exactly(alone, 1, 1, T, T).kept_bytes == 0


@laws
@pytest.mark.parametrize("T", [7, 23])
def test_chunks(T):
    chunk = torch.arange(T) // 5
    mask = (chunk[:, None] == chunk) & band(T, T, high=0)
    reduced(mask, 2, 3, T, T, causal=True, segments=(chunk * 5).expand(2, T).tolist())


@laws
@pytest.mark.parametrize("kind", ["bool", "float32", "bfloat16-inf"])
def test_what_no_rule_says_is_kept_once(kind):
    T = 11
    prefix = band(T, T, high=0)
    prefix[:4, :4] = True
    found = exactly(numbers(prefix, kind), 2, 3, T, T)
    assert found.kept_bytes == T * T
    assert found.rule.mask.shape == (1, 1, T, T)
    heads = torch.stack([band(T, T, high=0), band(T, T)])[None]
    found = exactly(numbers(heads, kind), 2, 2, T, T)
    assert found.kept_bytes == 2 * T * T
    equal_heads = torch.stack([band(T, T, high=0)] * 2)[None]
    reduced(numbers(equal_heads, kind), 2, 2, T, T, causal=True)
    by_head = keys(T, (0, 5), (3, T)).transpose(0, 1)
    found = exactly(numbers(by_head.expand(1, 2, T, T), kind), 2, 2, T, T)
    assert found.rule.mask.shape == (1, 2, 1, T)
    # Padding that sees everything is no rule: nothing is guessed about those rows.
    unmasked = band(T, T, high=0) & keys(T, (4, T))[0, 0]
    unmasked[:4] = True
    found = exactly(numbers(unmasked, kind), 1, 1, T, T)
    assert found.kept_bytes == T * T
    assert found.rule.query_mask is None
    # Padding is seen beside a mask that must be kept.
    found = exactly(numbers(prefix & keys(T, (0, 8))[0], kind), 2, 1, T, T)
    assert found.kept_bytes
    assert found.rule.query_mask.tolist() == [[i < 8 for i in range(T)]] * 2


@laws
@pytest.mark.parametrize("value", [-1e4, -1e9, torch.finfo(torch.float16).min, 1.0, math.nan])
def test_ordinary_numbers_are_a_bias(value):
    T, real = 7, keys(7, (0, 5), (2, 7))
    added = torch.zeros(2, 1, 1, T).masked_fill(~real, value)
    for mask in (added, added.expand(2, 3, T, T), added.repeat(1, 3, T, 1)):
        found = exactly(mask, 2, 3, T, T)
        assert found.rule.bias is not None
        assert found.rule.key_mask is None
        if value == value:
            assert found.rule.bias.shape == (2, 1, 1, T)
    # Zeros and ones are added, which hides nothing; so is a 1 beside what is hidden.
    exactly(torch.ones(T, T).tril(), 1, 1, T, T)
    assert exactly(torch.ones(2, 3, T, T), 2, 3, T, T).rule.bias.shape == (1, 1, 1, 1)
    mask = numbers(band(T, T, high=0), "float32-inf")
    mask[3, 1] = value
    assert exactly(mask, 2, 3, T, T).kept_bytes == 4 * T * T
    # A float mask may mix both ways to hide.
    mask[3, 1] = 0
    mask[mask < 0] = torch.where(torch.arange(21) % 2 > 0, LOWEST, -math.inf)
    reduced(mask, 2, 3, T, T, causal=True)


@laws
def test_odd_shapes_and_strides():
    T, S = 5, 11
    mask = band(T, S, high=0, offset=6)
    for same in (mask[None], mask[None, None], mask.T.contiguous().T, mask.repeat(1, 2)[:, :S]):
        reduced(same, 2, 3, T, S, causal=True)
    reduced(torch.stack([mask, mask], dim=-1)[..., 1], 2, 3, T, S, causal=True)
    reduced(torch.stack([mask] * 6).view(2, 3, T, S), 2, 3, T, S, causal=True)
    rows = band(T, 1, low=-3)  # whole rows, over all keys
    assert exactly(rows, 2, 3, T, S).kept_bytes == T
    for B, H, T, S in ((0, 1, 5, 5), (1, 0, 5, 5), (1, 1, 0, 5), (1, 1, 5, 0), (0, 0, 0, 0)):
        assert reduce_mask(torch.zeros(B, H, T, S) > 0, B, H, T, S).rule.same_as(Rule())
    for T, S in ((1, 1), (1, 5), (5, 1), (5, 5), (3, 7)):
        nobody = torch.zeros(T, S, dtype=torch.bool)
        assert exactly(nobody, 2, 3, T, S).kept_bytes == 0
        assert exactly(torch.stack([nobody, ~nobody])[:, None], 2, 3, T, S).kept_bytes == 0


def test_a_mask_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"boolean.*int64 \(3, 3\)"):
        reduce_mask(torch.ones(3, 3, dtype=torch.int64), 1, 1, 3, 3)
    for shape in ((3, 4), (2, 1, 1, 3, 3), (2, 3, 3)):
        with pytest.raises(ValueError, match=r"broadcast to \(B, H, T, S\) = \(1, 1, 3, 3\)"):
            reduce_mask(torch.ones(shape), 1, 1, 3, 3)


def test_what_is_kept_is_a_copy_without_a_graph():
    bias = torch.randn(1, 2, 5, 5, requires_grad=True)
    kept = exactly(bias, 1, 2, 5, 5).rule.bias
    assert not kept.requires_grad
    before = kept.clone()
    with torch.no_grad():
        bias.zero_()
    assert torch.equal(kept, before)
    with torch.inference_mode():
        mask = band(5, 5, high=0) & keys(5, (0, 4))
        rule = reduce_mask(mask, 1, 1, 5, 5).rule
        assert mask.is_inference()
    assert not rule.key_mask.is_inference()


# Any mask at all ----------------------------------------------------------------------------------


@st.composite
def a_mask(draw):
    """A mask as a rule would make it, a few cells turned over, written in any way."""
    B, H = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    T, S = draw(st.sampled_from([(1, 1), (1, 6), (6, 1), (5, 5), (3, 7), (7, 3), (11, 11)]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def integer(low, high):
        return int(torch.randint(low, high + 1, (), generator=seed))

    mask = torch.ones(B, H, T, S, dtype=torch.bool)
    kinds = draw(st.sets(st.sampled_from(["band", "keys", "documents", "flip", "noise", "rows"])))
    if "band" in kinds:
        low, high = draw(st.sampled_from([(None, 0), (-2, 0), (-1, 2), (None, -1), (0, None)]))
        alike = integer(-2, 5) if draw(st.booleans()) else S - T
        each = [alike if draw(st.booleans()) else integer(-2, 5) for _ in range(B)]
        mask &= torch.stack([band(T, S, low, high, o) for o in each])[:, None]
    if "keys" in kinds:
        mask &= keys(S, *((integer(0, S // 2), integer(S // 2, S)) for _ in range(B)))
    if "documents" in kinds and T <= S:
        cuts = (torch.rand(B, S, generator=seed) < 0.3).cumsum(1)
        mask &= (cuts[:, S - T :, None] == cuts[:, None])[:, None]
    if "rows" in kinds:
        mask &= torch.rand(B, 1, T, 1, generator=seed) < 0.8
    if "noise" in kinds:
        mask &= torch.rand(mask.shape, generator=seed) < 0.8
    if "flip" in kinds:
        mask[integer(0, B - 1), integer(0, H - 1), integer(0, T - 1), integer(0, S - 1)] ^= True
    mask = numbers(mask, draw(st.sampled_from(KINDS)))
    way = draw(st.sampled_from(["full", "one batch", "one head", "transposed"]))
    if way == "one batch":
        mask = mask[:1]
    elif way == "one head":
        mask = mask[:, :1].expand(B, H, T, S)
    elif way == "transposed":
        mask = mask.transpose(0, 3).contiguous().transpose(0, 3)
    return mask, (B, H, T, S), draw(st.booleans())


@st.composite
def a_pattern(draw):
    """A mask that is made of one pattern and one kind of padding, (B, 1, T, S)."""
    T, B = draw(st.sampled_from([2, 5, 17, 33])), draw(st.integers(1, 3))
    pattern = draw(
        st.sampled_from(["causal", "window", "chunk", "documents", "document window", "both sides"])
    )
    S = T if pattern == "both sides" else T + draw(st.sampled_from([0, 0, 1, 16]))
    offset = draw(st.integers(0, S - T))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    W = int(torch.randint(1, S // 2 + 2, (), generator=seed))
    mask = torch.ones(B, T, S, dtype=torch.bool)
    if pattern in ("chunk", "documents", "document window"):
        document = (torch.arange(S) // W).expand(B, S)
        if pattern != "chunk":
            document = (torch.rand(B, S, generator=seed) < 0.15).cumsum(1)
        mask &= document[:, offset : offset + T, None] == document[:, None]
    if pattern == "both sides":
        mask &= draw(st.sampled_from([band(T, T, -W, W), band(T, T)]))
    else:
        mask &= band(T, S, 1 - W if "window" in pattern else None, 0, offset)
    real, key = torch.ones(B, S, dtype=torch.bool), torch.arange(S)
    padding = draw(st.sampled_from(["none", "left", "right", "both", "holes", "empty rows"]))
    if padding in ("left", "both"):
        real &= key >= torch.randint(0, S // 2, (B, 1), generator=seed)
    if padding in ("right", "both", "empty rows"):
        real &= key < S - torch.randint(0, S // 2, (B, 1), generator=seed)
    if padding == "holes":
        real = torch.rand(B, S, generator=seed) < 0.9
    mask &= real[:, None]
    if padding == "empty rows" and T == S:
        mask &= real[:, :, None]
    return mask[:, None]


@laws
@some(60)
@given(a_pattern())
def test_every_pattern_is_found_under_every_padding(mask):
    B, _, T, S = mask.shape
    found = exactly(mask, B, 2, T, S)
    assert found.kept_bytes == 0
    if T == S:
        padding = ~mask.any(dim=(1, 2))
        query_mask = found.rule.query_mask
        assert torch.equal(
            torch.zeros_like(padding) if query_mask is None else ~query_mask, padding
        )


@laws
@some(60)
@given(a_mask())
def test_any_mask_is_reproduced_exactly(drawn):
    mask, full, self_attention = drawn
    exactly(mask, *full, self_attention=self_attention)


@laws
@pytest.mark.parametrize("kind", ["bool", "float32"])
def test_one_cell_turned_over_is_never_lost(kind):
    """Every cell of the patterns that are reduced, one after the other."""
    T = 7
    document = torch.tensor([0, 0, 1, 1, 1, 2, 2])
    same = document[:, None] == document
    for pattern in (band(T, T, high=0), band(T, T, -2, 0), band(T, T), same & band(T, T, high=0)):
        for cell in range(T * T):
            mask = pattern.clone()
            mask.view(-1)[cell] ^= True
            exactly(numbers(mask, kind), 1, 1, T, T)


def test_nothing_of_the_size_of_the_mask_is_made():
    T, biggest = 1024, 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal biggest
            made = function(*args, **(kwargs or {}))
            for x in made if isinstance(made, tuple | list) else [made]:
                if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() != memory:
                    biggest = max(biggest, x.untyped_storage().nbytes())
            return made

    document = torch.arange(T) // 100
    same = document[:, None] == document
    patterns = (band(T, T, -99, 0), band(T, T, high=0) & same)
    old = guesses_module.ELEMENTS
    guesses_module.ELEMENTS = 1 << 16
    try:
        for pattern in patterns:
            for kind in ("bool", "float32"):
                mask = numbers(pattern, kind)
                memory = mask.untyped_storage().data_ptr()
                with Watch():
                    reduce_mask(mask, 1, 1, T, T)
    finally:
        guesses_module.ELEMENTS = old
    assert 0 < biggest < T * T // 3


# The masks of transformers ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import masking_utils
    return masking_utils


PADDING = {
    "none": None,
    "left": torch.tensor([[0, 0, 0] + [1] * 10, [1] * 13]).bool(),
    "right": torch.tensor([[1] * 13, [1] * 6 + [0] * 7]).bool(),
}


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("maker", ["sdpa_mask", "eager_mask"])
@pytest.mark.parametrize("pattern", ["causal", "sliding", "chunked", "bidirectional", "local"])
def test_masks_of_transformers(library, maker, pattern, padding):
    """Prefill, a chunk with a cache, a decode step, each in a static cache too."""
    real = PADDING[padding]
    left = torch.zeros(2, dtype=torch.int64) if real is None else (~real).cumprod(1).sum(1)
    function = {
        "causal": library.causal_mask_function,
        "sliding": library.sliding_window_causal_mask_function(4),
        "chunked": library.chunked_causal_mask_function(5, left),
        "bidirectional": library.bidirectional_mask_function,
        "local": library.sliding_window_bidirectional_mask_function(2),
    }[pattern]
    for T, S, offset in (
        (13, 13, 0),
        (13, 17, 0),
        (4, 13, 9),
        (4, 17, 9),
        (1, 13, 12),
        (1, 17, 12),
    ):
        if pattern in ("bidirectional", "local") and T != 13:
            continue
        mask = getattr(library, maker)(
            batch_size=2, q_length=T, kv_length=S, q_offset=offset, mask_function=function,
            attention_mask=real, allow_is_causal_skip=False,
        )  # fmt: skip
        if mask.shape[1] != 1:
            mask = mask.expand(2, 1, T, S)
        rule = (found := exactly(mask, 2, 3, T, S)).rule
        assert found.kept_bytes == 0, (T, S, offset)
        # A band beyond the own key says where that is only if T == S; a lone query never does.
        placed = T == S if pattern in ("bidirectional", "local") else T > 1
        if placed and real is not None:
            mine = real[:, offset : offset + T]
            found = torch.ones_like(mine) if rule.query_mask is None else rule.query_mask
            assert torch.equal(found, mine)
        if pattern == "sliding" and T > 1:
            assert rule.window == 4
        if pattern in ("causal", "sliding") and T > 1:
            assert rule.causal
            assert (S - T if rule.offset is None else rule.offset) == offset
        if pattern == "local" and T == S:
            assert rule.window == (2, 2)


def test_packed_masks_of_transformers(library):
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0, 0, 1]])
    packed = library.find_packed_sequence_indices(positions)
    function = library.and_masks(
        library.causal_mask_function, library.packed_sequence_mask_function(packed)
    )
    mask = library.sdpa_mask(1, 11, 11, mask_function=function, allow_is_causal_skip=False)
    segments = [[0, 0, 0, 3, 3, 3, 3, 3, 8, 9, 9]]
    reduced(mask, 1, 2, 11, 11, causal=True, segments=segments)


# What is remembered -------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """How often a mask was really looked at."""
    count = SimpleNamespace(n=0)

    def counting(*args):
        count.n += 1
        return reduce_mask(*args)

    monkeypatch.setattr(masks_module, "reduce_mask", counting)
    return count


def test_the_same_mask_is_looked_at_once(counted):
    cache, mask = MaskCache(), band(5, 5, high=0)
    first = cache.reduce(mask, 2, 3, 5, 5)
    assert cache.reduce(mask, 2, 3, 5, 5) is first
    assert counted.n == 1
    # Another call with it is another question.
    assert cache.reduce(mask, 1, 3, 5, 5) is not first
    one = cache.reduce(band(1, 5, high=0, offset=2), 1, 1, 1, 5, True).rule
    assert one.offset == 2
    step = band(1, 5, high=0, offset=2)
    assert cache.reduce(step, 1, 1, 1, 5, True).rule.causal
    assert not cache.reduce(step, 1, 1, 1, 5, False).rule.causal


def test_a_changed_mask_is_looked_at_again():
    cache, mask = MaskCache(), band(5, 5, high=0)
    assert cache.reduce(mask, 1, 1, 5, 5).rule.causal
    mask[:] = True
    assert cache.reduce(mask, 1, 1, 5, 5).rule.same_as(Rule())
    mask.view(-1)[1] = False  # through a view
    assert cache.reduce(mask, 1, 1, 5, 5).kept_bytes
    mask.data = band(5, 5, low=-1, high=0)
    assert cache.reduce(mask, 1, 1, 5, 5).rule.window == 2
    square = band(4, 4, high=0)
    assert cache.reduce(square, 1, 1, 4, 4).rule.causal
    square.t_()
    assert not cache.reduce(square, 1, 1, 4, 4).rule.causal


def test_a_new_mask_at_an_old_address_is_no_hit():
    cache, addresses = MaskCache(), set()
    for turn in range(40):
        mask = band(64, 64, high=0) if turn % 2 else band(64, 64, low=-2, high=0)
        addresses.add((id(mask), mask.data_ptr()))
        assert cache.reduce(mask, 1, 1, 64, 64).rule.window == (None if turn % 2 else 3)
        del mask
    assert len(addresses) < 40  # addresses did come again


def test_the_cache_keeps_no_mask_alive():
    cache, masks = MaskCache(), []
    for turn in range(5):
        mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(turn)) < 0.5
        copy = weakref.ref(cache.reduce(mask, 1, 1, 64, 64).rule.mask)
        masks.append((weakref.ref(mask), copy))
        assert copy() is not None
    del mask
    gc.collect()
    assert all(mask() is None and copy() is None for mask, copy in masks)
    assert not cache._known


def test_a_new_tensor_with_the_name_of_a_dead_one_stays():
    """The dead one's farewell may come after the new one's arrival."""
    cache, mask = MaskCache(), band(5, 5, high=0)
    dying = band(5, 5, low=-1, high=0)
    cache.reduce(dying, 1, 1, 5, 5)
    entry = cache._known.pop(id(dying))
    cache.reduce(mask, 1, 1, 5, 5)
    cache._known[id(dying)] = cache._known[id(mask)]  # as if it had got the same name
    del dying, entry
    gc.collect()
    assert len(cache._known) == 2


def test_copies_of_one_mask_are_kept_once():
    """A model that slices its mask anew in each layer, and one in inference mode."""
    cache, big = MaskCache(), torch.rand(9, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    first = cache.reduce(big[:7, :7], 1, 1, 7, 7)
    again = cache.reduce(big[:7, :7], 1, 1, 7, 7)
    assert again.rule.mask is first.rule.mask
    assert cache.reduce(big[:7, 2:], 1, 1, 7, 7).rule.mask is not first.rule.mask
    with torch.inference_mode():
        mask = big[:7, :7].clone()
        assert cache.reduce(mask, 1, 1, 7, 7).rule.mask is first.rule.mask
        mask[:] = True  # nobody counts the versions of this one
        assert cache.reduce(mask, 1, 1, 7, 7).rule.same_as(Rule())
