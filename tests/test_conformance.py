"""Ours against everybody else's attention: what passes is listed at the end of a test run.

The ONNX project's cases come with their expected outputs. The other judges compute theirs, in
float64 and in float32: what their float32 loses against their float64 on the same inputs is the
measure of what ours may differ. Each judge is also shown wrong rules, which it has to reject.
"""

import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import onnx
import pytest
import torch
from onnx_cases import HALF, Case, heads, queries_keys_values, read, rule_of
from torch import Tensor
from torch.nn import functional as F

from clearhead import Rule, attention
from clearhead.map import AttentionMap
from clearhead.rotary import apply_rotary

# The ONNX cases -----------------------------------------------------------------------------------

ATTENTION, ROTARY = read("Attention"), read("RotaryEmbedding")

# Cases that ask for what clearhead does not do, each with its reason. There are none.
OUT_OF_SCOPE: dict[str, str] = {}


def in_scope(cases: dict[str, Case]) -> list[str]:
    return [name for name in cases if name not in OUT_OF_SCOPE]


def test_no_onnx_case_is_left_out_in_silence():
    assert onnx.__version__ == "1.23.2", "another version is another judge: see constraints.txt"
    assert (len(ATTENTION), len(ROTARY)) == (93, 8)
    assert OUT_OF_SCOPE == {}
    assert len(in_scope(ATTENTION)) + len(in_scope(ROTARY)) + len(OUT_OF_SCOPE) == 101


def find(case: Case, rule: Rule) -> dict[str, Tensor]:
    """Our outputs of an Attention case, under the operator's names."""
    q, k, v = queries_keys_values(case)
    out = attention(q, k, v, rule).out
    flat = case.inputs["Q"].ndim == 3
    found = {
        "Y": out.transpose(1, 2).flatten(2) if flat else out,
        "present_key": k,
        "present_value": v,
    }
    if "qk_matmul_output" in case.outputs:
        plain = Rule(scale=rule.scale)
        found["qk_matmul_output"] = (
            lambda: AttentionMap(q, k, plain).scores[:],  # 0: scaled products
            lambda: AttentionMap(q, k, replace(plain, softcap=rule.softcap)).scores[:],
            lambda: AttentionMap(q, k, rule).scores[:],  # 2: with the bias, -inf where hidden
            lambda: AttentionMap(q, k, rule)[:],  # 3: weights
        )[case.attributes.get("qk_matmul_output_mode", 0)]()
    return {name: found[name].to(case.outputs[name].dtype) for name in case.outputs}


def judge_onnx(case: Case, found: dict[str, Tensor]) -> None:
    """At onnx's own tolerance, and half precision against its reference run in float64.

    The reference rounds bfloat16 after every step, and its own outputs are off by more than the
    tolerance: there ours may differ by as much as they do, and must be the numbers nearest to the
    exact ones.
    """
    assert found.keys() == case.outputs.keys()
    exact = case.exactly() if case.outputs["Y"].dtype in HALF else {}
    for name, wanted in case.outputs.items():
        rtol, atol = case.rtol, case.atol
        if name in exact:
            half_ulp = torch.finfo(wanted.dtype).eps / 2
            torch.testing.assert_close(found[name].double(), exact[name], rtol=half_ulp, atol=1e-6)
        if wanted.dtype == torch.bfloat16:
            rtol, atol = half_ulp, (wanted - exact[name]).abs().max().item()
        torch.testing.assert_close(found[name], wanted, rtol=rtol, atol=atol)


@pytest.mark.judge("ONNX Attention cases")
@pytest.mark.parametrize("name", in_scope(ATTENTION))
def test_onnx_attention(name):
    case = ATTENTION[name]
    judge_onnx(case, find(case, rule_of(case)))


