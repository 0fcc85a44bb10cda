"""Who calls attention, and from where: compiled, scripted, held out of sight. It is heard."""

import contextlib
import functools
import gc
import shutil
import sys
import types
import warnings
from typing import ClassVar

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import observed

import clearhead as ch
from clearhead.capture import AttentionInputs, observe

# torch's own import of its compiler warns of its scripts.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="inductor has no C++ compiler here",
)
inductor = pytest.param("inductor", marks=[compiler, pytest.mark.slow])  # it compiles C++


def text(width: int = 16) -> Tensor:
    return torch.randn(2, 9, width, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """Attention and a projection, of 2 heads, in words that torch.jit.script knows too."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.project = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        three = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(three[0], three[1], three[2], is_causal=True)
        return x + self.project(out.transpose(1, 2).flatten(2))


class ByHand(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-1, -2), dim=-1) @ x


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x)


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stack(n: int = 3) -> Stack:
    torch.manual_seed(0)
    return Stack(*(Block() for _ in range(n))).eval()


def entropies(run: ch.Run) -> list[Tensor]:
    return [run.stats[layer].mean("entropy") for layer in sorted(run.stats)]


# Compiled -----------------------------------------------------------------------------------------


def graphs() -> int:
    """How many graphs the compiler has made so far."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def whole(model, **options):
    return torch.compile(model, **options)


def in_place(model, **options):
    model.compile(**options)
    return model


def layer_by_layer(model, **options):
    for layer in model.layers:
        layer.compile(**options)
    return model


@pytest.mark.parametrize("how", [whole, in_place, layer_by_layer])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", inductor])
@pytest.mark.parametrize("fullgraph", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compiled_code_runs_as_it_is_and_is_heard(how, backend, fullgraph):
    torch._dynamo.reset()
    with torch.no_grad():
        with observe(model := stack()) as plain:
            model(text())
        model = how(model, backend=backend, fullgraph=fullgraph)
        before, made = model(text()), graphs()
        for _ in range(3):
            with observe(model) as run:
                assert torch.equal(model(text()), before)
            assert torch.equal(model(text()), before)
            assert run.n_calls == 3
            assert all(call.check.ok for call in run.calls)
            assert run.notes == []
        assert graphs() == made, "it was compiled again"
    for seen, expected in zip(entropies(run), entropies(plain), strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", inductor])
@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_model_compiled_meanwhile_is_heard_and_runs_on(backend, fullgraph):
    torch._dynamo.reset()
    model = stack()
    with torch.no_grad():
        expected = torch.compile(model, backend=backend, fullgraph=fullgraph)(text())
        torch._dynamo.reset()
        with observe(model) as run:
            compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
            assert torch.equal(compiled(text()), expected)
        made = graphs()
        assert torch.equal(compiled(text()), expected)
        assert graphs() == made
        assert run.n_calls == 3
        torch._dynamo.reset()
        assert torch.equal(compiled(text()), expected)  # and anew, without anybody listening


def test_a_compiled_model_that_nobody_observes_is_left_alone():
    torch._dynamo.reset()
    model, other = stack(1), torch.compile(stack(2), backend="eager", fullgraph=True)
    with torch.no_grad():
        expected = stack(2)(text())
        with observe(model) as run:
            model(text())
            assert torch.equal(other(text()), expected)
    assert run.n_calls == 1


def test_a_compiled_training_step_has_the_same_gradients():
    torch._dynamo.reset()
    model = torch.compile(stack(), backend="aot_eager", fullgraph=True)

    def step() -> list[Tensor]:
        model.zero_grad()
        model(text()).pow(2).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    before = step()
    with observe(model) as run:
        seen = step()
    assert run.n_calls == 3
    assert all(torch.equal(a, b) for a, b in zip(before, seen, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, step(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "bart"])
def test_a_compiled_transformers_model_is_heard(name):
    torch._dynamo.reset()
    model, inputs = zoo.build(name), {**zoo.feed(name), "use_cache": False}
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        expected = compiled(**inputs)[0]
        torch._dynamo.reset()
        with observe(compiled):  # compiled meanwhile
            assert torch.equal(compiled(**inputs)[0], expected)
        compiled(**inputs)  # anew, as transformers' own lookup of a function is back
        made = graphs()
        run = observed(compiled, lambda model: model(**inputs))
        assert graphs() == made
        with observe(model) as plain:
            model(**inputs)
    assert len(run.stats) == len(plain.stats)
    for seen, expected in zip(entropies(run), entropies(plain), strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("close", [functools.partial(torch.compile, backend="aot_eager",
                                                     fullgraph=True),
                                   torch.jit.script])  # fmt: skip
def test_a_closed_part_in_which_nothing_is_heard_is_named(close):
    torch._dynamo.reset()
    word = "torch.jit" if close is torch.jit.script else r"torch\.compile.*_orig_mod"
    part = close(ByHand())
    with torch.no_grad(), observe(model := Stack(Block(), part, Block())) as run:
        model(text())
    assert run.n_calls == 2
    (note,) = run.notes
    assert note.startswith("layers.1 was not observed: ")
    with torch.no_grad(), pytest.raises(ValueError, match=f"no attention.*{word}"), observe(part):
        part(text())


def test_a_function_compiled_around_a_model_asks_for_the_model():
    torch._dynamo.reset()
    model = stack()
    around = torch.compile(lambda x: model(x), backend="eager")
    asks = pytest.raises(ValueError, match=r"observe what torch\.compile returned")
    with torch.no_grad(), asks, observe(model):
        around(text())


# Scripts, traces, exports -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["script", "trace"])
@pytest.mark.parametrize("where", ["layer", "root"])
def test_scripts_and_traces_are_heard(kind, where):
    make = torch.jit.script if kind == "script" else lambda m: torch.jit.trace(m, (text(),))
    with torch.no_grad():
        layer = make(Block().eval())
        model = layer if where == "root" else Stack(Block(), layer, Block()).eval()
        for _ in range(3):  # the first calls of a script specialize it
            model(text())
        run = observed(model, lambda model: model(text()))
    assert run.notes == []
    assert [module for module, _ in run.sites] == (
        [""] if where == "root" else ["layers.0", "layers.1", "layers.2"]
    )
    assert all(call.check.ok for call in run.calls)


@pytest.mark.parametrize("weights", [True, False])
def test_scripts_and_traces_can_be_made_meanwhile(weights):
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mha = nn.Embedding(20, 16), nn.MultiheadAttention(16, 2)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            return self.mha(x, x, x, need_weights=weights)[0]

    model, ids = Attends().eval(), torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])

    def trace():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            traced = torch.jit.trace(model, (ids,))  # which checks itself
        nodes = [node.kind() for node in traced.inlined_graph.nodes()]
        return traced, nodes, sorted(str(one.message) for one in told)

    _, *expected = trace()
    with observe(model) as run:
        traced, *found = trace()
        script = torch.jit.script(nn.MultiheadAttention(16, 2))
    assert found == expected
    assert torch.equal(traced(ids), model(ids))
    x = model.embed(ids)
    assert script(x, x, x)[0].shape == x.shape
    assert run.n_calls >= 1
    assert all(call.check.ok for call in run.calls)


@pytest.mark.parametrize("strict", [True, False])
def test_an_export_made_meanwhile_is_the_same_and_is_heard(strict):
    model = stack()
    with torch.no_grad():
        expected = torch.export.export(model, (text(),), strict=strict)
        with observe(model) as run:
            out = model(text())
            found = torch.export.export(model, (text(),), strict=strict)
        assert run.n_calls == 3
        assert [str(node.target) for node in found.graph.nodes] == [
            str(node.target) for node in expected.graph.nodes
        ]
        module = found.module()
        with observe(module) as again:
            assert torch.equal(module(text()), out)
    assert again.n_calls == 3


# Held where no name is ----------------------------------------------------------------------------


def closure():
    attend = F.scaled_dot_product_attention

    def call(*args, **kwargs):
        return attend(*args, **kwargs)

    return call


class Held(nn.Module):
    TABLE: ClassVar = {"sdpa": F.scaled_dot_product_attention}
    CAUSAL = functools.partial(F.scaled_dot_product_attention, is_causal=True)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.pair, self.inner = how, [(F.scaled_dot_product_attention,)], closure()

    def forward(self, x: Tensor, default=F.scaled_dot_product_attention) -> Tensor:
        x = x.unflatten(-1, (2, 8)).transpose(1, 2)
        attend = {
            "dict": self.TABLE["sdpa"], "partial": self.CAUSAL, "default": default,
            "tuple": self.pair[0][0], "closure": self.inner,
            "operator": torch.ops.aten.scaled_dot_product_attention,
        }[self.how]  # fmt: skip
        return attend(x, x, x)


HOW = ["dict", "partial", "default", "tuple", "closure", "operator"]


@pytest.mark.parametrize("how", HOW)
def test_attention_is_heard_wherever_it_is_held(how):
    run = observed(Held(how), lambda model: model(text()))
    assert run.n_calls == 1
    assert run.calls[0].check.ok
    assert run.calls[0].rule.causal == (how == "partial")


@pytest.fixture
def without_operators(monkeypatch):
    """As with torch before 2.9, which keeps its kernels to itself."""
    monkeypatch.delattr(torch.library, "get_kernel")


@pytest.mark.usefixtures("without_operators")
@pytest.mark.parametrize("how", HOW[:-1])
def test_before_torch_2_9_it_is_found_by_name_and_put_back(how):
    model = Held(how)
    held = (dict(Held.TABLE), Held.CAUSAL.func, Held.forward.__defaults__, list(model.pair),
            model.inner.__closure__[0].cell_contents)  # fmt: skip
    run = observed(model, lambda model: model(text()))
    assert run.n_calls == 1
    assert run.calls[0].check.ok
    assert held == (Held.TABLE, Held.CAUSAL.func, Held.forward.__defaults__, model.pair,
                    model.inner.__closure__[0].cell_contents)  # fmt: skip
    assert isinstance(F.scaled_dot_product_attention, types.BuiltinFunctionType)


@pytest.mark.usefixtures("without_operators")
def test_before_torch_2_9_compiled_code_is_left_alone_and_named():
    torch._dynamo.reset()
    inner = stack(1)
    model = Stack(Block(), torch.compile(inner, backend="aot_eager", fullgraph=True)).eval()
    with torch.no_grad():
        expected = model(text())
        with observe(model) as run:
            assert torch.equal(model(text()), expected)
        assert torch.equal(model(text()), expected)
    assert run.n_calls == 1
    assert run.notes[0].startswith("layers.1 was not observed: compiled by torch.compile")


class Ours(nn.Module):
    """Our own attention and torch's that returns weights, which are no operators of torch."""

    ATTEND: ClassVar = {"ours": functools.partial(ch.attention, rule=ch.Rule(causal=True))}

    def __init__(self) -> None:
        super().__init__()
        self.mha, self.attend = nn.MultiheadAttention(16, 2), (F.multi_head_attention_forward,)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
        out = self.ATTEND["ours"](heads, heads, heads).out.transpose(1, 2).flatten(2)
        m = self.mha
        return self.attend[0](
            out, out, out, 16, 2, m.in_proj_weight, m.in_proj_bias, None, None, False, 0.0,
            m.out_proj.weight, m.out_proj.bias,
        )[0]  # fmt: skip


def test_functions_that_are_no_operators_are_found_inside_tables():
    model = Ours().eval()
    attend = model.attend
    run = observed(model, lambda model: model(text()))
    assert [call.entry for call in run.calls] == ["clearhead", "nn.MultiheadAttention"]
    assert all(call.check.ok for call in run.calls)
    assert model.attend is attend
    assert Ours.ATTEND["ours"].func is ch.attention


def test_what_was_replaced_meanwhile_stays():
    model = Ours().eval()

    def mine(*args, **kwargs):
        return ch.attention(*args, **kwargs)

    model.table = {"one": ch.attention, "other": ch.attention}
    with torch.no_grad(), observe(model):
        model(text())
        model.table["one"] = mine
    assert model.table == {"one": mine, "other": ch.attention}


# Nothing is left behind, nobody is disturbed ------------------------------------------------------


def kernels() -> str:
    """What torch would run for attention, and who registered it."""
    names = ("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
             "_native_multi_head_attention", "_transformer_encoder_layer_fwd")  # fmt: skip
    return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in names)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_torch_has_its_own_kernels_again(error):
    before = kernels()
    with contextlib.suppress(KeyboardInterrupt), torch.no_grad(), observe(model := stack()):
        model(text())
        assert kernels() != before
        if error is not None:
            raise error
    assert kernels() == before


def test_observers_that_overlap_hear_all_the_same():
    a, b = stack(1), stack(2)
    before = kernels(), F.multi_head_attention_forward, nn.Module.__call__
    first, second = observe(a), observe(b)
    with torch.no_grad():
        first.__enter__(), second.__enter__()
        a(text()), b(text())
        first.__exit__(None, None, None)
        b(text())
        second.__exit__(None, None, None)
    assert (kernels(), F.multi_head_attention_forward, nn.Module.__call__) == before
    assert (first.run.n_calls, second.run.n_calls) == (1, 4)


def test_what_somebody_puts_in_between_hears_nothing_twice():
    """Who replaces a function of ours, and puts it back when we are gone."""
    model = ByHand()

    def told(module, args, kwargs, result):
        q = args[0][:, None]
        return AttentionInputs(q, q, q, ch.Rule(scale=1.0), result[:, None])

    with torch.no_grad(), observe(model, adapters={ByHand: told}):
        model(text())
        ours, plain = nn.Module.__call__, nn.Module.__dict__["_wrapped_call_impl"]
        nn.Module.__call__ = lambda *args, **kwargs: ours(*args, **kwargs)
    nn.Module.__call__ = ours
    try:
        with torch.no_grad(), observe(model, adapters={ByHand: told}) as run:
            model(text())
        assert run.n_calls == 1
        assert len(run.sites) == 1
    finally:
        nn.Module.__call__ = plain


def test_a_name_taken_meanwhile_is_given_back(tmp_path, monkeypatch):
    (tmp_path / "taken_late.py").write_text(
        "from torch.nn.functional import multi_head_attention_forward as mha\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with torch.no_grad(), observe(model := stack(1)):
        import taken_late

        assert taken_late.mha is F.multi_head_attention_forward
        model(text())
    assert taken_late.mha is F.multi_head_attention_forward
    assert "stand_in" not in taken_late.mha.__code__.co_name
    del sys.modules["taken_late"]


def test_an_error_of_the_operator_stays_what_it_is():
    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(x, x[..., :3], x)

    with pytest.raises(RuntimeError) as plain:
        Wrong()(text())
    with pytest.raises(RuntimeError) as seen, observe(model := Wrong()):
        model(text())
    assert str(seen.value) == str(plain.value)


def test_counters_do_not_count_the_looking():
    from torch.utils.flop_counter import FlopCounterMode

    model = stack()
    with torch.no_grad():
        with FlopCounterMode(display=False) as plain:
            model(text())
        with observe(model) as run, FlopCounterMode(display=False) as counted:
            model(text())
    assert run.n_calls == 3
    assert counted.get_total_flops() == plain.get_total_flops()


def test_modes_do_not_see_the_looking():
    from torch.overrides import TorchFunctionMode

    class Counting(TorchFunctionMode):
        n = 0

        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            self.n += 1
            return function(*args, **(kwargs or {}))

    model, counts = stack(), []
    for watched in (contextlib.nullcontext(), observe(model)):
        with torch.no_grad(), watched, Counting() as counting:
            model(text())
        counts.append(counting.n)
    assert counts[0] == counts[1]


def test_warnings_that_were_shown_once_are_not_shown_again():
    """To catch one, Python forgets which it has shown: only the first observation does that."""
    with torch.no_grad():
        with observe(model := stack(1)):
            model(text())
        with warnings.catch_warnings(record=True) as shown:
            warnings.simplefilter("default")
            for _ in range(2):
                with observe(model):
                    model(text())
                warnings.warn("once", stacklevel=1)
        assert len(shown) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_are_heard():
    """Theirs is a function of torch's Python, which calls kernels of its own."""
    parts = [torch.randn(4, 2, 8), torch.randn(6, 2, 8)]
    with torch.no_grad():
        x = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
        model = Plain()
        expected = model(x)
        with observe(model) as run:
            assert torch.equal(model(x).values(), expected.values())
    assert run.calls[0].check.ok
    assert run.stats[0].rows.tolist() == [10, 10]


def test_somebodys_own_in_place_of_torchs_is_heard(monkeypatch):
    def theirs(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v

    monkeypatch.setattr(F, "scaled_dot_product_attention", theirs)
    run = observed(Plain(), lambda model: model(text()[:, None]))
    assert run.calls[0].check.ok
    assert F.scaled_dot_product_attention is theirs


def test_what_backward_computes_again_is_not_heard():
    """With its backward inside the model's own call."""
    from torch.utils.checkpoint import checkpoint

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Block()

        def forward(self, x: Tensor) -> Tensor:
            out = checkpoint(self.layer, x, use_reentrant=False)
            out.sum().backward()
            return self.layer.qkv.weight.grad

    def step(model):
        model.zero_grad()
        return model(text())

    run = observed(Steps(), step)
    assert run.n_calls == 1


def test_a_default_device_changes_nothing():
    model = stack()
    with torch.no_grad(), torch.device("meta"), observe(model, keep="qk") as run:
        model(torch.ones(2, 9, 16, device="cpu"))
    assert run.n_calls == 3
    assert run.map("0.0")[:].device.type == "cpu"


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("how", ["vmap", "grad"])
def test_inside_torch_func_it_is_refused_by_name(how):
    model = Block()
    weights = dict(model.named_parameters())

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).sum()

    def call():
        if how == "grad":
            return torch.func.grad(loss)(weights, text())["qkv.weight"]
        return torch.func.vmap(loss, (None, 0))(weights, text()[:, None])

    expected = call()
    said = r"Block: inside torch\.func .* nothing can be looked at"
    with pytest.raises(ValueError, match=said), observe(model):
        assert torch.equal(call(), expected)


def test_a_fake_pass_is_no_pass():
    from torch._subclasses import FakeTensorMode

    model = stack(2)
    with torch.no_grad(), observe(model) as run:
        model(text())
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            model(mode.from_tensor(text()))
    assert run.n_calls == 2
    assert run.notes == []


def test_observing_again_and_again_leaves_no_memory():
    model = stack(1)
    with torch.no_grad():
        for _ in range(3):
            with observe(model):
                model(text())
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(20):
            with observe(model):
                model(text())
        gc.collect()
    assert len(gc.get_objects()) - before < 20
