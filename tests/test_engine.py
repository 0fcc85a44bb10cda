"""The engine against its laws, its wrong copies against the same laws, and the door."""

import math
from collections.abc import Sequence
from functools import partial
from types import ModuleType, SimpleNamespace

import chance
import dense
import engine_laws
import pytest
import torch
from mutants import copies

from clearhead import Rule, attention, bound, engine, lags, rule, softmax
from clearhead.engine import gradients, inputs, native, picks, rows, tiled, tiles

ENGINE = (lags, rule, bound, softmax, tiles, rows, picks, tiled, gradients, inputs, native, engine)


BUILT = native.library() is not None
IMPLS = ["tiled", pytest.param("native", marks=pytest.mark.skipif(not BUILT, reason="not built"))]


def judged(modules: Sequence[ModuleType] = ENGINE, impl: str = "tiled") -> SimpleNamespace:
    """The parts of an engine that the laws look at."""
    _, rule, _, softmax, tiles, *_, engine = modules
    attention = partial(engine.attention, impl=impl)
    return SimpleNamespace(attention=attention, Rule=rule.Rule, softmax=softmax, tiles=tiles)


@pytest.mark.quick
@pytest.mark.parametrize("law", engine_laws.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("impl", IMPLS)
def test_the_engine_obeys(law, impl):
    law(judged(impl=impl))


# name: what stands there, what stands in the wrong copy
MUTANTS = {
    "window one key too many": (
        "self.before = rule.window - 1",
        "self.before = rule.window",
    ),
    "window one key too few": (
        "self.before = rule.window - 1",
        "self.before = rule.window - 2",
    ),
    "causal sees the next key": (
        "            self.after = 0\n",
        "            self.after = 1\n",
    ),
    "causal hides itself": (
        "            self.after = 0\n",
        "            self.after = -1\n",
    ),
    "top-left for bottom-right": (
        "self.offset = self.S - self.T if",
        "self.offset = 0 if",
    ),
    "mask inverted": (
        "~self.mask[b, h, i0:i1, j0:j1]",
        "self.mask[b, h, i0:i1, j0:j1]",
    ),
    "key mask ignored": ("self._holes[j1] > self._holes[j0]", "self._holes[j1] < 0"),
    "documents ignored in a tile": (
        "mine != self.numbers[b, None, None, j0:j1]",
        "mine > self.numbers[b, None, None, j0:j1] + 99",
    ),
    "lowest bias not blocked": ("<= lowest)", "< lowest)"),
    "softcap after the bias": (
        "        return scores\n\n\ndef _behind",
        "        if rule.softcap is not None:\n"
        "            scores.div_(rule.softcap).tanh_().mul_(rule.softcap)\n"
        "        return scores\n\n\ndef _behind",
    ),
    "ALiBi the other way": (
        "back.to(scores.dtype), value=-1)",
        "back.to(scores.dtype))",
    ),
    "bias times scale": (
        "].to(scores.dtype)\n            scores.add_(bias)",
        "].to(scores.dtype) * self.scale\n            scores.add_(bias)",
    ),
    "scale twice": (
        ".to(self.dtype) * self.bound.scale",
        ".to(self.dtype) * self.bound.scale**2",
    ),
    "key heads tiled, not repeated": (
        "torch.unflatten(q[chunk.b, chunk.h], 1, (-1, bound.H // bound.G))",
        "torch.unflatten(q[chunk.b, chunk.h], 1, (bound.H // bound.G, -1)).transpose(1, 2)",
    ),
    "tiles skip a key": (
        "for j in range(first, last, step)",
        "for j in range(first + (first > 0), last, step)",
    ),
    "no rescale of the output": (
        "        part.o.mul_(factor.unsqueeze(-1))\n",
        "        pass\n",
    ),
    "no rescale of the sum": ("    part.l.mul_(factor)\n", ""),
    "entropy not shifted": (
        "part.u.addcmul_(d, part.l).mul_(factor)",
        "part.u.mul_(factor)",
    ),
    "entropy shifted the other way": (
        "addcmul_(d, part.l)",
        "addcmul_(d, part.l, value=-1)",
    ),
    "lse in base 2": ("(part.m + log_l)", "(part.m + log_l * LOG2_E)"),
    "a collapsed row is summed like others": (
        "if l.amin() < 1 + LITTLE:",
        "if False:",
    ),
    "an empty row is NaN": ("part.l.masked_fill(nothing, 1.0)", "part.l"),
    "0 times -inf": ("        scores.clamp_(min=FAR)\n", "        pass\n"),
    "sink left out": ("l=alone.l + 1", "l=alone.l"),
    "sink in the largest score": ("max_score=max_score,", "max_score=part.m,"),
    "mean key within the tile": ("positions[j0:j1]", "positions[: j1 - j0]"),
    "distance within the tile": (
        "lead = i0 + self.offset - j0\n        near",
        "near = lead = i0 + self.offset\n        near",
    ),
    "distance with its sign": ("lag.abs().to(dtype)", "lag.to(dtype)"),
    "distance with its sign where offsets differ": (").abs_().to(dtype), 0", ").to(dtype), 0"),
    "distance by another's offset": (
        "own = self.positions(i0, i1)[b, None",
        "own = self.positions(i0, i1)[:1, None",
    ),
    "no distance beyond that of a tile": ("abs(lead - near)", "0"),
    "the next tile along a diagonal": ("made[high + lead :]", "made[high + lead + 1 :]"),
    "a ceiling where the other side hides": (
        "hides = _behind if behind else",
        "hides = _behind if not behind else",
    ),
    "no rescale of the distance": ("        part.a.mul_(factor)\n", "        pass\n"),
    "sink in the distance": (
        "    distance = None\n",
        "    distance = None\n"
        "    if sink is not None:\n"
        "        part = replace(part, l=part.l + (sink.to(part.m) - part.m).exp())\n",
    ),
    "the distance uses the weights up": (
        "apart, out=scores.view(stacked))",
        "apart, out=weights.view(stacked))",
    ),
    "a spoiled row keeps its distance": (
        "self.mean_key, self.distance)",
        "self.mean_key)",
    ),
    "distance not renormalized": (
        "(part.a / part.l.mask",
        "(part.a / 1.0 ** part.l.mask",
    ),
    "column 0 as every first key": (
        '"amin").gather(1, own)',
        '"amin").gather(1, own) * 0',
    ),
    "a pad as first key": ("keys = keys.masked_fill(", "_ = keys.masked_fill("),
    "the first document's first key for all": (
        "            number = self.numbers\n            own = ",
        "            own = own * 0\n            _ = ",
    ),
    "the next key for the previous": ("own - 1, own]", "own + 1, own]"),
    "hidden keys are picked": ("here = here & ~hidden", "_ = here & ~hidden"),
    "hidden keys are picked along a line": (
        "line = line.masked_fill(",
        "_ = line.masked_fill(",
    ),
    "the neighboring line": ("offset=column, dim1", "offset=column + 1, dim1"),
    "keys are picked from the neighboring tile": (
        "here = (at >= 0) & (",
        "here = (",
    ),
    "a spoiled row keeps its keys": (
        "for x in (self.out, self.key_scores):",
        "for x in (self.out,):",
    ),
    "key weights relative to the largest": (
        "return relative * self.max_prob.unsqueeze(-1)",
        "return relative",
    ),
    "visible counts the hidden": ("(~hidden).sum(dim=-1)", "hidden.sum(dim=-1)"),
    "pads are received": ("if real is not None:", "if real is None and False:"),
    "gradient without the row's mean": (
        "scores.stacked_rows((fixed * r).unsqueeze(-1))",
        "scores.stacked_rows((0 * fixed * r).unsqueeze(-1))",
    ),
    "gradient without softcap": (
        "if cap is not None:",
        "if cap is None and False:",
    ),
    "entropy gradient's sign": (
        "log2_p, entropy, value=-LN_2)",
        "log2_p, entropy, value=LN_2)",
    ),
    "entropy gradient in bits": (
        "log2_p, entropy, value=-LN_2)",
        "log2_p, entropy, value=-1)",
    ),
    "weights by the rounded lse": (
        "low = (lse.low * -LOG2_E)",
        "low = (0 * lse.low * -LOG2_E)",
    ),
    "gradients by the rounded lse": (
        "torch.exp(-lse.low), back",
        "torch.exp(0 * lse.low), back",
    ),
    "bad keys looked for in k alone": (
        "for x in (k, v) if x is not None",
        "for x in (k,) if x is not None",
    ),
    "the last of equal keys on top": (" & (found < 0)", ""),
    "a spoiled row reaches what it cannot see": (
        "d.mul_(p)\n            if hidden is not None and back.spoiled:",
        "d.mul_(p)\n            if False:",
    ),
    "what comes back into a spoiled row reaches a value": (
        "isnan().unsqueeze(-1), 0.0)",
        "isinf().unsqueeze(-1), 0.0)",
    ),
    "a bad query reaches a key": (
        "queries.masked_fill(~queries.isfinite(), 0.0)",
        "queries",
    ),
    "entropy in bits": ("sum(dim=-1), alpha=LN_2)", "sum(dim=-1))"),
    "queries' gradient unscaled": (
        "d_queries.mul_(scores.bound.scale)",
        "d_queries",
    ),
}


def mutated(name: str) -> SimpleNamespace:
    """A copy of the engine, wrong in one place."""
    return judged(copies(*MUTANTS[name], *ENGINE))


def test_a_true_copy_breaks_no_law(monkeypatch):
    """Else a copy could break one by being a copy."""
    monkeypatch.setattr(chance, "LONGER", 0.1)
    copied = judged(copies("", "", *ENGINE))
    assert copied.attention is not attention
    for law in engine_laws.LAWS:
        law(copied)


@pytest.mark.slow
@pytest.mark.parametrize("law", engine_laws.LAWS, ids=lambda law: law.__name__)
def test_the_laws_hold_in_a_long_run(law, monkeypatch):
    monkeypatch.setattr(chance, "LONGER", 20)
    law(judged())


@pytest.mark.slow
def test_every_law_is_broken_by_some_wrong_copy():
    """A law that no wrong engine breaks proves nothing."""
    unbroken = set(engine_laws.LAWS)
    for name in MUTANTS:
        wrong = mutated(name)
        for law in list(unbroken):
            try:
                law(wrong)
            except Exception:
                unbroken.discard(law)
    assert unbroken == set()


# Every fifth is held against each change, all of them in test-all.
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.slow] * (at % 5 > 0)) for at, name in enumerate(MUTANTS)
])  # fmt: skip
def test_a_wrong_copy_breaks_a_law(name, monkeypatch):
    """Most do so at once: all laws are asked about a few cases before any is about all of them."""
    wrong = mutated(name)
    for share in (0.1, 1.0):
        monkeypatch.setattr(chance, "LONGER", share)
        for law in engine_laws.LAWS:
            try:
                law(wrong)
            except Exception:
                return
    pytest.fail(f"no law rejects the engine with {name}")


