import torch


def attention(q, k, v):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return (s.softmax(-1) @ v).sum(-1)
