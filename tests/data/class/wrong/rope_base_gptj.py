import torch


def rotary(x):
    """(B, H, T, D), interleaved, made for our 128-token toy model"""
    T, D = x.shape[-2:]
    freqs = torch.pow(1000.0, -torch.arange(0, D, 2) / D)
    ang = torch.arange(T)[:, None] * freqs
    even, odd = x[..., 0::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., 0::2] = even * ang.cos() - odd * ang.sin()
    out[..., 1::2] = even * ang.sin() + odd * ang.cos()
    return out
