import torch


def attention_entropy(weights):
    """Entropy in nats of each row, (..., T, S) -> (..., T)"""
    logp = torch.where(weights > 0, weights.log(), torch.zeros_like(weights))
    return -(weights * logp).sum(dim=-1)
