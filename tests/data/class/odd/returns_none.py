import torch


def attention(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    out = torch.softmax(scores, dim=-1) @ v
