"""scratch.py against its laws, its wrong copies against the same laws, and what it refuses."""

import math
import types
import warnings
from collections.abc import Iterator

import pytest
import torch
from laws import LAWS
from mutants import copies

from clearhead import scratch

# name: what stands in scratch.py, and what stands in the wrong copy.
MUTANTS = {
    "no scale": ("    if scale:\n", "    if False:\n"),
    "scaled by d_head": ("scores / math.sqrt(d_head)", "scores / d_head"),
    "scaled by the width of all heads": ("math.sqrt(d_head)", "math.sqrt(d_head * len(Q))"),
    "scaled always": ("    if scale:\n", "    if True:\n"),
    "mask inverted": ("masked_fill(mask == 0, -math.inf)", "masked_fill(mask == 1, -math.inf)"),
    "mask of zeros": ("masked_fill(mask == 0, -math.inf)", "masked_fill(mask == 0, 0.0)"),
    "mask of -1": ("masked_fill(mask == 0, -math.inf)", "masked_fill(mask == 0, -1.0)"),
    "no mask": ("masked_fill(mask == 0, -math.inf)", "masked_fill(mask == 2, -math.inf)"),
    "mask transposed": ("masked_fill(mask == 0", "masked_fill(mask.T == 0"),
    "view without transpose": (
        "joined.view(T, n_heads, d_head).transpose(0, 1)", "joined.view(n_heads, T, d_head)"
    ),
    "joined without transpose": (
        "heads.transpose(0, 1).reshape(T, d_model)", "heads.reshape(T, d_model)"
    ),
    "heads interleaved": (
        "joined.view(T, n_heads, d_head).transpose(0, 1)",
        "joined.view(T, d_head, n_heads).permute(2, 0, 1)",
    ),
    "softmax over queries": ("weights = _softmax(scores)", "weights = _softmax(scores.mT).mT"),
    "softmax without the maximum": ("torch.exp(scores - largest)", "torch.exp(scores)"),
    "queries and keys swapped": (
        "Q.to(wide) @ K.to(wide).transpose", "K.to(wide) @ Q.to(wide).transpose"
    ),
    "scores in half precision": ("torch.promote_types(Q.dtype, torch.float32)", "Q.dtype"),
    "keys for values": ("V = split_heads(x @ W_V)", "V = split_heads(x @ W_K)"),
    "no output projection": ("return joined @ W_O, weights", "return joined, weights"),
    "output projection transposed": ("joined @ W_O, weights", "joined @ W_O.T, weights"),
    "weights of one head for all": (
        "return joined @ W_O, weights", "return joined @ W_O, weights[:1].expand_as(weights)"
    ),
    "epsilon in the logarithm": ("masked_fill(p == 0, 1.0).log()", "add(1e-9).log()"),
    "log of zero": ("masked_fill(p == 0, 1.0).log()", "log()"),
    "entropy in bits": ("masked_fill(p == 0, 1.0).log()", "masked_fill(p == 0, 1.0).log2()"),
    "negative zero": ("entropy.clamp(min=0) + 0.0", "entropy"),
    "NaN for an empty row": ("total.masked_fill(total == 0, 1.0)", "total"),
    "another order of the projections": ("W_Q, W_K, W_V, W_O = (", "W_O, W_V, W_K, W_Q = ("),
    "projections too large": ("(W / math.sqrt(d_model) for", "(W for"),
}  # fmt: skip


def mutated(name: str) -> types.ModuleType:
    return copies(*MUTANTS[name], scratch)[0]


@pytest.mark.quick
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_scratch_obeys(law):
    law(scratch)


def broken_laws(module: types.ModuleType) -> Iterator[str]:
    for law in LAWS:
        try:
            law(module)
        except (AssertionError, RuntimeError, ValueError):
            yield law.__name__


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_copy_breaks_a_law(name):
    assert next(broken_laws(mutated(name)), None), f"no law rejects the copy with {name}"


@pytest.mark.slow
def test_every_law_is_broken_by_some_wrong_copy():
    broken = {law for name in MUTANTS for law in broken_laws(mutated(name))}
    assert {law.__name__ for law in LAWS} - broken == set()


