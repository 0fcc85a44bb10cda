"""observe(model, replace=True): the engine's output in the original's place, once it is proved."""

import copy
import dataclasses

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F

import clearhead as ch
from clearhead.capture import entries, hearing, looking, observe, replacing
from clearhead.capture.replacing import PROVED, REPLACED

N = PROVED + 3  # calls that a model makes here
NEAR = 2e-5


class Attending(nn.Module):
    """Whatever `call` makes of q, k and v (B, H, T, D), projected out of x."""

    def __init__(self, call, heads=4, groups=4, size=8) -> None:
        super().__init__()
        self.call, self.counts = call, (heads, groups, groups)
        self.size = size
        self.qkv = nn.Linear(32, sum(self.counts) * size)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(x).split([n * self.size for n in self.counts], dim=-1)
        return self.call(*(part.unflatten(-1, (-1, self.size)).transpose(1, 2) for part in parts))


def sdpa(**given):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **given)


@pytest.fixture
def originals(monkeypatch):
    """How often torch's own kernel, or transformers' function, was really called."""
    count = [0]
    hear = hearing._hear

    def counting(before, *given):
        if hearing._here.deaf:  # a part of what is counted already
            return before(*given[1], **given[2])

        def original(*args, **kwargs):
            count[0] += 1
            return before(*args, **kwargs)

        return hear(original, *given)

    monkeypatch.setattr(hearing, "_hear", counting)
    return count


def texts(n: int = N, T: int = 19) -> list[Tensor]:
    make = torch.Generator().manual_seed(T)
    return [torch.randn(2, T, 32, generator=make) for _ in range(n)]


@torch.no_grad()
def through(model, xs, **given):
    """What a model makes of each x, watched, and the run."""
    with observe(model, replace=True, **given) as run:
        outs = [model(x) for x in xs]
    return outs, run


def replaced(run) -> int:
    return sum(check.calls for _, check in run.checks if check.why == REPLACED)


MASKS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "bool": {"attn_mask": (torch.arange(19) % 3 > 0) | torch.eye(19, dtype=torch.bool)},
    "float": {"attn_mask": torch.randn(1, 4, 19, 19, generator=torch.Generator().manual_seed(1))},
}


@pytest.mark.parametrize("given", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("groups", [4, 2])
def test_the_original_is_called_until_it_is_proved_and_never_again(given, groups, originals):
    torch.manual_seed(0)
    more = {} if groups == 4 else {"enable_gqa": True}
    model, xs = Attending(sdpa(**given, **more), groups=groups), texts()
    with torch.no_grad():
        plain = [model(x) for x in xs]
    outs, run = through(model, xs)
    assert originals == [PROVED]
    assert replaced(run) == N - PROVED
    assert [call.check.ok for call in run.calls] == [True] * PROVED + [False] * (N - PROVED)
    assert all(torch.equal(a, b) for a, b in zip(plain[:PROVED], outs, strict=False))
    for a, b in zip(plain, outs, strict=True):
        assert a.stride() == b.stride()
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, atol=NEAR, rtol=0)
    assert f"{N - PROVED} of {N} calls were replaced" in run.notes[-1]
    assert f"{N - PROVED} not verifiable ({REPLACED})" in run.checked_line()


def test_figures_and_what_is_kept_are_those_of_watching_alone():
    torch.manual_seed(0)
    model, xs, heard = Attending(sdpa(is_causal=True)), texts(), []
    given = {"keep": "qk", "each": lambda call, inputs: heard.append((call, inputs))}
    outs, run = through(model, xs, **given)
    with torch.no_grad(), observe(model, keep="qk") as alone:
        for x in xs:
            model(x)
    assert [call for call, _ in heard] == run.calls
    assert all(torch.equal(inputs.made, out) for (_, inputs), out in zip(heard, outs, strict=True))
    for a, b in zip(run.calls, alone.calls, strict=True):
        for name in ("shape", "number", "entry", "layer", "sequence", "first_row", "impl", "dtype"):
            assert getattr(a, name) == getattr(b, name)
        assert a.rule.same_as(b.rule)
        assert a.tensors.keys() == b.tensors.keys()
        for name, x in a.tensors.items():
            torch.testing.assert_close(x, b.tensors[name], atol=1e-5, rtol=1e-5)
    for a, b in zip(run.heads(), alone.heads(), strict=True):
        assert a.rows == b.rows
        assert a.entropy == pytest.approx(b.entropy, abs=1e-5)
        assert a.distance == pytest.approx(b.distance, abs=1e-4)


