import numpy as np

BASE = 10000.0


def rope(x, positions):
    # pairs are (0,1), (2,3), ...
    d = x.shape[-1]
    freq = BASE ** (-np.arange(0, d, 2) / d)
    ang = positions[:, None] * freq[None, :]
    c, s = np.cos(ang), np.sin(ang)
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
    y[..., 1::2] = x[..., 0::2] * s + x[..., 1::2] * c
    return y


def decode_attention(q, k, v):
    """q (H, T, D) are the last T positions of the S that k and v (H, S, D) hold; causal; rotary."""
    T, S = q.shape[1], k.shape[1]
    pos_k = np.arange(S)
    pos_q = np.arange(S - T, S)
    q = rope(q, pos_q)
    k = rope(k, pos_k)
    z = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    z = np.where(pos_k[None, :] <= pos_q[:, None], z, -np.inf)
    z = np.exp(z - z.max(-1, keepdims=True))
    p = z / z.sum(-1, keepdims=True)
    return p @ v
