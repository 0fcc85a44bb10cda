import torch


def rope(x):
    """x (batch, heads, tokens, dim)"""
    seq = x.shape[1]
    d = x.shape[-1]
    inv = 10000 ** (-torch.arange(0, d, 2) / d)
    t = torch.arange(seq)
    ang = torch.einsum("i,j->ij", t, inv)
    cos = ang.cos()[None, :, None, :]
    sin = ang.sin()[None, :, None, :]
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
