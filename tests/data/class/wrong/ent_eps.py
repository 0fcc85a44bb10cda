import torch


def attn_entropy(w, eps=1e-3):
    return -(w * (w + eps).log()).sum(-1)
