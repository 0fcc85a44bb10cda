"""TinyGPT: what it computes, what it writes, and how it comes back from the disk."""

import json
import math
import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.cache import KVCache
from clearhead.gpt import GPTConfig, TinyGPT
from clearhead.probe import PERIOD, REPEATS, probe_heads, repeated_tokens
from clearhead.rotary import apply_rotary, rotary_cos_sin
from clearhead.tokens import Tokenizer

TEXT = "The cat sat on the mat. The dog sat on the log, and the cat sat on the dog.\n" * 40


def gpt(seed: int = 0, std: float = 0.3, **config) -> TinyGPT:
    """A small model with weights large enough for its heads to differ."""
    config = {"vocab_size": 31, "context": 24, "n_layers": 2, "d_model": 24, "n_heads": 4} | config
    torch.manual_seed(seed)
    model = TinyGPT(GPTConfig(**config)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.normal_(std=std)
    return model


def some(B: int = 2, T: int = 17, V: int = 31) -> Tensor:
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))


# What it computes ---------------------------------------------------------------------------------


def test_it_is_a_pre_norm_decoder_written_out():
    """The same numbers from torch's own operations, spelled out."""
    model, tokens = gpt(), some()
    w = dict(model.named_parameters())

    def norm(x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (24,), w[name], 1e-6)

    x = w["embedding.weight"][tokens]
    cos, sin = rotary_cos_sin(torch.arange(17), 6)
    for n in range(2):
        b = f"blocks.{n}."
        y = norm(x, b + "attention_norm.weight")
        q, k, v = (
            (y @ w[f"{b}attention.{p}_proj.weight"].T).unflatten(-1, (4, 6)).transpose(1, 2)
            for p in "qkv"
        )
        q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + a.transpose(1, 2).flatten(2) @ w[b + "attention.o_proj.weight"].T
        y = norm(x, b + "mlp_norm.weight")
        x = x + F.gelu(y @ w[b + "up.weight"].T) @ w[b + "down.weight"].T
    want = norm(x, "norm.weight") @ w["embedding.weight"].T
    torch.testing.assert_close(model(tokens).logits, want, atol=1e-4, rtol=1e-4)
    loss = F.cross_entropy(model(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
    torch.testing.assert_close(model.loss(tokens), loss)


def test_no_token_sees_a_later_one():
    model, tokens = gpt(), some()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 31
    before, after = model(tokens).logits, model(changed).logits
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("n_kv_heads", [None, 2, 1])
def test_token_by_token_is_all_at_once(n_kv_heads):
    model, tokens = gpt(n_kv_heads=n_kv_heads), some()
    caches = [KVCache() for _ in model.blocks]
    pieces = [model(piece, caches).logits for piece in tokens.split((5, 1, 1, 10), dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens).logits, atol=1e-5, rtol=1e-4)


def test_it_begins_knowing_nothing():
    model = TinyGPT(GPTConfig(31))
    assert model.loss(some()).item() == pytest.approx(math.log(31), rel=0.1)
    sizes = GPTConfig(vocab_size=100, context=8, n_layers=3, d_model=16, n_heads=2, d_ff=20)
    each = 4 * 16 * 16 + 2 * 16 * 20 + 2 * 16
    assert TinyGPT(sizes).n_parameters == 100 * 16 + 3 * each + 16


def test_its_heads_can_be_looked_at():
    model, tokens = gpt(), some()
    seen = model(tokens, need="map")
    assert torch.equal(seen.logits, model(tokens).logits)
    assert [layer.map.shape for layer in seen.layers] == [(2, 4, 17, 17)] * 2
    assert model(tokens).layers == ()


# What it writes -----------------------------------------------------------------------------------


def test_greedy_takes_the_likeliest_each_time():
    model, prompt = gpt(), some(T=3)
    written = model.generate(prompt, 6, temperature=0)
    for n in range(3, 9):
        assert torch.equal(written[:, n], model(written[:, :n]).logits[:, -1].argmax(-1))
    assert torch.equal(model.generate(prompt[0], 6, temperature=0), written[0])
    assert torch.equal(model.generate(prompt, 6, top_k=1), written)
    assert torch.equal(model.generate(prompt, 6, top_p=1e-9), written)


def test_a_seed_writes_the_same_and_leaves_the_global_stream_alone():
    model, prompt = gpt(), some(T=3)
    before = torch.get_rng_state()
    first = model.generate(prompt, 12, seed=4)
    assert torch.equal(first, model.generate(prompt, 12, seed=4))
    assert not torch.equal(first, model.generate(prompt, 12, seed=5))
    assert torch.equal(torch.get_rng_state(), before)


def test_sampling_follows_the_probabilities_and_their_cuts():
    model, prompt = gpt(std=0.1), some(B=1, T=5)
    p = model(prompt).logits[0, -1].softmax(-1)
    ordered, order = p.sort(descending=True)

    def drawn(**how) -> Tensor:
        rows = model.generate(prompt.expand(4000, -1), 1, seed=0, **how)[:, -1]
        return torch.bincount(rows, minlength=31) / 4000

    torch.testing.assert_close(drawn(), p, atol=0.03, rtol=0)
    assert set(drawn(top_k=3).nonzero()[:, 0].tolist()) == set(order[:3].tolist())
    n_kept = int((ordered.cumsum(0) - ordered < 0.5).sum())
    assert set(drawn(top_p=0.5).nonzero()[:, 0].tolist()) == set(order[:n_kept].tolist())
    assert model.generate(prompt, 1, temperature=1e-40, seed=0)[0, -1] == order[0]
    assert model.generate(prompt, 1, top_p=1e-300, seed=0)[0, -1] == order[0]
    hot = drawn(temperature=100.0)
    assert (hot - 1 / 31).abs().max() < 0.03


def test_it_stops_at_the_end_of_the_context_or_slides():
    model, prompt = gpt(), some(B=1, T=4)
    stopped = model.generate(prompt, 100, temperature=0)
    assert stopped.shape == (1, 25)  # the last token is written and read by nobody
    slid = model.generate(prompt, 60, temperature=0, slide=True)
    assert slid.shape == (1, 64)
    assert torch.equal(slid[:, :25], stopped)
    again = model(slid[:, 25 - 12 : 25]).logits[:, -1].argmax(-1)
    assert torch.equal(slid[:, 25], again)  # from the second half of the context
    with pytest.raises(ValueError, match="the prompt has 30 tokens, the context is 24"):
        model.generate(some(T=30), 1)
    assert model.generate(some(T=30), 1, slide=True).shape == (2, 31)


def test_writing_leaves_training_mode_as_it_was():
    model = gpt(dropout=0.5).train()
    prompt = some(T=3)
    assert torch.equal(model.generate(prompt, 5, seed=0), model.generate(prompt, 5, seed=0))
    assert model.training
    assert model.blocks[0].drop.training


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: m(some(T=25)), "25 tokens are more than the context of 24"),
        (lambda m: m(some().float()), "tokens must be whole numbers, (B, T) or (T,); got torch.fl"),
        (lambda m: m(some() + 20), "tokens must be from 0 to 30; got"),
        (lambda m: m.generate(some()[:, :0], 1), "T at least 1; got (2, 0)"),
        (lambda m: m.generate(some(), 1, temperature=-1.0), "temperature must be at least 0"),
        (lambda m: m.generate(some(), 1, top_k=0), "top_k must be at least 1; got 0"),
        (lambda m: m.generate(some(), 1, top_p=1.5), "top_p must be above 0 and at most 1"),
        (lambda m: m.generate(some(), -1), "n_new must be at least 0; got -1"),
        (lambda m: GPTConfig(0), "vocab_size must be at least 1; got 0"),
        (lambda m: GPTConfig(5, d_ff=0), "d_ff must be at least 1; got 0"),
        (lambda m: GPTConfig(5, n_layers=2.5), "n_layers must be a whole number; got 2.5"),
        (lambda m: GPTConfig(5, rotary_base=math.nan), "rotary_base must be above 0 and finite"),
        (lambda m: GPTConfig(5, dropout="a"), "dropout must be a number; got 'a'"),
        (
            lambda m: TinyGPT(GPTConfig(5), Tokenizer.train([TEXT], 300)),
            "tokens and the config says 5",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call(gpt())


# On the disk --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT], 300)


def test_there_and_back(tmp_path, tokenizer):
    model = TinyGPT(GPTConfig(tokenizer.vocab_size, context=16, d_model=24, n_heads=4), tokenizer)
    model.save(tmp_path / "deep" / "model")
    again = TinyGPT.load(tmp_path / "deep" / "model")
    assert again.config == model.config
    assert not again.training
    tokens = torch.tensor(again.tokenizer.encode("The cat sat"))
    assert torch.equal(again(tokens).logits, model.eval()(tokens).logits)
    assert sorted(p.name for p in (tmp_path / "deep" / "model").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip


def test_half_the_bytes_in_half_precision(tmp_path):
    model = gpt()
    model.save(tmp_path / "whole")
    model.save(tmp_path / "half", torch.float16)
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    half = TinyGPT.load(tmp_path / "half")
    assert half.norm.weight.dtype == torch.float32
    torch.testing.assert_close(half(some()).logits, model(some()).logits, atol=0.1, rtol=0.02)


def spoiled(folder, name: str, change) -> None:
    content = (folder / name).read_text("utf-8")
    (folder / name).write_text(change(content), "utf-8")


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("config.json", lambda s: s[:20], "config.json is not JSON"),
        ("config.json", lambda s: "[]", "is not the config of a clearhead TinyGPT"),
        ("config.json", lambda s: s.replace('"version": 1', '"version": 9'), "of version 9; this"),
        ("config.json", lambda s: s.replace("n_layers", "depth"), "says what nobody here knows: d"),
        ("config.json", lambda s: s.replace('"n_layers": 2', '"n_layers": 0'), "n_layers must be"),
        ("config.json", lambda s: s.replace('"n_layers": 2', '"n_layers": 3'), "weight is missing"),
        ("config.json", lambda s: s.replace('"n_layers": 2', '"n_layers": 1'), "is unknown"),
        ("config.json", lambda s: s.replace('"vocab_size": 31', '"vocab_size": 5'), "not (5, 24)"),
        ("tokenizer.json", lambda s: "{}", "this is no tokenizer.json"),
    ],
)
def test_a_spoiled_folder_is_told_in_words(tmp_path, tokenizer, name, change, words):
    gpt().save(tmp_path)
    if name == "tokenizer.json":
        (tmp_path / name).write_text(tokenizer.to_json(), "utf-8")
    spoiled(tmp_path, name, change)
    with pytest.raises(ValueError, match=re.escape(words)):
        TinyGPT.load(tmp_path)


def test_weights_that_are_cut_off_or_absent(tmp_path):
    gpt().save(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match="is no whole safetensors file"):
        TinyGPT.load(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError):
        TinyGPT.load(tmp_path)


def test_the_config_is_strict_json(tmp_path):
    gpt().save(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text("ascii"))
    assert said["format"] == "clearhead TinyGPT"
    assert said["d_ff"] is None


# Tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "\r\n\t  \n\n", "The cat sat.", "naïve Straße 東京 🙂",
        "\U0001f469\u200d\U0001f467", "\x00\x1b[31m\u202e\ufeff",
        "  two  spaces   three ", "e\u0301 vs é", "a" * 5000,
    ],
)  # fmt: skip
def test_any_text_comes_back_as_it_was(tokenizer, text):
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.encode(text) == tokens
    assert all(0 <= token < tokenizer.vocab_size for token in tokens)


