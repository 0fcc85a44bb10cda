"""Observing: the model computes what it would have computed, and what is seen is what it did."""

import copy
import dataclasses
import gc
import io
import itertools
import math
import sys
import threading
import types
import warnings
import weakref

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import judged, observed, weights_of

import clearhead as ch
from clearhead.capture import AttentionInputs, observe

CAUSAL = nn.Transformer.generate_square_subsequent_mask(9)


# transformers: every kind, beside its own eager weights in float64 --------------------------------


def eager_weights(name: str, model, inputs) -> list[Tensor]:
    """What an eager copy of the model says its weights are, in the order of its calls."""
    judge = zoo.build(name, "eager")
    judge.load_state_dict(model.state_dict())
    # With padding its masks overflow in float64, and gpt_oss's experts know none.
    return weights_of(judge, inputs, "attention_mask" not in inputs and name != "gpt_oss")


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", zoo.KINDS)
def test_a_transformers_model_is_seen_as_its_eager_weights_say(name, implementation, padded):
    kind = zoo.KINDS[name]
    if implementation == "sdpa" and not kind.sdpa:
        implementation = "eager"
    if padded and kind.inputs in ("image", "sound"):
        padded = False
    model, inputs = zoo.build(name, implementation), zoo.feed(name, padded)

    def call(model):
        with torch.no_grad():
            return model(**inputs)

    run = observed(model, call)
    weights = eager_weights(name, model, inputs)
    assert run.notes == []
    assert len(run.calls) == len(weights) == len(run.sites)
    for layer, (seen, expected) in enumerate(zip(run.calls, weights, strict=True)):
        assert seen.check.ok, run.checked_line()
        assert seen.check.rows > 0
        if name != "t5":
            assert seen.mask_bytes == 0, seen.rule
        real = torch.ones(expected.shape[0], expected.shape[2], dtype=torch.bool)
        if padded and not seen.cross and expected.shape[2] == zoo.T:
            real = inputs["attention_mask"].bool()
        means = judged(expected, real)
        stats = run.stats[layer]
        assert stats.rows.tolist() == [int(real.sum())] * expected.shape[1]
        if seen.cross:  # its keys are another sequence
            assert stats.mean("distance") is stats.mean("previous") is None
            del means["distance"]
        for metric, want in means.items():
            torch.testing.assert_close(
                stats.mean(metric), want, rtol=1e-4, atol=1e-5, msg=f"{layer} {metric}"
            )
        exact = torch.special.entr(expected).sum(dim=-1)
        if name != "gpt_oss":  # its weights leave the sink out
            kept = real[:, None].expand_as(exact)
            torch.testing.assert_close(
                seen.tensors["entropy"].double()[kept], exact[kept], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt2", "gpt_oss", "bert", "t5"])
def test_a_map_is_the_eager_weights(name):
    model = zoo.build(name, "sdpa" if zoo.KINDS[name].sdpa else "eager")
    inputs = zoo.feed(name)
    with torch.no_grad(), observe(model, keep="qk") as run:
        model(**inputs)
    for layer, expected in enumerate(eager_weights(name, model, inputs)):
        for h in (0, 3):
            seen = run.map(f"{layer}.{h}")[:, 0].double()
            if name not in ("bert", "t5"):
                assert (seen.triu(1) == 0).all()  # exactly: what comes later has no weight at all
            torch.testing.assert_close(seen, expected[:, h], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "t5", "bart"])
def test_the_steps_of_generate_become_one_map(name):
    """The map of a generation equals that of the whole sequence read at once."""
    model, inputs = zoo.build(name), zoo.feed(name)
    pair = zoo.KINDS[name].inputs == "pair"
    inputs.pop("decoder_input_ids", None)
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    plain = model.generate(**inputs, **how)
    with observe(model, keep="qk") as run:
        written = model.generate(**inputs, **how)
    assert torch.equal(plain, written)
    assert run.notes == []
    whole = (
        {**inputs, "decoder_input_ids": written[:, :-1]} if pair else {"input_ids": written[:, :-1]}
    )
    with torch.no_grad(), observe(model, keep="qk") as once:
        model(**whole)
    assert run.sites == once.sites
    for layer in range(len(run.sites)):
        sequence = max(c.sequence for c in run.calls if c.layer == layer)
        seen, expected = run.map(f"{layer}.1", sequence=sequence), once.map(f"{layer}.1")
        torch.testing.assert_close(seen[:], expected[:], rtol=1e-4, atol=1e-5)
    if not pair:
        assert torch.equal(run.tokens[0], written[:, :-1])


@pytest.mark.parametrize("seed", [0, 2, 7, 19, 22])
def test_a_row_whose_output_cancels_is_held_to_what_it_is_a_sum_of(seed):
    """A step of one row in which some channel comes out near 0, though its terms are not."""
    torch.manual_seed(seed)
    model, prompt = zoo.build("llama"), torch.randint(3, 40, (1, 20)).repeat(2, 2)
    with torch.no_grad(), observe(model, keep="qk") as run:
        model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert not run.notes
    assert len({call.sequence for call in run.calls}) == 1


def test_left_padding_in_generate_leaves_the_pads_out():
    model, inputs = zoo.build("llama"), zoo.feed("llama", padded=True)
    with observe(model) as run:
        model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    real = int(inputs["attention_mask"].sum()) + 2 * 2
    assert run.stats[0].rows.tolist() == [real] * 4
    assert run.n_calls == 6


