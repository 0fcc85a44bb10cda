import torch


def multi_query_attention(q, k, v, causal=False):
    """q (B, H, T, D), one shared head of keys and values (B, 1, S, D)"""
    s = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if causal:
        T, S = s.shape[-2:]
        s = s.masked_fill(torch.ones(T, S, dtype=torch.bool).triu(1 + S - T), -torch.inf)
    return s.softmax(dim=-2) @ v
