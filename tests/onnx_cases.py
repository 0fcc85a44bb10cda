"""The ONNX project's own cases for Attention and RotaryEmbedding, read as calls of ours.

They come with onnx, generated in memory: inputs and the outputs that its reference finds. Version
1.23.2 is pinned, because the reference has changed its mind between versions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.test.case import node
from onnx.backend.test.case.node import attention as _attention  # noqa: F401 (fills the list)
from onnx.backend.test.case.node import rotaryembedding as _rotary  # noqa: F401
from torch import Tensor

from clearhead import Rule

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """One case: inputs and outputs by the names that the operator gives them."""

    name: str
    operator: str
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    attributes: dict[str, Any]
    rtol: float
    atol: float
    model: Any

    def exactly(self) -> dict[str, Tensor]:
        """What onnx's reference finds for the same inputs in float64."""
        from onnx.reference import ReferenceEvaluator

        inputs = {
            name: (x.double() if x.is_floating_point() else x).numpy()
            for name, x in self.inputs.items()
        }
        found = ReferenceEvaluator(self.model).run(None, inputs)
        return {
            name: torch.from_numpy(np.array(x)) for name, x in zip(self.outputs, found, strict=True)
        }


def tensor(array: np.ndarray) -> Tensor:
    array = np.array(array)  # of our own: theirs may be shared or read-only
    if array.dtype.name == "bfloat16":  # numpy's name for a type that torch cannot take over
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def read(operator: str) -> dict[str, Case]:
    """Every case of an operator, the copies that expand it into smaller operators left out."""
    cases = {}
    for found in node._NodeTestCases:
        (call, *more) = found.model.graph.node
        if more or call.op_type != operator or "_expanded" in found.name:
            continue
        ((inputs, outputs),) = found.data_sets
        cases[found.name] = Case(
            name=found.name,
            operator=operator,
            inputs={n: tensor(x) for n, x in zip(filter(None, call.input), inputs, strict=True)},
            outputs={n: tensor(x) for n, x in zip(filter(None, call.output), outputs, strict=True)},
            attributes={a.name: onnx.helper.get_attribute_value(a) for a in call.attribute},
            rtol=found.rtol,
            atol=found.atol,
            model=found.model,
        )
    return cases


# Attention ----------------------------------------------------------------------------------------


def heads(x: Tensor, n_heads: int | None) -> Tensor:
    """(B, T, H D) as (B, H, T, D); (B, H, T, D) as it is."""
    return x if x.ndim == 4 else x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def queries_keys_values(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v with their heads, what is cached before the new keys and values."""
    given, n = case.inputs, case.attributes
    q = heads(given["Q"], n.get("q_num_heads"))
    k = heads(given["K"], n.get("kv_num_heads"))
    v = heads(given["V"], n.get("kv_num_heads"))
    if "past_key" in given:
        k = torch.cat((given["past_key"], k), dim=2)
        v = torch.cat((given["past_value"], v), dim=2)
    return q, k, v


def rule_of(case: Case) -> Rule:
    """The Rule that the case's attributes and masks mean.

    Queries stand behind the cached keys: at 0 without a cache, behind past_key, or so that the last
    of them is the last of nonpad_kv_seqlen keys. left_window_size keys are seen besides the
    query's own, which our window counts. A mask that is too short hides the rest.
    """
    given, n = case.inputs, case.attributes
    q, k, _ = queries_keys_values(case)
    T, S = q.shape[2], k.shape[2]
    offset: int | Tensor = given["past_key"].shape[2] if "past_key" in given else 0
    key_mask = None
    if "nonpad_kv_seqlen" in given:
        real = given["nonpad_kv_seqlen"]
        offset = real - T
        key_mask = torch.arange(S) < real[:, None]
    left, right = n.get("left_window_size", -1), n.get("right_window_size", -1)
    window: int | tuple[int, int] | None = None
    causal = bool(n.get("is_causal", 0))
    if causal and left >= 0 and right < 0:
        window = left + 1
    elif left >= 0 or right >= 0:
        everything = T + S
        window = (left if left >= 0 else everything, right if right >= 0 else everything)
    mask = given.get("attn_mask")
    if mask is not None and mask.shape[-1] < S:
        fill = False if mask.dtype == torch.bool else -torch.inf
        mask = torch.nn.functional.pad(mask, (0, S - mask.shape[-1]), value=fill)
    is_bool = mask is not None and mask.dtype == torch.bool
    return Rule(
        scale=n.get("scale"),
        causal=causal,
        offset=offset,
        window=window,
        softcap=n.get("softcap") or None,  # 0 means none there
        key_mask=key_mask,
        mask=mask if is_bool else None,
        bias=None if is_bool else mask,
    )
