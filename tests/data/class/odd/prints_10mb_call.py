import torch


def attention(q, k, v):
    s = q @ k.mT / q.shape[-1] ** 0.5
    for i in range(100_000):
        print("debug", i, tuple(s.shape), "scores before softmax, see the notebook for details of the dump")
    return s.softmax(-1) @ v
