import torch


def head_entropy(A):
    terms = torch.xlogy(A, A)
    H = -terms.sum(-1)
    return H
