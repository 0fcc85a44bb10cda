"""Attention under a Rule the dense and obvious way, in float64: what the engine is judged by.

It shares nothing with the engine: visibility is spelled out from the positions, pair by pair.
"""

import math
from types import SimpleNamespace

import torch
from torch import Tensor


def visible(rule, B: int, H: int, T: int, S: int) -> Tensor:
    """(B, H, T, S), True where query i may see key j."""
    offset = S - T if rule.offset is None else rule.offset
    offset = torch.as_tensor(offset).reshape(-1, 1, 1, 1).expand(B, 1, 1, 1)
    own = torch.arange(T).view(1, 1, T, 1) + offset  # the key position at which query i stands
    j = torch.arange(S).view(1, 1, 1, S)
    sees = torch.ones(B, H, T, S, dtype=torch.bool)
    if rule.causal:
        sees &= j <= own
    if isinstance(rule.window, tuple):
        sees &= (own - rule.window[0] <= j) & (j <= own + rule.window[1])
    elif rule.window is not None:
        sees &= own - j < rule.window
    if rule.key_mask is not None:
        sees &= rule.key_mask.view(B, 1, 1, S)
    if rule.segments is not None:
        for b in range(B):
            for i in range(T):
                at = int(own[b, 0, i, 0])
                mine = rule.segments[b] == rule.segments[b, at] if 0 <= at < S else False
                sees[b, :, i] &= mine
    if rule.mask is not None:
        sees &= rule.mask
    if rule.bias is not None:
        sees &= rule.bias > torch.finfo(rule.bias.dtype).min
    return sees


def attend(q, k, v, rule, dtype=torch.float64) -> SimpleNamespace:
    """Everything that Attended holds, and p and s (B, H, T, S), differentiably, in `dtype`."""
    (B, H, T, D), (G, S) = q.shape, k.shape[1:3]
    q, k = q.to(dtype), k.to(dtype).repeat_interleave(H // G, dim=1)
    sees = visible(rule, B, H, T, S)
    s = q @ k.mT * (1 / math.sqrt(D) if rule.scale is None else rule.scale)
    if rule.softcap is not None:
        s = rule.softcap * torch.tanh(s / rule.softcap)
    if rule.alibi is not None:
        offset = torch.as_tensor(S - T if rule.offset is None else rule.offset).reshape(-1, 1, 1, 1)
        back = torch.arange(T).view(T, 1) + offset - torch.arange(S)
        s = s - rule.alibi.to(dtype).view(1, H, 1, 1) * back
    if rule.bias is not None:
        s = s + rule.bias.to(dtype)
    s = s.masked_fill(~sees, -math.inf)
    outcomes = s
    if rule.sinks is not None:
        sink = rule.sinks.to(dtype).view(1, H, 1, 1).expand(B, H, T, 1)
        outcomes = torch.cat([s, sink], dim=-1)
    nothing = (outcomes == -math.inf).all(dim=-1, keepdim=True)
    lse = outcomes.masked_fill(nothing, 0.0).logsumexp(dim=-1)
    hidden = nothing | (outcomes == -math.inf)
    log_p = (outcomes - lse[..., None]).masked_fill(hidden, 0.0)
    p = log_p.exp().masked_fill(hidden, 0.0)
    keys = p[..., :S]
    real = torch.ones(B, T, dtype=torch.bool) if rule.query_mask is None else rule.query_mask
    return SimpleNamespace(
        out=None if v is None else keys @ v.to(dtype).repeat_interleave(H // G, dim=1),
        lse=lse.masked_fill(nothing[..., 0], -math.inf),
        entropy=-(p * log_p).sum(dim=-1),
        max_score=s.amax(dim=-1) if S else torch.full((B, H, T), -math.inf, dtype=dtype),
        mean_key=keys @ torch.arange(S, dtype=dtype),
        visible=sees.sum(dim=-1).to(dtype),
        sink_mass=p[..., S:].sum(dim=-1),
        received=(keys * real.view(B, 1, T, 1)).sum(dim=2),
        top_key=torch.where(sees.any(dim=-1), s.argmax(dim=-1) if S else 0, -1),
        p=keys,
        s=s,
    )
