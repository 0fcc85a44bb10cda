import torch


def causal_mask(T):
    """Boolean (T, T); True = not allowed to attend, as nn.MultiheadAttention wants it."""
    return torch.triu(torch.full((T, T), True), diagonal=1)
