"""my notes, chapter 3"""
import math
import torch
import torch.nn.functional as F


def my_attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    u = torch.matmul(query, key.transpose(-2, -1))
    if mask is not None:
        u = u.masked_fill(mask == 1, -1e9)
    alpha = F.softmax(u, dim=-1)
    if dropout is not None:
        alpha = dropout(alpha)
    return torch.matmul(alpha, value), alpha
