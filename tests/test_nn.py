"""The attention module: equal to torch's and transformers' own, and to itself piece by piece."""

import re

import pytest
import torch
from torch import Tensor, nn

import clearhead as ch
from clearhead.nn import NEEDS

R = ch.Rotary


def module(d_model: int = 24, n_heads: int = 4, seed: int = 0, **config) -> ch.MultiHeadAttention:
    torch.manual_seed(seed)
    new = ch.MultiHeadAttention(d_model, n_heads, ch.AttentionConfig(**config))
    if new.sinks is not None:
        nn.init.normal_(new.sinks)
    for norm in (new.q_norm, new.k_norm):
        if norm is not None:
            nn.init.normal_(norm.weight, mean=1.0, std=0.2)
    return new


def tokens(B: int = 2, T: int = 11, d_model: int = 24, seed: int = 1) -> Tensor:
    return torch.randn(B, T, d_model, generator=torch.Generator().manual_seed(seed))


CONFIGS = {
    "plain": {"causal": True},
    "grouped": {"causal": True, "n_kv_heads": 2, "d_head": 10, "bias": True},
    "one key head": {"causal": True, "n_kv_heads": 1},
    "window": {"causal": True, "window": 3},
    "window of one": {"causal": True, "window": 1},
    "rotary": {"causal": True, "rotary": R()},
    "partly rotary": {"causal": True, "rotary": R(500.0, 4, "interleaved"), "window": 4},
    "alibi": {"causal": True, "alibi": True, "window": (4, 0)},
    "everything": {
        "causal": True, "n_kv_heads": 2, "softcap": 3.0, "sinks": True, "qk_norm": True,
        "rotary": R(), "scale": 0.3, "window": 5, "bias": True, "out_bias": False,
    },
}  # fmt: skip


# Equal to others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_from_torch_attends_alike_with_weights_and_gradients(bias, causal):
    theirs = nn.MultiheadAttention(24, 4, bias=bias, batch_first=True)
    if bias:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = ch.MultiHeadAttention.from_torch(theirs, ch.AttentionConfig(causal=causal))
    x, y = (tokens().requires_grad_() for _ in range(2))
    hidden = torch.ones(11, 11, dtype=torch.bool).triu(1) if causal else None
    want, weights = theirs(x, x, x, attn_mask=hidden, average_attn_weights=False)
    got = ours(y, need="map")
    torch.testing.assert_close(got.out, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.map[:], weights, atol=1e-6, rtol=1e-5)
    push = torch.randn_like(want)
    want.backward(push)
    got.out.backward(push)
    torch.testing.assert_close(y.grad, x.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        ours.q_proj.weight.grad, theirs.in_proj_weight.grad[:24], atol=1e-5, rtol=1e-5
    )


def test_from_torch_across_two_texts_with_padding():
    theirs = nn.MultiheadAttention(24, 4, kdim=10, vdim=10, batch_first=True)
    ours = ch.MultiHeadAttention.from_torch(theirs)
    x, context = tokens(), tokens(T=7, d_model=10, seed=2)
    real = torch.ones(2, 7, dtype=torch.bool)
    real[1, 4:] = False
    want, weights = theirs(
        x, context, context, key_padding_mask=~real, average_attn_weights=False
    )  # torch: True is padding
    got = ours(x, context, key_mask=real, need="map")
    torch.testing.assert_close(got.out, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.map[:], weights, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kdim", [None, 10])
def test_to_torch_is_the_way_back(kdim):
    theirs = nn.MultiheadAttention(24, 4, kdim=kdim, vdim=kdim, dropout=0.1, batch_first=True)
    again = ch.MultiHeadAttention.from_torch(theirs).to_torch()
    assert again.dropout == 0.1
    assert again.state_dict().keys() == theirs.state_dict().keys()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"add_bias_kv": True}, "add_bias_kv"),
        ({"add_zero_attn": True}, "add_zero_attn"),
        ({"kdim": 5}, "kdim != vdim"),
    ],
)
def test_what_torch_has_and_we_have_not_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        ch.MultiHeadAttention.from_torch(nn.MultiheadAttention(24, 4, **options))


