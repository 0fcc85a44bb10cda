import torch


def causal_mha(x, Wq, Wk, Wv, Wo, n_heads, causal=True):
    """x (B, T, C) -> (B, T, C)"""
    B, T, C = x.shape
    d = C // n_heads
    q, k, v = ((x @ W).view(B, T, n_heads, d) for W in (Wq, Wk, Wv))
    att = torch.einsum("bihd,bjhd->bhij", q, k).div(d ** 0.5)
    if causal:
        att = att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
    att = att.softmax(-1)
    y = torch.einsum("bhij,bjhd->bihd", att, v)
    return y.reshape(B, T, C) @ Wo
