"""Other people's entropies, rotary functions and masks, written out here as people write them: each
mistake is named first, and what is right is called right."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from clearhead.checker import lines
from clearhead.checker.calls import Local
from clearhead.checker.diagnosing import diagnose
from clearhead.checker.functions import CRAFTS
from clearhead.checker.given_mask import diagnose_mask
from clearhead.checker.line import Line
from clearhead.checker.lines import ENTROPY, MASK, ROTARY, Rotation, Weights, sizes_only
from clearhead.checker.matching import computed, made_by
from clearhead.checker.mistakes import entropies, rotaries, triangles
from clearhead.checker.of_entropy import causal_rows, random_rows
from clearhead.checker.problem import Turn, normal
from clearhead.checker.told import Told

RIGHT, WRONG = {}, {}


def right(*, told=None, kind):
    def keep(fn):
        RIGHT[fn.__name__] = (fn, kind, told or {})
        return fn

    return keep


def wrong(*names, kind, told=None):
    def keep(fn):
        WRONG[fn.__name__] = (fn, names, kind, told or {})
        return fn

    return keep


def checked(fn, kind, told):
    return diagnose(Local(fn() if isinstance(fn, type) else fn), Told(**{"kind": kind, **told}))


# Entropies --------------------------------------------------------------------------------------


@right(kind="entropy")
def entropy_entr(attn):
    return torch.special.entr(attn).sum(-1)


@right(kind="entropy")
def entropy_numpy_loops(p):
    out = np.zeros(p.shape[:-1])
    for at in np.ndindex(*p.shape[:-1]):
        out[at] = sum(-w * math.log(w) for w in p[at] if w > 0)
    return out


@right(kind="entropy")
def entropy_of_a_distribution(probs):
    return torch.distributions.Categorical(probs=probs).entropy()


@right(kind="entropy")
def entropy_of_scores(scores):
    logp = torch.log_softmax(scores, -1)
    p = logp.exp()
    return -(p * logp.masked_fill(p == 0, 0)).sum(-1)


@right(kind="entropy")
def entropy_of_each_head(weights):
    return torch.special.entr(weights).sum(-1).mean(-1)


@right(kind="entropy")
def entropy_as_a_number(weights):
    return float(torch.special.entr(weights).sum(-1).mean())


@right(kind="entropy")
def entropy_keeps_its_axis(weights, dim=-1):
    return torch.special.entr(weights).sum(dim, keepdim=True)


@right(kind="entropy")
def entropy_with_a_harmless_floor(weights):
    return -(weights * weights.clamp_min(1e-12).log()).sum(-1)


@wrong("entropy-log2", kind="entropy")
def bits(p):
    return -np.sum(p * np.log2(np.where(p > 0, p, 1)), axis=-1)


@wrong("entropy-log10", kind="entropy")
def tens(p):
    return -(p * np.log10(np.where(p > 0, p, 1))).sum(-1)


@wrong("entropy-epsilon", kind="entropy")
def epsilon_six(attn, eps=1e-6):
    return -(attn * torch.log(attn + eps)).sum(-1)


@wrong("entropy-epsilon", kind="entropy")
def epsilon_seven(attn):
    return -(attn * torch.log(attn + 1e-7)).sum(-1)


@wrong("entropy-epsilon", kind="entropy")
def epsilon_floor(attn):
    attn = attn.clamp(min=1e-3)
    return -(attn * torch.log(attn)).sum(-1)


@wrong("entropy-axis", kind="entropy")
def over_queries(attn):
    return torch.special.entr(attn).sum(dim=-2)


@wrong("entropy-over-heads", kind="entropy")
def over_heads(attn):
    """attn (B, H, T, S)"""
    return torch.special.entr(attn).sum(dim=1)


@wrong("entropy-future", kind="entropy")
def softmax_again(attn):
    return torch.distributions.Categorical(logits=attn).entropy()


@wrong("entropy-normalized", kind="entropy")
def share_of_the_largest(attn):
    return torch.special.entr(attn).sum(-1) / math.log(attn.shape[-1])


@wrong("entropy-nan", kind="entropy")
def zero_times_infinity(attn):
    return -(attn * attn.log()).sum(-1)


@wrong("entropy-sign", kind="entropy")
def no_minus(attn):
    return torch.xlogy(attn, attn).sum(-1)


@wrong("entropy-mean", kind="entropy")
def mean_over_keys(attn):
    return torch.special.entr(attn).mean(-1)


@wrong("entropy-unweighted", kind="entropy")
def bare_logarithms(attn):
    return -attn.log().sum(-1)


@wrong("entropy-exponential", kind="entropy")
def perplexity(attn):
    return torch.special.entr(attn).sum(-1).exp()


@wrong("entropy-other", kind="entropy")
def renyi(attn):
    return -torch.log((attn**2).sum(-1))


@wrong("entropy-summed", kind="entropy")
def added_up(attn):
    return torch.special.entr(attn).sum((-1, -2))


@wrong("entropy-rescaled", kind="entropy")
def of_the_whole_map(attn):
    return torch.special.entr(attn / attn.sum((-2, -1), keepdim=True)).sum(-1)


@wrong("entropy-log2", "entropy-epsilon", kind="entropy")
def bits_and_epsilon(attn):
    return -(attn * torch.log2(attn + 1e-4)).sum(-1)


@wrong("entropy-sign", "entropy-nan", kind="entropy")
def no_minus_and_nan(attn):
    return (attn * attn.log()).sum(-1)


@wrong("inputs-changed", kind="entropy")
def fills_its_zeros(attn):
    attn[attn == 0] = 1e-30
    return -(attn * attn.log()).sum(-1)


@wrong("gradient-stopped", kind="entropy")
def of_a_detached_map(attn):
    return torch.special.entr(attn.detach()).sum(-1)


# Rotary positions -------------------------------------------------------------------------------


def angles(T, D, base=10000.0, first=0, power=2.0):
    speeds = base ** (-power * torch.arange(D // 2) / D)
    return (torch.arange(T) + first)[:, None] * speeds


def turn_halves(x, angle):
    c, s = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def turn_neighbors(x, angle):
    c, s = angle.cos(), angle.sin()
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)


@right(kind="rotary")
def rope_halves(x):
    return turn_halves(x, angles(*x.shape[-2:]))


@right(kind="rotary")
def rope_neighbors(x):
    return turn_neighbors(x, angles(*x.shape[-2:]))


@right(kind="rotary")
def rope_at_positions(x, positions, base=10000.0):
    D = x.shape[-1]
    return turn_halves(x, positions[:, None] * base ** (-torch.arange(0, D, 2) / D))


@right(kind="rotary")
def rotate_half_with_tables(q, k, cos, sin):
    def turned(x):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    return turned(q), turned(k)


@right(kind="rotary")
def rotary_by_complex_numbers(xq, xk, freqs_cis):
    q, k = (torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) for x in (xq, xk))
    turn = freqs_cis.view(1, q.shape[1], 1, q.shape[-1])
    return torch.view_as_real(q * turn).flatten(3), torch.view_as_real(k * turn).flatten(3)


@right(kind="rotary")
def rope_tokens_first(x):
    """x (T, H, D)"""
    return turn_halves(x, angles(x.shape[0], x.shape[-1])[:, None])


@right(kind=None)
class RotaryPositions(nn.Module):
    def __init__(self, dim=8, longest=128):
        super().__init__()
        self.register_buffer("angle", angles(longest, dim))

    def forward(self, x):
        return turn_halves(x, self.angle[: x.shape[-2]])


@wrong("rotary-missing", kind="rotary")
def rope_nothing(x):
    return x * 1.0


@wrong("rotary-pairing", kind="rotary", told={"turn": Turn("interleaved")})
def rope_other_pairs(x):
    return turn_halves(x, angles(*x.shape[-2:]))


@wrong("rotary-pairing", kind="rotary")
def rope_mixture(x):
    angle = angles(*x.shape[-2:]).repeat_interleave(2, -1)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat((-b, a), -1) * angle.sin()


@wrong("rotary-pairing", kind="rotary")
def rope_put_back_in_halves(x):
    c, s = angles(*x.shape[-2:]).cos(), angles(*x.shape[-2:]).sin()
    a, b = x[..., ::2], x[..., 1::2]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


@wrong("rotary-sign", kind="rotary")
def rope_backwards(x):
    return turn_neighbors(x, -angles(*x.shape[-2:]))


@wrong("rotary-from-one", kind="rotary")
def rope_from_one(x):
    return turn_halves(x, angles(*x.shape[-2:], first=1))


@wrong("rotary-base", kind="rotary")
def rope_of_777(x):
    return turn_halves(x, angles(*x.shape[-2:], base=777.0))


@wrong("rotary-base", kind="rotary")
def rope_deaf_to_its_base(x, base=10000.0):
    return turn_halves(x, angles(*x.shape[-2:]))


@wrong("rotary-frequency", kind="rotary")
def rope_n_over_d(x):
    return turn_halves(x, angles(*x.shape[-2:], power=1.0))


@wrong("rotary-over-heads", kind="rotary")
def rope_over_heads(x):
    """x (batch, heads, tokens, dim)"""
    return turn_halves(x, angles(x.shape[1], x.shape[-1])[None, :, None])


@wrong("rotary-exchanged", kind="rotary")
def rope_exchanged(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * sin + torch.cat((-b, a), -1) * cos


@wrong("rotary-twice", kind="rotary")
def rope_twice(x):
    return turn_halves(turn_halves(x, angles(*x.shape[-2:])), angles(*x.shape[-2:]))


@wrong("rotary-partial", kind="rotary")
def rope_half_of_it(x):
    D = x.shape[-1] // 2
    return torch.cat((turn_halves(x[..., :D], angles(x.shape[-2], D)), x[..., D:]), -1)


@wrong("rotary-not-a-rotation", kind="rotary")
def rope_both_plus(x):
    angle = angles(*x.shape[-2:]).repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * angle.cos() + torch.cat((b, a), -1) * angle.sin()


@wrong("rotary-queries-only", kind="rotary")
def rope_queries(q, k):
    return turn_halves(q, angles(*q.shape[-2:])), k


@wrong("rotary-swapped", kind="rotary")
def rope_keys_first(q, k):
    angle = angles(*q.shape[-2:])
    return turn_halves(k, angle), turn_halves(q, angle)


@wrong("rotary-offset", kind="rotary")
def rope_deaf_to_positions(x, positions):
    return turn_halves(x, angles(*x.shape[-2:]))


@wrong("rotary-backwards", kind="rotary")
def rope_last_first(x):
    return turn_halves(x, angles(*x.shape[-2:]).flip(0))


@wrong("rotary-sign", "rotary-from-one", kind="rotary")
def rope_backwards_from_one(x):
    return turn_halves(x, -angles(*x.shape[-2:], first=1))


# Masks ------------------------------------------------------------------------------------------


def lag(T, S=None):
    return torch.arange(T)[:, None] - torch.arange(S or T)


@right(kind="mask")
def mask_of_bool(T):
    return lag(T) >= 0


@right(kind="mask")
def mask_of_lists(n):
    return [[1 if j <= i else 0 for j in range(n)] for i in range(n)]


@right(kind="mask")
def subsequent_mask(size):
    """Mask out subsequent positions."""
    return torch.from_numpy(np.triu(np.ones((1, size, size)), k=1).astype("uint8")) == 0


@right(kind="mask")
def create_look_ahead_mask(size):
    return 1 - torch.ones(size, size).tril()


@right(kind="mask")
def generate_square_subsequent_mask(sz):
    return torch.full((sz, sz), -torch.inf).triu(diagonal=1)


@right(kind="mask")
def mask_lowest(seq_len):
    return torch.zeros(1, 1, seq_len, seq_len).masked_fill(lag(seq_len) < 0, -1e9)


@right(kind="mask")
def mask_not_allowed(T):
    """True = not allowed to attend"""
    return lag(T) < 0


@right(kind="mask")
def mask_rectangle(q_len, k_len):
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)


@right(kind="mask")
def mask_from_the_first_key(q_len, k_len):
    return torch.ones(q_len, k_len, dtype=torch.bool).tril()


@right(kind="mask")
def mask_band(T, window=None):
    near = lag(T) < (T if window is None else window)
    return (lag(T) >= 0) & near


@right(kind="mask")
def make_causal_mask(x):
    return torch.ones(x.size(1), x.size(1)).tril().bool()


@wrong("mask-inverted", kind="mask")
def mask_opposite(T):
    return torch.ones(T, T).triu(1).bool()


@wrong("mask-future-one", kind="mask")
def mask_one_more(T):
    return torch.ones(T, T).tril(1)


@wrong("mask-past-one", kind="mask")
def mask_itself(T):
    return torch.full((T, T), -torch.inf).triu()


@wrong("mask-transposed", kind="mask")
def mask_upper(T):
    return lag(T) <= 0


@wrong("mask-missing", kind="mask")
def mask_of_nothing(T):
    return torch.ones(T, T).bool()


@wrong("mask-diagonal", kind="mask")
def mask_eye(T):
    return torch.eye(T).bool()


@wrong("mask-aligned", kind="mask", told={"align": "end"})
def mask_first_key(q_len, k_len):
    return torch.ones(q_len, k_len, dtype=torch.bool).tril()


@wrong("mask-not-low", kind="mask")
def mask_hundred(T):
    return torch.ones(T, T).triu(1) * -100.0


@wrong("mask-nan", kind="mask")
def mask_zero_times_infinity(T):
    return torch.ones(T, T).triu(1) * -torch.inf


@wrong("mask-added", kind="mask")
def mask_to_add(T):
    """is added to the scores"""
    return torch.ones(T, T).tril()


@wrong("window-one-more", kind="mask")
def band_one_more(T, window):
    return (lag(T) >= 0) & (lag(T) <= window)


@wrong("window-one-less", kind="mask")
def band_one_less(n, w):
    d = np.arange(n)[:, None] - np.arange(n)
    return (d >= 0) & (d < w - 1)


@wrong("window-missing", kind="mask")
def band_missing(T, window):
    return lag(T) >= 0


@wrong("window-both-sides", kind="mask")
def band_both(T, window):
    return lag(T).abs() < window


@wrong("window-inverted", kind="mask")
def band_far(T, window):
    return lag(T) >= window


@wrong("window-or-causal", kind="mask")
def band_or(T, window):
    return (lag(T) >= 0) | (lag(T) < window)


@wrong("window-one-more", "mask-future-one", kind="mask")
def band_and_future(T, window):
    return (lag(T) >= -1) & (lag(T) <= window)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_called_right(name):
    fn, kind, told = RIGHT[name]
    found = checked(fn, kind, told)
    assert (found.verdict, found.names, found.trouble) == ("right", (), "")
    assert found.kind in CRAFTS and found.conventions


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_named_first(name):
    fn, names, kind, told = WRONG[name]
    found = checked(fn, kind, told)
    assert found.verdict == "wrong" and not found.unexplained
    assert set(found.names) == set(names), found.names
    for each in found.mistakes:
        assert each.or_else == ALIKE.get(name, ()), each.why
        assert each.sure == ("likely" if each.or_else else each.sure)


# 10,000^(-n/d) is 100^(-2n/d): nobody can tell which of them was meant.
ALIKE = {"rope_n_over_d": ("rotary-base",)}


def test_every_mistake_is_made_once_above():
    known = {m.name for each in (entropies, rotaries, triangles) for m in each.MISTAKES}
    known |= {"entropy-epsilon", "mask-nan", "mask-not-low", "mask-added"}
    assert known <= {name for _, names, _, _ in WRONG.values() for name in names}


def test_numbers_are_told():
    notes = {
        name: checked(WRONG[name][0], WRONG[name][2], {}).mistakes[0].note
        for name in ("epsilon_six", "epsilon_seven", "rope_of_777", "mask_hundred")
    }
    assert notes == {
        "epsilon_six": "log(p + eps) with eps = 1e-06",
        "epsilon_seven": "eps is about 1.0e-07",
        "rope_of_777": "777",
        "mask_hundred": "-100",
    }


def test_an_epsilon_that_nobody_sees_is_a_caution():
    found = checked(lambda attn: -(attn * (attn + 1e-9).log()).sum(-1), "entropy", {})
    assert (found.verdict, found.names) == ("right", ("entropy-epsilon",))


def test_what_a_name_promises_decides_what_true_means():
    def mask(T):
        return lag(T) < 0

    assert checked(mask, "mask", {}).names == ("mask-inverted",)
    assert checked(mask, "mask", {"mask": "hide"}).ok
    assert checked(mask_of_bool, "mask", {"mask": "hide"}).names == ("mask-inverted",)


def test_the_smallest_failing_input():
    example = checked(mask_one_more, "mask", {}).example
    assert example.inputs == (("T", torch.tensor(2)),)
    assert example.want.tolist() == [[1, 0], [1, 1]] and example.got.tolist() == [[1, 1], [1, 1]]
    example = checked(no_minus, "entropy", {}).example
    assert example.inputs[0][1].tolist() == [[0.5, 0.5]]
    assert example.got.item() == pytest.approx(-math.log(2))
    example = checked(lambda attn: -(attn * (attn + 1e-4).log()).sum(-1), "entropy", {}).example
    assert example.inputs[0][1].tolist() == [[1]] and example.want.item() == 0
    assert example.got.item() == pytest.approx(-math.log(1.0001), abs=1e-6)  # of float32
    example = checked(rope_from_one, "rotary", {}).example
    assert example.want.tolist() == [[1.0, 2.0]]  # one token stays where it is


def test_unexplained_is_said():
    found = checked(lambda attn: attn.sum(-1) * 3, "entropy", {})
    assert found.verdict == "wrong" and not found.mistakes and "no mistake" in found.unexplained
    found = checked(lambda x: x**2, "rotary", {"layout": "TD", "turn": Turn()})
    assert found.names == ("rotary-not-a-rotation",)


def test_what_raises_is_untried():
    def entropy(attn):
        raise TypeError("not today")

    found = checked(entropy, "entropy", {})
    assert found.verdict == "untried" and "not today" in found.trouble


# Every two mistakes of a kind are told apart ----------------------------------------------------


def problems(kind):
    if kind == "entropy":
        maps = (random_rows(2, 3, 4, 7, seed=1), causal_rows(2, 3, 5, 5, seed=2))
        return [Weights(p=p) for p in maps]
    if kind == "mask":
        return [sizes_only(5), sizes_only(3, 5), sizes_only(7, window=3), sizes_only(7, window=2)]
    each = []
    for T, D, rest in (
        (5, 8, {}), (11, 8, {}), (6, 16, {}),
        (6, 8, {"positions": torch.tensor([3, 9, 4, 0, 7, 2])}),
        (6, 8, {"own_base": 500.0}),
    ):  # fmt: skip
        q, k = normal(2, 3, T, D, seed=T), normal(2, 3, T, D, seed=T + 50)
        each.append(Rotation(q=q, k=k, twins=True, turn=Turn(), **rest))
    return each


def same(line: Line, one, other, given):
    """Whether two mistakes cannot be told apart on any of these problems."""
    for problem in given:
        a, b = (computed(line, problem, made.changes) for made in (one, other))
        if (a is None) != (b is None):
            return False
        if a is None:
            continue
        alike = a.out.shape == b.out.shape
        if not alike or not torch.allclose(a.out, b.out, atol=1e-3, equal_nan=True):
            return False
    return True


@pytest.mark.parametrize(
    ("kind", "line", "mistakes"),
    [
        ("entropy", ENTROPY, entropies.MISTAKES),
        ("rotary", ROTARY, rotaries.MISTAKES),
        ("mask", MASK, triangles.MISTAKES),
    ],
)
def test_no_two_mistakes_are_one_function(kind, line, mistakes):
    given = problems(kind)
    made = made_by(mistakes)
    alike = [
        (one.mistake.name, other.mistake.name)
        for one, other in combinations(made, 2)
        if one.mistake is not other.mistake and same(line, one, other, given)
    ]
    assert alike == []
    nothing = type(made[0])(made[0].mistake, "", {})
    assert [one.mistake.name for one in made if same(line, one, nothing, given)] == []


def test_our_own_steps_are_what_they_should_be():
    p = causal_rows(2, 5, 5, seed=4)
    assert torch.allclose(ENTROPY.run(Weights(p=p), {}).out, torch.special.entr(p).sum(-1))
    x = normal(1, 2, 6, 8, seed=5)
    turned = ROTARY.run(Rotation(q=x, k=x, turn=Turn("interleaved")), {}).out[0]
    z = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    angle = angles(6, 8).double()
    wanted = torch.view_as_real(z * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    assert torch.allclose(turned, wanted, atol=1e-5)
    assert torch.equal(MASK.run(sizes_only(4), {}).out, torch.ones(4, 4).tril().double())
    assert next(iter(lines.POOLS)) == "rows"


# A mask that somebody has -----------------------------------------------------------------------

T6 = torch.ones(6, 6).tril().bool()
DOCUMENT = torch.tensor([0, 0, 0, 1, 1, 1])
LEFT = T6 & (torch.arange(6) >= 2)
GIVEN = {
    "causal": (T6, (), "causal: no query sees the future"),
    "inverted": (~T6, ("mask-inverted",), "visible and hidden are exchanged"),
    "transposed": (T6.mT, ("mask-transposed",), "rows and columns are exchanged"),
    "one more": (torch.ones(6, 6).tril(1).bool(), ("mask-future-one",), "sees the future"),
    "itself": (T6.tril(-1), ("mask-past-one",), "does not see itself"),
    "added": (torch.zeros(6, 6).masked_fill(~T6, -torch.inf), (), "causal: no query"),
    "not low": (torch.zeros(6, 6).masked_fill(~T6, -100.0), ("mask-not-low",), "causal"),
    "0 and 1": (T6.float(), ("mask-added",), "causal"),
    "window": (T6 & ~T6.tril(-3), (), "a window of 3 keys"),
    "left": (
        LEFT[None, None],
        (),
        "padding on the left: nobody sees the first 2 of 6 keys; causal",
    ),
    "blind": (LEFT, (), "queries that see nothing: 0, 1"),
    "right": (T6 & (torch.arange(6) < 4), (), "nobody sees the last 2 of 6 keys"),
    "documents": (T6 & (DOCUMENT[:, None] == DOCUMENT), (), "2 documents of 3, 3 tokens, causal"),
    "rectangle": (torch.ones(3, 6).tril(3).bool(), (), "the last query sees the last key"),
    "top-left": (torch.ones(3, 6).tril().bool(), (), "top-left"),
    "nothing": (torch.zeros(4, 4).bool(), (), "no query sees anything"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_given_mask_in_words(name):
    mask, names, words = GIVEN[name]
    found = diagnose_mask(mask, Told())
    assert found.names == names
    (said,) = [each.value for each in found.conventions if each.name == "lets through"]
    assert words in said


def test_a_given_mask_is_read_as_told():
    assert diagnose_mask(~T6, Told(mask="hide")).ok
    assert diagnose_mask(T6, Told(mask="hide")).names == ("mask-inverted",)
    assert diagnose_mask(T6.float(), Told(mask="additive")).verdict == "wrong"
    assert diagnose_mask(torch.ones(3, 6).bool(), Told(causal=True)).names == ("mask-missing",)
    for mask, ours in ((~T6, "Rule(mask=~mask)"), (T6, "Rule(mask=mask)")):
        assert ours in diagnose_mask(mask, Told()).conventions[-1].value
    with pytest.raises(ValueError, match=r"a mask is \(T, S\).*got \[3\] of float32"):
        diagnose_mask(torch.zeros(3), Told())