@pytest.mark.parametrize("axes", [2, 3])
def test_fewer_axes(axes, originals):
    torch.manual_seed(0)
    drop = {3: lambda x: x[0], 2: lambda x: x[0, 0]}[axes]
    model = Attending(lambda q, k, v: F.scaled_dot_product_attention(*map(drop, (q, k, v))))
    xs = texts()
    with torch.no_grad():
        plain = [model(x) for x in xs]
    outs, _ = through(model, xs)
    assert originals == [PROVED]
    for a, b in zip(plain, outs, strict=True):
        assert a.shape == b.shape
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, atol=NEAR, rtol=0)


def test_a_kernel_that_lays_its_output_otherwise_is_followed(originals):
    torch.manual_seed(0)
    model, xs = Attending(sdpa()), texts(2 * N)
    want, got = [], []
    for outs, watched in ((want, False), (got, True)):
        with torch.no_grad():
            if watched:
                with observe(model, replace=True):
                    _in_turns(model, xs, outs)
            else:
                _in_turns(model, xs, outs)
    assert originals == [2 * PROVED]
    assert len({x.stride() for x in want}) == 2
    assert [x.stride() for x in want] == [x.stride() for x in got]


def _in_turns(model, xs, outs) -> None:
    """Through the fused kernel and the plain one."""
    kinds = torch.nn.attention.SDPBackend
    for n, x in enumerate(xs):
        with torch.nn.attention.sdpa_kernel(kinds.MATH if n % 2 else kinds.FLASH_ATTENTION):
            outs.append(model(x))


# Transformers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_generation_is_the_same(name, originals):
    model = zoo.build(name, "sdpa")
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    given = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0,
             "output_logits": True, "return_dict_in_generate": True}  # fmt: skip
    plain = model.generate(ids, **given)
    with observe(model, replace=True, keep="qk") as run:
        for _ in range(PROVED + 1):
            found = model.generate(ids, **given)
    assert torch.equal(plain.sequences, found.sequences)
    for a, b in zip(plain.logits, found.logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)
    layers = len(run.sites)
    assert originals == [2 * PROVED * layers]  # of the whole text, and of a step
    assert replaced(run) == run.n_calls - 2 * PROVED * layers
    assert len({call.sequence for call in run.calls}) == PROVED + 1
    assert run.map("1.1").shape[2:] == (20, 20)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_on_the_left(name, originals):
    model = zoo.build(name, "sdpa")
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(ids)
    real[1, :4] = 0
    with torch.no_grad():
        plain = model(input_ids=ids, attention_mask=real).logits
        with observe(model, replace=True) as run:
            for _ in range(N):
                logits = model(input_ids=ids, attention_mask=real).logits
    torch.testing.assert_close(plain, logits, atol=1e-4, rtol=0)  # of the padding too
    assert run.n_calls == N * len(run.sites)


def test_bfloat16_under_autocast(originals):
    torch.manual_seed(0)
    model, xs = Attending(sdpa(is_causal=True)), texts()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            plain = [model(x) for x in xs]
        outs, run = through(model, xs)
    assert originals == [PROVED]
    assert {x.dtype for x in outs} == {torch.bfloat16}
    for a, b in zip(plain, outs, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)
    assert {call.dtype for call in run.calls} == {"bfloat16"}


def test_a_transformers_model_under_autocast(originals):
    model = zoo.build("gpt2", "sdpa")
    inputs = zoo.feed("gpt2", False)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain = model(**inputs).logits
        with observe(model, replace=True) as run:
            for _ in range(N):
                logits = model(**inputs).logits
    assert originals == [PROVED * len(run.sites)]
    assert logits.dtype == plain.dtype
    torch.testing.assert_close(plain, logits, atol=5e-2, rtol=5e-2)


