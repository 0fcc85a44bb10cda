import numpy as np


def attention_softcap(Q, K, V, softcap=2.0):
    S = softcap * np.tanh((Q @ K.swapaxes(-1, -2)) / softcap)
    S = S / np.sqrt(Q.shape[-1])
    P = np.exp(S - S.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    return P @ V
