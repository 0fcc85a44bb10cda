"""Who takes part in a benchmark: what each one computes, and why one is left out."""

import math
import os
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import scratch
from clearhead.engine import attention, native, output
from clearhead.rule import Rule

DTYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16,
    "float16": torch.float16, "float64": torch.float64,
}  # fmt: skip
MAP_LIMIT = 4 << 30  # bytes that a contender with T x T tensors may take
PATIENCE = 180  # seconds for FlexAttention to compile
COMPILERS = (os.environ.get("CXX", "g++"), "g++", "clang++")
BASE = "SDPA"
DENSE, TWICE = "dense, as in scratch", "SDPA twice: lse - E[s]"
FLEX = "FlexAttention, compiled"
WAYS = {  # of ours, with how many products of matrices each needs: out, figures
    "output only": 2, "all diagnostics": 2, "statistics only": 1, "+ received": 2, "+ top key": 2,
}  # fmt: skip
ENTROPY = "entropy in the loss"
IMPLS = ("native", "tiled")

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Settings:
    """What is measured: every number of tokens in turn, one batch element, as many keys."""

    tokens: tuple[int, ...]
    heads: int = 8
    d_head: int = 64
    dtype: str = "float32"
    causal: bool = True
    backward: bool = False
    repeats: int = 9
    threads: int | None = None
    seed: int = 0
    flex: bool = False
    device: str = "cpu"
    only: tuple[str, ...] = ()  # parts of names: nobody else takes part, SDPA apart


@dataclass(frozen=True, eq=False)
class Contender:
    """One way to do it. `call` returns its results by name; None, and why, where it is left out.

    matmuls   matrix products that the job needs at the least: 2 for the output, 1 for statistics
              only, 7 forward and backward (one of them recomputes the weights)
    work      floating-point operations of a call, of those that measure the machine
    may_fail  a failure leaves it out, instead of ending the run
    """

    name: str
    call: Callable[[], Tensors] | None
    group: str = "forward"
    matmuls: int = 2
    work: float = 0
    may_fail: bool = False
    skipped: str | None = None


def check(settings: Settings) -> None:
    """Raise ValueError for settings that nothing can be measured with."""
    threads = 1 if settings.threads is None else settings.threads
    sizes = {"tokens": settings.tokens, "heads": (settings.heads,), "d_head": (settings.d_head,),
             "repeats": (settings.repeats,), "threads": (threads,)}  # fmt: skip
    for name, values in sizes.items():
        if not values or min(values) < 1:
            raise ValueError(f"{name} must be 1 or more; got {list(values)}")
    cores = os.cpu_count() or 1
    if threads > 16 * cores:
        raise ValueError(f"threads must be at most 16 for each of {cores} cores; got {threads}")
    if settings.dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}; got {settings.dtype!r}")
    names = [DENSE, TWICE, FLEX, *(f"{impl}, {way}" for impl in IMPLS for way in (*WAYS, ENTROPY))]
    for word in settings.only:
        if not any(word in name for name in names):
            raise ValueError(f"only: no name has {word!r} in it; there are {'; '.join(names)}")
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if settings.device not in devices:
        raise ValueError(f"device must be {' or '.join(devices)} here; got {settings.device!r}")
    numbers = settings.heads * max(settings.tokens) * settings.d_head
    need = (8 if settings.backward else 4) * numbers * DTYPES[settings.dtype].itemsize
    if need > memory_size() // 2:
        raise ValueError(
            f"{max(settings.tokens)} tokens, {settings.heads} heads of {settings.d_head}: q, k, v "
            f"and out need {_gb(need)}, half of the memory here is {_gb(memory_size() // 2)}"
        )


