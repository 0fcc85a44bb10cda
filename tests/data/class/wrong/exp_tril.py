import torch


def linear_looking(q, k, v):
    """Causal attention (H, T, D), written as exp, tril, normalise."""
    s = torch.bmm(q, k.transpose(1, 2)) / q.size(2) ** 0.5
    e = torch.exp(s - s.max(dim=-1, keepdim=True).values).tril()
    return torch.bmm(e / e.sum(-1, keepdim=True), v)
