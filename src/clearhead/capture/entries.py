"""The operators and functions through which models attend, and who reads each."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional as F

from clearhead import engine
from clearhead.capture import inputs, modules
from clearhead.capture.inputs import AttentionInputs, Caller, Unreadable
from clearhead.capture.masks import MaskCache
from clearhead.capture.patches import Function, loaded

# (what the function returned, the module that called it, the masks so far, its arguments)
Reader = Callable[..., AttentionInputs]
Only = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]

NEED_WEIGHTS = 15  # where multi_head_attention_forward takes it
JAGGED = "torch.nested._internal.ops"  # tensors whose attention is a function of torch's Python
REFUSED = {  # functions that attend and are not read
    "torch.nn.attention.flex_attention": ("flex_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "flash_attn.flash_attn_interface": ("flash_attn_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
}


OPERATORS: dict[str, Reader] = {  # of aten; each with the reader of its arguments
    "scaled_dot_product_attention": inputs.of_sdpa,
    "_native_multi_head_attention": modules.of_native,
    "_transformer_encoder_layer_fwd": modules.of_encoder_layer,
    # What compiled code calls in place of the first.
    "_scaled_dot_product_flash_attention_for_cpu": inputs.of_flash,
    "_scaled_dot_product_flash_attention": inputs.of_flash,
    "_scaled_dot_product_efficient_attention": inputs.of_efficient,
    "_scaled_dot_product_cudnn_attention": inputs.of_efficient,
}


def functions(by_name: bool) -> list[tuple[Function, Reader, Only | None]]:
    """Every function that is there, its reader, and which of its calls are read.

    by_name  also those that are operators, which this torch does not let be heard as such
    """
    found: list[tuple[Function, Reader, Only | None]] = [
        (F.multi_head_attention_forward, modules.of_multi_head, by_hand),
        (engine.attention, inputs.of_engine, None),
        (engine.output, inputs.of_output, None),
    ]
    if by_name or isinstance(F.scaled_dot_product_attention, FunctionType):  # somebody's own
        found += [(F.scaled_dot_product_attention, inputs.of_sdpa, None)]
    if by_name:
        found += [
            (torch._native_multi_head_attention, modules.of_native, None),
            (torch._transformer_encoder_layer_fwd, modules.of_encoder_layer, None),
        ]
    with suppress(ImportError):  # tensors of its kind may be there before it is
        import_module(JAGGED)
    jagged = loaded(JAGGED, ("jagged_scaled_dot_product_attention",))
    found += [(f, inputs.of_sdpa, None) for f in jagged]
    for module, names in REFUSED.items():
        found += [(f, refusing(f.__name__), None) for f in loaded(module, names)]
    return found


def by_hand(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether multi_head_attention_forward computes weights itself, and calls no other function."""
    given = args[NEED_WEIGHTS : NEED_WEIGHTS + 1] or (kwargs.get("need_weights", True),)
    return bool(given[0])


@cache
def refusing(name: str) -> Reader:
    def reader(*_: Any, **__: Any) -> AttentionInputs:
        raise Unreadable(f"it calls {name}, whose rules clearhead does not read")

    return reader


@cache
def of_interface_named(name: str) -> Reader:
    """The reader of what transformers' interface has under a name."""

    def reader(
        result: Any, caller: Caller, masks: MaskCache, *args: Any, **kwargs: Any
    ) -> AttentionInputs:
        return inputs.of_interface(result, name, caller, masks, *args, **kwargs)

    return reader
