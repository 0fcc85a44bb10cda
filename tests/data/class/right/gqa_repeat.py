import numpy as np


def gqa(q, k, v, mask=None):
    # q: [n_heads, T, d]   k, v: [n_kv_heads, S, d]
    n_rep = q.shape[0] // k.shape[0]
    k = np.repeat(k, n_rep, axis=0)
    v = np.repeat(v, n_rep, axis=0)
    s = np.matmul(q, k.swapaxes(1, 2)) / np.sqrt(q.shape[-1])
    if mask is not None:
        s = np.where(mask, s, -1e30)
    s = s - s.max(-1, keepdims=True)
    w = np.exp(s)
    w /= w.sum(-1, keepdims=True)
    return w @ v, w
