"""`check`: right attention of many sources is found right, and what is wrong is named."""

import importlib.util
import json
import math
import os
import sys
import warnings
from functools import partial
from pathlib import Path

import checked
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from programs import CLEARHEAD, ROOT, run
from torch import nn

import clearhead as ch
from clearhead.checker.about import about
from clearhead.checker.building import keywords
from clearhead.checker.calls import stand_in
from clearhead.checker.checks import check_file, told_of
from clearhead.checker.given_mask import diagnose_mask
from clearhead.checker.mistakes import ATTENTION
from clearhead.cli import main
from clearhead.testing import assert_attention
from clearhead.views import diagnosis as views

CLASS = ROOT / "tests" / "data" / "class"
ANSWERS = json.loads((CLASS / "answers.json").read_text("utf-8"))
TELL = {
    "kind": None, "layout": None, "causal": None, "mask": None, "align": None, "window": None,
    "softcap": None, "scale": None, "alibi": False, "rotary": None, "rotary_base": 10000.0,
    "heads": None, "kv_heads": None, "values": None, "strict": False,
}  # fmt: skip


def attention(q, k, v, mask=None):
    """q, k and v are (B, H, T, D)."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.nan_to_num(scores.softmax(dim=-1))
    return weights @ v, weights


# Right ones, from many sources ------------------------------------------------------------------


def conventions(found):
    return {each.name: each for each in found.conventions}


def onnx_reference(Q, K, V, attn_mask=None, scale=None, is_causal=0, softcap=0.0):
    from onnx.reference.ops import op_attention

    return op_attention._compute_attention(
        Q, K, V, attn_mask=attn_mask, scale=scale, is_causal=is_causal, softcap=softcap
    )[0]


def ours(q, k, v, mask=None, is_causal=False, window=None, softcap=None, scale=None, sinks=None,
         slopes=None):  # fmt: skip
    rule = ch.Rule(mask=mask, causal=is_causal or window is not None, window=window, scale=scale,
                   softcap=softcap, sinks=sinks, alibi=slopes)  # fmt: skip
    return ch.attention(q, k, v, rule).out


def eager(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = f"transformers.models.{name}.modeling_{name}"
        return importlib.import_module(place).eager_attention_forward


SOURCES = {
    "SDPA": (lambda: F.scaled_dot_product_attention,
             {"mask": "right", "more keys than queries": "different"}),
    "nn.MultiheadAttention": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True).eval(), {"mask": "different"}),
    "nn.MultiheadAttention, tokens first": (lambda: nn.MultiheadAttention(16, 4).eval(),
                                            {"mask": "different"}),
    "llama": (lambda: eager("llama"), {"mask": "different", "shared key heads": "right"}),
    "gemma2": (lambda: eager("gemma2"), {"mask": "different", "shared key heads": "right"}),
    "gpt_oss": (lambda: eager("gpt_oss"), {"mask": "different", "shared key heads": "right"}),
    "ONNX": (lambda: onnx_reference,
             {"more keys than queries": "different", "shared key heads": "right"}),
    "the engine": (lambda: ours, {"more keys than queries": "right", "window": "right",
                                  "shared key heads": "right", "mask": "right"}),
    "the teaching file, one head": (lambda: ch.scratch.single_head_attention, {"mask": "right"}),
    "the teaching file": (lambda: ch.scratch.multi_head_attention, {"mask": "right"}),
    "its entropy": (lambda: ch.scratch.attention_entropy, {}),
    "its mask": (lambda: ch.scratch.causal_mask, {}),
    "our module": (lambda: ch.MultiHeadAttention(24, 4), {"mask": "right"}),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_right_attention_is_right_and_its_conventions_are_its_own(name):
    make, states = SOURCES[name]
    found = ch.check(make())
    assert (found.verdict, found.mistakes) == ("right", ()), str(found)
    assert {each: conventions(found)[each].state for each in states} == states
    assert str(found).startswith(f"{found.target}: right")


def test_a_window_and_a_scale_are_handed_over_where_they_can_be():
    tried = {each.name: each.outcome for each in ch.check(ours).tried}
    assert {"window of 3", "softcap", "sinks", "ALiBi", "scale of 0.3", "padding"} <= set(tried)
    assert set(tried.values()) == {"right"}


# A class ----------------------------------------------------------------------------------------


def theirs(path, name):
    spec = importlib.util.spec_from_file_location(f"class_{Path(path).stem}", CLASS / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module
    spec.loader.exec_module(module)
    return getattr(module, name)


def judged(path):
    """The diagnosis of one file of the class, called here."""
    answer = ANSWERS[path]
    told = dict(answer.get("told", {}))
    if isinstance(rotary := told.pop("rotary", None), dict):
        rotary = rotary.get("pairing")
    known = {name: value for name, value in told.items() if name in TELL} | {"rotary": rotary}
    target = theirs(path, answer["name"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(target, type):
            given = keywords(about(target), told_of(**{**TELL, **known}))
            target = target(**{name: stand_in(value) for name, value in given.items()})
        return ch.check(target, **known)


def of_class(kind):
    return [path for path in ANSWERS if path.startswith(kind)]


@pytest.mark.parametrize("path", of_class("right/"))
def test_nobody_who_is_right_is_called_wrong(path, capsys):
    found = judged(path)
    assert found.verdict == "right", f"{path}: {found.names} {found.trouble} {found.unexplained}"


# What no explanation but one fits -----------------------------------------------------------------


def by_name(name):
    return next(mistake for mistake in ATTENTION if mistake.name == name)


FEW = [
    ("function", "scale-missing"), ("function", "mask-inverted"), ("function", "gqa-tiled"),
    ("function", "softcap-after-mask"), ("function", "rotary-pairing"), ("teaching", "heads-view"),
    ("teaching", "scale-model-width"), ("teaching", "merge-view"), ("module", "mask-future-one"),
    ("module", "output-transposed"), ("module", "rotary-on-values"), ("module", "v-is-k"),
]  # fmt: skip


@pytest.mark.parametrize(("style", "name"), FEW)
def test_a_mistake_is_named(style, name):
    mistake = by_name(name)
    target, told = checked.subject(style, mistake, mistake.variants[0][1])
    found = ch.check(target, **told)
    assert found.verdict == "wrong"
    assert found.names[0] == name, str(found)
    assert found.mistakes[0].sure == "certain"
    assert found.status == 1


def test_two_mistakes_are_both_named_in_one_go():
    def attention(q, k, v, mask):
        d_model = q.shape[1] * q.shape[-1]
        scores = q @ k.transpose(-2, -1) / math.sqrt(d_model)
        return scores.masked_fill(mask, -1e9).softmax(dim=-1) @ v

    found = ch.check(attention)
    assert set(found.names[:2]) == {"scale-model-width", "mask-inverted"}
    assert all(each.sure == "certain" for each in found.mistakes)
    states = {each.name: each.state for each in found.conventions}
    assert (states["scale"], states["mask"]) == ("mistake", "mistake")


@pytest.mark.parametrize("scale", [1 / 8, pytest.param(1 / 23, marks=pytest.mark.slow)])
def test_a_scale_that_is_written_as_a_number_is_found_alone_and_beside_another(scale):
    # 1/8 is 1/sqrt(64), and 1/d_head where that is 8.
    def scaled(q, k, v):
        return (q @ k.mT * scale).softmax(dim=-1) @ v

    def inverted(q, k, v, mask):
        return (q @ k.mT * scale).masked_fill(mask, -1e9).softmax(dim=-1) @ v

    note = "about 0.125, 1/sqrt(64)" if scale == 1 / 8 else "about 0.04348, 1/sqrt(529)"
    for attention, names in (
        (scaled, ["scale-other"]), (inverted, ["scale-other", "mask-inverted"]),
    ):  # fmt: skip
        found = ch.check(attention).mistakes[: len(names)]
        assert [each.name for each in found] == names
        assert found[0].note == note and all(each.sure == "certain" for each in found)


def test_heads_that_are_tiled_have_an_example_of_four():
    def attention(q, k, v):
        k, v = (x.repeat(1, q.shape[1] // x.shape[1], 1, 1) for x in (k, v))
        return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v

    found = ch.check(attention)
    assert found.names == ("gqa-tiled",)
    inputs = dict(found.example.inputs)
    assert [inputs[name].shape[0] for name in "qkv"] == [4, 2, 2] and inputs["q"].shape[1] == 1


def test_the_other_polarity_is_right_where_somebody_says_so():
    def attention(q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(mask, -1e9).softmax(dim=-1) @ v

    assert ch.check(attention).names[0] == "mask-inverted"
    told = ch.check(attention, mask="hide")
    assert told.ok and conventions(told)["mask"].state == "different"

    def documented(q, k, v, mask):
        """mask: True = masked out."""
        return attention(q, k, v, mask)

    assert ch.check(documented).ok


def test_a_mask_of_keys_means_what_its_name_its_words_or_somebody_says():
    def attention(q, k, v, key_padding_mask=None):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], -math.inf)
        return scores.softmax(dim=-1) @ v

    found = ch.check(attention)
    assert found.ok and conventions(found)["mask"].value.startswith("True = hidden")

    def turned(q, k, v, key_padding_mask):
        return attention(q, k, v, ~key_padding_mask)

    found = ch.check(turned)
    assert found.names == ("mask-inverted",)
    assert found.example.call == "turned(q, k, v, key_padding_mask)"
    assert dict(found.example.inputs)["key_padding_mask"].dtype is torch.bool
    (mistake,) = found.mistakes
    assert "True is taken for: hidden" in mistake.why and "masked_fill(mask" in mistake.mend
    assert ch.check(turned, mask="attend").ok
    assert "True is taken" not in ch.check(attention, mask="attend").mistakes[0].why

    def documented(q, k, v, key_padding_mask):
        """key_padding_mask (B, S): True = keep, False = padding."""
        return turned(q, k, v, key_padding_mask)

    assert ch.check(documented).ok


BOTH = "attn_mask: (T, S) True = may look.\n    key_padding_mask: (B, S), True = {}."


def with_both(hides_pairs, hides_keys, words):
    def attention(q, k, v, attn_mask=None, key_padding_mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            hidden = attn_mask if hides_pairs else ~attn_mask
            scores = scores.masked_fill(hidden, -math.inf)
        if key_padding_mask is not None:
            hidden = key_padding_mask if hides_keys else ~key_padding_mask
            scores = scores.masked_fill(hidden[:, None, None], -math.inf)
        return scores.softmax(dim=-1) @ v

    attention.__doc__ = words
    return attention


@pytest.mark.parametrize(
    ("attention", "inverted"),
    [
        (with_both(False, True, BOTH.format("padding")), None),
        (with_both(False, True, None), None),  # as their names have it
        (with_both(False, False, BOTH.format("keep")), None),
        (with_both(False, False, "In both masks True = may be looked at."), None),
        (with_both(True, True, BOTH.format("padding")), "the mask of pairs alone"),
        (with_both(False, False, BOTH.format("padding")), "the mask of keys alone"),
        (with_both(False, False, None), "the mask of keys alone"),
    ],
)
def test_of_two_masks_each_means_what_is_said_of_it(attention, inverted):
    found = ch.check(attention)
    assert [each.note for each in found.mistakes] == [inverted] * (inverted is not None)
    assert all(each.name == "mask-inverted" for each in found.mistakes)
    assert any(each.name == "mask" for each in found.tried)


@pytest.mark.parametrize(
    ("words", "keeps"),
    [
        ("1 for real tokens, 0 for padding.", True),
        ("True for real tokens, False for padding.", True),
        ("nonzero at positions to attend to", True),
        ("False where padded.", True),
        ("True indicates valid keys.", True),
        ("0 = padding.", True),
        ("1 = pad, 0 = real token", False),
        ("False for real tokens, True for padding", False),
        ("True means the key is ignored.", False),
    ],
)
def test_what_is_said_of_true_is_read(words, keeps):
    def attention(q, k, v, padding_mask=None):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if padding_mask is not None:
            hidden = ~padding_mask if keeps else padding_mask
            scores = scores.masked_fill(hidden[:, None, None], -math.inf)
        return scores.softmax(dim=-1) @ v

    attention.__doc__ = f"padding_mask: (B, S), {words}"
    assert ch.check(attention).ok
    keeps = not keeps
    assert ch.check(attention).names == ("mask-inverted",)


def test_words_of_true_and_false_forbid_a_mask_that_is_added():
    def attention(q, k, v, mask):
        """mask: (T, T) bool, True = may look"""
        return (q @ k.mT / math.sqrt(q.shape[-1]) + mask).softmax(dim=-1) @ v

    assert ch.check(attention).names[0] == "mask-added"


class Crossed(nn.Module):
    """Keys and values of inputs of their own, or of the wrong ones."""

    def __init__(self, d_model, n_heads, of="qkv"):
        super().__init__()
        self.n_heads, self.of = n_heads, of
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value):
        B, T, M = query.shape
        given = {"q": query, "k": key, "v": value}
        q, k, v = (
            project(given[each]).view(B, -1, self.n_heads, M // self.n_heads).transpose(1, 2)
            for each, project in zip(self.of, (self.q, self.k, self.v), strict=True)
        )
        return self.out(attention(q, k, v)[0].transpose(1, 2).reshape(B, T, M))


@pytest.mark.parametrize(
    ("of", "note"),
    [("qkv", None), ("qqv", "keys of query"), ("qvk", "keys of value, values of key")],
)
def test_each_input_of_a_module_is_used_for_what_it_is(of, note):
    found = ch.check(Crossed(24, 4, of))
    assert [each.note for each in found.mistakes] == [note] * (note is not None)
    assert all(each.name == "inputs-mixed" for each in found.mistakes)


def test_heads_folded_into_the_batch_come_back_in_the_same_order():
    class Folded(nn.Module):
        def __init__(self, d_model, n_heads):
            super().__init__()
            self.n_heads = n_heads
            self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))

        def forward(self, x):
            B, T, M = x.shape
            n = self.n_heads
            q, k, v = (
                p(x).view(B, T, n, -1).transpose(1, 2).reshape(B * n, T, -1)
                for p in (self.q, self.k, self.v)
            )
            heads = attention(q, k, v)[0].view(n, B, T, -1)
            return self.out(heads.permute(1, 2, 0, 3).reshape(B, T, M))

    assert ch.check(Folded).names == ("heads-into-batch",)


def test_a_window_by_itself_may_hide_the_future():
    def attention(q, k, v, window=None, own=0):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        T, S = scores.shape[-2:]
        lag = torch.arange(T)[:, None] + S - T - torch.arange(S)
        if window:
            scores = scores.masked_fill((lag < 0) | (lag >= window + own), -math.inf)
        return scores.softmax(dim=-1) @ v

    found = ch.check(attention)
    assert found.ok and conventions(found)["window"].value.endswith("and no future")
    assert ch.check(partial(attention, own=1)).names == ("window-one-more",)


def softmax_of(z, axis, most):
    powers = np.exp(z - (z.max() if most is None else z.max(axis=most, keepdims=True)))
    return powers / powers.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize(
    ("axis", "names"), [(-1, ["softmax-one-maximum"]), (-2, ["softmax-over-queries"])]
)
def test_one_maximum_for_a_whole_map(axis, names):
    def attention(Q, K, V, mask=None):
        scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, -1e9)
        return softmax_of(scores, axis, None) @ V

    found = ch.check(attention)
    assert [each.name for each in found.mistakes][:1] == names
    assert any("z.max()" in text for _, text in found.mistakes[0].look)  # in the helper


def test_sums_that_are_not_kept_below_each_rows_maximum():
    def attention(q, k, v):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
        return powers / powers.sum(dim=-1)[..., None, :] @ v

    assert ch.check(attention).names == ("softmax-sums-unkept",)


def test_a_cap_that_is_required_and_not_used():
    def capped(q, k, v, softcap):
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return (softcap * torch.tanh(scores / softcap)).softmax(dim=-1) @ v

    def uncapped(q, k, v, softcap):
        return F.scaled_dot_product_attention(q, k, v)

    assert ch.check(capped).ok and ch.check(uncapped).names == ("softcap-missing",)


def test_a_seed_that_is_set_within_a_call_is_seen_whatever_it_is(tmp_path):
    lines = "import torch, torch.nn.functional as F\ndef attention(q, k, v):\n"
    lines += "    torch.manual_seed(0)\n    return F.scaled_dot_product_attention(q, k, v)\n"
    (tmp_path / "seeded.py").write_text(lines)
    assert ch.check(f"{tmp_path}/seeded.py:attention").names == ("random-state",)


def test_a_call_moves_neither_the_directory_nor_the_environment(tmp_path, monkeypatch):
    def moving(q, k, v):
        os.chdir(tmp_path)
        os.environ["HEADS"] = "9"
        os.environ.pop("KEPT", None)
        return F.scaled_dot_product_attention(q, k, v)

    monkeypatch.setenv("KEPT", "1")
    before = os.getcwd(), dict(os.environ)
    assert ch.check(moving).ok
    assert (os.getcwd(), dict(os.environ)) == before


def test_what_has_no_source_is_judged_with_as_many_axes_as_it_takes():
    typed: dict = {}
    code = "def attention(q, k, v):\n    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(1) @ v\n"
    exec(code, typed)  # as in a prompt; for (T, D) it would be right
    assert ch.check(typed["attention"]).names == ("softmax-over-heads",)


def test_three_tensors_without_telling_names():
    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):
        return F.scaled_dot_product_attention(a, b, c) * 1.0

    found = ch.check(f)
    assert found.ok and found.kind == "sdp"

    def g(a, b, c):
        return (a @ b.mT).softmax(dim=-1) @ c

    found = ch.check(g)
    assert [name for name, _ in found.example.inputs] == ["a", "b", "c"]
    assert found.example.call == "g(a, b, c)"


STARTED = """
import torch
def attention(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
def multi_head_attention(x, W_Q, W_K, W_V, n_heads):
    raise NotImplementedError("TODO")
def attention_entropy(weights):
    raise NotImplementedError("TODO")
def normalize(weights):
    return weights / weights.sum(-1, keepdim=True)
def masked(scores, mask):
    return scores.masked_fill(~mask, -1e9)
"""


def test_what_is_not_yet_written_is_a_part_of_the_file_and_a_helper_is_none(tmp_path):
    (tmp_path / "started.py").write_text(STARTED)
    found = check_file(f"{tmp_path}/started.py", told_of(**TELL))
    assert [(each.target, each.verdict) for each in found] == [
        ("attention", "right"), ("multi_head_attention", "untried"),
        ("attention_entropy", "untried"),
    ]  # fmt: skip
    row = views.row(found, "started.py")
    assert row["verdict"] == "untried" and "attention_entropy: it raised" in row["trouble"]


def test_an_example_shows_the_mask_as_it_was_handed_over():
    def attention(q, k, v, mask):
        """mask: 1 = masked out."""
        return (q @ k.mT).masked_fill(mask.bool(), -math.inf).softmax(dim=-1) @ v

    found = ch.check(attention)
    assert found.names[0] == "scale-missing"
    inputs, call = dict(found.example.inputs), found.example.call
    given = [inputs[name] for name in call.removeprefix("attention(").rstrip(")").split(", ")]
    assert torch.allclose(attention(*given[:3], given[3]), found.example.got, atol=1e-6)


def test_the_smallest_input_is_small_and_its_numbers_are_true():
    def attention(q, k, v):
        """Causal."""
        T = q.shape[-2]
        hidden = torch.ones(T, T, dtype=torch.bool).triu(2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(hidden, -math.inf).softmax(dim=-1) @ v

    example = ch.check(attention).example
    inputs = dict(example.inputs)
    q, k, v = (inputs[name] for name in "qkv")
    assert q.shape[-2] == 2  # of one token nothing can be wrong
    assert torch.allclose(attention(q, k, v), example.got, atol=1e-6)
    wanted = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    assert torch.allclose(wanted, example.want, atol=1e-6)
    assert (example.got - example.want).abs().max() > 0.01
    assert example.call == "attention(q, k, v)"
    assert example.want_weights[0, 0].tolist() == [1, 0]


def test_where_to_look_is_a_line_of_the_file():
    (found,) = check_file(f"{ROOT}/examples/broken_attention.py:attention", told_of(**TELL))
    lines = (ROOT / "examples" / "broken_attention.py").read_text("utf-8").splitlines()
    assert found.mistakes[0].look
    for number, text in found.mistakes[0].look:
        assert lines[number - 1].strip() == text
    assert any("triu(diagonal=2)" in text for _, text in found.mistakes[0].look)


def test_what_fits_no_mistake_is_said_so():
    def attention(q, k, v):
        scores = (q @ k.transpose(-2, -1)).sin() / math.sqrt(q.shape[-1])
        return scores.softmax(dim=-1) @ v.abs()

    found = ch.check(attention)
    assert found.verdict == "wrong" and found.unexplained and found.example is not None
    assert "no mistake that we know" in str(found)
    assert [each.name for each in found.conventions] == ["layout"]  # the rest is not known


def test_what_two_mistakes_would_explain_alike_is_called_likely():
    def attention(q, k, v):  # for a single head d_model is d_head
        return (q @ k.T).softmax(dim=-1) @ v

    found = ch.check(attention)
    assert found.names == ("scale-missing",) and found.kind == "sdp"


def test_softmax_by_hand_with_the_sums_of_rows_laid_on_columns():
    def attention(x, W_Q, W_K, W_V):
        powers = (x @ W_Q @ (x @ W_K).mT).exp()
        return powers / powers.sum(dim=1) @ (x @ W_V)

    assert set(ch.check(attention).names) == {"scale-missing", "softmax-sums-unkept"}


@pytest.mark.parametrize("tile", [64, pytest.param(16, marks=pytest.mark.slow)])
def test_what_is_wrong_on_long_texts_alone_is_not_called_right(tile):
    """Softmax tile by tile, without rescaling the sums when a larger score comes."""

    def attention(q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        largest = torch.full(scores.shape[:-1], -math.inf)
        total, out = torch.zeros_like(largest), torch.zeros(*q.shape[:-1], v.shape[-1])
        for at in range(0, k.shape[-2], tile):
            part = scores[..., at : at + tile]
            new = torch.maximum(largest, part.amax(dim=-1))
            powers = (part - new[..., None]).exp()
            total = total * (largest - new).exp() + powers.sum(dim=-1)
            out, largest = out + powers @ v[..., at : at + tile, :], new
        return out / total[..., None]

    found = ch.check(attention)
    assert found.verdict == "wrong"
    assert {e.name for e in found.tried if e.outcome == "wrong"} <= {"61 tokens", "131 tokens"}


def test_a_mask_of_products_with_infinity_makes_nan():
    def attend(q, k, v, attn_mask=None):
        """q, k and v are (B, H, T, D); True in attn_mask may attend."""
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            scores = scores + (1 - attn_mask.float()) * -math.inf
        return scores.softmax(dim=-1) @ v

    assert ch.check(attend).names[0] == "mask-nan"


def test_a_bias_that_is_scaled_with_the_scores():
    def attend(q, k, v, attn_bias):
        """q, k and v are (B, H, T, D)."""
        return ((q @ k.transpose(-2, -1) + attn_bias) / math.sqrt(q.shape[-1])).softmax(-1) @ v

    assert ch.check(attend).names[:1] == ("bias-scaled",)


def test_a_window_that_forgets_the_cache():
    def attend(q, k, v, window):
        """Causal. q, k and v are (B, H, T, D)."""
        T, S = q.shape[-2], k.shape[-2]
        own, keys = torch.arange(T)[:, None], torch.arange(S)
        sees = (keys <= own + S - T) & (own - keys < window)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(~sees, -math.inf).softmax(dim=-1) @ v

    assert ch.check(attend).verdict == "wrong"


# What is watched ----------------------------------------------------------------------------------


def test_dropout_is_found_by_calling_twice_and_the_rest_is_still_checked():
    def attention(q, k, v):
        scores = q @ k.transpose(-2, -1)
        return F.dropout(scores.softmax(dim=-1), 0.2) @ v

    state = torch.random.get_rng_state()
    found = ch.check(attention)
    assert set(found.names) == {"dropout-in-eval", "scale-missing"}
    assert torch.equal(torch.random.get_rng_state(), state)


def test_what_writes_into_its_inputs_is_named_with_the_argument():
    def attend(q, k, v):
        q *= q.shape[-1] ** -0.5
        return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v

    (mistake,) = ch.check(attend).mistakes
    assert (mistake.name, mistake.note, mistake.sure) == ("inputs-changed", "q", "seen")


def test_a_stopped_gradient_is_named_with_what_gets_none():
    def attend(q, k, v):
        return (q @ k.detach().transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v

    (mistake,) = ch.check(attend).mistakes
    assert (mistake.name, mistake.note) == ("gradient-stopped", "k")


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "empty-nan"), (None, "empty-uniform"), (0.0, None)]
)
def test_a_row_that_sees_nothing_is_a_caution(value, name):
    def attend(q, k, v, mask):
        out, _ = attention(q, k, v, mask)
        nothing = ~mask.expand(*out.shape[:-1], k.shape[-2]).any(dim=-1, keepdim=True)
        mean = v.mean(dim=-2, keepdim=True)
        return torch.where(nothing, mean if value is None else torch.tensor(value), out)

    found = ch.check(attend)
    assert found.ok
    assert found.names == (() if name is None else (name,))
    assert ch.check(attend, strict=True).ok is (name is None)


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda s, w: w.mean(dim=1), "weights-averaged"), (lambda s, w: s, "weights-scores"),
        (lambda s, w: w.mT, "weights-transposed"), (lambda s, w: w * 0.5, "weights-other"),
    ],
)  # fmt: skip
def test_weights_that_are_not_those_of_the_output(other, name):
    def attend(q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.softmax(dim=-1)
        return weights @ v, other(scores, weights)

    assert ch.check(attend).names == (name,)


def test_a_module_is_left_as_it_was():
    module = ch.MultiHeadAttention(24, 4).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    hooks = len(module._forward_hooks)
    assert ch.check(module).ok
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    assert module.training and len(module._forward_hooks) == hooks
    assert all(parameter.grad is None for parameter in module.parameters())


# What is told, and what cannot be meant -----------------------------------------------------------


def test_what_hides_the_future_that_should_be_seen():
    def attend(q, k, v):
        """q, k and v are (B, H, T, D)."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    assert ch.check(attend).ok
    assert ch.check(attend, causal=False).names == ("mask-causal",)


def test_what_should_be_causal_and_is_not():
    def attend(q, k, v):
        return (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v

    assert ch.check(attend).ok
    assert ch.check(attend, causal=True).names == ("mask-missing",)

    def causal_attention(q, k, v):
        return attend(q, k, v)

    assert ch.check(causal_attention).names == ("mask-missing",)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "attention"}, "kind must be one of sdp, teach, module"),
        ({"layout": "HBTD"}, "layout must be one of BHTD, BTHD"),
        ({"mask": "true"}, "mask must be one of attend, hide, additive; got 'true'"),
        ({"align": "left"}, "align must be one of bottom-right, top-left"),
        ({"rotary": "pairs"}, "rotary must be one of halves, interleaved"),
        ({"window": 0}, "window must be a whole number from 1 on; got 0"),
        ({"softcap": -1.0}, "softcap must be a number above 0"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        ch.check(attention, **wrong)


def test_what_is_no_attention_is_untried_with_a_reason():
    for target in (lambda x: x, lambda q, k, v: None, lambda q, k, v: "done", math.sqrt):
        found = ch.check(target)
        assert (found.verdict, found.status) == ("untried", 2)
        assert found.trouble
    with pytest.raises(ValueError, match="check takes a function"):
        ch.check(3)


def test_a_parameter_that_says_nothing_can_be_given_a_value():
    def attend(q, k, v, flavor):
        assert flavor == "plain"
        return attention(q, k, v)[0]

    assert "--set flavor=VALUE" in ch.check(attend).trouble
    assert ch.check(attend, values={"flavor": "plain"}).ok


# Against a peer -----------------------------------------------------------------------------------


def test_two_that_agree_but_for_rounding():
    found = ch.check_against(attention, F.scaled_dot_product_attention)
    assert found.status == 0 and found.first is None and not found.trouble
    outcomes = {each.outcome for each in found.met}
    assert "rounding" in outcomes and "differ" not in outcomes


def test_two_that_differ_and_under_which_rule():
    def other(q, k, v, mask=None):
        """q, k and v are (B, H, T, D)."""
        weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        return (weights if mask is None else weights * mask) @ v

    found = ch.check_against(attention, other)
    assert found.status == 1 and found.first.name == "mask"
    met = {each.name: each for each in found.met}
    assert met["plain"].outcome in ("same", "rounding")
    assert found.first.of_a < 1e-5 < found.first.of_b
    assert found.example.sides == ("attention", "other")
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["first"] == "mask"


def test_a_module_beside_a_function():
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.n_heads = 4
            self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (a.view(B, T, 4, 6).transpose(1, 2) for a in self.qkv(x).chunk(3, dim=-1))
            return self.out(attention(q, k, v)[0].transpose(1, 2).reshape(B, T, 24))

    assert ch.check_against(Mine(), attention).status == 0
    assert ch.check_against(attention, Mine()).status == 0


def halves(x):
    """x (B, H, T, D)"""
    T, D = x.shape[-2:]
    angles = torch.arange(T)[:, None] * 10000.0 ** (-2 * torch.arange(D // 2) / D)
    a, b = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


def neighbors(x, base=10000.0):
    """x (B, T, H, D)"""
    x = x.transpose(1, 2)
    x = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
    return halves(x).unflatten(-1, (2, -1)).mT.flatten(-2).transpose(1, 2)


def apply_rotary_pos_emb(q, k, cos, sin):
    def turned(x):
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-b, a), dim=-1) * sin

    return turned(q), turned(k)


class Both(nn.Module):
    def forward(self, q, k):
        return halves(q), halves(k)


def only_queries(q, k):
    return halves(q), k


def mean_entropy(weights):
    return torch.special.entr(weights).sum(dim=-1).mean()


def rough_entropy(attn):
    """attn (T, S)"""
    return -(attn * (attn + 1e-4).log()).sum(dim=-1)


def whole_entropy(attn):
    """attn (B, H, T, S)"""
    return torch.special.entr(attn).sum(dim=-1)


def added_mask(n):
    return torch.full((1, 1, n, n), -math.inf).triu(1)


def top_left(T, S):
    return torch.ones(T, S, dtype=torch.bool).tril()


def banded(T, S, window=99):
    lag = torch.arange(T)[:, None] + S - T - torch.arange(S)
    return (lag >= 0) & (lag < window)


@pytest.mark.parametrize(
    ("kind", "one", "other", "first"),
    [
        ("rotary", halves, apply_rotary_pos_emb, None),
        ("rotary", apply_rotary_pos_emb, halves, None),
        ("rotary", halves, neighbors, "plain"),
        ("rotary", halves, Both(), None),
        ("rotary", Both(), halves, None),
        ("rotary", halves, only_queries, "plain"),
        ("entropy", whole_entropy, whole_entropy, None),
        ("entropy", whole_entropy, rough_entropy, "a random map"),
        ("entropy", mean_entropy, whole_entropy, "a random map"),
        ("mask", added_mask, banded, None),
        ("mask", top_left, banded, "3 queries and 5 keys"),
    ],
)
def test_functions_beside_attention_are_compared_too(kind, one, other, first):
    found = ch.check_against(one, other, kind=kind)
    assert (found.first.name if found.first else None) == first
    assert found.status == int(first is not None) and not found.trouble
    assert (found.example is not None) == (first is not None)
    if first is not None:  # the numbers are those of the two
        assert (found.first.of_a > 1e-5) != (found.first.of_b > 1e-5)
        assert not torch.equal(found.example.got, found.example.want)


def test_what_only_one_of_two_takes_is_not_asked():
    met = {each.name: each for each in ch.check_against(added_mask, banded, kind="mask").met}
    assert met["window of 3"].outcome == "refused"
    assert met["window of 3"].note == "added_mask takes no window"
    assert "5" in met["3 queries and 5 keys"].note and met["5 tokens"].outcome == "same"


def test_two_of_different_kinds_are_not_compared():
    found = ch.check_against(attention, whole_entropy)
    assert found.status == 2 and "of the kind sdp, and whole_entropy is entropy" in found.trouble


def by_text(x, W_Q, W_K, W_V, W_O, n_heads):
    """x (T, d_model)"""
    T, M = x.shape
    q, k, v = ((x @ W).view(T, n_heads, M // n_heads).transpose(0, 1) for W in (W_Q, W_K, W_V))
    return attention(q, k, v)[0].transpose(0, 1).reshape(T, M) @ W_O


def by_head(q, k, v):
    """q (T, D)"""
    return attention(q, k, v)[0]


@pytest.mark.parametrize("one", [by_text, by_head])
def test_what_has_no_axis_for_texts_or_heads_is_asked_one_by_one(one):
    for found in (ch.check_against(one, Crossed(24, 4)), ch.check_against(Crossed(24, 4), one)):
        assert found.status == 0 and "refused" not in {each.outcome for each in found.met}


def test_two_of_one_name_are_told_apart(tmp_path):
    lines = "def attention(q, k, v):\n    return (q @ k.mT{}).softmax(-1) @ v\n"
    for name, scale in (("ann", " / q.shape[-1] ** 0.5"), ("ben", "")):
        (tmp_path / f"{name}.py").write_text(lines.format(scale))
    places = [f"{tmp_path}/{name}.py:attention" for name in ("ann", "ben")]
    found = ch.check_against(*places)
    assert [found.a, found.b] == places and list(found.example.sides) == places


# In somebody's own tests --------------------------------------------------------------------------


def test_assert_attention_passes_and_fails_with_the_report():
    assert assert_attention(attention, causal=False).ok
    with pytest.raises(AssertionError) as failure:
        assert_attention(attention, causal=False, strict=True, window=2)
    assert "window-missing" in str(failure.value) and "how to mend" in str(failure.value)
    with pytest.raises(AssertionError, match="could not be"):
        assert_attention(lambda q, k, v: None)


# The command --------------------------------------------------------------------------------------


def command(*arguments, status):
    return run([*CLEARHEAD, "check", *arguments], cwd=ROOT, status=status)


def test_the_command_names_it_and_its_status_says_so(tmp_path):
    page = tmp_path / "pages" / "page.html"
    done = command("examples/broken_attention.py:attention", "--html", page, status=1)
    assert done.stdout.startswith("attention: wrong. 1 mistake\n")
    assert "[mask-future-one]" in done.stdout and "examples/broken_attention.py:" in done.stdout
    assert max(map(len, done.stdout.splitlines()[:-1])) <= 80
    assert "mask-future-one" in page.read_text("utf-8")


def test_as_json_it_is_strict_and_whole():
    done = command("examples/broken_attention.py:attention_entropy", "--json", status=1)
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    assert (found["verdict"], found["mistakes"][0]["name"]) == ("wrong", "entropy-epsilon")


@pytest.mark.parametrize(
    ("asked", "names"), [(4, ()), (3, ("window-one-more",)), (5, ("window-one-less",))]
)
def test_the_window_of_a_mask(asked, names):
    lag = torch.arange(9)[:, None] - torch.arange(9)
    found = diagnose_mask((lag >= 0) & (lag < 4), told_of(**{**TELL, "window": asked}))
    assert found.names == names
    triangle = diagnose_mask(lag >= 0, told_of(**{**TELL, "window": 3}))
    assert triangle.names == ("window-missing",)


def test_a_mask_in_a_file(tmp_path, capsys):
    def said(name, status):
        assert main(["check", "--mask", str(tmp_path / name)]) == status
        return capsys.readouterr()

    torch.save(torch.ones(6, 6).triu(1).bool(), tmp_path / "mask.pt")
    assert "mask-inverted" in said("mask.pt", 1).out
    torch.save(torch.ones(6, 6).tril().bool(), tmp_path / "right.pt")
    assert "right" in said("right.pt", 0).out
    (tmp_path / "bad.pt").write_bytes(b"cos\nsystem\n(S'echo gone'\ntR.")
    told = said("bad.pt", 2).err
    assert told.count("\n") == 1 and "bad.pt could not be read as a tensor" in told


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py:attention"], "there is no file nowhere.py"),
        (["examples/broken_attention.py:attend"], "has no 'attend'; it has attention"),
        ([], "say what to check"),
        (["x.py", "--window", "0"], "window must be a whole number"),
        (["x.py", "--set", "seven"], "--set takes NAME=VALUE"),
        (["nothing/*.py"], "no file is called nothing"),
        (["nothing/"], "there is no file or folder nothing/"),
        (["--mask", "nowhere.pt"], "nowhere.pt: No such file"),
    ],
)
def test_a_persons_mistake_is_told_without_a_traceback(arguments, words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main(["check", *arguments]) == 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert words in said and "Traceback" not in said


# What a newcomer's reports must not say ---------------------------------------------------------


class Merged(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.d_model, self.num_heads = d_model, num_heads
        self.d_head = d_model // num_heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x):
        B, T, _ = x.shape
        q = self.W_q(x).view(B, T, self.num_heads, self.d_head).transpose(1, 2)
        k = self.W_k(x).view(B, T, self.num_heads, self.d_head).transpose(1, 2)
        v = self.W_v(x).view(B, T, self.num_heads, self.d_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / self.d_model**0.5
        out = (scores.softmax(-1) @ v).reshape(B, T, self.d_model)
        return self.W_o(out)


def test_the_lines_to_look_at_hold_the_one_that_is_wrong():
    found = {each.name: [text for _, text in each.look] for each in ch.check(Merged).mistakes}
    assert [text.split(" =")[0] for text in found["scale-model-width"]] == ["scores"]
    assert found["merge-view"][0].startswith("out =")


@pytest.mark.slow
def test_weights_of_what_is_not_explained_are_not_invented():
    def attention(x, W_Q, W_K, W_V):
        scores = (x @ W_Q @ (x @ W_K).mT).abs()
        return scores / (1 + scores.sum(dim=1)) @ (x @ W_V)

    found = ch.check(attention)
    assert found.verdict == "wrong" and not found.mistakes
    assert found.example is not None and found.example.got_weights is None


def test_a_block_is_more_than_attention():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n_heads, self.norm = 4, nn.LayerNorm(24)
            self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)

        def forward(self, x):
            B, T, _ = x.shape
            q, k, v = (
                a.view(B, T, 4, 6).transpose(1, 2) for a in self.qkv(self.norm(x)).chunk(3, dim=-1)
            )
            heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + self.out(heads.transpose(1, 2).reshape(B, T, 24))

    found = ch.check(Block())
    assert found.verdict == "untried" and "it has norm.weight, norm.bias besides" in found.trouble


class Across(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x, context):
        B, T, C = x.shape
        q = self.to_q(x).view(B, T, self.heads, -1).transpose(1, 2)
        k = self.to_k(context).view(B, context.shape[1], self.heads, -1).transpose(1, 2)
        v = self.to_v(context).view(B, context.shape[1], self.heads, -1).transpose(1, 2)
        weights = (q @ k.transpose(-1, -2) * (C // self.heads) ** -0.5).softmax(-1)
        return self.to_out((weights @ v).transpose(1, 2).reshape(B, T, C))


def test_what_attends_to_a_context_is_handed_embeddings_for_it():
    found = ch.check(Across)
    assert found.verdict == "right", str(found)
