import numpy as np


def self_attention_layer(x, W_Q, W_K, W_V, mask=None):
    """x: (T, D).  Returns the new vectors and the attention pattern."""
    q_ = x @ W_Q
    k_ = x @ W_Q
    v_ = x @ W_V
    affinity = q_ @ k_.T
    affinity = affinity / np.sqrt(k_.shape[0])
    if mask is not None:
        affinity = np.where(mask == 1, affinity, -1e9)
    exp = np.exp(affinity - np.max(affinity, axis=1, keepdims=True))
    amap = exp / np.sum(exp, axis=1, keepdims=True)
    return amap @ v_, amap