BYPASSING = {
    "bloom": ("BloomConfig", "BloomForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM",
                {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
                 "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64}),
    "mpt": ("MptConfig", "MptForCausalLM",
            {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64}),
}  # fmt: skip


def bypassing(name: str):
    import transformers

    config, model, sizes = BYPASSING[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, model)(
            getattr(transformers, config)(vocab_size=101, **sizes)
        ).eval()


@pytest.mark.parametrize("name", BYPASSING)
def test_a_model_that_bypasses_every_entry_is_served_through_its_own_weights(name):
    model, ids = bypassing(name), zoo.feed("llama")["input_ids"]

    def call(model):
        with torch.no_grad():
            return model(ids).logits

    run = observed(model, call)
    with torch.no_grad():
        expected = model(ids, output_attentions=True).attentions
    assert run.checked_line() == "2 not verifiable (the model's own weights)"
    for layer, weights in enumerate(expected):
        want = judged(weights.double(), torch.ones(2, zoo.T, dtype=torch.bool))
        for metric in ("entropy", "max_prob"):
            torch.testing.assert_close(
                run.stats[layer].mean(metric), want[metric], rtol=1e-4, atol=1e-5
            )


def test_weights_of_a_layout_of_their_own_are_refused_by_name():
    import transformers

    config = transformers.LongformerConfig(
        vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, attention_window=4, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.LongformerModel(config).eval()
    with pytest.raises(ValueError, match=r"Longformer.*attentions\.0.*layout of its own"):
        with torch.no_grad(), observe(model):
            model(zoo.feed("llama")["input_ids"])


def test_a_model_without_attention_is_refused_with_the_reason():
    model = nn.Linear(3, 3)
    with pytest.raises(ValueError, match=r"Linear was called 1 time and never reached"):
        with observe(model):
            model(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"Linear was not called inside"), observe(model):
        pass


def test_an_implementation_whose_masks_are_not_read_is_refused_by_name(monkeypatch):
    from transformers import AttentionInterface

    def flash(module, query, key, value, mask, **kwargs):
        return query.transpose(1, 2), None  # it never gets as far as being compared

    monkeypatch.setitem(AttentionInterface._global_mapping, "some_flash_attention", flash)
    model = zoo.build("llama")
    model.config._attn_implementation = "some_flash_attention"
    with pytest.raises(ValueError, match=r"self_attn.*'some_flash_attention'.*\"sdpa\""):
        with torch.no_grad(), observe(model):
            model(**zoo.feed("llama"))


def test_flex_attention_is_refused_by_name():
    from torch.nn.attention import flex_attention as library

    class Flexible(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return library.flex_attention(x, x, x)

    model, x = Flexible(), torch.randn(1, 1, 4, 8)
    with pytest.raises(
        ValueError, match="it calls flex_attention, whose rules clearhead does not read"
    ):
        with torch.no_grad(), observe(model), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(x)


@pytest.mark.parametrize(
    ("package", "name"),
    [("flash_attn", "flash_attn_func"), ("flash_attn", "flash_attn_varlen_func"),
     ("flash_attn.flash_attn_interface", "flash_attn_func"),
     ("xformers.ops", "memory_efficient_attention")],
)  # fmt: skip
def test_packages_of_flash_attention_are_refused_by_name(package, name, monkeypatch):
    """Packages that run on GPUs alone, in the shape of theirs: a function under their name."""
    for part in itertools.accumulate(package.split("."), "{}.{}".format):
        monkeypatch.setitem(sys.modules, part, types.ModuleType(part))
    said: dict = {"__name__": package}
    exec(f"def {name}(q, k, v):\n    return v\n", said)
    monkeypatch.setattr(sys.modules[package], name, said[name], raising=False)

    class Fast(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return getattr(sys.modules[package], name)(x, x, x)

    model, x = Fast(), torch.randn(1, 4, 1, 8)
    with pytest.raises(ValueError, match=f"Fast.*it calls {name}, whose rules"):
        with torch.no_grad(), observe(model):
            assert torch.equal(model(x), x)
    assert getattr(sys.modules[package], name) is said[name]


# PyTorch's own modules ----------------------------------------------------------------------------


def text(width: int = 16) -> Tensor:
    return torch.randn(2, 9, width, generator=torch.Generator().manual_seed(0))


RIGHT = torch.arange(9) >= torch.tensor([[9], [6]])  # True is padding, as torch has it
LEFT = RIGHT.flip(1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("masks", ["none", "pad", "left pad", "causal", "both", "float"])
def test_multihead_attention_is_seen_as_its_own_weights(batch_first, need_weights, grad, masks):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    x = text() if batch_first else text().transpose(0, 1)
    options = {
        "none": {}, "pad": {"key_padding_mask": RIGHT}, "left pad": {"key_padding_mask": LEFT},
        "causal": {"attn_mask": CAUSAL, "is_causal": True},
        "both": {"attn_mask": CAUSAL.isinf(), "key_padding_mask": RIGHT},
        "float": {"attn_mask": torch.randn(9, 9, generator=torch.Generator().manual_seed(1))},
    }[masks]  # fmt: skip

    def call(model):
        with torch.set_grad_enabled(grad):
            return model(x, x, x, need_weights=need_weights, **options)

    run = observed(model, call, keep="qk")
    (seen,) = run.calls
    assert seen.check.ok
    with torch.enable_grad():
        _, weights = model(x, x, x, need_weights=True, average_attn_weights=False, **options)
    padding = options.get("key_padding_mask")
    real = torch.ones(2, 9, dtype=torch.bool) if padding is None else ~padding
    torch.testing.assert_close(
        seen.map()[:][real.nonzero()[:, 0], :, real.nonzero()[:, 1]],
        weights.detach()[real.nonzero()[:, 0], :, real.nonzero()[:, 1]],
    )
    assert run.stats[0].rows.tolist() == [int(real.sum())] * 4
    assert (seen.mask_bytes > 0) == (masks == "float")


def test_multihead_attention_with_all_its_extras():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, add_bias_kv=True, add_zero_attn=True, kdim=7, vdim=5)
    q, k, v = (torch.randn(n, m) for n, m in ((6, 16), (5, 7), (5, 5)))
    run = observed(model, lambda model: model(q, k, v, average_attn_weights=False), keep="qk")
    torch.testing.assert_close(
        run.calls[0].map()[0], model(q, k, v, average_attn_weights=False)[1].detach()
    )
    assert run.calls[0].shape == (1, 4, 4, 6, 7, 4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padding", [None, RIGHT, LEFT], ids=["whole", "right", "left"])
def test_the_fast_path_of_an_encoder_is_taken_and_seen(norm_first, padding):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    slow = copy.deepcopy(model)

    def call(model):
        with torch.no_grad():
            return model(text(), src_key_padding_mask=padding)

    run = observed(model, call)
    assert {c.entry for c in run.calls} == {"nn.TransformerEncoderLayer, fast path"}
    assert all(c.check.ok for c in run.calls)
    with observe(slow) as other:  # with gradients it takes the slow path
        slow(text(), src_key_padding_mask=padding)
    assert {c.entry for c in other.calls} == {"sdpa"}
    for layer in (0, 1):
        torch.testing.assert_close(
            run.stats[layer].mean("entropy"),
            other.stats[layer].mean("entropy"),
            rtol=1e-4,
            atol=1e-5,
        )
        assert torch.equal(run.stats[layer].rows, other.stats[layer].rows)


def test_a_decoder_has_self_and_cross_attention():
    torch.manual_seed(0)
    model = nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 2).eval()

    def call(model):
        with torch.no_grad():
            return model(text(), text()[:, :5], tgt_mask=CAUSAL, tgt_is_causal=True)

    run = observed(model, call)
    assert [c.cross for c in run.calls] == [False, True, False, True]
    assert [c.shape[3:5] for c in run.calls] == [(9, 9), (9, 5)] * 2


def test_dropout_is_seen_through_and_said():
    """One key and p = 0.2: its weight is 1, whatever was dropped."""
    model = nn.MultiheadAttention(16, 4, dropout=0.2, batch_first=True)
    x = text()[:, :1]
    run = observed(model, lambda model: model(x, x, x)[0], keep="qk")
    assert (run.calls[0].map()[:] == 1).all()
    assert run.checked_line() == "1 not verifiable (dropout)"


# Whoever calls it, under whatever name ------------------------------------------------------------


class Mine(nn.Module):
    """Attention by a function that is known under a name of the module's own."""

    known = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, how: str = "class") -> None:
        super().__init__()
        self.qkv, self.how = nn.Linear(16, 48), how
        self.attend = F.scaled_dot_product_attention

    def forward(self, x: Tensor, **options) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.how == "class":
            return self.known(q, k, v, is_causal=True)
        if self.how == "keywords":
            return F.scaled_dot_product_attention(query=q, value=v, key=k, is_causal=True)
        if self.how == "attribute":
            return self.attend(q, k, v, is_causal=True, scale=0.25)
        if self.how == "by hand":
            return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), dim=-1) @ v
        return torch._C._nn.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("how", ["class", "keywords", "attribute", "builtin"])
def test_the_function_is_found_under_every_name(how):
    model = Mine(how)
    run = observed(model, lambda model: model(text()))
    assert run.calls[0].check.ok
    assert model.attend is Mine.known is F.scaled_dot_product_attention
    assert "stand_in" not in repr(F.scaled_dot_product_attention)


@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_model_is_seen(warm):
    model = Mine("keywords")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = model(text())
        if warm:
            compiled(text())
        with observe(compiled) as run:
            assert torch.equal(compiled(text()), plain)
        assert run.n_calls == 1
        assert run.calls[0].check.ok
        with observe(model) as run:  # what was compiled is this model too
            assert torch.equal(compiled(text()), plain)
        assert run.n_calls == 1
        assert torch.equal(compiled(text()), plain)


def test_an_adapter_tells_what_a_module_computes_by_hand():
    model = Mine("by hand")
    with pytest.raises(ValueError, match=r"by hand.*adapters"), observe(model):
        model(text())

    def told(module, args, kwargs, result):
        q, k, v = module.qkv(args[0]).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return AttentionInputs(q, k, v, ch.Rule(), result)

    run = observed(model, lambda model: model(text()), adapters={Mine: told})
    assert run.calls[0].check.ok

    def wrong(*call):
        return dataclasses.replace(told(*call), rule=ch.Rule(causal=True))

    with pytest.raises(ValueError, match=r"Mine: the engine's output differs from the model's by"):
        with observe(model, adapters={Mine: wrong}):
            model(text())


def test_our_own_modules_and_models_are_seen():
    model = ch.TinyGPT.load("tiny-en")
    ids = torch.tensor([model.tokenizer.encode("the cat sat on the mat. the cat sat")])
    run = observed(model, lambda model: model(ids).logits, keep="qk")
    own = model(ids, need="map").layers
    for layer, seen in enumerate(own):
        torch.testing.assert_close(run.map(f"{layer}.2")[:, 0], seen.map[:, 2].detach())
    assert torch.equal(run.tokens[0], ids)


def test_one_module_called_many_times_is_many_layers():
    model = zoo.build("albert")
    with torch.no_grad(), observe(model) as run:
        model(**zoo.feed("albert"))
        model(**zoo.feed("albert", seed=1))
    assert len(run.sites) == 3
    assert len({module for module, _ in run.sites}) == 1
    assert [index for _, index in run.sites] == [0, 1, 2]
    assert [c.sequence for c in run.calls] == [0] * 3 + [1] * 3


def test_sampled_rows_see_all_their_keys():
    model, inputs = zoo.build("llama"), {"input_ids": torch.randint(3, 101, (2, 60))}
    model.config.max_position_embeddings = 64
    with torch.no_grad():
        with observe(model) as whole:
            model(**inputs)
        with observe(model, rows=20, keep="qk") as some:
            model(**inputs)
    for seen, part in zip(whole.calls, some.calls, strict=True):
        assert len(part.rows) == 20
        for name, x in part.tensors.items():
            if name not in ("q", "k"):
                torch.testing.assert_close(x, seen.tensors[name][..., part.rows])
        assert part.tensors["q"].shape[2] == 20
    assert some.stats[0].rows.tolist() == [40] * 4
    farthest = (run.stats[1].metrics["distance"].maximum for run in (some, whole))
    assert torch.le(*farthest).all()


# Nothing is left behind ---------------------------------------------------------------------------


def test_everything_is_back_after_whatever_happens():
    import transformers.modeling_utils as library

    model = zoo.build("llama")
    names = [(F, "scaled_dot_product_attention"), (F, "multi_head_attention_forward"),
             (torch, "_native_multi_head_attention"), (torch, "_transformer_encoder_layer_fwd"),
             (nn.Module, "__call__"), (library.AttentionInterface, "get_interface")]  # fmt: skip
    before = [vars(owner)[name] for owner, name in names]
    config, state = copy.deepcopy(model.config.to_dict()), [m.training for m in model.modules()]
    wanted = [p.requires_grad for p in model.parameters()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    for error in (RuntimeError, KeyboardInterrupt, None):
        calls = []
        handle = model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        if error is None:
            with observe(model):
                model(**zoo.feed("llama"))
        else:
            with pytest.raises(error), observe(model):
                model(**zoo.feed("llama"))
                raise error
        handle.remove()
        assert calls == [1]
        assert [vars(owner)[name] for owner, name in names] == before
        assert model.config.to_dict() == config
        assert [m.training for m in model.modules()] == state
        assert [p.requires_grad for p in model.parameters()] == wanted
        assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_an_error_inside_the_model_stays_what_it_is():
    model = zoo.build("llama")
    with pytest.raises(IndexError), observe(model):
        model(input_ids=torch.tensor([[1000]]))
    with torch.no_grad(), observe(model) as run:
        model(**zoo.feed("llama"))
    assert run.n_calls == 2


def test_nested_observers_see_the_same():
    model, inputs = zoo.build("llama"), zoo.feed("llama")
    with torch.no_grad(), observe(model) as outer:
        model(**inputs)
        with observe(model) as inner:
            model(**inputs)
    assert outer.n_calls == 4
    assert inner.n_calls == 2
    assert torch.equal(inner.calls[0].tensors["lse"], outer.calls[0].tensors["lse"])


def test_two_models_are_kept_apart():
    a, b = zoo.build("llama"), zoo.build("gpt2")
    with torch.no_grad(), observe(a) as run:
        a(**zoo.feed("llama"))
        b(**zoo.feed("gpt2"))
        F.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 4))
    assert run.n_calls == 2


def test_another_thread_is_not_mixed_in():
    a, b = zoo.build("llama"), zoo.build("llama", seed=1)
    with torch.no_grad(), observe(a) as run:
        thread = threading.Thread(target=lambda: b(**zoo.feed("llama")))
        a(**zoo.feed("llama"))
        thread.start()
        thread.join()
    assert run.n_calls == 2


def test_a_long_observation_stays_as_small_as_it_was():
    model = zoo.build("llama")
    sizes = []
    with torch.no_grad(), observe(model) as run:
        for step in range(200):
            model(torch.full((2, 5), step % 100))
            sizes.append(sum(x.numel() for c in run.calls for x in c.tensors.values()))
    assert sizes[10] == sizes[-1]
    assert run.n_calls == 400
    assert run.stats[0].rows.tolist() == [200 * 2 * 5] * 4
    assert sum(check.calls for _, check in run.checks) == 400
    assert len(run.calls) == 16


def test_a_model_dies_when_it_is_let_go():
    model = zoo.build("llama")
    with torch.no_grad(), observe(model, keep="qk") as run:
        model(**zoo.feed("llama"))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert run.map("0.0")[0, 0, 0, 0] == 1


def test_saving_and_copying_work_while_observed():
    model = zoo.build("llama")
    keys = list(model.state_dict())
    with torch.no_grad(), observe(model) as run:
        twin = copy.deepcopy(model)
        torch.save(model.state_dict(), io.BytesIO())
        torch.save(model, io.BytesIO())
        assert list(model.state_dict()) == keys
        model(**zoo.feed("llama"))
        twin(**zoo.feed("llama"))
    assert run.n_calls == 2


def test_a_checkpointed_model_in_training_is_seen_once():
    model = zoo.build("llama")
    model.activation_checkpointing_enable()
    model.train()
    inputs = zoo.feed("llama")

    def step(model):
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    run = observed(model, step)
    assert run.n_calls == 2
    assert all(c.check.ok for c in run.calls)


def test_gradients_are_the_same():
    model, inputs = zoo.build("gpt2"), zoo.feed("gpt2", padded=True)

    def step(model):
        model.zero_grad()
        model(**inputs, labels=inputs["input_ids"]).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    observed(model, step)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_autocast(dtype):
    inputs = zoo.feed("llama", padded=True)
    half = zoo.build("llama").to(dtype)
    with torch.no_grad():
        run = observed(half, lambda model: model(**inputs), keep="qk")
        assert run.calls[0].dtype == str(dtype).removeprefix("torch.")
        assert run.calls[0].tensors["q"].dtype == dtype
        cast = observed(
            zoo.build("llama"),
            lambda model: _autocast(model, inputs, dtype),
        )
    assert all(c.check.ok for c in (*run.calls, *cast.calls))


def _autocast(model, inputs, dtype):
    with torch.autocast("cpu", dtype):
        return model(**inputs)


@pytest.mark.parametrize(
    "option", [{"layers": [1]}, {"layers": ["model.layers.1.self_attn"]}, {"heads": ["1.2"]}]
)
def test_layers_and_heads_can_be_chosen(option):
    model, inputs = zoo.build("llama"), zoo.feed("llama")
    with torch.no_grad():
        with observe(model, keep="qk") as whole:
            model(**inputs)
        with observe(model, keep="qk", **option) as run:
            model(**inputs)
    assert [c.layer for c in run.calls] == [1]
    assert torch.equal(run.map("1.2")[:], whole.map("1.2")[:])
    if "heads" in option:
        assert run.calls[0].tensors["q"].shape[1] == 1
    with pytest.raises(ValueError, match="no attention in the layers or heads"):
        with torch.no_grad(), observe(model, layers=[7]):
            model(**inputs)


def test_what_is_wrong_is_said():
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r'keep must be "stats" or "qk"; got \'all\''):
        observe(model, keep="all")
    with pytest.raises(ValueError, match="rows must be at least 1"):
        observe(model, rows=0)
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module; got str"):
        observe("gpt2")
    with pytest.raises(ValueError, match=r'by its layer and number, "3.5"; got \'q\''):
        observe(model, heads=["q"])
    with pytest.raises(ValueError, match=r'by its layer and number, "3.5"; got 1.3'):
        observe(model, heads=[1.3])