def test_a_text_of_one_word_is_learned_in_time_and_not_as_one_token():
    for text in ("ab" * 100_000, "\x00" * 20_000):
        learned = Tokenizer.train([text], 400)
        assert learned.decode(tokens := learned.encode(text)) == text
        assert len(tokens) >= len(text) / 32


def test_it_learns_pieces_that_occur(tokenizer):
    assert 256 < tokenizer.vocab_size <= 300
    assert len(tokenizer.encode("The cat sat on the mat.")) < 12
    assert "".join(tokenizer.pieces(tokenizer.encode("the cat"))) == "the cat"
    cat = "\U0001f408"  # four bytes, which no token here has together
    assert "".join(tokenizer.pieces(tokenizer.encode(f"a {cat}\n"))) == r"a \xf0\x9f\x90\x88" + "\n"
    assert tokenizer.pieces(range(256)) == [
        tokenizer._bytes(n).decode("utf-8", "backslashreplace") for n in range(256)
    ]
    assert sorted(tokenizer._bytes(n) for n in range(256)) == [bytes([n]) for n in range(256)]
    with pytest.raises(ValueError, match="vocab_size must be at least 256, the bytes; got 255"):
        Tokenizer.train([TEXT], 255)


# The probe ----------------------------------------------------------------------------------------


