import numpy as np


def softmax(a, axis=-1):
    a = a - a.max(axis=axis, keepdims=True)
    a = np.exp(a)
    return a / a.sum(axis=axis, keepdims=True)


def mha(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    D = W_Q.shape[1]
    dh = D // n_heads
    heads = []
    patterns = []
    for h in range(n_heads):
        cols = slice(h * dh, (h + 1) * dh)
        q = x @ W_Q[:, cols]
        k = x @ W_K[:, cols]
        v = x @ W_V[:, cols]
        s = q @ k.T / np.sqrt(dh)
        if mask is not None:
            s = s + (1 - mask) * -1e9
        a = softmax(s)
        patterns.append(a)
        heads.append(a @ v)
    concat = np.concatenate(heads, axis=-1)
    return concat @ W_O, np.stack(patterns)
