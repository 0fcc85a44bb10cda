"""The machine that figures depend on: what its chip is, and how fast it multiplies."""

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clearhead.contenders import DTYPES, Contender, Settings, Tensors, memory_size
from clearhead.engine import native
from clearhead.library import best

GEMM_SIZE = 2048  # of the square matrices that the libraries multiply
STEPS = 5_000_000  # of multiply-adds, on each thread


def machine() -> dict[str, Any]:
    """The conditions that figures depend on."""
    kernel = native.library()
    return chip() | {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "cores": os.cpu_count(), "threads": torch.get_num_threads(), "memory_bytes": memory_size(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "kernel": None if kernel is None else best(kernel), "torch": torch.__version__,
        "python": platform.python_version(), "system": platform.system(),
    }  # fmt: skip


def chip(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """Its name, and its family and model: of a virtual machine the name alone says little."""
    lines = cpuinfo.read_text("utf-8", "replace").splitlines() if cpuinfo.exists() else []
    said = [line.split(":", 1) for line in reversed(lines) if ":" in line]
    facts = {name.strip(): value.strip() for name, value in said}  # of the first processor
    known = {"family": facts.get("cpu family"), "model": facts.get("model")}
    numbers = {name: int(x) if x and x.isdecimal() else None for name, x in known.items()}
    return {"cpu": facts.get("model name") or platform.processor() or platform.machine(), **numbers}


def rates(settings: Settings) -> list[Contender]:
    """Ways to be measured in which this machine multiplies, in every precision that an attention on
    these inputs could compute in; `work` is what a call takes. What is not here says why.

    Multiply-adds that wait for nothing are the ceiling; the products of matrices of torch's two
    libraries are as near to it as somebody came.
    """
    dtype, device = DTYPES[settings.dtype], settings.device
    if device != "cpu":
        return [_product("torch.mm", dtype, device, torch.mm)]
    wide = dtype == torch.float64
    sums = torch.float64 if wide else torch.float32
    found = [_multiply_adds(wide)]
    if wide:
        found.append(_left_out("oneDNN", "knows no float64"))
    elif not torch.backends.mkldnn.is_available():
        found.append(_left_out("oneDNN", "this torch is without it"))
    elif not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        found.append(_left_out("oneDNN", "this torch has no mkldnn._linear_pointwise"))
    else:
        found.append(_product("oneDNN", sums, device, _by_onednn, may_fail=True))
    if torch.backends.mkl.is_available():
        found.append(_product("MKL", sums, device, torch.mm))
    else:
        found.append(_left_out("MKL", "this torch is without it"))
        found.append(_product("torch.mm", sums, device, torch.mm))
    if dtype in _HALVES:
        kind, ask = _HALVES[dtype]
        if torch.backends.mkldnn.is_available() and getattr(torch.ops.mkldnn, ask)():
            found.append(_product(f"oneDNN in {kind}", dtype, device, torch.mm))
        else:
            found.append(_left_out(f"oneDNN in {kind}", "knows none on this chip"))
    return found


_HALVES = {
    torch.bfloat16: ("bfloat16", "_is_mkldnn_bf16_supported"),
    torch.float16: ("float16", "_is_mkldnn_fp16_supported"),
}


def _multiply_adds(wide: bool) -> Contender:
    kernel = native.library()
    if kernel is None:
        return _left_out("multiply-adds", "the native kernel, which does them, is not built")

    def call() -> Tensors:
        native.multiply_adds(STEPS, wide)
        return {}

    work = native.multiply_adds(1, wide) * STEPS
    kind = best(kernel).replace("amx", "avx512")  # its tiles know no multiply-add of floats
    return Contender(f"{kind} multiply-adds", call, group="machine", work=work)


def _product(
    name: str, dtype: torch.dtype, device: str,
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], may_fail: bool = False,
) -> Contender:  # fmt: skip
    a = torch.ones(GEMM_SIZE, GEMM_SIZE, dtype=dtype, device=device)
    call = lambda: {"": multiply(a, a)}  # noqa: E731
    return Contender(name, call, group="machine", work=2 * GEMM_SIZE**3, may_fail=may_fail)


def _by_onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return found


def _left_out(name: str, why: str) -> Contender:
    return Contender(name, None, group="machine", skipped=why)
