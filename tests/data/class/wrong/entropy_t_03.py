import math
import torch


def entropy(prob):
    """Entropy in nats of each row, (..., T, S) -> (..., T)"""
    logp = torch.where(prob > 0, prob.log(), torch.zeros_like(prob))
    return -(prob * logp).sum(dim=-1) / math.log(prob.shape[-1])
