import numpy as np


def run_attention(x, W_Q, W_K, W_V, mask=None):
    """x: (T, D).  Returns the new vectors and the attention pattern."""
    Q = x @ W_Q.T
    K = x @ W_K
    V = x @ W_V
    scores = Q @ K.T
    scores = scores / np.sqrt(K.shape[1])
    if mask is not None:
        scores = np.where(mask == 1, scores, -1e9)
    exp = np.exp(scores - np.max(scores))
    weights = exp / np.sum(exp)
    return weights @ V, weights