def test_clearheads_own_module_computes_once(originals):
    torch.manual_seed(0)
    model, xs = ch.MultiHeadAttention(32, 4).eval(), texts()
    with torch.no_grad():
        plain = [model(x) for x in xs]
    outs, run = through(model, xs)
    assert originals == [PROVED]
    assert replaced(run) == N - PROVED
    assert all(torch.equal(a.out, b.out) for a, b in zip(plain, outs, strict=True))


# What is not replaced -----------------------------------------------------------------------------


def same_to_the_bit(model, xs, originals, n=None, **given) -> ch.Run:
    with torch.no_grad():
        plain = [model(x) for x in xs]
    outs, run = through(model, xs, **given)
    assert all(torch.equal(a, b) for a, b in zip(plain, outs, strict=True))
    assert originals == [len(xs) if n is None else n]
    assert replaced(run) == 0
    return run


@pytest.mark.parametrize("weights", [True, False])
def test_torch_s_own_module(weights):
    torch.manual_seed(0)
    attend = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    xs = texts()
    with torch.no_grad():
        plain = [attend(x, x, x, need_weights=weights) for x in xs]
        with observe(attend, replace=True) as run:
            found = [attend(x, x, x, need_weights=weights) for x in xs]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(plain, found, strict=True))
    assert replaced(run) == 0
    left = "replace=True leaves the fast path of nn.MultiheadAttention as it is"
    off = "torch.backends.mha.set_fastpath_enabled(False) turns it off"
    assert run.notes == [f"no call was replaced: {left}; {off}"]
    with torch.no_grad(), observe(attend.train(), replace=True) as run:
        attend(xs[0], xs[0], xs[0])
    left = "replace=True leaves nn.MultiheadAttention with weights asked for as it is"
    assert run.notes == [f"no call was replaced: {left}"]


@pytest.fixture
def fast_path():
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def test_the_fast_path_of_an_encoder_is_named_and_can_be_turned_off(fast_path):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    _, run = through(model, texts())
    assert replaced(run) == 0
    left = "replace=True leaves the fast path of nn.TransformerEncoderLayer as it is"
    assert run.notes[0].startswith(f"no call was replaced: {left}; torch.backends.mha.")
    outs, _ = through(model, texts())
    torch.backends.mha.set_fastpath_enabled(False)  # as the note says
    again, run = through(model, texts())
    assert replaced(run) == 2 * (N - PROVED)
    assert all("leaves" not in note for note in run.notes)
    for a, b in zip(outs, again, strict=True):
        torch.testing.assert_close(a, b, atol=NEAR, rtol=0)


def test_what_is_left_beside_what_is_replaced_is_named():
    torch.manual_seed(0)
    first = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.Sequential(first, Attending(sdpa())).eval()
    _, run = through(model, texts())
    assert run.notes[0].startswith(f"{N - PROVED} of {2 * N} calls were replaced")
    assert run.notes[1].startswith("replace=True leaves the fast path of nn.TransformerEncoder")


def test_torch_s_own_module_where_it_calls_the_operator(originals):
    torch.manual_seed(0)
    attend, xs = nn.MultiheadAttention(32, 4, batch_first=True).train(), texts()
    with torch.no_grad():
        plain = [attend(x, x, x, need_weights=False)[0] for x in xs]
        with observe(attend, replace=True) as run:
            found = [attend(x, x, x, need_weights=False)[0] for x in xs]
    assert originals == [PROVED]
    assert replaced(run) == N - PROVED
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a, b, atol=NEAR, rtol=0)


@pytest.mark.parametrize("part", ["out", "everything"])
def test_a_wrong_engine_is_refused(part, originals, monkeypatch):
    right = looking.attention

    def wrong(*args, **kwargs):
        found = right(*args, **kwargs)
        if found.out is None:
            return found
        lse = found.lse + (0.1 if part == "everything" else 0.0)
        return dataclasses.replace(found, out=found.out * 1.001, lse=lse)

    monkeypatch.setattr(looking, "attention", wrong)
    torch.manual_seed(0)
    model = Attending(sdpa())
    xs = texts()
    if part == "everything":
        with torch.no_grad():
            plain = [model(x) for x in xs]
        outs, run = through(model, xs)
        assert all(torch.equal(a, b) for a, b in zip(plain, outs, strict=True))
        assert originals == [N]
        return
    run = same_to_the_bit(model, xs, originals)
    assert run.notes[0].startswith("no call was replaced")
    assert "was not replaced: the engine's output differs" in run.notes[1]


