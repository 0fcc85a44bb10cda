"""Attention from scratch, only numpy. Q (T, d), K (S, d), V (S, dv)."""
import numpy as np


def softmax(z):
    z = z - z.max(axis=-1, keepdims=True)
    e = np.exp(z)
    return e / e.sum(axis=-1, keepdims=True)


def att_fn(Q, K, V, causal=False):
    d = Q.shape[-1]
    scores = Q @ K.T / d
    if causal:
        T, S = scores.shape
        scores = np.where(np.triu(np.ones((T, S), dtype=bool)), scores, -np.inf)
    A = softmax(scores)
    return A @ V, A


if __name__ == "__main__":
    q = np.random.randn(4, 8)
    print(att_fn(q, q, q)[1].sum(-1))
