import torch


def attention(q, k, v, key_padding_mask=None):
    """key_padding_mask (B, T), True = padding"""
    s = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask[:, None, :, None], -1e9)
    return torch.einsum("bhij,bhjd->bhid", s.softmax(-1), v)