def test_a_run_is_written_call_by_call(tmp_path):
    model, inputs = zoo.build("llama"), zoo.feed("llama", padded=True)
    with torch.no_grad():
        with observe(model, keep="qk") as kept:
            model(**inputs)
        with observe(model, keep="qk", out=tmp_path / "run"):
            model(**inputs)
    stored = ch.load(tmp_path / "run")
    assert stored.sites == kept.sites
    for a, b in zip(kept.calls, stored.calls, strict=True):
        for name, x in a.tensors.items():
            assert torch.equal(x, b.tensors[name])
    assert stored.heads() == kept.heads()


def test_what_is_interrupted_leaves_no_run(tmp_path):
    model = zoo.build("llama")
    with pytest.raises(KeyboardInterrupt), observe(model, out=tmp_path / "run"):
        model(**zoo.feed("llama"))
        raise KeyboardInterrupt
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_run_that_was_lost_says_so(tmp_path):
    model = zoo.build("llama")
    with pytest.raises(KeyboardInterrupt), torch.no_grad():
        with observe(model, keep="qk", out=tmp_path / "run") as run:
            model(**zoo.feed("llama"))
            assert run.map("0.0")[0, 0, 0, 0] == 1
            raise KeyboardInterrupt
    lost = rf"nothing was kept in {tmp_path}/run: the observation ended with KeyboardInterrupt"
    for look in (lambda: run.map("0.0"), lambda: run.between((0, 2), (0, 1)),
                 lambda: run.calls[0].tensors["lse"]):  # fmt: skip
        with pytest.raises(ValueError, match=lost) as told:
            look()
        assert "\n" not in str(told.value)
    assert run.heads()[0].rows == 2 * zoo.T  # the statistics are in memory


