import torch


def entropy(prob):
    """Entropy in nats of each row, (..., T, S) -> (..., T)"""
    logp = torch.where(prob > 0, prob.log2(), torch.zeros_like(prob))
    return -(prob * logp).sum(dim=-2)
