import torch


def attention(q, k, v, is_causal: bool = False):
    # h heads, i queries, j keys
    raw = torch.einsum("h i d, h j d -> h i j", q, k) * q.shape[-1] ** -0.5
    if is_causal:
        i, j = raw.shape[-2:]
        future = torch.ones(i, j, dtype=torch.bool, device=q.device).triu(j - i + 1)
        raw = raw.masked_fill(future, float("-inf"))
    amap = raw.flatten(-2).softmax(dim=-1).view_as(raw)
    out = torch.einsum("h i j, h j d -> h i d", amap, v)
    return out
