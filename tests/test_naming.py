"""Naming the heads of a run in Python: the same names as `clearhead inspect` finds."""

import math

import pytest
import torch
import zoo
from test_run import call_of, randn, run_of
from torch import nn

import clearhead as ch
from clearhead import inspection, subject
from clearhead.inspection import Collector
from clearhead.rule import Rule
from clearhead.run.evidence import evidence_of

TEXT = inspection.TEXT


@pytest.fixture(scope="module")
def inspected():
    """The roles that the verb finds in a text: from the probe, and from the text alone."""
    found = subject.find(None)
    windows = found.windows(TEXT)
    seen = inspection.glance(found, windows[0])
    asked = [inspection.Asked(probe=probe) for probe in (True, False)]
    return [inspection.examine(found, windows, one, seen).roles for one in asked]


def observed(**options):
    """The model in the box and a run of it over the text."""
    model = ch.TinyGPT.load("tiny-en").eval()
    with torch.no_grad(), ch.observe(model, **options) as run:
        model(torch.tensor([model.tokenizer.encode(TEXT)]))
    return model, run


def same(roles, others):
    """Sums of weights of the same rows, which another order may round otherwise."""
    assert roles.keys() == others.keys()
    for head, role in roles.items():
        assert role.keys() == others[head].keys()
        for key, value in role.items():
            wanted = others[head][key]
            assert value == (
                pytest.approx(wanted, abs=1e-6) if isinstance(wanted, float) else wanted
            )


def test_with_the_model_they_are_those_of_the_verb(inspected):
    model, run = observed(keep="qk")
    assert run.roles == {}
    returned = ch.name_heads(run, model)
    assert returned is run.roles
    same(run.roles, inspected[0])
    assert {head.role for head in run.heads()} >= {"induction", "previous token"}
    assert run.heads("role_mass", reverse=True)[0].role == "induction"
    assert run.pieces and run.between("lighthouse", "old")


def test_without_the_model_they_are_those_of_the_text(inspected):
    model, run = observed(keep="qk")
    ch.name_heads(run, tokenizer=model.tokenizer)
    same(run.roles, inspected[1])


def test_of_statistics_the_model_names_and_the_text_says_nothing(inspected):
    model, run = observed()
    ch.name_heads(run, model)
    same(run.roles, {head: {**role, "text_mass": None} for head, role in inspected[0].items()})


def test_a_run_from_the_disk_is_named_and_saved_with_its_names(tmp_path, inspected):
    model, run = observed(keep="qk", out=tmp_path / "a")
    assert run.roles == {}
    back = ch.load(tmp_path / "a")
    same(ch.name_heads(back, model), inspected[0])
    back.save(tmp_path / "a")
    assert ch.load(tmp_path / "a").roles == back.roles


def test_without_texts_of_tokens_delimiters_are_untested_and_the_rest_is_not(inspected):
    _, run = observed(keep="qk")
    ch.name_heads(run)
    assert run.pieces == {}
    other = {head for head, role in inspected[1].items() if role["role"] == "delimiter"}
    assert {h for h, role in run.roles.items() if role["role"] != inspected[1][h]["role"]} <= other


def drawn(*shape, seed=0):
    """Tokens of a small alphabet, so that some come again."""
    return torch.randint(3, 40, shape, generator=torch.Generator().manual_seed(seed))


class Watched(Collector):
    """The evidence as it is gathered while a model is observed, of the tokens of each call."""

    def __init__(self, model, tokens):
        super().__init__(subject.Subject(model, "m"), tokens)


def alike(one, other):
    for part in ("mass", "uniform", "rows"):
        for name, x in getattr(one, part).items():
            torch.testing.assert_close(x, getattr(other, part)[name], atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "bert", "t5"])
def test_what_was_kept_is_the_evidence_that_was_seen(name):
    way = "sdpa" if zoo.KINDS[name].sdpa else "eager"
    model, tokens = zoo.build(name, way), drawn(2, 40)
    tokens[:, 20:] = tokens[:, :20]
    more = {"decoder_input_ids": tokens} if name == "t5" else {}
    real = torch.arange(40) >= torch.tensor([[0], [6]])
    watched = Watched(model, tokens)
    with torch.no_grad(), ch.observe(model, keep="qk", each=watched) as run:
        model(tokens, attention_mask=real.long(), **more)
    found, left_out = evidence_of(run)
    assert left_out == []
    assert found.keys() == watched.found.keys()
    for layer, (heads, evidence) in found.items():
        assert heads == tuple(range(evidence.n_heads))
        alike(evidence, watched.found[layer])
    assert any(found[n].evidence.rows["same token"].any() for n in found)


def test_the_steps_of_a_generation_are_the_rows_of_one_text():
    model, prompt = zoo.build("llama"), drawn(8, 20).repeat(1, 2)
    with torch.no_grad(), ch.observe(model, keep="qk") as run:
        made = model.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    with torch.no_grad(), ch.observe(model, keep="qk") as whole:
        model(made[:, :-1])
    assert run.notes == []
    for layer, (_, evidence) in evidence_of(run)[0].items():
        alike(evidence, evidence_of(whole)[0][layer].evidence)