@pytest.mark.judge("ONNX RotaryEmbedding cases")
@pytest.mark.parametrize("name", in_scope(ROTARY))
def test_onnx_rotary(name):
    case = ROTARY[name]
    x = heads(case.inputs["input"], case.attributes.get("num_heads"))
    cos, sin = case.inputs["cos_cache"], case.inputs["sin_cache"]
    if "position_ids" in case.inputs:
        cos, sin = cos[case.inputs["position_ids"]], sin[case.inputs["position_ids"]]
    pairing = "interleaved" if case.attributes.get("interleaved") else "halves"
    d_rotary = case.attributes.get("rotary_embedding_dim") or None
    turned = apply_rotary(x, cos, sin, pairing, d_rotary)
    if case.inputs["input"].ndim == 3:
        turned = turned.transpose(1, 2).flatten(2)
    wanted = case.outputs["output"]
    torch.testing.assert_close(turned, wanted, rtol=case.rtol, atol=case.atol)
    wrong = "halves" if pairing == "interleaved" else "interleaved"
    other = apply_rotary(x, cos, sin, wrong).reshape(wanted.shape)
    assert not torch.allclose(other, wanted, rtol=case.rtol, atol=case.atol)


def a_position_later(rule: Rule) -> Rule:
    return replace(rule, offset=rule.offset + 1)


def a_key_more(rule: Rule) -> Rule:
    window = rule.window
    if window is None:
        return rule
    return replace(
        rule, window=window + 1 if isinstance(window, int) else (window[0] + 1, window[1])
    )


def a_key_less(rule: Rule) -> Rule:
    window = rule.window
    if window is None:
        return rule
    return replace(
        rule, window=window - 1 if isinstance(window, int) else (window[0] - 1, window[1])
    )


def scaled_bias(rule: Rule) -> Rule:
    return rule if rule.bias is None else replace(rule, bias=rule.bias / 8**0.5)


def inverted(rule: Rule) -> Rule:
    return rule if rule.mask is None else replace(rule, mask=~rule.mask)


WRONG_RULES: dict[str, Callable[[Rule], Rule]] = {
    "bottom-right without a cache": lambda rule: replace(rule, offset=None),
    "top-left with a cache": lambda rule: replace(rule, offset=0),
    "a position later": a_position_later,
    "a window of one key more": a_key_more,
    "a window of one key less": a_key_less,
    "not causal": lambda rule: replace(rule, causal=False, window=None),
    "no softcap": lambda rule: replace(rule, softcap=None),
    "the bias scaled": scaled_bias,
    "the bias dropped": lambda rule: replace(rule, bias=None),
    "the mask upside down": inverted,
    "padding seen": lambda rule: replace(rule, key_mask=None),
    "the scale forgotten": lambda rule: replace(rule, scale=None),
}


@pytest.mark.parametrize("wrong", WRONG_RULES)
def test_the_onnx_cases_reject_a_wrong_rule(wrong):
    rejecting = []
    for name, case in ATTENTION.items():
        try:
            judge_onnx(case, find(case, WRONG_RULES[wrong](rule_of(case))))
        except AssertionError:
            rejecting.append(name)
            break
    assert rejecting


# Judges that compute ------------------------------------------------------------------------------

Figures = dict[str, Tensor]


@dataclass(frozen=True)
class Trial:
    """Somebody's attention, the Rule that means the same, and rules that mean something else."""

    theirs: Callable[[Tensor, Tensor, Tensor], Figures]
    rule: Rule
    wrong: dict[str, Rule]
    q: tuple[int, ...] = (2, 6, 7, 8)
    k: tuple[int, ...] = (2, 3, 11, 8)
    Dv: int = 5
    rows: Tensor | None = None  # (B, T): which rows count; the others are padding
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32, *HALF)

    def inputs(self) -> list[Tensor]:
        stream = torch.Generator().manual_seed(0)
        shapes = (self.q, self.k, (*self.k[:-1], self.Dv))
        # Twice the usual spread: weights that are far from uniform show what is wrong.
        return [2 * torch.randn(s, generator=stream, dtype=torch.float64) for s in shapes]


TRIALS: dict[str, tuple[str, Callable[[], Trial]]] = {}


def trial(judge: str):
    """Register a function that makes a Trial; made when it runs, since some imports are slow."""

    def register(make: Callable[[], Trial]):
        TRIALS[make.__name__] = (judge, cache(make))
        return make

    return register