def test_gradients_are_as_before(originals):
    torch.manual_seed(0)
    model, xs = Attending(sdpa(is_causal=True)), texts()
    with torch.no_grad(), observe(model, replace=True) as run:
        for x in xs:
            model(x)
        originals[0] = 0
        with torch.enable_grad():
            watched = [torch.autograd.grad(model(x).sum(), model.qkv.weight)[0] for x in xs]
    assert originals == [N]
    assert replaced(run) == N - PROVED
    plain = [torch.autograd.grad(model(x).sum(), model.qkv.weight)[0] for x in xs]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_dropout_is_left_to_the_original(originals):
    asked = {}
    model = Attending(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **asked))
    with torch.no_grad(), observe(model, replace=True) as run:
        for x in texts():
            model(x)
        asked["dropout_p"] = 0.5
        for x in texts():
            model(x)
    assert originals == [PROVED + N]
    assert replaced(run) == N - PROVED
    assert f"{N} not verifiable (dropout)" in run.checked_line()


def test_a_module_that_drops_weights_again_is_left_to_itself(originals):
    torch.manual_seed(0)
    model, xs = ch.MultiHeadAttention(32, 4, ch.AttentionConfig(dropout=0.5)).eval(), texts()
    with torch.no_grad(), observe(model, replace=True) as run:
        for x in xs:
            model(x)
        model.train()
        dropped = [model(x).out for x in (xs[0], xs[0])]
    assert originals == [PROVED + 2]
    assert replaced(run) == N - PROVED
    assert not torch.equal(*dropped)


def test_nothing_is_replaced_inside_torch_func():
    torch.manual_seed(0)
    model, x = Attending(sdpa()), texts(1)[0]
    proved = {n: p.detach() for n, p in model.named_parameters()}
    kernel = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)

    def call(x):
        return torch.func.functional_call(model, proved, (x,))

    with torch.no_grad(), observe(model, replace=True) as run, kernel:
        for _ in range(N):
            model(x)
        plain = model(x)
        mapped = torch.func.vmap(call)(torch.stack([x, x]))
        slope = torch.func.grad(lambda x: call(x).sum())(x)
    assert replaced(run) == N + 1 - PROVED
    assert slope.any()
    torch.testing.assert_close(mapped[1], plain, atol=NEAR, rtol=0)


def test_layers_that_were_not_asked_for(originals):
    torch.manual_seed(0)
    model = zoo.build("gpt2", "sdpa")
    inputs = zoo.feed("gpt2", False)
    with torch.no_grad(), observe(model, replace=True, layers=[1]) as run:
        for _ in range(N):
            model(**inputs)
    layers = len(run.sites)
    assert layers > 1
    assert replaced(run) == N - PROVED
    assert originals == [N * (layers - 1) + PROVED]


@pytest.mark.parametrize("first", [True, False])
def test_with_two_who_watch_nothing_is_replaced_and_both_see(originals, first):
    torch.manual_seed(0)
    model, xs = Attending(sdpa()), texts()
    with torch.no_grad():
        plain = [model(x) for x in xs]
        with (
            observe(model, replace=first) as one,
            observe(model, replace=not first) as other,
        ):
            outs = [model(x) for x in xs]
    assert all(torch.equal(a, b) for a, b in zip(plain, outs, strict=True))
    assert originals == [N]
    assert [(run.n_calls, replaced(run)) for run in (one, other)] == [(N, 0), (N, 0)]


def test_another_kind_of_rule_is_proved_anew(originals):
    torch.manual_seed(0)
    asked = {}
    model = Attending(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **asked))
    xs, tril = texts(), torch.ones(19, 19, dtype=torch.bool).tril()
    kinds = ({}, {"is_causal": True}, MASKS["bool"], {"attn_mask": tril})
    with torch.no_grad(), observe(model, replace=True) as run:
        for n, new in enumerate(kinds, start=1):
            asked.clear()
            asked.update(new)
            for x in xs:
                model(x)
            assert originals == [n * PROVED]
    assert replaced(run) == len(kinds) * (N - PROVED)