def test_repeated_tokens_repeat():
    tokens = repeated_tokens(1000)
    assert tokens.shape == (4, PERIOD * REPEATS)
    assert torch.equal(tokens[:, :PERIOD], tokens[:, PERIOD : 2 * PERIOD])
    assert tokens[0].unique().numel() > 15


def test_heads_built_by_hand_score_as_they_should():
    """One layer of a head that looks at the token before and one that spreads out."""
    model = gpt(vocab_size=40, context=100, n_layers=1, d_model=32, n_heads=2)
    attention = model.blocks[0].attention
    with torch.no_grad():
        for proj in (attention.q_proj, attention.k_proj):
            proj.weight.zero_()
    even = probe_heads(model)
    harmonic = sum(1 / n for n in range(1, 101))
    for head in even:  # equal attention: 1 / (keys seen) everywhere
        assert head.entropy == pytest.approx(1.0, abs=1e-6)
        assert head.previous == pytest.approx((harmonic - 1) / 100, abs=1e-6)
        later = (sum(1 / n for n in range(k * PERIOD + 1, 101)) for k in (1, 2, 3))  # each repeat
        assert head.induction == pytest.approx(sum(later) / 100, abs=1e-6)
    assert [head.name for head in even] == ["0.0", "0.1"]
    # A constant query and key, turned by rotary: q at i meets k at i - 1 best if k is ahead by one.
    d = attention.d_head
    with torch.no_grad():
        model.embedding.weight.fill_(1.0)
        for proj in (attention.q_proj, attention.k_proj):
            proj.weight[0].fill_(1.0)  # the first pair of head 0, which turns by a radian a step
        angle = torch.tensor(1.0)
        attention.k_proj.weight[0].mul_(angle.cos() * 40)
        attention.k_proj.weight[d // 2].fill_(float(angle.sin() * 40))
    made = probe_heads(model)
    assert made[0].previous > 0.5 > made[0].entropy
    assert made[1].previous < 0.1


@pytest.mark.parametrize("tokens", ["The", [1, 2], None])
def test_what_is_no_tensor_is_told_how_to_become_one(tokens):
    for call in (gpt(), lambda x: gpt().generate(x, 2)):
        with pytest.raises(TypeError, match=r"a tensor of whole .* got .*tokenizer\.encode\(text"):
            call(tokens)


def test_probing_leaves_the_model_as_it_was():
    model = gpt(context=8).train()
    with pytest.raises(ValueError, match="too short to repeat anything 4 times"):
        probe_heads(gpt(context=3))
    assert len(probe_heads(model)) == 8
    assert model.training