def contenders(settings: Settings, n_tokens: int) -> list[Contender]:
    """Everyone who takes part at this length, or is left out and says why. The first is the base.

    q, k and v (1, H, T, D) are standard normal, from a stream that depends on seed and T alone.
    Results are named as the fields of Attended where they are the same thing.
    """
    stream = torch.Generator().manual_seed((settings.seed * 1_000_003 + n_tokens) % 2**63)
    drawn = torch.randn(3, 1, settings.heads, n_tokens, settings.d_head, generator=stream)
    q, k, v = drawn.to(settings.device, DTYPES[settings.dtype])
    causal, rule = settings.causal, Rule(causal=settings.causal)

    def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        return {"out": scaled_dot_product_attention(q, k, v, is_causal=causal)}

    def plain(impl: str, q: Tensor, k: Tensor, v: Tensor) -> Tensors:
        return {"out": output(q, k, v, rule, impl=impl)}

    def figures(impl: str, q: Tensor, k: Tensor, v: Tensor | None, **more: Any) -> Tensors:
        attended = attention(q, k, v, rule, impl=impl, **more)
        return {name: x for name, x in vars(attended).items() if isinstance(x, Tensor)}

    def dense() -> Tensors:
        mask = scratch.causal_mask(n_tokens) if causal else torch.ones(n_tokens, n_tokens)
        out, weights = scratch._attend(q[0], k[0], v[0], mask.to(q.device), scale=True)
        return {"out": out[None], "entropy": scratch.attention_entropy(weights)[None]}

    pairs = n_tokens**2
    maps = 4 * settings.heads * pairs * max(4, q.element_size()) + 5 * pairs  # at its peak
    found = [
        Contender(BASE, lambda: sdpa(q, k, v)),
        _guarded(DENSE, lambda: dense, need=maps),
        _guarded(TWICE, lambda: _twice(q, k, v, causal)),
        _guarded(FLEX, lambda: _flex(q, k, v, settings), need=pairs),
    ]
    why = {impl: native.hindrance((q, k, v), rule) if impl == "native" else "" for impl in IMPLS}
    for impl in IMPLS:
        calls: dict[str, Callable[[], Tensors]] = {
            "output only": partial(plain, impl, q, k, v),
            "all diagnostics": partial(figures, impl, q, k, v),
            "statistics only": partial(figures, impl, q, k, None),
            "+ received": partial(figures, impl, q, k, v, received=True),
        }
        if impl == "tiled":  # native has it in any case
            calls["+ top key"] = partial(figures, impl, q, k, v, top=True)
        found += [_ours(f"{impl}, {way}", calls[way], why[impl], matmuls=WAYS[way])
                  for way in calls]  # fmt: skip
    if settings.backward:
        both: dict[str, Any] = {"group": "forward + backward", "matmuls": 7}
        d_out = torch.ones_like(q)
        found.append(Contender(BASE, _both_ways(sdpa, q, k, v, d_out), **both))
        for impl in IMPLS:
            for way, forward in (("output only", plain), (ENTROPY, figures)):
                call = _both_ways(partial(forward, impl), q, k, v, d_out)
                found.append(_ours(f"{impl}, {way}", call, why[impl], **both))
    return [one for one in found if one.name == BASE or _wanted(settings, one.name)]


def _wanted(settings: Settings, name: str) -> bool:
    return not settings.only or any(word in name for word in settings.only)


def _ours(name: str, call: Callable[[], Tensors], hindrance: str, **more: Any) -> Contender:
    """One that must not fail, where it can be at all."""
    return Contender(name, None if hindrance else call, skipped=hindrance or None, **more)


def _guarded(name: str, make: Callable[[], Callable[[], Tensors]], need: int = 0) -> Contender:
    """A contender that may not work here; `need` is how many bytes its T x T tensors take."""
    bound = min(MAP_LIMIT, memory_size() // 2)
    if need > bound:
        return Contender(name, None, skipped=f"would need {_gb(need)}, the bound is {_gb(bound)}")
    try:
        return Contender(name, make(), may_fail=True)
    except Exception as error:  # whatever a compiler may raise
        return Contender(name, None, skipped=first_line(error))


def _twice(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Callable[[], Tensors]:
    """H = lse - E[s], where E[s] = q . E[k] / sqrt(D) and E[k] is attention with v := k."""
    if q.device.type != "cpu":
        raise RuntimeError("PyTorch's operator that returns lse is the CPU's")
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def call() -> Tensors:
        out, lse = flash(q, k, v, 0.0, causal)
        mean_k, _ = flash(q, k, k, 0.0, causal)
        mean_score = torch.linalg.vecdot(q, mean_k) / math.sqrt(q.shape[-1])
        return {"out": out, "lse": lse, "entropy": lse - mean_score}

    return call


def _flex(q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> Callable[[], Tensors]:
    """FlexAttention, compiled and run once; raises what the compiler raises."""
    if not (settings.flex and _wanted(settings, FLEX)):
        raise RuntimeError("--flex brings it in")
    if q.device.type == "cpu" and not any(map(shutil.which, COMPILERS)):
        raise RuntimeError("there is no C++ compiler (g++ or clang++)")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    T, device = q.shape[2], q.device.type
    mask = None
    with _time_limit(PATIENCE), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.compiler.reset()
        if settings.causal:
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device=device)
        compiled = torch.compile(flex_attention, dynamic=False)
        compiled(q, k, v, block_mask=mask)
    return lambda: {"out": compiled(q, k, v, block_mask=mask)}


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError after so many seconds. Raises where the system or the thread has no alarms."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _both_ways(
    forward: Callable[..., Tensors], q: Tensor, k: Tensor, v: Tensor, d_out: Tensor
) -> Callable[[], Tensors]:
    """The gradients of sum(out * d_out), and of the mean entropy too where there is one."""

    def call() -> Tensors:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            results = forward(*leaves)
            heads, pushes = [results["out"]], [d_out]
            if (entropy := results.get("entropy")) is not None:
                heads.append(entropy)
                pushes.append(torch.full_like(entropy, 1 / entropy.numel()))
        grads = torch.autograd.grad(heads, leaves, pushes)
        kept = {name: x.detach() for name, x in results.items()}
        return kept | dict(zip(("d_q", "d_k", "d_v"), grads, strict=True))

    return call


def memory_size() -> int:
    """Bytes of memory that the machine has; 8 GiB where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:,.1f} GB"


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
