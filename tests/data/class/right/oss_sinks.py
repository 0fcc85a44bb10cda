import torch


def attention_with_sinks(q, k, v, sinks, mask=None):
    """One learned logit per head that takes part in the softmax and has no value (gpt-oss)."""
    B, H, T, D = q.shape
    qk = torch.einsum("bhqd,bhkd->bhqk", q, k) * (1.0 / D ** 0.5)
    if mask is not None:
        qk = qk.masked_fill(~mask, float("-inf"))
    S = sinks.reshape(1, H, 1, 1).expand(B, H, T, 1)
    qk = torch.cat([qk, S], dim=-1)
    w = torch.softmax(qk, dim=-1)
    w = w[..., :-1]
    return torch.einsum("bhqk,bhkd->bhqd", w, v), w
