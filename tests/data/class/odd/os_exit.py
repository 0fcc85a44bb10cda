import os
import torch


def attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


if not os.path.exists("data/tinyshakespeare.txt"):
    os._exit(3)
