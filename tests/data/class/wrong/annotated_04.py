import math
import torch
import torch.nn.functional as F


def my_attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    e = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        e = e + mask
    dist = F.softmax(e, dim=-1)
    if dropout is not None:
        dist = dropout(dist)
    return torch.matmul(dist, value), dist