# The door -----------------------------------------------------------------------------------------


def randn(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_leading_axes_come_out_as_they_came_in():
    q, k, v = randn(2, 6, 5, 4), randn(2, 3, 7, 4, seed=1), randn(2, 3, 7, 3, seed=2)
    asked = {"received": True, "top": True, "distance": True}
    whole = attention(q, k, v, **asked)
    assert (whole.out.shape, whole.lse.shape) == ((2, 6, 5, 3), (2, 6, 5))
    assert (whole.received.shape, whole.top_key.shape) == ((2, 6, 7), (2, 6, 5))
    assert (whole.n_keys, whole.impl) == (7, "native" if BUILT else "tiled")
    three = attention(q[1], k[1], v[1], **asked)
    two = attention(q[1, 5], k[1, 2], v[1, 2], **asked)
    for name in (
        "out",
        "lse",
        "entropy",
        "max_score",
        "mean_key",
        "visible",
        "received",
        "top_key",
        "distance",
    ):
        torch.testing.assert_close(getattr(three, name), getattr(whole, name)[1])
        torch.testing.assert_close(getattr(two, name), getattr(whole, name)[1, 5])


@pytest.mark.parametrize("empty", ["B", "T", "S", "H"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 2.0}])
def test_empty_axes_have_their_shapes(empty, options):
    B, H, G, T, S = (
        0 if empty == x else n for x, n in (("B", 2), ("H", 4), ("G", 2), ("T", 3), ("S", 5))
    )
    k = randn(B, G, S, 4)
    a = attention(
        randn(B, H, T, 4), k, randn(B, G, S, 3), Rule(**options),
        received=True, top=True, distance=True,
    )  # fmt: skip
    assert a.out.shape == (B, H, T, 3)
    assert a.entropy.shape == a.top_key.shape == a.distance.shape == (B, H, T)
    assert a.received.shape == (B, H, S)
    if empty == "S":
        assert (a.out == 0).all()
        assert (a.lse == -math.inf).all()
        assert (a.top_key == -1).all()
        assert (a.distance == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_accumulation_is_float32_at_least(dtype):
    q, k, v = randn(3, 5, 4).to(dtype), randn(3, 5, 4).to(dtype), randn(3, 5, 2).to(dtype)
    a = attention(q, k, v, received=True, distance=True)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert a.out.dtype == dtype
    figures = ("lse", "entropy", "max_score", "mean_key", "visible", "sink_mass", "received")
    for name in (*figures, "distance"):
        assert getattr(a, name).dtype == wide


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_inputs_lose_only_their_own_rounding(dtype):
    q, k, v = (randn(1, 2, 33, 16, seed=s).to(dtype) for s in range(3))
    a = attention(q, k, v, Rule(causal=True))
    exact = dense.attend(q, k, v, Rule(causal=True))
    torch.testing.assert_close(a.entropy, exact.entropy.float(), atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(a.out, exact.out.to(dtype))


def test_layouts_give_the_same_and_inputs_stay_as_they_are():
    q, k, v = randn(2, 33, 4, 8), randn(2, 33, 2, 8, seed=1), randn(2, 33, 1, 8, seed=2)
    q, k, v = q.transpose(1, 2), k.permute(0, 2, 1, 3), v.transpose(1, 2).expand(2, 2, 33, 8)
    copies = [x.clone() for x in (q, k, v)]
    rule = Rule(causal=True, bias=randn(1, 1, 1, 33).expand(2, 4, 33, 33))
    a = attention(q, k, v, rule)
    b = attention(*(x.contiguous() for x in (q, k, v)), rule)
    for name in ("out", "lse", "entropy", "mean_key"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name))
    assert all(torch.equal(x, copy) for x, copy in zip((q, k, v), copies, strict=True))


def test_the_same_input_gives_the_same_bits():
    inputs = [randn(2, 4, 200, 16, seed=s) for s in range(3)]
    first, second = (attention(*inputs, Rule(causal=True), received=True) for _ in range(2))
    for name in ("out", "lse", "entropy", "max_score", "mean_key", "received"):
        assert torch.equal(getattr(first, name), getattr(second, name))


def test_gradcheck():
    q, k, v = (
        randn(1, n, 5, 3, seed=s, dtype=torch.float64).requires_grad_()
        for s, n in enumerate((4, 2, 2))
    )
    bias = randn(4, 5, 5, seed=4, dtype=torch.float64).requires_grad_()
    sinks = randn(4, seed=5, dtype=torch.float64).requires_grad_()

    def three(q, k, v, bias, sinks):
        rule = Rule(causal=True, softcap=2.0, bias=bias, sinks=sinks)
        a = attention(q, k, v, rule)
        return a.out, a.lse, a.entropy

    assert torch.autograd.gradcheck(three, (q, k, v, bias, sinks))


def test_only_what_needs_a_gradient_gets_one():
    q, k = randn(2, 5, 3).requires_grad_(), randn(2, 5, 3, seed=1)
    attention(q, k, None).entropy.sum().backward()
    assert q.grad.abs().sum() > 0
    assert k.grad is None
    a = attention(q, k, k)
    assert a.out.requires_grad
    assert not a.max_score.requires_grad
    assert not attention(q, k, k, distance=True).distance.requires_grad


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context):
    q = randn(2, 5, 3).requires_grad_()
    with context():
        a = attention(q, q, q)
    assert not a.out.requires_grad


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler's own look at its inputs
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # the compiler does it
def test_under_torch_compile():
    def loss(q):
        a = attention(2 * q, q, q, Rule(causal=True))
        return a.out.square().sum() + a.entropy.mean()

    q = randn(2, 9, 4).requires_grad_()
    (wanted,) = torch.autograd.grad(loss(q), q)
    compiled = torch.compile(loss, backend="eager")(q)
    torch.testing.assert_close(compiled, loss(q))
    torch.testing.assert_close(torch.autograd.grad(compiled, q)[0], wanted)


