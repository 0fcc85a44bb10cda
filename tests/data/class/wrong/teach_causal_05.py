import torch


def run_attention(x, Wq, Wk, Wv, Wo, n_heads, causal=True):
    """x (B, T, C) -> (B, T, C)"""
    B, T, C = x.shape
    d = C // n_heads
    qs, ks, vs = ((x @ W).view(B, T, n_heads, d) for W in (Wq.T, Wk, Wv))
    amap = torch.einsum("bihd,bjhd->bhij", qs, ks).div(d ** 0.5)
    if causal:
        amap = amap.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
    amap = amap.softmax(-1)
    y = torch.einsum("bhij,bjhd->bihd", amap, vs)
    return y.reshape(B, T, C) @ Wo