def of_weights(weights: Tensor, rows: Tensor | None = None, sink: bool = False) -> Figures:
    """The figures of rows that follow from the weights themselves."""
    counted = weights if rows is None else weights * rows[:, None, :, None]
    rest = 1 - weights.sum(dim=-1) if sink else torch.zeros_like(weights[..., 0])
    return {
        "weights": weights,
        "entropy": -torch.xlogy(weights, weights).sum(dim=-1) - torch.xlogy(rest, rest),
        "max_prob": weights.amax(dim=-1),
        "mean_key": (weights * torch.arange(weights.shape[-1])).sum(dim=-1),
        "received": counted.sum(dim=-2),
        "sink_mass": rest,
    }


def figures_of(q: Tensor, k: Tensor, v: Tensor, rule: Rule) -> Figures:
    """Ours, all of them."""
    attended = attention(q, k, v, rule, received=True)
    names = ("out", "lse", "max_score", "entropy", "max_prob", "mean_key", "received", "sink_mass")
    return {
        "weights": AttentionMap(q, k, rule)[:],
        **{name: getattr(attended, name) for name in names},
    }


def judged(trial: Trial, dtype: torch.dtype) -> tuple[list[Tensor], Figures, Figures]:
    """Inputs rounded to dtype, and what the judge finds for them in float64 and in float32."""
    inputs = [x.to(dtype) for x in trial.inputs()]
    exact = trial.theirs(*(x.double() for x in inputs))
    return inputs, exact, trial.theirs(*(x.float() for x in inputs))


def agree(trial: Trial, rule: Rule, judgement: tuple[list[Tensor], Figures, Figures]) -> None:
    """Ours against the judge's float64, within four times what its float32 loses.

    For float64 that shrinks by the ratio of the two; in half precision, inputs are rounded first
    and the output once at the end, half an ulp, while all other figures stay float32.
    """
    inputs, exact, low = judgement
    dtype, single = inputs[0].dtype, torch.finfo(torch.float32).eps
    ours = figures_of(*inputs, rule)
    assert len(exact) >= 2
    for name, wanted in exact.items():
        got, coarse = ours[name].double(), low[name].double()
        wanted = wanted.double()
        if trial.rows is not None and name != "received":
            rows = trial.rows[:, None].expand(trial.q[:3])
            got, wanted, coarse = got[rows], wanted[rows], coarse[rows]
        finite = wanted.isfinite()
        size = wanted[finite].abs().max().item()
        loss = (coarse - wanted)[finite].abs().max().item()
        allowed = 4 * max(loss, single * max(size, 1.0))
        if dtype == torch.float64:
            allowed *= torch.finfo(dtype).eps / single
        rounding = torch.finfo(dtype).eps / 2 if name == "out" and dtype in HALF else 0.0
        torch.testing.assert_close(
            got, wanted, rtol=rounding, atol=allowed, msg=lambda text, name=name: f"{name}: {text}"
        )


# More keys than a tile of ours holds, twice, and not a multiple of anything.
LONG = {
    "q": (1, 4, 701, 8),
    "k": (1, 2, 1109, 8),
    "dtypes": (torch.float64, torch.float32),
}


# torch: scaled_dot_product_attention, the math that it defines ------------------------------------


def sdpa(**options):
    """Output and, with the identity as values, the weights."""

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Figures:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        given = {
            name: x.to(q.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in options.items()
        }
        eye = torch.eye(k.shape[2], dtype=v.dtype).expand(*k.shape[:3], -1)
        with sdpa_kernel(SDPBackend.MATH):
            out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **given)
            weights = F.scaled_dot_product_attention(q, k, eye, enable_gqa=True, **given)
        return {"out": out, **of_weights(weights)}

    return theirs


def random_mask(*shape: int) -> Tensor:
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[..., 0] = True
    return mask


@trial("torch's math SDPA")
def sdpa_grouped() -> Trial:
    return Trial(sdpa(), Rule(), {"causal": Rule(causal=True), "scale": Rule(scale=0.35)})


@trial("torch's math SDPA")
def sdpa_square_causal() -> Trial:
    rule = Rule.from_sdpa(is_causal=True)
    wrong = {"shifted": Rule(causal=True, offset=1), "windowed": Rule(causal=True, window=10)}
    return Trial(sdpa(is_causal=True), rule, wrong, q=(2, 6, 11, 8))