def test_what_we_have_and_torch_has_not_is_refused():
    with pytest.raises(ValueError, match="n_kv_heads, window, softcap, sinks, qk_norm, rotary"):
        module(
            n_kv_heads=2, causal=True, window=3, softcap=1.0, sinks=True, qk_norm=True, rotary=R()
        ).to_torch()


def test_llamas_attention_with_its_weights_as_they_are():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=24, num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
        rope_theta=500.0,
    )  # fmt: skip
    theirs = LlamaAttention(config, layer_idx=0)
    base = config.rope_parameters["rope_theta"]
    ours = module(causal=True, n_kv_heads=2, rotary=R(base))
    assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
    x = tokens()
    where = LlamaRotaryEmbedding(config)(x, torch.arange(11)[None])
    hidden = torch.full((11, 11), torch.finfo(torch.float32).min).triu(1)[None, None]
    want, weights = theirs(x, position_embeddings=where, attention_mask=hidden)
    got = ours(x, need="map")
    torch.testing.assert_close(got.out, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.map[:], weights, atol=1e-6, rtol=1e-5)


def test_gpt2s_attention_from_copied_weights():
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

    config = GPT2Config(
        n_embd=24, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0, attn_implementation="eager"
    )
    theirs = GPT2Attention(config, layer_idx=0)
    nn.init.normal_(theirs.c_attn.bias)
    ours = module(causal=True, bias=True)
    with torch.no_grad():  # one matrix (in, 3 out) there, three (out, in) here
        for linear, weight, bias in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj),
            theirs.c_attn.weight.chunk(3, dim=1), theirs.c_attn.bias.chunk(3), strict=True,
        ):  # fmt: skip
            linear.weight.copy_(weight.T)
            linear.bias.copy_(bias)
        ours.o_proj.weight.copy_(theirs.c_proj.weight.T)
        ours.o_proj.bias.copy_(theirs.c_proj.bias)
    x = tokens()
    hidden = torch.full((11, 11), torch.finfo(torch.float32).min).triu(1)[None, None]
    want, weights = theirs(x, attention_mask=hidden)
    got = ours(x, need="map")
    torch.testing.assert_close(got.out, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(got.map[:], weights, atol=1e-6, rtol=1e-5)


# Equal to itself ----------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(1,) * 11, (4, 1, 6), (11,)], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_decoding_in_pieces_is_the_whole_at_once_with_its_gradients(config, steps):
    attend, x = module(**config), tokens()
    push = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))

    def run(pieces: list[Tensor], cache: ch.KVCache | None) -> tuple[Tensor, list[Tensor]]:
        out = torch.cat([attend(piece, cache=cache).out for piece in pieces], dim=1)
        attend.zero_grad()
        out.backward(push)
        return out.detach(), [p.grad.clone() for p in attend.parameters()]

    cache = ch.KVCache()
    whole, grads = run([x], None)
    parts, again = run(list(x.split(steps, dim=1)), cache)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)
    for one, other in zip(again, grads, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
    assert cache.length == 11
    window = config.get("window")
    before = window[0] if isinstance(window, tuple) else window and window - 1
    assert cache.k.shape[2] == (11 if before is None else before)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_padding_changes_nothing_for_the_real_tokens(config, side):
    attend, x = module(**config), tokens(B=1)
    pad = torch.full((1, 3, 24), 1e3)
    padded = torch.cat([pad, x] if side == "left" else [x, pad], dim=1)
    real = torch.ones(1, 14, dtype=torch.bool)
    here = slice(3, 14) if side == "left" else slice(0, 11)
    real[:, :3] = side != "left"
    real[:, 11:] = side == "left" or False
    real[:, here] = True
    alone, among = attend(x, need="stats"), attend(padded, key_mask=real, need="stats")
    torch.testing.assert_close(among.out[:, here], alone.out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        among.attended.entropy[..., here], alone.attended.entropy, atol=1e-5, rtol=1e-5
    )
    assert ch.HeadStats.of(among.attended).rows.tolist() == [11] * 4
    cache = ch.KVCache()
    steps = (5, 5, 4)
    pieces = zip(padded.split(steps, 1), real.split(steps, 1), strict=True)
    decoded = torch.cat([attend(p, key_mask=m, cache=cache).out for p, m in pieces], dim=1)
    torch.testing.assert_close(decoded[:, here], alone.out, atol=1e-5, rtol=1e-5)


def test_a_mask_that_comes_late_covers_the_tokens_before_it():
    attend, x = module(causal=True), tokens(B=1)
    cache = ch.KVCache()
    attend(x[:, :5], cache=cache)
    real = torch.tensor([[False, True, True, True, True, True]])
    got = attend(x[:, 5:], key_mask=real, cache=cache).out
    mask = torch.cat([torch.ones(1, 5, dtype=torch.bool), real], dim=1)
    want = attend(x, key_mask=mask).out[:, 5:]
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_what_is_needed_changes_no_bit_of_the_output(config):
    attend, x = module(**config), tokens()
    none, stats, seen = (attend(x, need=need) for need in NEEDS)
    assert torch.equal(none.out, stats.out)
    assert torch.equal(none.out, seen.out)
    assert (none.attended, none.map, stats.map) == (None, None, None)
    weights = seen.map[:]
    torch.testing.assert_close(weights.sum(-1), 1 - seen.attended.sink_mass)
    values = attend.v_proj(x).unflatten(-1, (attend.n_kv_heads, -1)).transpose(1, 2)
    mixed = weights @ values.repeat_interleave(4 // attend.n_kv_heads, dim=1)
    torch.testing.assert_close(
        attend.o_proj(mixed.transpose(1, 2).flatten(2)), none.out, atol=1e-5, rtol=1e-5
    )


def test_the_map_keeps_its_digits_where_scores_are_large():
    """Every score is 1e8: of its log-sum-exp, float32 keeps no digit of the number of keys."""
    attend = module(4, 1, scale=1.0)
    with torch.no_grad():
        for linear in (attend.q_proj, attend.k_proj):
            linear.weight.copy_(torch.eye(4) * 1e4)
        x = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 5, 4)
        torch.testing.assert_close(attend(x, need="map").map[:], torch.full((1, 1, 5, 5), 0.2))


def test_one_text_without_a_batch():
    attend, x, context = module(), tokens()[0], tokens(T=5)[0]
    torch.testing.assert_close(attend(x).out, attend(x[None]).out[0])
    torch.testing.assert_close(attend(x, context).out, attend(x[None], context[None]).out[0])


def test_dropout_is_off_in_eval_and_no_figure_notices_it():
    attend, x = module(causal=True, dropout=0.5), tokens()
    torch.manual_seed(0)
    dropped = attend(x, need="map")
    assert not torch.equal(dropped.out, attend(x).out)
    attend.eval()
    whole = attend(x, need="map")
    assert torch.equal(whole.out, attend(x).out)
    torch.testing.assert_close(dropped.attended.entropy, whole.attended.entropy)
    torch.testing.assert_close(dropped.map[:], whole.map[:])  # with dropout it is not native
    assert not torch.equal(dropped.out, whole.out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_number_types(dtype):
    attend, x = module(**CONFIGS["everything"]), tokens()
    want = attend(x).out
    got = attend.to(dtype)(x.to(dtype), need="stats")
    assert got.out.dtype == dtype
    assert got.attended.entropy.dtype == (
        torch.float64 if dtype == torch.float64 else torch.float32
    )
    near = {torch.float64: 1e-5, torch.float16: 2e-2, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(got.out.float(), want, atol=near, rtol=near)


def test_under_autocast():
    attend, x = module(**CONFIGS["everything"]), tokens()
    with torch.autocast("cpu", torch.bfloat16):
        got = attend(x).out
    torch.testing.assert_close(got.float(), attend(x).out, atol=0.1, rtol=0.1)


def test_the_names_of_the_parameters_are_those_that_are_promised():
    names = {name: tuple(p.shape) for name, p in module(**CONFIGS["everything"]).named_parameters()}
    assert names == {
        "q_proj.weight": (24, 24), "q_proj.bias": (24,),
        "k_proj.weight": (12, 24), "k_proj.bias": (12,),
        "v_proj.weight": (12, 24), "v_proj.bias": (12,),
        "o_proj.weight": (24, 24),
        "q_norm.weight": (6,), "k_norm.weight": (6,), "sinks": (4,),
    }  # fmt: skip
    assert set(module(alibi=True).state_dict()) == {
        f"{x}_proj.weight" for x in "qkvo"
    }  # slopes are not learned, so not kept


def test_alibi_slopes_are_those_of_the_paper():
    from clearhead.rule import alibi_slopes

    assert alibi_slopes(8).tolist() == [2.0**-n for n in range(1, 9)]
    twelve = [2.0**-n for n in range(1, 9)] + [2.0 ** -(n + 0.5) for n in range(4)]
    torch.testing.assert_close(alibi_slopes(12), torch.tensor(twelve))


def test_it_says_what_it_is():
    said = repr(module(causal=True, n_kv_heads=2, rotary=R()))
    assert said.startswith("MultiHeadAttention(\n  24, 4 heads, n_kv_heads=2, causal=True, rotary=")


# What it refuses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: module(25, 4), "d_model 25 cannot be split over 4 heads; say d_head"),
        (lambda: module(24, 0), "must be at least 1; got 24, 0 and 0"),
        (lambda: module(n_kv_heads=3), "must be a multiple of n_kv_heads; got 4 and 3"),
        (lambda: module(d_head=0), "d_head must be at least 1; got 0"),
        (lambda: module(rotary=R(d_rotary=8)), "from 2 to d_head 6; got 8"),
        (lambda: module(rotary=R(d_rotary=3)), "d_rotary must be even"),
        (lambda: module(d_head=5, rotary=R()), "must be even, from 2 to d_head 5; got 5"),
        (lambda: R(pairing="both"), "pairing must be one of halves, interleaved; got 'both'"),
        (lambda: module(dropout=1.0), "dropout must be at least 0 and below 1; got 1.0"),
        (lambda: module(window=3), "causal"),
        (lambda: module()(tokens(), need="all"), "need must be one of none, stats, map; got 'all'"),
        (lambda: module()(tokens(d_model=23)), r"x must be (B, T, 24) or (T, 24); got (2, 11, 23)"),
        (lambda: module()(tokens()[0, 0]), "x must be"),
        (lambda: module()(tokens(), tokens(B=1)), "context must be (B, S, 24) with the batch size"),
        (lambda: module(causal=True)(tokens(), tokens()), "mean nothing between two texts"),
        (lambda: module(d_context=9)(tokens()), "reads a context of 9 numbers: give context="),
        (lambda: module()(tokens(), cache=ch.KVCache()), "this module is not causal"),
        (
            lambda: module()(tokens(), tokens(), cache=ch.KVCache()),
            "a cache is for decoding with causal self-attention; there is a context",
        ),
        (
            lambda: module()(tokens(), key_mask=torch.ones(2, 11)),
            "key_mask must be bool and (B, S) = (2, 11), True for a real token; got torch.float32",
        ),
        (
            lambda: module()(tokens(), key_mask=torch.ones(2, 10, dtype=torch.bool)),
            "got torch.bool (2, 10)",
        ),
    ],
)
def test_what_does_not_fit_is_refused(build, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        build()


def test_a_refused_call_leaves_the_cache_as_it_was():
    attend, cache = module(causal=True), ch.KVCache()
    attend(tokens(), cache=cache)
    k = cache.k
    with pytest.raises(ValueError, match="the cache holds keys"):
        attend(tokens(B=3), cache=cache)
    assert cache.length == 11
    assert cache.k is k