def parts(T=3, d_model=4):
    x = scratch.make_input_embeddings(T, d_model)
    return x, scratch.init_projections(d_model, 1), scratch.causal_mask(T)


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        (lambda x, W, m: scratch.make_input_embeddings(0, 4), ["T=0", "d_model=4"]),
        (lambda x, W, m: scratch.make_input_embeddings(3, 0), ["T=3", "d_model=0"]),
        (lambda x, W, m: scratch.causal_mask(-1), ["T=-1"]),
        (lambda x, W, m: scratch.init_projections(30, 4), ["d_model=30", "n_heads=4"]),
        (lambda x, W, m: scratch.init_projections(30, 0), ["d_model=30", "n_heads=0"]),
        (lambda x, W, m: scratch.multi_head_attention(x, *W, 3, m), ["d_model=4", "n_heads=3"]),
        (lambda x, W, m: scratch.multi_head_attention(x, *W, 0, m), ["n_heads=0"]),
        (lambda x, W, m: scratch.multi_head_attention(x, *W, -2, m), ["n_heads=-2"]),
        (lambda x, W, m: scratch.multi_head_attention(x, *W, 2, m[:2]), ["(3, 3)", "(2, 3)"]),
        (lambda x, W, m: scratch.single_head_attention(x, *W[:3], m[:, :2]), ["(3, 3)", "(3, 2)"]),
        (lambda x, W, m: scratch.single_head_attention(x, *W[:3], m[None]), ["(1, 3, 3)"]),
        (lambda x, W, m: scratch.single_head_attention(x, *W[:3], m.log()), ["-inf to 0"]),
        (lambda x, W, m: scratch.single_head_attention(x[0], *W[:3], m), ["x (4,)"]),
        (lambda x, W, m: scratch.single_head_attention(x[:0], *W[:3], m[:0, :0]), ["x (0, 4)"]),
        (
            lambda x, W, m: scratch.single_head_attention(x, W[0][:2], W[1], W[2], m),
            ["d_model = 4", "W_Q (2, 4)", "W_K (4, 4)", "W_V (4, 4)"],
        ),
        (
            lambda x, W, m: scratch.single_head_attention(x, W[0][:, :2], W[1], W[2], m),
            ["W_Q (4, 2)", "W_K (4, 4)"],
        ),
        (
            lambda x, W, m: scratch.multi_head_attention(x, *W[:3], W[3][:, :3], 2, m),
            ["(4, 4)", "W_O (4, 3)"],
        ),
        (lambda x, W, m: scratch.attention_entropy(x - 5), ["not negative", "got -"]),
        (
            lambda x, W, m: scratch.write_heatmap(m, ["a", "b"], "x.png", ""),
            ["2 tokens", "(3, 3)", "another text"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(call, numbers):
    with pytest.raises(ValueError) as refusal:
        call(*parts())
    for number in numbers:
        assert number in str(refusal.value)


def test_values_may_have_a_width_of_their_own():
    x, W, mask = parts()
    out, weights = scratch.single_head_attention(x, W[0], W[1], W[2][:, :1], mask)
    assert out.shape == (3, 1)
    assert weights.shape == (3, 3)


def test_boolean_and_integer_masks_mean_the_same():
    x, W, mask = parts()
    wanted = scratch.multi_head_attention(x, *W, 2, mask)
    for other in (mask.bool(), mask.int()):
        for got, want in zip(scratch.multi_head_attention(x, *W, 2, other), wanted, strict=True):
            assert torch.equal(got, want)


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    parts()
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision_entropy_is_summed_in_float32():
    weights = torch.full((1000,), 1 / 1024, dtype=torch.bfloat16)  # exact in bfloat16
    entropy = scratch.attention_entropy(weights)
    assert entropy.dtype == torch.float32
    assert entropy.item() == pytest.approx(1000 / 1024 * math.log(1024), rel=1e-6)


def test_positive_scores_are_not_taken_for_weights():
    with pytest.raises(ValueError, match="a sum of 5"):
        scratch.attention_entropy(torch.tensor([3.0, 2.0]))


def test_a_nan_weight_is_not_swept_away():
    assert scratch.attention_entropy(torch.tensor([math.nan, 0.5])).isnan()


@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3), (5, 3, 3)])
def test_heatmap_is_written_and_leaves_matplotlib_as_it_was(shape, tmp_path):
    import matplotlib
    from matplotlib import pyplot
    from matplotlib.image import imread

    backend, figures = matplotlib.get_backend(), pyplot.get_fignums()
    path = tmp_path / "made" / "map.png"
    tokens = ["$a$", "_b_", "\N{CAT}"]  # the cat is in no font that comes along
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scratch.write_heatmap(torch.rand(shape), tokens, path, "the $title$ 100%")
    assert (matplotlib.get_backend(), pyplot.get_fignums()) == (backend, figures)
    height, width = imread(path).shape[:2]
    assert width == (1 + 3.6 * min(1 if len(shape) == 2 else shape[0], 4)) * 120
    assert height == pytest.approx((0.8 + 3.6 * (2 if shape[0] == 5 else 1)) * 120, abs=1)