# Passes, tokens, names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5"])
def test_calling_forward_is_calling_the_model(name):
    model, inputs = zoo.build(name), zoo.feed(name)
    with torch.no_grad():
        with observe(model, keep="qk") as run:
            model(**inputs), model(**inputs)
        with observe(model, keep="qk") as direct:
            model.forward(**inputs), model.forward(**inputs)
    assert direct.sites == run.sites
    for a, b in zip(direct.calls, run.calls, strict=True):
        assert (a.sequence, a.number, a.layer) == (b.sequence, b.number, b.layer)
        assert torch.equal(a.tensors["lse"], b.tensors["lse"])
    assert direct.tokens.keys() == run.tokens.keys()
    for n, tokens in run.tokens.items():
        assert torch.equal(direct.tokens[n], tokens)


def test_parts_called_by_hand_are_passes_as_they_come_again():
    """Two embeddings before anything attends, as an encoder and a decoder have."""

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(20, 16), nn.Embedding(20, 16)
            self.first, self.second = Mine(), nn.MultiheadAttention(16, 4, batch_first=True)

    model, ids = Parts().eval(), torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad(), observe(model) as run:
        for new in (ids, ids + 1):
            places = model.place(torch.arange(5)[None])  # whole numbers, but no tokens
            x = model.embed(new) + places
            model.place(torch.arange(5)[None])
            model.first(x)
            model.second(x, x, x)
    assert run.sites == [("first", 0), ("second", 0)]
    assert [c.number for c in run.calls] == [0, 0, 1, 1]
    assert [c.sequence for c in run.calls] == [0, 0, 1, 1]
    assert run.tokens == {}


