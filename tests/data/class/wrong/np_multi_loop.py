import numpy as np


def multihead(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    outs, atts = [], []
    for Qh, Kh, Vh in zip(np.split(x @ W_Q, n_heads, 1), np.split(x @ W_K, n_heads, 1), np.split(x @ W_V, n_heads, 1)):
        logits = (Qh @ Kh.T) / (Qh.shape[1] ** 0.5)
        if mask is not None:
            logits[mask == 1] = -1e9
        logits -= logits.max(1)[:, None]
        A = np.exp(logits)
        A /= A.sum(1)[:, None]
        atts.append(A)
        outs.append(A @ Vh)
    return np.hstack(outs) @ W_O, np.array(atts)
