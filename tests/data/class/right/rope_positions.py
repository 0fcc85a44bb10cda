import torch


def rope(x, positions, theta=10_000.0):
    """x (..., T, D), positions (T,)"""
    half = x.shape[-1] // 2
    freqs = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    args = positions[:, None].float() * freqs
    cos, sin = torch.cos(args), torch.sin(args)
    x1, x2 = x[..., :half], x[..., half:]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)