@trial("torch's math SDPA")
def sdpa_rectangular_causal() -> Trial:
    return Trial(
        sdpa(is_causal=True), Rule.from_sdpa(is_causal=True), {"bottom-right": Rule(causal=True)}
    )


@trial("torch's math SDPA")
def sdpa_boolean_mask_with_an_empty_row() -> Trial:
    mask = random_mask(2, 1, 7, 11)
    mask[1, :, 3] = False
    wrong = {"inverted": Rule(mask=~mask), "of the first": Rule(mask=mask[:1])}
    return Trial(sdpa(attn_mask=mask), Rule.from_sdpa(mask), wrong)


@trial("torch's math SDPA")
def sdpa_float_mask_and_scale() -> Trial:
    bias = torch.randn(6, 7, 11, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    bias[:, 2, 4:] = -math.inf
    rule = Rule.from_sdpa(bias, scale=0.25)
    wrong = {"scaled": replace(rule, bias=bias / 4), "no scale": replace(rule, scale=None)}
    return Trial(sdpa(attn_mask=bias, scale=0.25), rule, wrong)


@trial("torch's math SDPA")
def sdpa_over_several_tiles() -> Trial:
    mask = random_mask(4, 701, 1109)
    mask[0, 5, :600] = False  # a row that sees nothing in its first tile
    wrong = {"inverted": Rule(mask=~mask), "causal": Rule(mask=mask, causal=True)}
    return Trial(sdpa(attn_mask=mask), Rule.from_sdpa(mask), wrong, **LONG)


@pytest.mark.judge("gradients of torch's math SDPA")
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_sdpa(causal):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def gradients(dtype: torch.dtype, ours: bool, is_causal: bool = causal) -> list[Tensor]:
        stream = torch.Generator().manual_seed(3)
        shapes = ((2, 6, 7, 8), (2, 3, 11, 8), (2, 3, 11, 5), (6, 7, 11), (2, 6, 7, 5))
        *inputs, weight = (torch.randn(s, generator=stream).to(dtype) for s in shapes)
        q, k, v, bias = (x.requires_grad_() for x in inputs)
        hidden = torch.ones(7, 11, dtype=torch.bool).triu(1) if is_causal else torch.zeros(11) > 0
        if ours:
            out = attention(q, k, v, Rule(bias=bias, causal=is_causal, offset=0)).out
        else:
            with sdpa_kernel(SDPBackend.MATH):
                mask = bias.masked_fill(hidden, -math.inf)
                out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return list(torch.autograd.grad((out * weight).sum(), inputs))

    single, double = torch.float32, torch.float64
    exact, low = gradients(double, ours=False), gradients(single, ours=False)
    wrong = gradients(double, ours=True, is_causal=not causal)
    for dtype in (single, double):
        mine = gradients(dtype, ours=True)
        for got, wanted, coarse, other in zip(mine, exact, low, wrong, strict=True):
            allowed = 4 * (coarse - wanted).abs().max() * torch.finfo(dtype).eps
            allowed = (allowed / torch.finfo(single).eps).item()
            torch.testing.assert_close(got.double(), wanted, rtol=0, atol=allowed)
            assert (other - wanted).abs().max() > allowed


# torch: nn.MultiheadAttention, whose masks say True for what is hidden ----------------------------


def multihead(sink: bool = False, **masks):
    """Identity projections make its heads ours: (B, H, T, D) goes in as (B, T, H D)."""

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Figures:
        H, width = q.shape[1], q.shape[1] * q.shape[3]
        module = torch.nn.MultiheadAttention(
            width, H, bias=False, batch_first=True, add_zero_attn=sink, dtype=q.dtype
        )
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
            out, weights = module(
                *(x.transpose(1, 2).flatten(2) for x in (q, k, v)),
                average_attn_weights=False, **masks,
            )  # fmt: skip
        return {"out": heads(out, H), **of_weights(weights[..., : k.shape[2]], sink=sink)}

    return theirs


SQUARE = {"q": (2, 3, 7, 8), "k": (2, 3, 11, 8), "Dv": 8}


@trial("nn.MultiheadAttention")
def multihead_masked() -> Trial:
    hidden = ~random_mask(7, 11)
    rule = Rule(mask=~hidden)
    return Trial(multihead(attn_mask=hidden), rule, {"inverted": Rule(mask=hidden)}, **SQUARE)


@trial("nn.MultiheadAttention")
def multihead_padded() -> Trial:
    real = torch.arange(11) < torch.tensor([[11], [6]])
    wrong = {"unpadded": Rule(), "other": Rule(key_mask=real.flip(0))}
    return Trial(multihead(key_padding_mask=~real), Rule(key_mask=real), wrong, **SQUARE)


@trial("nn.MultiheadAttention")
def multihead_with_a_zero_key_is_a_sink() -> Trial:
    zero, one = torch.zeros(3), torch.ones(3)
    wrong = {"no sink": Rule(), "a larger one": Rule(sinks=one)}
    return Trial(multihead(sink=True), Rule(sinks=zero), wrong, **SQUARE)


# torch: flex_attention, eager, with its log-sum-exp and largest score -----------------------------


@contextmanager
def eager_flex():
    """flex_attention without the compiler, and the largest scores that it finds.

    Its switch for debugging leaves the compiler out, and the warning with it. On a CPU it finds
    the largest scores and refuses to hand them over, so they are taken on their way.
    """
    import torch.nn.attention.flex_attention as flex

    largest = []
    operator = flex.flex_attention_hop

    def recording(*arguments, **named):
        result = operator(*arguments, **named)
        largest.append(result[2] * math.log(2))  # in its own base, 2
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        patch.setattr(flex, "flex_attention_hop", recording)
        yield flex, largest


def flex(score_mod=None, mask_mod=None):
    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Figures:
        with eager_flex() as (module, largest):
            blocks = None
            if mask_mod is not None:
                blocks = module.create_block_mask(
                    mask_mod, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu"
                )
            out, more = module.flex_attention(
                q, k, v, score_mod, blocks, enable_gqa=True,
                return_aux=module.AuxRequest(lse=True),
            )  # fmt: skip
        return {"out": out, "lse": more.lse, "max_score": largest[0]}

    return theirs


@trial("eager flex_attention")
def flex_causal() -> Trial:
    wrong = {"top-left": Rule(causal=True, offset=0), "not causal": Rule()}
    return Trial(flex(mask_mod=lambda b, h, i, j: j <= i + 4), Rule(causal=True), wrong)


@trial("eager flex_attention")
def flex_causal_with_empty_rows() -> Trial:
    wrong = {"top-left": Rule(causal=True, offset=0)}
    theirs = flex(mask_mod=lambda b, h, i, j: j <= i - 4)
    return Trial(theirs, Rule(causal=True), wrong, q=(2, 6, 11, 8), k=(2, 3, 7, 8))


@trial("eager flex_attention")
def flex_window() -> Trial:
    rule = Rule(causal=True, window=3)
    wrong = {"a key more": replace(rule, window=4), "a key less": replace(rule, window=2)}
    return Trial(flex(mask_mod=lambda b, h, i, j: (j <= i + 4) & (i + 4 - j < 3)), rule, wrong)


@trial("eager flex_attention")
def flex_window_both_ways() -> Trial:
    rule = Rule(window=(2, 1), offset=0)
    wrong = {"turned round": replace(rule, window=(1, 2)), "elsewhere": replace(rule, offset=None)}
    return Trial(flex(mask_mod=lambda b, h, i, j: (i - j <= 2) & (j - i <= 1)), rule, wrong)


@trial("eager flex_attention")
def flex_alibi() -> Trial:
    slopes = 2.0 ** -torch.arange(1, 7)
    rule = Rule(causal=True, alibi=slopes)
    wrong = {"the other way": replace(rule, alibi=-slopes), "other heads": replace(
        rule, alibi=slopes.flip(0))}  # fmt: skip
    theirs = flex(lambda s, b, h, i, j: s - slopes[h] * (i + 4 - j), lambda b, h, i, j: j <= i + 4)
    return Trial(theirs, rule, wrong)


@trial("eager flex_attention")
def flex_softcap_alibi_and_window() -> Trial:
    slopes = torch.arange(1, 7) / 8  # whose products with distances are exact in float32
    rule = Rule(causal=True, window=5, softcap=1.5, alibi=slopes)
    wrong = {"no cap": replace(rule, softcap=None), "another": replace(rule, softcap=1.6)}
    theirs = flex(
        lambda s, b, h, i, j: 1.5 * torch.tanh(s / 1.5) - slopes[h] * (i + 4 - j),
        lambda b, h, i, j: (j <= i + 4) & (j > i + 4 - 5),
    )
    return Trial(theirs, rule, wrong)


@trial("eager flex_attention")
def flex_documents() -> Trial:
    segments = torch.tensor([[0, 0, 0, 0, 5, 5, 5, 5, 2, 2, 2], [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3]])
    rule = Rule(causal=True, segments=segments)
    wrong = {"one document": Rule(causal=True), "others": replace(rule, segments=segments.flip(0))}
    theirs = flex(mask_mod=lambda b, h, i, j: (j <= i + 4) & (segments[b, i + 4] == segments[b, j]))
    return Trial(theirs, rule, wrong)


@trial("eager flex_attention")
def flex_caches_of_different_lengths() -> Trial:
    offset = torch.tensor([4, 1])
    rule = Rule(causal=True, offset=offset)
    wrong = {"one length": Rule(causal=True), "exchanged": replace(rule, offset=offset.flip(0))}
    return Trial(flex(mask_mod=lambda b, h, i, j: j <= i + offset[b]), rule, wrong)


@trial("eager flex_attention")
def flex_over_several_tiles() -> Trial:
    slopes, start = 2.0 ** -torch.arange(6, 10), 1109 - 701
    segments = (torch.arange(1109) > 777).long()[None]
    rule = Rule(causal=True, window=530, softcap=4.0, alibi=slopes, segments=segments)
    wrong = {
        "a key more": replace(rule, window=531),
        "no cap": replace(rule, softcap=None),
        "one document": replace(rule, segments=None),
    }
    theirs = flex(
        lambda s, b, h, i, j: 4 * torch.tanh(s / 4) - slopes[h] * (i + start - j),
        lambda b, h, i, j: (
            (j <= i + start) & (j > i + start - 530) & (segments[b, i + start] == segments[b, j])
        ),
    )
    return Trial(theirs, rule, wrong, **LONG)


@trial("eager flex_attention")
def flex_bias() -> Trial:
    bias = torch.randn(6, 7, 11, generator=torch.Generator().manual_seed(4))
    wrong = {
        "no bias": Rule(),
        "twice": Rule(bias=2 * bias),
        "in a mask's place": Rule(mask=bias > 0),
    }
    return Trial(flex(lambda s, b, h, i, j: s + bias[h, i, j]), Rule(bias=bias), wrong)


# transformers: the eager functions of the models, with the masks that its utilities make ----------


@cache
def transformers():
    """The three models' files and the masks; offline."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import transformers as library
        from transformers import cache_utils, masking_utils
        from transformers.models.gemma2 import modeling_gemma2
        from transformers.models.gpt_oss import modeling_gpt_oss
        from transformers.models.llama import modeling_llama
    return SimpleNamespace(
        config=library.LlamaConfig, gemma2_config=library.Gemma2Config,
        cache=cache_utils, masks=masking_utils,
        llama=modeling_llama, gemma2=modeling_gemma2, gpt_oss=modeling_gpt_oss,
    )  # fmt: skip


def model_mask(
    T: int, padding: Tensor | None, window: int | None = None, dtype=torch.float32, **given
) -> Tensor:
    """The mask that a model's eager attention gets, (B, 1, T, S)."""
    masks = transformers().masks
    config = transformers().config(sliding_window=window, attn_implementation="eager")
    make = masks.create_causal_mask if window is None else masks.create_sliding_window_causal_mask
    return make(config, torch.zeros(2, T, 1, dtype=dtype), padding, **{"cache": None, **given})


def eager(model: str, mask: Tensor | None, rows: Tensor | None = None, sinks=None, **options):
    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Figures:
        module = SimpleNamespace(
            num_key_value_groups=q.shape[1] // k.shape[1], training=False, head_dim=q.shape[3],
            sinks=None if sinks is None else sinks.to(q.dtype),
        )  # fmt: skip
        function = getattr(transformers(), model).eager_attention_forward
        options.setdefault("scaling", q.shape[3] ** -0.5)
        out, weights = function(module, q, k, v, mask, **options)
        figures = of_weights(weights, rows, sink=sinks is not None)
        return {"out": out.transpose(1, 2), **figures}

    return theirs


LEFT = torch.tensor([[1] * 11, [0] * 4 + [1] * 7], dtype=torch.bool)
RIGHT = LEFT.flip(1)
# Its softmax is float32 whatever comes in, so it has nothing to say about float64.
SINGLE = {"dtypes": (torch.float32, *HALF)}
PROMPT = {"q": (2, 6, 11, 8)}


@trial("transformers' eager llama")
def llama_left_padding() -> Trial:
    rule = Rule(causal=True, key_mask=LEFT, query_mask=LEFT)
    wrong = {"unpadded": Rule(causal=True, query_mask=LEFT), "shifted": replace(rule, offset=1)}
    theirs = eager("llama", model_mask(11, LEFT), LEFT)
    return Trial(theirs, rule, wrong, rows=LEFT, **PROMPT, **SINGLE)


@trial("transformers' eager llama")
def llama_right_padding() -> Trial:
    rule = Rule(causal=True, key_mask=RIGHT, query_mask=RIGHT)
    wrong = {"windowed": replace(rule, window=6), "pads counted": replace(rule, query_mask=None)}
    theirs = eager("llama", model_mask(11, RIGHT), RIGHT)
    return Trial(theirs, rule, wrong, rows=RIGHT, **PROMPT, **SINGLE)


@trial("transformers' eager llama")
def llama_its_mask_as_a_bias() -> Trial:
    mask = model_mask(11, LEFT)
    rule = Rule(bias=mask, query_mask=LEFT)
    wrong = {"no mask": Rule(query_mask=LEFT)}
    return Trial(eager("llama", mask, LEFT), rule, wrong, rows=LEFT, **PROMPT, **SINGLE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
def test_what_a_models_mask_hides_is_hidden_in_every_dtype(dtype):
    """It holds the lowest number of its dtype, not -inf; queries of 0 count what is visible."""
    mask = model_mask(11, LEFT, dtype=dtype)
    assert mask.min() == torch.finfo(dtype).min
    q = torch.zeros(2, 3, 11, 4, dtype=dtype)
    ours = attention(q, q, None, Rule(bias=mask))
    visible = (torch.ones(11, 11).tril().bool() & LEFT[:, None]).sum(-1)[:, None]
    assert torch.equal(ours.visible, visible.expand(2, 3, 11).to(ours.visible))
    entropy = visible.clamp(min=1).to(ours.entropy).log().expand(2, 3, 11)
    torch.testing.assert_close(ours.entropy, entropy)


@trial("transformers' eager llama")
def llama_packed_documents() -> Trial:
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1]])
    segments = (positions == 0).cumsum(1)
    mask = model_mask(11, None, position_ids=positions)
    wrong = {"one document": Rule(causal=True)}
    rule = Rule(causal=True, segments=segments)
    return Trial(eager("llama", mask), rule, wrong, **PROMPT, **SINGLE)


