import numpy as np


def grouped(Q, K, V):
    """Q (Hq, T, D), K V (Hkv, T, D)"""
    out = []
    for h in range(len(Q)):
        g = h % len(K)
        s = Q[h] @ K[g].T / np.sqrt(Q.shape[-1])
        p = np.exp(s - s.max(1, keepdims=True))
        out.append((p / p.sum(1, keepdims=True)) @ V[g])
    return np.stack(out)
