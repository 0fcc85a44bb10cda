import torch


def dot_product_attention(q, k, v, mask=None, softcap=2.0):
    """Gemma-2 attention. mask: True = may attend."""
    scale = q.size(-1) ** -0.5
    z_ = torch.matmul(q, k.transpose(-1, -2)) * scale
    if mask is not None:
        z_ = z_.masked_fill(~mask, -1e9)
    attention_map = torch.softmax(z_, dim=-1)
    return torch.matmul(attention_map, v)