class Reader(nn.Module):
    """Embeds `ids` and attends; called with them in one order or another."""

    def __init__(self, time_first: bool = False) -> None:
        super().__init__()
        self.embed, self.time_first = nn.Embedding(20, 16), time_first
        self.attend = nn.MultiheadAttention(16, 4, batch_first=not time_first)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        return self.attend(x, x, x)[0]


class Masked(Reader):
    def forward(self, attention_mask: Tensor, ids: Tensor) -> Tensor:
        return super().forward(ids)


class Labeled(Reader):
    def forward(self, labels: Tensor, ids: Tensor) -> Tensor:
        return super().forward(ids)


class Counted(Reader):
    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:
        return super().forward(ids)


IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


@pytest.mark.parametrize(
    ("model", "args", "known"),
    [(Reader(), (IDS,), True), (Reader(), (IDS[0],), True), (Reader(True), (IDS.T,), True),
     (Masked(), (torch.ones_like(IDS), IDS), False), (Labeled(), (IDS, IDS), False),
     (Counted(), (torch.tensor([5, 5]), IDS), False)],
    ids=["ids", "one text", "time first", "mask first", "labels first", "counts first"],
)  # fmt: skip
def test_tokens_are_what_is_read_and_nothing_else(model, args, known):
    with torch.no_grad(), observe(model) as run:
        model(*args)
    assert (0 in run.tokens) == known
    if known:
        tokens = IDS if args[0].ndim == 2 else IDS[:1]
        assert torch.equal(run.tokens[0], tokens)


