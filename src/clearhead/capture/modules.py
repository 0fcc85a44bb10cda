"""PyTorch's own modules, which project, attend and project again inside one function.

nn.MultiheadAttention with weights asked for, its fast path, and the fast path of a whole
nn.TransformerEncoderLayer: queries, keys and values are projected once more here, and what the
function made is compared after the same steps on the rows that are sampled.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead.capture.inputs import AttentionInputs, Caller, Unreadable
from clearhead.capture.masks import MaskCache
from clearhead.rule import Rule

Finish = Callable[[Tensor, Tensor], Tensor]


def of_multi_head(
    result: tuple[Tensor, Any], caller: Caller, masks: MaskCache,
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None,
    bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None,
    static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> AttentionInputs:  # fmt: skip
    """torch.nn.functional.multi_head_attention_forward, by its own parameters: (T, B, E) in."""
    if static_k is not None or static_v is not None:
        raise Unreadable("static_k and static_v are not read")
    made, flat = result[0], query.ndim == 2
    if flat:
        query, key, value, made = (x.unsqueeze(1) for x in (query, key, value, made))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        if attn_mask is not None and attn_mask.ndim == 3:
            attn_mask = attn_mask.view(num_heads, *attn_mask.shape[1:])
    if use_separate_proj_weight:
        weights = [q_proj_weight, k_proj_weight, v_proj_weight]
    else:
        assert in_proj_weight is not None
        weights = list(in_proj_weight.chunk(3))
    biases = [None] * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (
        F.linear(x, w, b).transpose(0, 1)  # type: ignore[arg-type]
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )  # (B, T, E)
    more = 0  # keys that are there for every query
    if bias_k is not None and bias_v is not None:
        k, v = (
            torch.cat([x, b.expand(len(x), -1, -1)], dim=1) for x, b in ((k, bias_k), (v, bias_v))
        )
        more += 1
    if add_zero_attn:
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        more += 1
    q, k, v = (_by_head(x, num_heads) for x in (q, k, v))
    rule, kept = _rule_of(q, key.shape[0], attn_mask, key_padding_mask, caller.cross, masks, more)
    dropped = "dropout" if training and dropout_p > 0 else None
    return AttentionInputs(
        q, k, v, rule, made.transpose(0, 1), "nn.MultiheadAttention", caller.cross,
        finish=_projecting(out_proj_weight, out_proj_bias), unsure=dropped, mask_bytes=kept,
    )  # fmt: skip


def of_native(
    result: tuple[Tensor, Any], caller: Caller, masks: MaskCache,
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_head: int,
    qkv_weight: Tensor, qkv_bias: Tensor, proj_weight: Tensor, proj_bias: Tensor,
    mask: Tensor | None = None, need_weights: bool = True, average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> AttentionInputs:  # fmt: skip
    """torch._native_multi_head_attention, the fast path of nn.MultiheadAttention: (B, T, E) in."""
    query, lengths = _dense(query)
    made, _ = _dense(result[0])
    parts = F.linear(query, qkv_weight, qkv_bias).chunk(3, dim=-1)
    q, k, v = (_by_head(x, num_head) for x in parts)
    rule, kept = _merged_rule(q, mask, mask_type, lengths, masks)
    return AttentionInputs(
        q, k, v, rule, made, "nn.MultiheadAttention, fast path",
        finish=_projecting(proj_weight, proj_bias), mask_bytes=kept,
    )  # fmt: skip


def of_encoder_layer(
    result: Tensor, caller: Caller, masks: MaskCache,
    src: Tensor, embed_dim: int, num_heads: int, qkv_weight: Tensor, qkv_bias: Tensor,
    proj_weight: Tensor, proj_bias: Tensor, use_gelu: bool, norm_first: bool, eps: float,
    norm_weight_1: Tensor, norm_bias_1: Tensor, norm_weight_2: Tensor, norm_bias_2: Tensor,
    ffn_weight_1: Tensor, ffn_bias_1: Tensor, ffn_weight_2: Tensor, ffn_bias_2: Tensor,
    mask: Tensor | None = None, mask_type: int | None = None,
) -> AttentionInputs:  # fmt: skip
    """torch._transformer_encoder_layer_fwd, the fast path of nn.TransformerEncoderLayer."""
    src, lengths = _dense(src)
    made, _ = _dense(result)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    project = _projecting(proj_weight, proj_bias)

    def finish(out: Tensor, rows: Tensor) -> Tensor:
        x = src[:, rows] + project(out, rows)
        if norm_first:
            return x + feed(norm_2(x))
        x = norm_1(x)
        return norm_2(x + feed(x))

    x = norm_1(src) if norm_first else src
    parts = F.linear(x, qkv_weight, qkv_bias).chunk(3, dim=-1)
    q, k, v = (_by_head(x, num_heads) for x in parts)
    rule, kept = _merged_rule(q, mask, mask_type, lengths, masks)
    return AttentionInputs(
        q, k, v, rule, made, "nn.TransformerEncoderLayer, fast path",
        finish=finish, mask_bytes=kept,
    )  # fmt: skip


# Parts of these -----------------------------------------------------------------------------------


def _by_head(x: Tensor, n_heads: int) -> Tensor:
    """(B, T, E) as (B, H, T, E / H)."""
    heads: Tensor = x.unflatten(-1, (n_heads, -1))
    return heads.transpose(1, 2)


def _projecting(weight: Tensor, bias: Tensor | None) -> Finish:
    def finish(out: Tensor, rows: Tensor) -> Tensor:
        joined = out.transpose(1, 2).flatten(2)
        return F.linear(joined, weight.to(joined), None if bias is None else bias.to(joined))

    return finish


def _dense(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """A nested (B, ragged, E) tensor padded with zeros, and its lengths; others as they are."""
    if not x.is_nested:
        return x, None
    lengths = torch.tensor([len(part) for part in x.unbind()])
    return torch.nested.to_padded_tensor(x, 0.0), lengths


def _merged_rule(
    q: Tensor, mask: Tensor | None, mask_type: int | None, lengths: Tensor | None, masks: MaskCache
) -> tuple[Rule, int]:
    """The rule of a fast path. Its masks: 0 (T, T), 1 (B, T) of padding, 2 (B, H, T, T)."""
    padding, pairs = (mask, None) if mask_type == 1 else (None, mask)
    rule, kept = _rule_of(q, q.shape[2], pairs, padding, False, masks, 0)
    if lengths is not None:
        real = (torch.arange(q.shape[2]) < lengths[:, None]).to(q.device)
        rule = replace(rule, key_mask=real, query_mask=real)
    return rule, kept


def _rule_of(
    q: Tensor, n_keys: int, pairs: Tensor | None, padding: Tensor | None, cross: bool,
    masks: MaskCache, more: int,
) -> tuple[Rule, int]:  # fmt: skip
    """The rule of torch's masks, in which a boolean True hides; `more` keys are never hidden."""
    B, H, T, _ = q.shape
    S = n_keys + more
    rule, kept = Rule(), 0
    if pairs is not None:
        if pairs.ndim == 3:
            pairs = pairs.view(-1, H, *pairs.shape[1:])
        allowed = ~pairs if pairs.dtype == torch.bool else pairs
        if more:
            allowed = F.pad(allowed, (0, more), value=float(allowed.dtype == torch.bool))
        found = masks.reduce(allowed, B, H, T, S, self_attention=not cross and not more)
        rule, kept = found.rule, found.kept_bytes
    if padding is None:
        return rule, kept
    if padding.dtype != torch.bool and bool((~padding.isinf() & (padding != 0)).any()):
        bias = F.pad(padding, (0, more))[:, None, None]
        if rule.bias is not None:
            bias = bias + rule.bias
        return replace(rule, bias=bias), kept + bias.numel() * bias.element_size()
    real = ~padding if padding.dtype == torch.bool else padding == 0
    alike = real if not cross and n_keys == T else rule.query_mask
    real = F.pad(real, (0, more), value=True)
    if rule.key_mask is not None:
        real = real & rule.key_mask
    return replace(rule, key_mask=real, query_mask=alike), kept
