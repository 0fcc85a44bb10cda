import torch.nn.functional as F


def attention(q, k, v, mask=None):
    """mask is boolean and True means *ignore this key*."""
    attn_mask = None if mask is None else ~mask
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
