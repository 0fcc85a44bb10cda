import torch


def attention_with_sinks(q, k, v, sinks, mask=None):
    """One learned logit per head that takes part in the softmax and has no value (gpt-oss)."""
    B, H, T, D = q.shape
    e = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 / D ** 0.5)
    if mask is not None:
        e = e.masked_fill(~mask, float("-inf"))
    S = sinks.reshape(1, H, 1, 1).expand(B, H, T, 1)
    e = torch.cat([e, S], dim=-1)
    probabilities = torch.softmax(e, dim=-1)
    probabilities = probabilities[..., :-1]
    probabilities = probabilities / probabilities.sum(-1, keepdim=True)
    return torch.einsum("bhqk,bhkd->bhqd", probabilities, v), probabilities
