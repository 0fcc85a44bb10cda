"""Kernels of ours before those of torch's operators, for a while.

An operator is heard whoever calls it: Python under any name, out of a dict or a partial, a script
or a trace, or code that was compiled before anybody listened. Its own kernel computes it, as ever.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

Kernel = Callable[..., Any]

COMPOSITE = "CompositeImplicitAutograd"  # a kernel for every device
KEYS = (COMPOSITE, "CPU", "CUDA", "XPU", "MPS", "PrivateUse1", "NestedTensorCPU",
        "NestedTensorCUDA")  # fmt: skip


class Operators:
    """What has been put before kernels of torch."""

    def __init__(self) -> None:
        self._library: Any = None
        self._warns = True  # torch does so the first time

    @property
    def there(self) -> bool:
        """Whether this torch, 2.9 or later, hands out its kernels."""
        return hasattr(torch.library, "get_kernel")

    def put(self, standing_before: Mapping[str, Callable[[Kernel], Kernel]]) -> None:
        """Put kernels before those of operators, by their names in aten, wherever these have any.

        A kernel gets what the operator got, and calls what it was made with.
        """
        if not self.there:
            return
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings() if self._warns else nullcontext():
            if self._warns:
                warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            for name, kernel in standing_before.items():
                for key in _keys_of(f"aten::{name}"):
                    ours = _before(_kernel_of(f"aten::{name}", key), kernel)
                    self._library.impl(name, ours, key, with_keyset=True)
        self._warns = False

    def undo(self) -> None:
        """Torch's own kernels are in their place again."""
        if self._library is not None:
            self._library._destroy()
            self._library = None


def _keys_of(name: str) -> list[str]:
    try:
        return [key for key in KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    except RuntimeError:  # an operator that this torch has not
        return []


def _kernel_of(name: str, key: str) -> Any:
    if key == COMPOSITE:  # that of a device without one of its own
        own = torch._C._dispatch_has_kernel_for_dispatch_key
        key = next(key for key in ("CPU", "CUDA", "Meta") if not own(name, key))
    return torch.library.get_kernel(name, key)


def _before(own: Any, kernel: Callable[[Kernel], Kernel]) -> Kernel:
    def heard(keys: Any, *args: Any, **kwargs: Any) -> Any:
        def before(*args: Any, **kwargs: Any) -> Any:
            return own.call_boxed(keys, *args, **kwargs)

        if _is_made_up(args[0]) or _is_recorded(args[0]):
            return before(*args, **kwargs)
        return kernel(before)(*args, **kwargs)

    return heard


def _is_made_up(x: Tensor) -> bool:
    """Whether a compiler wants to know what would happen."""
    return isinstance(x, FakeTensor | FunctionalTensor)


def _is_recorded(x: Tensor) -> bool:
    """Whether a CUDA graph is being made: memory that is kept or waited for would break it."""
    if not x.is_cuda:
        return False
    if torch.cuda.is_current_stream_capturing():
        return True
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    if trees is None:
        return False
    manager = trees.get_manager(x.device.index, create_if_none_exists=False)
    return manager is not None and bool(manager.in_warmup or manager.in_recording)
