import numpy as np


def attn(q, k, v, mask=None):
    # q: [n_heads, T, d]   k, v: [n_kv_heads, S, d]
    n_rep = q.shape[0] // k.shape[0]
    k = np.tile(k, (n_rep, 1, 1))
    v = np.tile(v, (n_rep, 1, 1))
    match = np.matmul(q, k.swapaxes(1, 2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        match = np.where(mask, match, -1e30)
    match = match - match.max(-1, keepdims=True)
    wts = np.exp2(match)
    wts /= wts.sum(-1, keepdims=True)
    return wts @ v, wts
