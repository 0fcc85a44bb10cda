import torch


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rope_attention(q, k, v, cos, sin):
    """causal. q, k, v (B, H, T, D), cos and sin (T, D)"""
    q = q * cos + rotate_half(q) * sin
    k = k * cos + rotate_half(k) * sin
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    T = q.shape[2]
    hide = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    scores = scores.masked_fill(hide, float("-inf"))
    a = scores.softmax(-1)
    return a @ v, a