def test_rows_that_see_nothing_are_what_the_model_makes_of_them(originals, monkeypatch):
    """A model of its own that fills them with ones goes on doing so."""
    torch.manual_seed(0)
    see = torch.ones(19, 19, dtype=torch.bool).tril()
    see[3] = False

    def call(q, k, v, attn_mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask)

    model = Attending(lambda q, k, v: call(q, k, v, see))
    xs = texts()
    outs, _ = through(model, xs)
    assert originals == [PROVED]  # torch fills them with 0, as the engine does
    assert all(not out[:, :, 3].any() for out in outs)
    proofs = replacing.Proofs(torch.float32, (0, 2, 1, 3))
    q = torch.randn(1, 2, 19, 8)
    inputs = ch.AttentionInputs(q, q, q, ch.Rule(mask=see), torch.ones(1, 2, 19, 8))
    looked = looking.look(inputs, None, "", output=True)
    made = torch.where(see.any(dim=1)[:, None], looked.attended.out, 1.0)
    inputs = dataclasses.replace(inputs, made=made)
    for _ in range(PROVED):
        replacing.prove(proofs, inputs, looked, looking.check(inputs, looked, "a"), "a")
    assert not proofs.holds(inputs.rule)


def test_what_cannot_be_asked():
    model = Attending(sdpa())
    with pytest.raises(ValueError, match=r"needs rows=None and verify=True; got rows=8"):
        observe(model, replace=True, rows=8)
    with pytest.raises(ValueError, match=r"got rows=None and verify=False"):
        observe(model, replace=True, verify=False)


def test_an_error_of_the_model_stays_its_own():
    torch.manual_seed(0)
    model, xs, wrong = Attending(sdpa()), texts(), []

    def call(q, k, v):
        return (
            F.scaled_dot_product_attention(q, k, v)
            if not wrong
            else F.scaled_dot_product_attention(q, k[..., 1:], v)
        )

    model.call = call
    with torch.no_grad(), observe(model, replace=True) as run:
        for x in xs:
            model(x)
        wrong.append(True)
        with pytest.raises(RuntimeError):
            model(xs[0])
    assert replaced(run) == N - PROVED


def test_an_error_of_each_is_raised_and_everything_is_put_back():
    torch.manual_seed(0)
    model, xs = Attending(sdpa()), texts()
    before = nn.Module.__call__

    def each(call, inputs):
        if call.check.why == REPLACED:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        through(model, xs, each=each)
    assert nn.Module.__call__ is before


def test_a_run_with_replaced_calls_is_kept_in_a_folder(tmp_path):
    torch.manual_seed(0)
    _, run = through(Attending(sdpa()), texts(), out=tmp_path / "a")
    there = ch.load(tmp_path / "a")
    assert there.checked_line() == run.checked_line()
    assert there.notes == run.notes
    assert replaced(there) == N - PROVED


def test_without_a_native_kernel_the_notes_say_so(monkeypatch):
    monkeypatch.setattr(replacing.native, "library", lambda: None)
    torch.manual_seed(0)
    model = Attending(sdpa())
    _, run = through(model, texts())
    assert replaced(run) == N - PROVED
    assert "no native kernel" in run.notes[-1]


@pytest.mark.parametrize("size", [10, 100])
def test_few_keys_with_large_scores_are_proved(size, originals):
    """Whoever computes a score again rounds it otherwise, and the weights sum to 1 less well."""
    torch.manual_seed(0)
    model = Attending(lambda q, k, v: F.scaled_dot_product_attention(q * size, k * size, v))
    xs = [4 * x for x in texts(T=5)]
    _, run = through(model, xs)
    assert originals == [PROVED]
    assert replaced(run) == N - PROVED


def test_nothing_changes_without_being_asked(originals):
    torch.manual_seed(0)
    model, xs = Attending(sdpa()), texts()
    with torch.no_grad():
        plain = [copy.deepcopy(model)(x) for x in xs]
        with observe(model) as run:
            outs = [model(x) for x in xs]
    assert originals == [N]
    assert all(torch.equal(a, b) for a, b in zip(plain, outs, strict=True))
    assert run.notes == []
    assert entries.OPERATORS["scaled_dot_product_attention"] in replacing.ENTRIES