def filled(kind, n: int, **options):
    """A cache of theirs that holds n keys."""
    made = kind(**options)
    made.update(torch.zeros(2, 3, n, 8), torch.zeros(2, 3, n, 8), 0)
    return made


@trial("transformers' eager llama")
def llama_chunk_behind_a_cache() -> Trial:
    made = filled(transformers().cache.DynamicCache, 4)
    mask = model_mask(7, LEFT, cache=made)
    assert mask.shape == (2, 1, 7, 11)
    rule = Rule(causal=True, key_mask=LEFT)
    wrong = {"top-left": replace(rule, offset=0), "unpadded": Rule(causal=True)}
    return Trial(eager("llama", mask), rule, wrong, **SINGLE)


@trial("transformers' eager llama")
def llama_chunk_in_a_static_cache() -> Trial:
    config = transformers().config(num_hidden_layers=1, sliding_window=None)
    made = filled(transformers().cache.StaticCache, 3, config=config, max_cache_len=11)
    mask = model_mask(2, None, cache=made)
    assert mask.shape == (2, 1, 2, 11)  # room for eleven keys, of which five are there
    rule = Rule(causal=True, offset=3)
    wrong = {"bottom-right": Rule(causal=True), "a key early": replace(rule, offset=2)}
    return Trial(eager("llama", mask), rule, wrong, q=(2, 6, 2, 8), **SINGLE)


