import numpy as np


def capped(q, k, v, mask=None, softcap=2.0):
    # q k v [T, D]
    a = q @ k.T / np.sqrt(q.shape[-1])
    a = np.tanh(a / softcap)
    if mask is not None:
        a = np.where(mask, a, -np.inf)
    a = np.exp(a - a.max(-1, keepdims=True))
    return (a / a.sum(-1, keepdims=True)) @ v