def test_a_cache_that_is_longer_than_the_text_changes_nothing():
    q, k = randn(2, 4, 30, 8), randn(2, 2, 48, 8, seed=1)
    tokens = {0: drawn(2, 15).repeat(1, 2)}
    rule = Rule(causal=True, offset=0)
    long, short = (run_of([call_of(q, k[:, :, :n], rule)], tokens=tokens) for n in (48, 30))
    later = Rule(causal=True, offset=20)
    cut = [
        call_of(q[:, :, :20], k, rule),
        call_of(q[:, :, 20:], k, later, number=1, first_row=20),
    ]
    ((_, wanted),) = evidence_of(short)[0].values()
    assert wanted.rows["induction"].any()
    for run in (long, run_of(cut, tokens=tokens)):
        ((_, evidence),) = evidence_of(run)[0].values()
        alike(evidence, wanted)
    ahead = run_of([call_of(q, k, Rule(causal=True))], tokens=tokens)  # 18 keys before the text
    ((_, evidence),) = evidence_of(ahead)[0].values()
    assert not evidence.rows["induction"].any()


def test_of_some_heads_these_are_named_from_the_text_and_all_from_the_probe(inspected):
    model, run = observed(keep="qk", heads=["1.2", "1.4", "0.0"])
    ch.name_heads(run, tokenizer=model.tokenizer)
    same(run.roles, {head: inspected[1][head] for head in ("0.0", "1.2", "1.4")})
    _, few = observed(keep="qk", heads=["1.2"])
    ch.name_heads(few, model)
    assert few.roles["1.2"] == pytest.approx(inspected[0]["1.2"])


def test_the_evidence_of_some_heads_is_theirs():
    _, whole = observed(keep="qk")
    _, run = observed(keep="qk", heads=["1.4", "1.2", "0.0"])
    for layer, (heads, evidence) in evidence_of(run)[0].items():
        assert heads == {0: (0,), 1: (2, 4)}[layer]
        full = evidence_of(whole)[0][layer].evidence
        for part in ("mass", "uniform", "rows"):
            for name, x in getattr(evidence, part).items():
                wanted = getattr(full, part)[name][list(heads)]
                torch.testing.assert_close(x, wanted, atol=1e-5, rtol=1e-6)


class Letters:
    """A tokenizer: each letter is a token."""

    def encode(self, text):
        return [3 + ord(letter) % 90 for letter in text]

    def decode(self, tokens):
        return "".join(chr(33 + token) for token in tokens)


def test_statistics_of_a_model_that_looks_both_ways_are_named_from_a_text_of_ours():
    model = zoo.build("bert")
    with torch.no_grad(), ch.observe(model) as run:
        model(drawn(2, 40))
    ch.name_heads(run, model, Letters())
    assert {role["source"] for role in run.roles.values()} == {"sample"}
    assert len(run.roles) == 8


def test_the_model_is_left_as_it_was(inspected):
    model, run = observed(keep="qk")
    model.train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    same(ch.name_heads(run, model), inspected[0])
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


class Numbers(nn.Module):
    """Reads no tokens, though it has an embedding."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(64, 16)
        self.attend = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        x = x + self.places.weight[: x.shape[1]]
        return self.attend(x, x, x)[0]


def test_what_cannot_be_named_is_told_with_what_to_do():
    model, run = observed()
    _, sampled = observed(keep="qk", rows=16)
    blind = zoo.build("bert")
    with torch.no_grad(), ch.observe(blind) as bert:
        blind(torch.arange(3, 16)[None])
    other = ch.TinyGPT(ch.GPTConfig(vocab_size=64, context=100, n_layers=1, d_model=32, n_heads=2))
    numbers = Numbers()
    with torch.no_grad(), ch.observe(numbers, keep="qk") as read:
        numbers(torch.randn(1, 40, 16))
    ch.name_heads(read)
    assert len(read.roles) == 2
    for ask, words in (
        (lambda: ch.name_heads(run), r'keep="qk"\), or hand the model over, name_heads\(run, mo'),
        (lambda: ch.name_heads(sampled), "no head can be named from this run: layer 0, sequence 0: "
                                         "a sample of its rows"),
        (lambda: ch.name_heads(bert, blind), "its model is not causal or has no vocabulary"),
        (lambda: ch.name_heads(run, other), "'blocks.0.attention' has 2 heads, and had 6"),
        (lambda: ch.name_heads(bert, model), "it has no 'encoder.layer.0.attention.self', and beg"),
        (lambda: ch.name_heads(read, numbers), r"could not read tokens of ours \(RuntimeError"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words) as caught:
            ask()
        assert "\n" not in str(caught.value)
    assert run.roles == {}
    with torch.no_grad(), ch.observe(model) as run:
        model(torch.arange(9)[None])
        with pytest.raises(ValueError, match="still being observed"):
            ch.name_heads(run, model)


def test_sampled_rows_are_named_by_the_model(inspected):
    model, sampled = observed(keep="qk", rows=16)
    ch.name_heads(sampled, model)
    same(sampled.roles, {h: {**role, "text_mass": None} for h, role in inspected[0].items()})
    assert len(sampled.notes) == 3
    ch.name_heads(sampled, model)
    assert len(sampled.notes) == 3, "said once"


def test_no_mass_is_beyond_what_there_is():
    model, run = observed(keep="qk")
    ch.name_heads(run, model)
    for role in run.roles.values():
        assert all(x is None or (0 <= x <= 1 and math.isfinite(x))
                   for x in (role["mass"], role["uniform"], role["text_mass"]))  # fmt: skip