@trial("transformers' eager gemma2")
def gemma2_softcap() -> Trial:
    rule = Rule(causal=True, softcap=2.0, scale=0.5, key_mask=LEFT, query_mask=LEFT)
    wrong = {"no cap": replace(rule, softcap=None), "no scale": replace(rule, scale=None)}
    theirs = eager("gemma2", model_mask(11, LEFT), LEFT, softcap=2.0, scaling=0.5)
    return Trial(theirs, rule, wrong, rows=LEFT, **PROMPT, **SINGLE)


@trial("transformers' eager gemma2")
def gemma2_sliding_window() -> Trial:
    rule = Rule(causal=True, softcap=3.0, window=4, key_mask=LEFT, query_mask=LEFT)
    wrong = {
        "a key more": replace(rule, window=5),
        "a key less": replace(rule, window=3),
        "no window": replace(rule, window=None),
        "no cap": replace(rule, softcap=None),
    }
    theirs = eager("gemma2", model_mask(11, LEFT, 4), LEFT, softcap=3.0)
    return Trial(theirs, rule, wrong, rows=LEFT, **PROMPT, **SINGLE)


@trial("transformers' eager gemma2")
def gemma2_sliding_cache() -> Trial:
    """A cache that keeps no more than the window: five new keys behind three of twenty."""
    layers = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"], "sliding_window": 4}
    config = transformers().gemma2_config(**layers)
    made = filled(transformers().cache.DynamicCache, 20, config=config)
    mask = model_mask(5, None, 4, cache=made)
    assert mask.shape == (2, 1, 5, 8)
    rule = Rule(causal=True, window=4, softcap=2.0)
    wrong = {"a key more": replace(rule, window=5), "no cap": replace(rule, softcap=None)}
    theirs = eager("gemma2", mask, softcap=2.0)
    return Trial(theirs, rule, wrong, q=(2, 6, 5, 8), k=(2, 3, 8, 8), **SINGLE)


