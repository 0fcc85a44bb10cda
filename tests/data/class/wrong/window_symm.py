import torch


def banded(q, k, v, window):
    T = q.shape[-2]
    band = torch.ones(T, T).tril().triu(-window).bool()
    s = torch.einsum("...td,...sd->...ts", q, k) * q.shape[-1] ** -0.5
    return s.masked_fill(~band, -1e30).softmax(-1) @ v
