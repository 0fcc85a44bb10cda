import torch


def soft_capped_attention(q, k, v, mask=None, softcap=2.0):
    """Gemma-2 attention. mask: True = may attend."""
    scale = q.size(-1) ** -0.5
    logits = torch.matmul(q, k.transpose(-1, -2)) * scale
    logits = softcap * torch.tanh(logits / softcap)
    if mask is not None:
        logits = logits.masked_fill(~mask, -1e9)
    probs = torch.softmax(logits, dim=-1)
    return torch.matmul(probs, v)