@trial("transformers' eager gpt_oss")
def gpt_oss_sinks() -> Trial:
    sinks = torch.linspace(-1, 3, 6)
    rule = Rule(causal=True, sinks=sinks, key_mask=LEFT, query_mask=LEFT)
    wrong = {"no sinks": replace(rule, sinks=None), "others": replace(rule, sinks=sinks.flip(0))}
    theirs = eager("gpt_oss", model_mask(11, LEFT), LEFT, sinks=sinks)
    return Trial(theirs, rule, wrong, rows=LEFT, **PROMPT)


@trial("transformers' eager gpt_oss")
def gpt_oss_sinks_and_window() -> Trial:
    sinks = torch.linspace(3, -1, 6)
    rule = Rule(causal=True, sinks=sinks, window=4)
    wrong = {"no sinks": replace(rule, sinks=None), "a key more": replace(rule, window=5)}
    theirs = eager("gpt_oss", model_mask(11, None, 4), sinks=sinks)
    return Trial(theirs, rule, wrong, **PROMPT)


# The trials, all of them --------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.judge(judge))
                                  for name, (judge, _) in TRIALS.items()])  # fmt: skip
def test_agrees_with(name):
    trial = TRIALS[name][1]()
    for dtype in trial.dtypes:
        agree(trial, trial.rule, judged(trial, dtype))


@pytest.mark.parametrize("name", TRIALS)
def test_a_wrong_rule_is_rejected_by(name):
    trial = TRIALS[name][1]()
    assert trial.wrong
    for dtype in (trial.dtypes[0], torch.bfloat16):  # the strictest and the loosest
        judgement = judged(trial, dtype)
        for wrong in trial.wrong.values():
            with pytest.raises(AssertionError, match=r"^\w+: "):
                agree(trial, wrong, judgement)