def test_names_with_controls_are_one_line():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module("a\nb\x1b[31m", Mine())

        def forward(self, x: Tensor) -> Tensor:
            return next(self.children())(x)

    model = Odd()
    model.config = types.SimpleNamespace(_name_or_path="some\nwhere\x1b[0m")
    name = "a\\nb\\x1b[31m"
    for layers in (None, [name], ["a\nb\x1b[31m"]):
        with torch.no_grad(), observe(model, layers=layers) as run:
            model(text())
        assert run.sites == [(name, 0)]
        assert run.model == "Odd some\\nwhere\\x1b[0m"
    with torch.no_grad(), pytest.raises(ValueError, match=r"in the layers.*1 layers: 'a") as told:
        with observe(model, layers=["attn"]):
            model(text())
    assert str(told.value).isprintable()


# Shapes that torch takes --------------------------------------------------------------------------


class Attends(nn.Module):
    def __init__(self, prepare=lambda *given: given) -> None:
        super().__init__()
        self.prepare = prepare

    def forward(self, *given: Tensor, **options) -> Tensor:
        return F.scaled_dot_product_attention(*self.prepare(*given), **options)


def heads_of(x: Tensor) -> Tensor:
    """(..., T, 16) as (..., heads, T, 4) of 4 heads."""
    return x.unflatten(-1, (4, 4)).transpose(-2, -3)


