import torch


def attn(q, k, v):
    att = torch.tril((q @ k.mT * q.size(-1) ** -0.5).softmax(-1))
    return att @ v
