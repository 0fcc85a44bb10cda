"""The functions through which models attend, and who reads each.

Cross-attention is told from self-attention by the name of its module, where nothing else says so.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

from clearhead import engine
from clearhead.capture import inputs, modules
from clearhead.capture.inputs import AttentionInputs, Unreadable
from clearhead.capture.masks import MaskCache
from clearhead.capture.patches import Function, loaded

# (what the function returned, whether it is cross-attention, the masks so far, its arguments)
Reader = Callable[..., AttentionInputs]
Only = Callable[[tuple[Any, ...], Mapping[str, Any]], bool]

CROSS = ("cross", "encoder_attn", "encdec", "multihead_attn")  # in a module's name
NEED_WEIGHTS = 15  # where multi_head_attention_forward takes it
REFUSED = {  # functions that attend and are not read
    "torch.nn.attention.flex_attention": ("flex_attention",),
    "flash_attn": ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"),
    "flash_attn.flash_attn_interface": ("flash_attn_func", "flash_attn_varlen_func"),
    "xformers.ops": ("memory_efficient_attention",),
}


def known() -> list[tuple[Function, Reader, Only | None]]:
    """Every function that is there, its reader, and which of its calls are read."""
    found: list[tuple[Function, Reader, Only | None]] = [
        (F.scaled_dot_product_attention, inputs.of_sdpa, None),
        (F.multi_head_attention_forward, modules.of_multi_head, by_hand),
        (torch._native_multi_head_attention, modules.of_native, None),
        (torch._transformer_encoder_layer_fwd, modules.of_encoder_layer, None),
        (engine.attention, inputs.of_engine, None),
        (engine.output, inputs.of_engine, None),
    ]
    for module, names in REFUSED.items():
        found += [(f, refusing(f.__name__), None) for f in loaded(module, names)]
    return found


def by_hand(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether multi_head_attention_forward computes weights itself, and calls no other function."""
    given = args[NEED_WEIGHTS : NEED_WEIGHTS + 1] or (kwargs.get("need_weights", True),)
    return bool(given[0])


def refusing(name: str) -> Reader:
    def reader(*_: Any, **__: Any) -> AttentionInputs:
        raise Unreadable(f"it calls {name}, whose rules clearhead does not read")

    return reader


def of_interface_named(name: str) -> Reader:
    """The reader of what transformers' interface has under a name."""

    def reader(
        result: Any, cross: bool, masks: MaskCache, *args: Any, **kwargs: Any
    ) -> AttentionInputs:
        module = args[0] if args else kwargs["module"]
        across = cross or bool(getattr(module, "is_cross_attention", False))
        return inputs.of_interface(result, name, across, masks, *args, **kwargs)

    return reader


def is_cross(module: str) -> bool:
    """Whether the end of a module's name says that it attends to another sequence."""
    end = ".".join(module.lower().split(".")[-2:])
    return any(part in end for part in CROSS)


def uncompiled(function: Function) -> Function:
    """Keep the compiler out of a stand-in, where there is one: its graph breaks there."""
    if "torch._dynamo" not in sys.modules:
        return function
    kept_out: Function = torch.compiler.disable(function)
    return kept_out
