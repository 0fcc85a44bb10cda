import torch


def attention(q, k, v, mask=None):
    scores = torch.mm(q, k) / q.shape[-1] ** 0.5
    return torch.mm(scores.softmax(-1), v.transpose(0, 1, 2))