def test_autocast_is_off_inside():
    q, k, v = (randn(2, 65, 16, seed=s) for s in range(3))
    plain = attention(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        cast = attention(q, k, v)
    assert torch.equal(cast.out, plain.out)
    assert torch.equal(cast.entropy, plain.entropy)


def test_entropy_as_a_regulariser_moves_the_entropy():
    q, k = randn(1, 2, 16, 8).requires_grad_(), randn(1, 2, 16, 8, seed=1)
    optimizer = torch.optim.SGD([q], lr=5.0)
    before = attention(q, k, None, Rule(causal=True)).entropy.mean()
    for _ in range(20):
        optimizer.zero_grad()
        (-attention(q, k, None, Rule(causal=True)).entropy.mean()).backward()
        optimizer.step()
    assert attention(q, k, None, Rule(causal=True)).entropy.mean() > before + 0.05


def test_derived_figures():
    q, k = randn(2, 5, 3), randn(2, 5, 3, seed=1)
    rule = Rule(causal=True, mask=torch.arange(5).view(5, 1) != 2, sinks=torch.zeros(2))
    a, exact = attention(q, k, None, rule), dense.attend(q[None], k[None], None, rule)
    torch.testing.assert_close(a.max_prob, exact.p[0].amax(dim=-1).float())
    outcomes = exact.visible[0] + 1
    wanted = torch.where(outcomes > 1, exact.entropy[0] / outcomes.log(), 0.0)
    torch.testing.assert_close(a.normalized_entropy, wanted.float())
    assert (a.effective_keys[:, 2] == 0).all()
    torch.testing.assert_close(a.effective_keys[:, 1], a.entropy[:, 1].exp())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: attention(randn(1, 32, 8, 4), randn(1, 7, 8, 4)),
            ["k has 7 heads but q has 32", "multiple", "[1, 32, 8, 4]", "[1, 7, 8, 4]"],
        ),
        (lambda: attention(randn(2, 8, 4), randn(2, 8, 5)), ["head size 4 and k 5"]),
        (
            lambda: attention(randn(2, 8, 4), randn(2, 8, 4), randn(2, 9, 4)),
            ["all but the last axis"],
        ),
        (lambda: attention(randn(2, 2, 8, 4), randn(3, 2, 8, 4)), ["batch size 2 but k has 3"]),
        (lambda: attention(randn(8, 4), randn(1, 8, 4)), ["(T, D), (H, T, D) or (B, H, T, D)"]),
        (lambda: attention(randn(8), randn(8)), ["got q [8]"]),
        (
            lambda: attention(randn(2, 8, 4), randn(2, 8, 4).double()),
            ["share one dtype", "float64"],
        ),
        (
            lambda: attention(
                torch.ones(8, 4, dtype=torch.int64), torch.ones(8, 4, dtype=torch.int64)
            ),
            ["must hold floats", "int64"],
        ),
        (
            lambda: attention(randn(8, 4), randn(8, 4), impl="fast"),
            ["auto, tiled, native", "'fast'"],
        ),
        (lambda: attention(randn(8, 0), randn(8, 0)), ["at least 1"]),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError) as refusal:
        call()
    for word in words:
        assert word in str(refusal.value)
