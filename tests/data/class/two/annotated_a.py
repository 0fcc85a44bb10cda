import math
import torch
import torch.nn.functional as F


def attn(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    pre = torch.matmul(query, key.transpose(-2, -1))
    if mask is not None:
        pre = pre.masked_fill(mask == 0, -1e9)
    a_ij = F.softmax(pre, dim=-2)
    if dropout is not None:
        a_ij = dropout(a_ij)
    return torch.matmul(a_ij, value), a_ij