@pytest.mark.parametrize(
    ("x", "prepare", "shape"),
    [(torch.randn(9, 16), heads_of, (1, 4)),  # no batch at all
     (torch.randn(3, 9, 16), lambda x: x, (3, 1)),  # a batch, one head
     (torch.randn(3, 9, 16), lambda x: heads_of(x).flatten(0, 1), (3, 4)),  # heads in the batch
     (torch.randn(9, 3, 16), lambda x: heads_of(x.transpose(0, 1)).flatten(0, 1), (3, 4)),
     (torch.randn(1, 9, 16), lambda x: heads_of(x)[0], (1, 4)),
     (torch.randn(9, 16), lambda x: x, (1, 1))],
    ids=["no batch", "one head", "folded", "time first", "of one", "two axes"],
)  # fmt: skip
@pytest.mark.parametrize("masked", [False, True])
def test_what_the_leading_of_three_axes_is_shows_in_what_the_module_was_given(
    x, prepare, shape, masked
):
    def three(x):
        q = prepare(x)
        return (q, q, q, torch.rand(*q.shape[:-1], 9) > 0.3) if masked else (q, q, q)

    torch.manual_seed(0)
    run = observed(Attends(three), lambda model: model(x), keep="qk")
    (seen,) = run.calls
    assert seen.shape[:2] == shape
    assert seen.check.ok
    B, H = shape
    q = prepare(x).reshape(B, H, 9, -1)
    if not masked:
        expected = torch.softmax(q @ q.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
        torch.testing.assert_close(seen.map()[:], expected)


@pytest.mark.parametrize(
    ("shapes", "options", "shape"),
    [(((2, 5, 3, 4, 8), (1, 1, 3, 4, 8), (1, 1, 3, 4, 8)), {}, (10, 3, 3)),
     (((2, 5, 3, 4, 8), (1, 5, 3, 4, 8), (2, 1, 3, 4, 8)), {}, (10, 3, 3)),
     (((2, 5, 3, 4, 8), (1, 1, 3, 4, 8), (1, 1, 3, 4, 8), (1, 5, 1, 4, 4)), {}, (10, 3, 3)),
     (((2, 3, 4, 8), (3, 4, 8), (3, 4, 8)), {}, (2, 3, 3)),
     (((2, 3, 4, 8), (4, 8), (4, 8)), {}, (2, 3, 1)),
     (((2, 1, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)), {}, (2, 3, 3)),
     (((1, 3, 4, 8), (2, 3, 4, 8), (2, 3, 4, 8)), {}, (2, 3, 3)),
     (((1, 3, 4, 8), (1, 3, 4, 8), (2, 3, 4, 8)), {}, (2, 3, 3)),
     (((2, 3, 4, 8), (2, 1, 4, 8), (2, 3, 4, 8)), {}, (2, 3, 3)),
     (((1, 4, 4, 8), (1, 2, 4, 8), (1, 1, 4, 8)), {"enable_gqa": True}, (1, 4, 4)),
     (((1, 4, 4, 8), (1, 2, 4, 8), (1, 4, 4, 8)), {"enable_gqa": True}, (1, 4, 4)),
     (((4, 4, 8), (2, 4, 8), (2, 4, 8)), {"enable_gqa": True}, (1, 4, 2)),
     (((2, 3, 4, 5, 8), (2, 3, 2, 5, 8), (2, 3, 2, 5, 8)), {"enable_gqa": True}, (6, 4, 2))],
)  # fmt: skip
def test_every_broadcast_that_torch_runs_is_seen(shapes, options, shape):
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    if len(given) > 3:
        given[3] = given[3] > -1
    run = observed(Attends(), lambda model: model(*given, **options))
    assert run.notes == []
    assert run.calls[0].shape[:3] == shape
    assert run.calls[0].check.ok


# What an attack found -----------------------------------------------------------------------------


def test_a_second_pass_for_weights_leaves_caches_and_hooks_alone():
    from transformers import DynamicCache

    model, ids = bypassing("bloom"), zoo.feed("llama")["input_ids"]
    how = {"max_new_tokens": 4, "do_sample": False}
    plain = model.generate(ids, **how)
    with pytest.raises(ValueError, match="never reached"):
        with observe(model):
            assert torch.equal(model.generate(ids, **how), plain)
    cache, calls = DynamicCache(config=model.config), []
    handles = [m.register_forward_hook(lambda *_: calls.append(1)) for m in model.modules()]
    with torch.no_grad():
        model(ids)
        once = len(calls)
        with observe(model):
            model(ids)
            assert len(calls) == 2 * once
            model(ids, cache=cache)
    for handle in handles:
        handle.remove()
    assert cache.get_seq_length() == zoo.T


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_bypassing_model_is_counted_without_its_padding(side):
    model, ids = bypassing("bloom"), torch.randint(3, 101, (1, 6))
    real = torch.tensor([[1, 1, 1, 1, 0, 0]])
    real = real if side == "right" else real.flip(1)
    with torch.no_grad(), observe(model) as run:
        model(ids, attention_mask=real)
    assert run.stats[0].rows.tolist() == [4] * 4
    with torch.no_grad(), observe(model) as alone:
        model(ids[:, real[0].bool()])
    if side == "right":  # ALiBi is the same there
        want = alone.stats[0].mean("entropy")
        torch.testing.assert_close(run.stats[0].mean("entropy"), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", ["static", None])
def test_two_generations_are_two_sequences(cache):
    model = zoo.build("llama")
    how = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    how |= {"cache_implementation": cache} if cache else {}
    with observe(model, keep="qk") as run:
        for seed in (0, 1):
            model.generate(**zoo.feed("llama", seed=seed), **how)
    assert sorted({c.sequence for c in run.calls}) == [0, 1]
    assert [run.map("0.0", sequence=n).shape[2] for n in (0, 1)] == [zoo.T + 2] * 2
    assert torch.equal(run.tokens[1][:, : zoo.T], zoo.feed("llama", seed=1)["input_ids"])


def test_caches_that_take_turns_stay_apart():
    from transformers import DynamicCache

    model = zoo.build("llama")
    texts = [zoo.feed("llama", seed=n)["input_ids"] for n in (0, 1)]
    with torch.no_grad(), observe(model, keep="qk") as run:
        caches = [DynamicCache(config=model.config) for _ in texts]
        for text, cache in zip(texts, caches, strict=True):
            model(text, cache=cache)
        for n, cache in enumerate(caches):
            model(torch.full((2, 1), 5 + n), cache=cache)
    assert [c.sequence for c in run.calls] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert [run.tokens[n][0, -1].item() for n in (0, 1)] == [5, 6]


def test_more_keys_than_queries_are_no_cache_by_themselves():
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=True, add_bias_kv=True)
    with torch.no_grad(), observe(model) as run:
        for _ in range(30):
            model(text(), text(), text())
    assert len(run.calls) == 8
    assert {c.first_row for c in run.calls} == {0}


def test_threads_lose_nothing():
    model = Mine("keywords")
    model(text())
    with torch.no_grad(), observe(model) as run:
        threads = [
            threading.Thread(target=lambda: [model(text()) for _ in range(20)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert run.n_calls == 80
    assert run.stats[0].rows.tolist() == [80 * 18] * 2


def rules(model: Mine, rule: ch.Rule, factor: float = 1.0):
    """An adapter that says some rule of a module whose rule is none."""

    def told(module, args, kwargs, result):
        q, k, v = module.qkv(args[0]).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return AttentionInputs(q, k, v, rule, result * factor)

    return {Mine: told}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_nan_does_not_make_a_wrong_rule_pass(bad):
    model, x = Mine("by hand"), text()
    x[0, 8, 0] = bad  # one text of the two; the other can be compared
    with torch.no_grad(), pytest.raises(ValueError, match="differs from the model's by"):
        with observe(model, adapters=rules(model, ch.Rule(causal=True))):
            model(x)
    with torch.no_grad(), observe(model, adapters=rules(model, ch.Rule())) as run:
        model(x)
    assert run.calls[0].check.ok
    assert run.calls[0].check.rows == 9


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("constant", [0.0, 1.0, 10.0, 100.0])
def test_a_large_constant_in_the_values_hides_no_wrong_scale(dtype, constant):
    torch.manual_seed(0)
    model = Mine("by hand")
    with torch.no_grad():
        model.qkv.weight[:32] *= 2
        model.qkv.bias[32::8] += constant
    model = model.to(dtype)
    x = text().to(dtype)
    with torch.no_grad(), observe(model, adapters=rules(model, ch.Rule())) as run:
        model(x)
    assert run.calls[0].check.ok
    for rule in (ch.Rule(scale=2 / math.sqrt(8)), ch.Rule(causal=True), ch.Rule(scale=-0.35)):
        with torch.no_grad(), pytest.raises(ValueError, match="differs from the model's by"):
            with observe(model, adapters=rules(model, rule)):
                model(x)


def test_observers_closed_in_any_order_leave_nothing():
    model = zoo.build("llama")
    before = F.scaled_dot_product_attention, nn.Module.__call__
    first, second = observe(model), observe(model)
    first.__enter__(), second.__enter__()
    with torch.no_grad():
        model(**zoo.feed("llama"))
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert (F.scaled_dot_product_attention, nn.Module.__call__) == before
    assert first.run.n_calls == second.run.n_calls == 2
    with pytest.raises(ValueError, match="has ended"):
        first.__enter__()


def test_a_module_that_is_loaded_meanwhile_keeps_nothing_of_ours(tmp_path, monkeypatch):
    (tmp_path / "loaded_late.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = zoo.build("llama")
    with torch.no_grad(), observe(model):
        import loaded_late

        model(**zoo.feed("llama"))
    assert loaded_late.sdpa is F.scaled_dot_product_attention


def test_self_attention_of_a_cross_encoder_is_self_attention():
    class Ranker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cross_encoder = zoo.build("bert")

        def forward(self, **inputs):
            return self.cross_encoder(**inputs)

    with torch.no_grad(), observe(ranker := Ranker()) as run:
        ranker(**zoo.feed("bert"))
    assert not any(c.cross for c in run.calls)


def test_sampled_rows_are_counted_as_all_rows_are():
    """Their statistics are those of the same rows of the whole call, padding left out."""
    model = zoo.build("llama")
    inputs = {"input_ids": torch.randint(3, 101, (2, 60)), "attention_mask": torch.ones(2, 60)}
    inputs["attention_mask"][1, 37:] = 0
    with torch.no_grad():
        with observe(model) as whole:
            model(**inputs)
        with observe(model, rows=20) as some:
            model(**inputs)
    for n, (seen, part) in enumerate(zip(whole.calls, some.calls, strict=True)):
        real = inputs["attention_mask"][:, part.rows] > 0
        assert some.stats[n].rows.tolist() == [int(real.sum())] * 4
        mean = seen.tensors["entropy"][..., part.rows].double().transpose(1, 2)[real].mean(dim=0)
        torch.testing.assert_close(some.stats[n].mean("entropy"), mean)


def test_a_sampled_row_that_is_not_finite_is_named_by_its_place():
    from clearhead.capture.looking import look, spans_of

    q = torch.randn(1, 2, 200, 4)
    k = torch.randn(1, 2, 200, 4)
    (first, _), *_, (last, _) = spans_of(200, 48, "a")
    assert first != last
    q[0, 1, last] = torch.nan
    looked = look(AttentionInputs(q, k, k, ch.Rule(causal=True), None), 48, "a")
    assert looked.stats.nonfinite_at == ((0, 1, last),)


def test_every_row_is_as_likely_to_be_sampled():
    from clearhead.capture.looking import spans_of

    T, rows, tries = 40, 12, 4000
    seen = torch.zeros(T)
    for n in range(tries):
        spans = spans_of(T, rows, str(n), 5)
        assert sum(b - a for a, b in spans) == rows
        assert all(b <= c for (_, b), (c, _) in itertools.pairwise(spans))
        for a, b in spans:
            seen[a:b] += 1
    fair = rows / T
    assert (seen / tries - fair).abs().max() < 5 * math.sqrt(fair * (1 - fair) / tries)


def test_what_could_not_be_written_is_not_counted(tmp_path, monkeypatch):
    model = zoo.build("llama")
    with pytest.raises(OSError, match="full"):
        with torch.no_grad(), observe(model, out=tmp_path / "run") as run:
            model(**zoo.feed("llama"))
            watcher = run
            monkeypatch.setattr(
                "clearhead.run.writer.RunWriter.add",
                lambda *_: (_ for _ in ()).throw(OSError(28, "the disk is full")),
            )
            model(**zoo.feed("llama"))
    assert watcher.n_calls == len(watcher.calls) == 2
    assert watcher.stats[0].rows.tolist() == [2 * zoo.T] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [({"layers": "layers.0"}, "are lists"), ({"layers": 1}, "are lists"),
     ({"heads": ["-1.2"]}, "named by its layer"), ({"rows": 2.5}, "at least 1"),
     ({"rows": "64"}, "at least 1")],
)  # fmt: skip
def test_arguments_are_refused_at_the_door(options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        observe(nn.Linear(2, 2), **options)


@pytest.mark.slow
def test_sixteen_thousand_tokens_are_observed_in_less_than_a_fiftieth_of_one_map():
    """Two layers of four heads: eager attention would hold 4.3 GB for each map of a layer."""
    import transformers

    from clearhead.bench import memory_of

    T = 16_384
    config = transformers.GPT2Config(
        vocab_size=101, n_positions=T, n_embd=128, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2Model(config).eval()
    ids = torch.randint(101, (1, T))

    def plain():
        with torch.no_grad():
            return {"out": model(ids, use_cache=False)[0]}

    def watched():
        with observe(model) as run:
            out = plain()
        assert all(call.check.ok for call in run.calls)
        assert run.stats[0].rows.tolist() == [T] * 4
        return out

    assert torch.equal(plain()["out"], watched()["out"])
    extra = memory_of(watched)[0] - memory_of(plain)[0]
    assert extra < 4 * T * T * 4 / 50
