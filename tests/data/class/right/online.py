import math
import torch


def flash_attention(q, k, v, causal=False, block=2):
    """Tiled, with running maximum and running sum: never holds T x S scores."""
    *_, T, D = q.shape
    S = k.shape[-2]
    m = torch.full(q.shape[:-1], -math.inf, dtype=q.dtype)
    l = torch.zeros(q.shape[:-1], dtype=q.dtype)
    acc = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    rows = torch.arange(T)[:, None]
    for start in range(0, S, block):
        kb = k[..., start:start + block, :]
        vb = v[..., start:start + block, :]
        s = q @ kb.transpose(-1, -2) / math.sqrt(D)
        if causal:
            cols = torch.arange(start, min(S, start + block))[None, :]
            s = s.masked_fill(cols > rows, -math.inf)
        m_new = torch.maximum(m, s.amax(-1))
        p = torch.exp(s - m_new[..., None])
        alpha = torch.exp(m - m_new)
        l = l * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p @ vb
        m = m_new
    return acc / l[..., None]