@pytest.mark.parametrize(
    ("T", "n_labels"), [(1, 1), (8, 8), (24, 24), (25, 13), (60, 20), (500, 24)]
)
def test_heatmap_labels_are_literal_and_thinned(T, n_labels, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    tokens = [f"$w_{i % 3}$" for i in range(T)]
    scratch.write_heatmap(torch.rand(2, T, T), tokens, tmp_path / "map.png", "title")
    panel = drawn[0].axes[0]
    for axis in (panel.xaxis, panel.yaxis):
        positions = [int(p) for p in axis.get_ticklocs()]
        labels = axis.get_ticklabels()
        assert len(positions) == n_labels
        assert [label.get_text() for label in labels] == [tokens[p] for p in positions]
        assert not any(label.get_parse_math() for label in labels)


def test_heatmap_of_hostile_labels_nan_and_a_path_without_a_suffix(tmp_path):
    from matplotlib.image import imread

    weights = torch.tensor([[1.0, 0.0], [math.nan, 0.0]])
    scratch.write_heatmap(weights, ["\ud800", "x" * 300], tmp_path / "plain", "title")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]
    colors = {
        tuple(c) for c in imread(tmp_path / "plain", format="png").reshape(-1, 4)[:, :3].round(2)
    }
    assert (1.0, 0.0, 0.0) in colors  # the NaN is red


def test_the_heatmap_shows_the_weights(tmp_path, monkeypatch):
    """Rows are queries; each panel its own head; viridis from 0 to 1; unused cells blank."""
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    weights = torch.rand(5, 3, 3, dtype=torch.float64).requires_grad_()
    scratch.write_heatmap(weights, "abc", tmp_path / "map.png", "the title")
    panels = drawn[0].axes[:8]
    for head, panel in enumerate(panels[:5]):
        (image,) = panel.get_images()
        assert torch.equal(torch.tensor(image.get_array().data), weights[head].detach().float())
        assert (image.get_clim(), image.get_cmap().name) == ((0, 1), "viridis")
        assert (panel.get_title(), panel.get_xlabel()) == (f"head {head}", "key")
    assert not any(panel.axison for panel in panels[5:])
    assert drawn[0].get_suptitle() == "the title"
    assert drawn[0].axes[8].get_ylabel() == "attention weight"


def test_embeddings_are_float32_whatever_the_default():
    wanted = scratch.make_input_embeddings(3, 16), *scratch.init_projections(16, 2)
    torch.set_default_dtype(torch.float64)
    try:
        got = scratch.make_input_embeddings(3, 16), *scratch.init_projections(16, 2)
        assert scratch.causal_mask(2).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_without_matplotlib_the_heatmap_says_what_to_install(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        scratch.write_heatmap(torch.rand(1, 1), ["a"], tmp_path / "map.png", "")
    assert list(tmp_path.iterdir()) == []
