"""The native kernel apart from its laws: its exponential, its threads, its manners as a guest."""

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chance
import csrc
import dense
import fuzz
import native_laws
import numpy as np
import pytest
import torch
from chance import randn
from programs import ROOT, run
from test_engine import judged
from torch._subclasses import FakeTensorMode

from clearhead import AttentionMap, Rule, attention
from clearhead.bound import BoundRule
from clearhead.engine import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native kernel is not built")
FIGURES = ("lse", "lse_low", "entropy", "max_score", "mean_key", "visible", "top_key", "distance")


def each_set():
    return pytest.mark.parametrize("number", csrc.sets(), ids=lambda n: csrc.SETS[n])


def native_rows(*inputs, **rule) -> dict[str, torch.Tensor]:
    a = attention(*inputs, Rule(**rule), impl="native", distance=True)
    return {name: getattr(a, name) for name in ("out", *FIGURES, "key_scores")}


def there_and_back(*inputs, **rule) -> dict[str, torch.Tensor]:
    """Rows, gradients of all that has one, what keys receive, and the map."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    a = attention(*leaves, Rule(**rule), impl="native", received=True)
    loss = (
        a.out.square().sum() + a.entropy.square().sum() + a.lse.masked_fill(a.visible == 0, 0).sum()
    )
    loss.backward()
    whole = AttentionMap(*inputs[:2], Rule(**rule))
    return {
        **native_rows(*inputs, **rule), "received": a.received, "cells": whole.dense(),
        "scores": whole.scores[:], **dict(zip("qkv", (x.grad for x in leaves), strict=True)),
    }  # fmt: skip


def same_bits(one: dict, other: dict) -> None:
    for name, x in one.items():  # NaN is where the other is NaN
        assert torch.equal(x.nan_to_num(1.25), other[name].nan_to_num(1.25)), name


# The exponential ----------------------------------------------------------------------------------


def exp(number: int, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, np.nan)
    wide = int(x.dtype == np.float64)
    call = native.library().clearhead_exp
    call(number, wide, x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p),
         ctypes.c_int64(x.size))  # fmt: skip
    return y


@each_set()
@pytest.mark.parametrize(
    ("dtype", "wider", "lowest", "bound"),
    [
        (np.float32, np.float64, -87.0, 1.0e-7),  # measured 0.98e-7, fused 0.76e-7
        (np.float64, np.longdouble, -708.0, 1.9e-16),  # measured 1.77e-16, fused 1.37e-16
    ],
    ids=["f32", "f64"],
)
def test_the_exponential_is_right_to_the_last_digit(number, dtype, wider, lowest, bound):
    stream = np.random.default_rng(0)
    for low in (lowest, -20.0, -1.0, -1e-3):
        grid = np.linspace(low, 0, 100_003)
        x = np.concatenate([grid, stream.uniform(low, 0, 100_000)]).astype(dtype)
        y, exact = exp(number, x), np.exp(x.astype(wider))
        assert np.abs(y / exact - 1).max() <= bound
        assert y.max() <= 1  # a weight of 1 is that of a largest score and no other's


@each_set()
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["f32", "f64"])
def test_the_exponential_ends_at_0_and_keeps_nan(number, dtype):
    tiny, end = np.finfo(dtype).smallest_subnormal, {np.float32: -104, np.float64: -746}[dtype]
    x = np.linspace(end + 1, end + 20, 10_001).astype(dtype)
    wider = np.float64 if dtype == np.float32 else np.longdouble
    y, exact = exp(number, x), np.exp(x.astype(wider))
    assert (np.abs(y - exact) <= 1.01 * tiny + 2e-7 * exact).all()
    special = np.array([0.0, -0.0, end, end - 1, -1e30, -np.inf, np.nan], dtype)
    np.testing.assert_array_equal(exp(number, special), [1, 1, 0, 0, 0, 0, np.nan])
    for n in range(1, 40):  # a last vector that is not full
        x = np.arange(-n, 0).astype(dtype)
        np.testing.assert_allclose(exp(number, x), np.exp(x), rtol=1e-6)


# Every instruction set ----------------------------------------------------------------------------


def laws_of_a_set(number, law, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    law(judged(impl="native"))


@each_set()
@pytest.mark.parametrize("law", native_laws.LAWS, ids=lambda law: law.__name__)
def test_each_instruction_set_obeys(number, law, monkeypatch):
    monkeypatch.setattr(chance, "LONGER", 0.1)
    laws_of_a_set(number, law, monkeypatch)


@pytest.mark.slow
@each_set()
@pytest.mark.parametrize("law", native_laws.LAWS, ids=lambda law: law.__name__)
def test_each_instruction_set_obeys_in_a_long_run(number, law, monkeypatch):
    monkeypatch.setattr(chance, "LONGER", 5)
    laws_of_a_set(number, law, monkeypatch)


# Threads ------------------------------------------------------------------------------------------

SHAPES = {  # B, H, G, T, S, D, Dv and a rule
    "causal": ((1, 4, 2, 300, 300, 16, 16), {"causal": True}),
    "one token": ((2, 12, 3, 1, 515, 24, 8), {}),
    "short": ((3, 8, 1, 7, 200, 5, 3), {"causal": True}),
    "window": ((2, 3, 3, 259, 131, 17, 9), {"window": (40, 30), "offset": -20}),
    "mask": ((1, 6, 2, 130, 260, 8, 33), {"mask": randn(1, 6, 130, 260, seed=9) > 0}),
    "bias": ((2, 2, 1, 97, 150, 8, 1), {"bias": randn(2, 97, 150, seed=9), "softcap": 3.0}),
    "all": (
        (2, 6, 3, 140, 140, 12, 20),
        {
            "causal": True,
            "segments": torch.arange(140).div(50, rounding_mode="floor").expand(2, 140),
            "key_mask": randn(2, 140, seed=9) > -1,
            "alibi": torch.linspace(0.1, 1, 6),
            "sinks": torch.zeros(6),
        },
    ),
}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SHAPES)
def test_bits_depend_on_no_thread(name, threads, monkeypatch):
    (B, H, G, T, S, D, Dv), rule = SHAPES[name]
    inputs = randn(B, H, T, D), randn(B, G, S, D, seed=1), randn(B, G, S, Dv, seed=2)
    threads(1)
    alone = there_and_back(*inputs, **rule)
    for own in (False, True):
        if own:
            monkeypatch.setattr(native, "_team", lambda: ctypes.c_void_p(None))
        for n in (2, 3, 5):
            threads(n)
            same_bits(alone, there_and_back(*inputs, **rule))


@pytest.mark.parametrize("name", SHAPES)
def test_bits_depend_on_no_unit(name, threads, monkeypatch):
    """A unit of few blocks, as in a long call, computes the same."""
    (B, H, G, T, S, D, Dv), rule = SHAPES[name]
    inputs = randn(B, H, T, D), randn(B, G, S, D, seed=1), randn(B, G, S, Dv, seed=2)
    threads(1)
    whole, sizes = there_and_back(*inputs, **rule), set()
    plan = native.library().clearhead_plan

    def in_single_blocks(call, number, wide, n):
        plan(call, number, wide, n)
        sizes.add(call._obj.per_unit)
        return plan(call, number, wide, 1 << 30)  # as for so many threads

    monkeypatch.setattr(native.library(), "clearhead_plan", in_single_blocks)
    same_bits(whole, there_and_back(*inputs, **rule))
    assert max(sizes) > 1


def test_a_call_in_many_slices_is_the_same(threads, monkeypatch):
    inputs = [randn(2, 3, 400, 16, seed=s) for s in range(3)]
    whole = there_and_back(*inputs, causal=True)
    monkeypatch.setattr(native, "SLICE", 0.0)
    for n in (1, 3):
        threads(n)
        same_bits(whole, there_and_back(*inputs, causal=True))


def test_several_callers_at_once_disturb_nobody(threads):
    threads(2)
    problems = [[randn(1, 4, 200, 16, seed=3 * n + s) for s in range(3)] for n in range(6)]
    alone = [there_and_back(*x, causal=True) for x in problems]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            together = pool.map(lambda x: there_and_back(*x, causal=True), problems)
            for one, other in zip(alone, together, strict=True):
                same_bits(one, other)


START = """
import os, signal, sys, time
from pathlib import Path
import torch
from clearhead import Rule, attention
torch.set_num_threads(2)
q, k, v = (torch.randn(1, 4, 300, 16, generator=torch.Generator().manual_seed(s)) for s in range(3))
def rows():
    a = attention(q, k, v, Rule(causal=True), impl="native")
    return torch.cat([a.out, torch.stack([a.lse, a.entropy, a.mean_key], dim=-1)], dim=-1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes_the_same_and_waits_for_nobody(tmp_path):
    """The OpenMP that torch brings has no threads in a child, and waits for them forever."""
    code = START + (
        "before = rows()\n"
        "for threads in (2, 1):\n"  # as it comes, and as the workers of a data loader do
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        torch.set_num_threads(threads)\n"
        "        os._exit(0 if torch.equal(rows(), before) else 3)\n"
        "    for _ in range(600):\n"
        "        found, status = os.waitpid(child, os.WNOHANG)\n"
        "        if found:\n"
        "            assert status == 0, status\n"
        "            break\n"
        "        time.sleep(0.05)\n"
        "    else:\n"
        "        os.kill(child, signal.SIGKILL)\n"
        "        sys.exit(4)\n"
    )
    run([sys.executable, "-c", code], tmp_path, PYTHONWARNINGS="default")


@pytest.mark.slow
def test_workers_of_a_data_loader_compute_the_same(tmp_path):
    code = START + (
        "class Rows(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, n): return rows()\n"
        "before = rows()\n"
        "if __name__ == '__main__':\n"
        "    for way in ('fork', 'spawn'):\n"
        "        loader = torch.utils.data.DataLoader(\n"
        "            Rows(), num_workers=2, multiprocessing_context=way, timeout=60)\n"
        "        assert all(torch.equal(x[0], before) for x in loader)\n"
    )
    tmp_path.joinpath("load.py").write_text(code, "utf-8")
    run([sys.executable, "load.py"], tmp_path, PYTHONWARNINGS="default")


@pytest.mark.slow
@pytest.mark.parametrize("call", [
    "attention(long, long, long, impl='native')",
    "back(native._QUERY_GRADIENT)",
    "back(native._KEY_GRADIENTS)",
    "native.column_sums(long, long, LogSum(zeros, zeros), BoundRule(Rule(), long, long))",
], ids=["forward", "q", "k and v", "received"])  # fmt: skip
def test_ctrl_c_is_heard_within_a_second_and_the_next_call_is_right(call, tmp_path):
    code = START + (
        "from clearhead.bound import BoundRule\n"
        "from clearhead.engine import native\n"
        "from clearhead.engine.tiles import LogSum\n"
        "run = native._run\n"
        "def back(wanted):\n"
        "    native._run = lambda kind, *a, **b: run(kind, *a, **b) if kind == wanted else None\n"
        "    k, bound = long[:, :1], BoundRule(Rule(), long, long[:, :1])\n"
        "    native.backward(long, k, k, LogSum(zeros, zeros), bound, long, long, zeros, zeros)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "before, long, zeros = rows(), torch.randn(1, 4, 131072, 64), torch.zeros(1, 4, 131072)\n"
        "print('ready', flush=True)\n"
        "try:\n"
        f"    {call}\n"
        "    print('too short')\n"
        "except KeyboardInterrupt:\n"
        "    print(time.monotonic())\n"
        "native._run = run\n"
        "print(torch.equal(rows(), before))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        time.sleep(1)
        pressed = time.monotonic()
        child.send_signal(signal.SIGINT)
        heard, right = child.communicate(timeout=60)[0].split("\n")[:2]
    assert 0 < float(heard) - pressed < 1.0
    assert right == "True"


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads Linux's /proc")
def test_a_call_holds_little_beside_its_results(tmp_path):
    """Less than 2 MB for each thread, at a length whose weights would be 8 GB."""
    code = START + (
        "def held(word):\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(x.split()[1]) for x in lines if x.startswith(word)) / 1024\n"
        "rows()\n"
        "q = torch.randn(8, 16384, 64)\n"
        "rule = Rule(causal=True, window=300)\n"
        "Path('/proc/self/clear_refs').write_text('5')\n"  # the most ever held is what is held now
        "before = held('VmRSS')\n"
        "a = attention(q, q, q, rule, impl='native')\n"
        "kept = sum(x.nbytes for x in vars(a).values() if isinstance(x, torch.Tensor)) / 2**20\n"
        "print(held('VmHWM') - before - kept)\n"
    )
    grown = float(run([sys.executable, "-c", code], tmp_path).stdout)
    assert grown < 2 * 2


@each_set()
def test_collapsed_rows_keep_five_digits_of_their_entropy(number, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    fuzz.judge_collapsed()


@each_set()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("D", [5, 64, 80])
def test_a_score_has_the_same_bits_with_queries_and_with_keys_in_the_lanes(
    number, dtype, D, monkeypatch
):
    """Else exp(s - lse) of a map is far off where scores are large."""
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k = 3 * randn(1, 8, 700, D, dtype=dtype), randn(1, 8, 90, D, seed=1, dtype=dtype)
    for rule in (Rule(), Rule(scale=0.3), Rule(causal=True)):
        largest = attention(q, k, None, rule, impl="native").max_score
        assert torch.equal(largest, AttentionMap(q, k, rule).scores[:].amax(dim=-1))


@each_set()
@pytest.mark.parametrize(("of_q", "of_k", "of_v"), [
    (1, 1, 1e-36), (1e-35, 1e35, 1), (1e35, 1e-35, 1), (1, 1, 2e30), (1, 1e-36, 1e-30),
    (0, 1, 1e-37),
])  # fmt: skip
def test_numbers_far_from_1_lose_no_digit(number, of_q, of_k, of_v, monkeypatch):
    """A float below 2^-110 is not the sum of three of bfloat16; and none is below 2^-126."""
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k, v = randn(2, 40, 8) * of_q, randn(2, 50, 8, seed=1) * of_k, randn(2, 50, 8, seed=2) * of_v
    rule = Rule(causal=True)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    got = attention(*leaves, rule, impl="native", received=True)
    exact = attention(q.double(), k.double(), v.double(), rule, received=True)
    torch.testing.assert_close(got.out.double(), exact.out, rtol=0, atol=2e-6 * of_v)
    torch.testing.assert_close(got.entropy.double(), exact.entropy, rtol=0, atol=2e-5)
    torch.testing.assert_close(got.received.double(), exact.received, rtol=0, atol=2e-5)
    got.out.backward(torch.full_like(got.out, 1e-3))
    leaf = v.double().requires_grad_()
    attention(q.double(), k.double(), leaf, rule).out.backward(torch.full_like(exact.out, 1e-3))
    torch.testing.assert_close(leaves[2].grad.double(), leaf.grad, rtol=0, atol=1e-7)


@each_set()
def test_what_is_far_from_1_beside_the_scores_changes_none_of_them(number, monkeypatch):
    """Large scores tell: a map, or a gradient, by other products than those of lse is far off."""
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k, v, g = (randn(1, 1, 200, 64, seed=s) for s in range(4))
    padded = torch.arange(200)[None] != 199
    v[..., -1, :] = torch.finfo(torch.float32).max
    for of_q, of_v, rule in ((1e6, 1e-26, Rule()), (1e3, 1, Rule(key_mask=padded))):
        leaves = [x.requires_grad_() for x in (q * of_q, k.clone(), v * of_v)]
        a = attention(*leaves, rule, impl="native", received=True)
        sums = AttentionMap(q * of_q, k, rule, lse=a).dense().sum(dim=-1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=2e-6)
        torch.testing.assert_close(float(a.received.sum()), 200.0, rtol=0, atol=1e-3)
        (of_values,) = torch.autograd.grad(a.out, leaves[2:], torch.full_like(g, 1e-26))
        torch.testing.assert_close(
            of_values[..., 0].sum(), torch.tensor(200e-26), rtol=2e-6, atol=0
        )


@each_set()
@pytest.mark.parametrize("which", ["out", "lse", "entropy"])
@pytest.mark.parametrize(("of_v", "of_g"), [(1, 1), (1e-17, 1e-17), (1e-18, 1e-19), (1, 1e-34)])
def test_gradients_of_any_size_are_exact(number, which, of_v, of_g, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k, v = randn(1, 2, 64, 64), randn(1, 2, 200, 64, seed=1), randn(1, 2, 200, 64, seed=2) * of_v
    grads = []
    for dtype, impl in ((torch.float32, "native"), (torch.float64, "tiled")):
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        made = getattr(attention(*leaves, impl=impl), which)
        back = randn(*made.shape, seed=3).to(dtype) * of_g
        grads.append(torch.autograd.grad(made, leaves[: 3 if which == "out" else 2], back))
    for got, exact in zip(*grads, strict=True):
        off = (got.double() - exact).abs().amax(dim=-1) / exact.abs().amax(dim=-1)
        assert off.max() < 5e-6


@each_set()
@pytest.mark.parametrize("D", [32, 65])
@pytest.mark.parametrize("of_q", [1, 1e6, 1e8])
def test_gradients_of_bfloat16_are_by_the_scores_of_the_output(number, D, of_q, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k, v = randn(1, 2, 9, D) * of_q, randn(1, 1, 47, D, seed=1), randn(1, 1, 47, 8, seed=2)
    grads = []
    for dtype, impl in ((torch.bfloat16, "native"), (torch.float64, "tiled")):
        leaves = [x.bfloat16().to(dtype).requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, impl=impl).out
        grads.append(torch.autograd.grad(out, leaves[2:], torch.ones_like(out))[0].double())
    assert (grads[0] - grads[1]).abs().max() < 0.01 * grads[1].abs().max()


@each_set()
def test_a_key_pushed_away_by_a_huge_number_has_weight_0(number, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    q, k = torch.tensor([[1.1e21]]), torch.tensor([[-1.1e21], [0.0], [0.0]])
    v = torch.tensor([[1.0], [2.0], [3.0]])
    got = attention(q, k, v, Rule(scale=1.0), impl="native")
    torch.testing.assert_close(got.out, torch.tensor([[2.5]]))
    torch.testing.assert_close(got.entropy, torch.tensor([math.log(2)]))


@pytest.mark.skipif(4 not in csrc.sets(), reason="the chip has no tiles of bfloat16")
def test_products_in_parts_are_no_less_exact_than_multiply_adds(monkeypatch):
    q, k, v = (randn(1, 4, 300, 64, seed=s) for s in range(3))
    exact = attention(q.double(), k.double(), v.double())
    off = {}
    for number in (3, 4):
        monkeypatch.setattr(native, "instruction_set", lambda number=number: number)
        got = attention(q, k, v, impl="native")
        off[number] = [
            float((getattr(got, name).double() - getattr(exact, name)).square().mean().sqrt())
            for name in ("max_score", "out")
        ]
    assert off[4][0] < 0.5 * off[3][0]  # a score
    assert off[4][1] < off[3][1]


# What it takes, and what it refuses ---------------------------------------------------------------


def test_what_is_not_native_is_refused_by_name_and_auto_takes_the_other(monkeypatch):
    q, wide = randn(2, 5, 4), randn(2, 5, native.WIDEST + 1)
    for inputs, options, words in (
        ((q, q, q), {"dropout": 0.1}, "knows no dropout"),
        ((wide, wide, q), {}, "heads of up to 1024 numbers; these have 1025"),
        ((q, q, wide), {}, "heads of up to 1024 numbers; these have 1025"),
    ):
        with pytest.raises(ValueError, match=f"impl='native' .*{words}.*impl='tiled' computes"):
            attention(*inputs, impl="native", **options)
        assert attention(*inputs, **options).impl == "tiled"
    monkeypatch.setattr(native, "library", lambda: None)
    with pytest.raises(ValueError, match="impl='native' is not built here: clearhead doctor"):
        attention(q, q, q, impl="native")
    assert attention(q, q, q).impl == "tiled"


class Elsewhere(torch.Tensor):
    """Numbers that a tensor only stands for, as those of torch's own tracers do."""

    @staticmethod
    def __new__(cls, x: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, strides=x.stride())

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("nobody computes with these")


def test_tensors_without_memory_of_their_own_are_left_to_the_other():
    """A read at address 0 ends the process."""
    x = randn(1, 2, 5, 4)
    for strange in (Elsewhere(x), torch._efficientzerotensor(1, 2, 5, 4)):
        for inputs in ((strange, x, x), (x, strange, x), (x, x, strange)):
            hindrance = native.hindrance(inputs, Rule(), 0.0)
            assert hindrance == (
                f"needs numbers in memory; this {type(strange).__name__} has none of its own there"
            )
        assert native.hindrance((x, x, x), Rule(bias=strange), 0.0)
    assert not native.hindrance((x, x, x), Rule(bias=x[0, 0, 0, :1]), 0.0)
    with FakeTensorMode():
        q = torch.empty(2, 5, 4)
        with pytest.raises(ValueError, match="this FakeTensor has none of its own"):
            attention(q, q, q, impl="native")
    plain = x.as_subclass(type("Named", (torch.Tensor,), {}))
    assert attention(plain, plain, plain).impl == "native"


def test_results_lie_on_the_cpu_whatever_device_is_the_default():
    q = randn(1, 2, 5, 4).requires_grad_()
    with torch.device("meta"):  # whose tensors lie at address 0
        a = attention(q, q, q, impl="native", received=True, distance=True)
        (a.out.sum() + a.entropy.sum()).backward()
        one = q.detach()[:, :1]
        cells = native.cells(one, one, BoundRule(Rule(), one, one), (0, 5), (0, 5), None)
    assert cells.device == q.grad.device == a.lse.device == a.received.device == q.device


@pytest.mark.parametrize("empty", ["B", "H", "T", "S", "Dv"])
def test_empty_axes_leave_nothing_unwritten(empty, monkeypatch):
    sizes = {
        **dict(zip(("B", "H", "T", "S", "D", "Dv"), (2, 2, 3, 4, 5, 6), strict=True)),
        empty: 0,
    }
    B, H, T, S, D, Dv = sizes.values()
    make = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda *a, **b: make(*a, **b).fill_(math.nan))
    q, k, v = (randn(*x).requires_grad_() for x in ((B, H, T, D), (B, 1, S, D), (B, 1, S, Dv)))
    a = attention(q, k, v, Rule(causal=True), impl="native", received=True)
    a.out.sum().add(a.entropy.sum()).backward()
    if empty != "Dv":
        assert all((x.grad == 0).all() for x in (q, k, v))
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert a.received.shape == (B, H, S)


def test_the_widest_heads_have_room(threads):
    threads(3)
    q = randn(2, 1, 70, native.WIDEST)
    got, exact = attention(q, q, q, impl="native"), dense.attend(q, q, q, Rule())
    torch.testing.assert_close(got.out, exact.out.float(), atol=1e-4, rtol=1e-4)


def test_numbers_that_torch_negates_when_it_reads_them():
    x = torch.complex(randn(2, 5, 4), randn(2, 5, 4, seed=1)).conj().imag
    assert x.is_neg()
    rule = {"bias": x[0, :, :1].mT, "sinks": x[0, 0, :2].double()}
    plain = {name: value.resolve_neg() for name, value in rule.items()}
    same_bits(native_rows(x, x, x, **rule), native_rows(*[x.resolve_neg()] * 3, **plain))


@pytest.mark.parametrize("sink", [None, 9e307])
@pytest.mark.parametrize("score", [1e308, -1e308])
def test_scores_at_the_end_of_float64_keep_their_entropy(sink, score):
    """Their differences are infinite, and 0 times that is NaN."""
    q = torch.full((1, 1), score / 1e150, dtype=torch.float64)
    k = torch.full((300, 1), 1e150, dtype=torch.float64)
    rule = Rule(scale=1.0, sinks=None if sink is None else torch.tensor([sink], dtype=q.dtype))
    a = attention(q, k, None, rule, impl="native")
    assert a.entropy == pytest.approx(0.0 if sink and score < 0 else math.log(300))
    assert a.lse == pytest.approx(max(score, sink or score))


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit._trace.TracerWarning")
def test_who_follows_what_is_computed_is_not_handed_what_c_wrote():
    q = randn(1, 2, 5, 4)
    rule = Rule(causal=True, offset=0)
    traced = torch.jit.trace(lambda x: attention(x, x, x, rule).out, (q,), check_trace=False)
    other = randn(1, 2, 5, 4, seed=1)
    torch.testing.assert_close(traced(other), attention(other, other, other, rule).out)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError):
            attention(dual, q, q)


def test_spoiled_rows_are_nan_in_all_that_they_see():
    q, k = randn(1, 1, 3, 4), randn(1, 1, 6, 4, seed=1)
    a = attention(q, k, k, Rule(sinks=torch.tensor([math.nan])), impl="native")
    assert a.entropy.isnan().all()
    q[0, 0, 1, 2] = math.inf
    for impl in ("native", "tiled"):
        assert attention(q, k, impl=impl, received=True).received.isnan().all()


def test_any_byte_but_0_is_true():
    real = torch.tensor([[2, 3, 2, 0, 2, 255]], dtype=torch.uint8).view(torch.bool)
    a = attention(randn(1, 1, 3, 4), randn(1, 1, 6, 4), rule=Rule(key_mask=real), impl="native")
    assert (a.visible == 5).all()


def test_subnormal_queries_count_at_a_huge_scale():
    q = torch.full((1, 1, 2, 8), 1e-38).bfloat16()
    k = torch.full((1, 1, 2, 8), 0.5).bfloat16()
    a = attention(q, k, rule=Rule(scale=1e38), impl="native")
    torch.testing.assert_close(a.max_score, torch.full((1, 1, 2), 4.0), rtol=2e-2, atol=0)
