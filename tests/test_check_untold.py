"""`check` on what nobody told it of: a window, ALiBi, a layout; and what it says of them."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import clearhead as ch


def lags(q, k, top=False):
    T, S = q.shape[-2], k.shape[-2]
    return torch.arange(T)[:, None] + (0 if top else S - T) - torch.arange(S)


def seen(q, k, v, sees, lean=0.0, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q @ k.transpose(-2, -1) * scale - lean
    return scores.masked_fill(~sees, -math.inf).softmax(-1) @ v


def windowed(q, k, v, W, top=False):
    lag = lags(q, k, top)
    return seen(q, k, v, (lag >= 0) & (lag < W))


def conventions(found):
    return {each.name: each for each in found.conventions}


# A number that turns out to be a window ---------------------------------------------------------


def by_letter(q, k, v, w=4):
    return windowed(q, k, v, w, top=True)


def by_another_word(q, k, v, reach=4):
    return windowed(q, k, v, reach)


def without_any(q, k, v, back=None, far=5):
    return windowed(q, k, v, far)


def longer_than_the_first_probe(q, k, v, reach=9):
    return windowed(q, k, v, reach)


def of_arrays(q, k, v, reach=2):
    lag = lags(q, k).numpy()
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = np.where((lag >= 0) & (lag < reach), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize(
    ("attention", "name"),
    [(by_letter, "w"), (by_another_word, "reach"), (without_any, "far"), (of_arrays, "reach"),
     (longer_than_the_first_probe, "reach")],
)  # fmt: skip
def test_a_number_that_is_a_window_is_judged_as_one_and_a_note_says_so(attention, name):
    found = ch.check(attention)
    assert found.ok and found.status == 0, str(found)
    assert {"window of 3", "window of 2"} <= {each.name for each in found.tried}
    assert f"Its parameter {name} was taken for a window" in " ".join(str(found).split())
    assert conventions(found)["window"].state == "right"


def test_a_number_that_is_no_window_makes_nothing_right():
    def attention(q, k, v, rounds=3):
        return windowed(q, k, v, 3)

    found = ch.check(attention)
    assert found.names == ("window-untold",) and found.verdict == "wrong"
    assert not any("rounds" in each for each in found.remarks)

    def plain(q, k, v, rounds=3):
        return seen(q, k, v, lags(q, k) > -math.inf)

    assert ch.check(plain).ok and not ch.check(plain).remarks


class Windowed(nn.Module):
    def __init__(self, d_model, n_heads, window=3, used=3):
        super().__init__()
        self.n_heads, self.window, self.used = n_heads, window, used
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(d_model, d_model) for _ in range(4)
        )

    def forward(self, x):
        B, T, M = x.shape
        q, k, v = (p(x).view(B, T, self.n_heads, -1).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))  # fmt: skip
        heads = windowed(q, k, v, self.used)
        return self.o_proj(heads.transpose(1, 2).reshape(B, T, M))


def test_a_window_that_a_module_holds_is_known():
    found = ch.check(Windowed(24, 4))
    assert found.ok and "It holds 3 as its window" in str(found)
    assert ch.check(Windowed(24, 4, window=3, used=4)).names == ("window-one-more",)
    assert ch.check(Windowed(24, 4, window=3, used=500)).ok  # left to whoever calls it


# A rule inside ----------------------------------------------------------------------------------


def of_three(q, k, v):
    return windowed(q, k, v, 3)


def of_eight(q, k, v):
    return windowed(q, k, v, 8)


def of_ninety(q, k, v):
    return windowed(q, k, v, 90, top=True)


def of_both_sides(q, k, v):
    return seen(q, k, v, lags(q, k).abs() < 3)


def of_three_by_words(q, k, v):
    """Causal."""
    return windowed(q, k, v, 3)


def arrays_of_three(q, k, v):
    return of_arrays(q, k, v, 3)


def slopes(q):
    return 2.0 ** (-8.0 * torch.arange(1, q.shape[1] + 1) / q.shape[1])[:, None, None]


def leaning(q, k, v):
    lag = lags(q, k)
    return seen(q, k, v, lag >= 0, slopes(q) * lag)


def leaning_in_a_window(q, k, v):
    lag = lags(q, k)
    return seen(q, k, v, (lag >= 0) & (lag < 4), slopes(q) * lag)


@pytest.mark.parametrize(
    ("attention", "told"),
    [
        (of_three, {"window": 3}),
        (of_three_by_words, {"window": 3}),
        (of_eight, {"window": 8}),
        (of_ninety, {"window": 90}),
        (of_both_sides, {"window": 3}),
        (arrays_of_three, {"window": 3}),
        (Windowed(24, 4, window=None), {"window": 3}),
        (leaning, {"alibi": True}),
        (leaning_in_a_window, {"window": 4, "alibi": True}),
    ],
)
def test_a_rule_that_nobody_told_of_is_found_and_its_option_named(attention, told):
    found = ch.check(attention)
    assert set(found.names) == {f"{name}-untold" for name in told}, str(found)
    assert found.status == 1 and not found.ok
    assert {each.sure for each in found.mistakes} == {"likely"}
    said = str(found).splitlines()[0]
    options = {"window": f"a window of {told.get('window')} is meant: say --window "
               f"{told.get('window')}", "alibi": "ALiBi is meant: say --alibi"}  # fmt: skip
    assert "wrong, unless" in said
    assert all(options[name] in " ".join(str(found).split()) for name in told)
    assert found.seconds < 10
    assert ch.check(attention, **told).ok


def test_another_window_than_the_one_that_was_told_of_is_a_mistake():
    assert ch.check(of_three, window=4).names == ("window-one-less",)
    assert ch.check(of_three, window=2).names == ("window-one-more",)


@pytest.mark.slow
def test_a_window_beside_a_mistake_is_not_explained_and_the_report_says_what_to_tell():
    def attention(q, k, v):
        lag = lags(q, k)
        return seen(q, k, v, (lag >= 0) & (lag < 3), scale=1.0)

    found = ch.check(attention)
    assert found.unexplained and "--window W" in found.unexplained
    assert ch.check(attention, window=3).names == ("scale-missing",)


@pytest.mark.slow
def test_two_mistakes_that_make_nan_of_every_answer_explain_none():
    def attention(q, k, v, is_causal=False):
        lag = lags(q, k)
        return seen(q, k, v, (lag >= 0) & (lag < 3) if is_causal else lag == lag)

    found = ch.check(attention)
    assert found.unexplained and not found.mistakes, str(found)
    assert "--window W" in found.unexplained


@pytest.mark.slow
def test_what_looks_like_a_window_on_short_texts_alone_is_none():
    def attention(q, k, v):
        lag = lags(q, k)
        return seen(q, k, v, (lag >= 0) & ((lag < 3) | (lag > 40)))

    found = ch.check(attention)
    assert found.verdict == "wrong" and "window-untold" not in found.names


# A layout that is a guess -----------------------------------------------------------------------


def square(q, k, v):
    """A window of 4, and no scale."""
    T = q.shape[-2]
    lag = torch.arange(T)[:, None] - torch.arange(T)
    return seen(q, k, v, (lag >= 0) & (lag < 4), scale=1.0)


def test_under_a_layout_that_is_a_guess_nothing_is_certain():
    found = ch.check(square)
    assert "certain" not in {each.sure for each in found.mistakes}, str(found)
    assert conventions(found)["layout"].state == "guessed"
    assert "--layout" in str(found)
    told = ch.check(square, layout="BHTD", window=4)
    assert told.names == ("scale-missing",) and told.mistakes[0].sure == "certain"


def test_a_layout_of_which_more_keys_tell_is_no_guess():
    def attention(q, k, v):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)

    found = ch.check(attention)
    assert found.names == ("scale-missing",) and found.mistakes[0].sure == "certain"
    assert conventions(found)["layout"].state == "different"


@pytest.mark.slow
def test_a_layout_that_explains_nothing_is_not_stated():
    def attention(q, k, v):
        T = q.shape[-2]
        lag = torch.arange(T)[:, None] - torch.arange(T)
        return seen(q.sin(), k, v.abs(), lag >= 0)

    found = ch.check(attention)
    layout = conventions(found)["layout"]
    assert found.unexplained and layout.state == "guessed"
    assert layout.value.startswith("taken for q, k, v (batch, heads, tokens, d_head)")


# What comes nearest, and where to look ----------------------------------------------------------


def test_what_changes_no_answer_does_not_come_near():
    def attention(q, k, v):
        out = windowed(q, k, v, 8)
        return out if q.shape[-2] < 20 else out * 2

    found = ch.check(attention)
    assert found.unexplained and found.nearest[0].startswith("nothing")
    assert not any("handed over" in each or "capped" in each for each in found.nearest)


def powers_and_sums(q, k, v):
    s = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    s = np.exp(s - s.max())
    s = s / s.sum(-2, keepdims=True)
    return s @ v


def in_torch(q, k, v):
    s = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).exp()
    total = s.sum(dim=-2, keepdim=True)
    return s / total @ v


@pytest.mark.parametrize("attention", [powers_and_sums, in_torch])
def test_of_powers_and_their_sum_the_line_of_the_axis_comes_first(attention):
    (found,) = ch.check(attention).mistakes
    assert found.name == "softmax-over-queries" and "sum(" in found.look[0][1]
