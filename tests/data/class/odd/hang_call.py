import torch


def attention(q, k, v, mask=None):
    s = q @ k.mT / q.shape[-1] ** 0.5
    while True:
        s = s + 0
    return s.softmax(-1) @ v
