import torch


def attend(q, k, v, is_causal: bool = False):
    # h heads, i queries, j keys
    sim = torch.einsum("h i d, h j d -> h i j", q, k) * q.shape[-1] ** -0.5
    if is_causal:
        i, j = sim.shape[-2:]
        future = torch.ones(i, j, dtype=torch.bool, device=q.device).triu(j - i)
        sim = sim.masked_fill(future, float("-inf"))
    attn = sim.softmax(dim=-1)
    out = torch.einsum("h i j, h j d -> h i d", attn, v)
    return out
