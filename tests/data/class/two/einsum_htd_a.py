import torch


def att_fn(q, k, v, is_causal: bool = False):
    similarity = torch.einsum("h i d, h j d -> h i j", q, k)
    if is_causal:
        i, j = similarity.shape[-2:]
        future = torch.ones(i, j, dtype=torch.bool, device=q.device).triu(j - i)
        similarity = similarity.masked_fill(future, float("-inf"))
    probabilities = similarity.softmax(dim=-1)
    out = torch.einsum("h i j, h j d -> h i d", probabilities, v)
    return out
