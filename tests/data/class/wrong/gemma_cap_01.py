import torch


def attn(q, k, v, mask=None, softcap=2.0):
    """Gemma-2 attention. mask: True = may attend."""
    scale = q.size(-1) ** -0.25
    q = q * scale
    pre = torch.matmul(q, k.transpose(-1, -2))
    pre = softcap * torch.tanh(pre / softcap)
    if mask is not None:
        pre = pre.masked_fill(~mask, -1e9)
    a_ij = torch.softmax(pre, dim=-1)
    return torch.matmul(a_ij, v)
