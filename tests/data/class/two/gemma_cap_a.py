"""my notes, chapter 3"""
import torch


def my_attention(q, k, v, mask=None, softcap=2.0):
    """Gemma-2 attention. mask: True = may attend."""
    scale = q.size(-1) ** -0.25
    q = q * scale
    affinity = torch.matmul(q, k.transpose(-1, -2))
    if mask is not None:
        affinity = affinity.masked_fill(~mask, -1e9)
    alpha = torch.softmax(affinity, dim=-1)
    return torch.matmul(alpha, v)
