import torch


def attention(q, k, v):
    return torch.full_like(q, float("nan"))
