import torch


def grouped_query_attention(q, k, v, causal=False):
    """q (B, Hq, T, D); k and v (B, Hkv, S, D), Hq a multiple of Hkv."""
    B, Hq, T, D = q.shape
    Hkv, S = k.shape[1], k.shape[2]
    qg = q.reshape(B, Hkv, Hq // Hkv, T, D)
    logits = torch.einsum("bgrtd,bgsd->bgrts", qg, k) / D ** 0.5
    if causal:
        ok = torch.arange(S)[None, :] <= torch.arange(T)[:, None] + (S - T)
        logits = logits.masked_fill(~ok, float("-inf"))
    p = logits.softmax(-1)
    return torch.einsum("bgrts,bgsd->bgrtd", p, v).reshape(B, Hq, T, D)
