import torch


def _rot(x, pos):
    d = x.shape[-1]
    inv = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float32) / d)
    ang = pos.float()[:, None] * inv
    ang = torch.cat([ang, ang], -1)
    h = d // 2
    return x * ang.cos() + torch.cat([-x[..., h:], x[..., :h]], -1) * ang.sin()


def decode_step(q, k, v):
    """q (B, H, T, D): the new tokens; k, v (B, H, S, D): cache with the new ones appended. Causal, RoPE."""
    T, S = q.shape[2], k.shape[2]
    q = _rot(q, torch.arange(T))
    k = _rot(k, torch.arange(S))
    s = q @ k.mT / q.shape[-1] ** 0.5
    ok = torch.arange(S) <= (torch.arange(T) + S - T)[:, None]
    return s.masked_fill(~ok, float("-inf")).softmax(-1) @ v
