import math
import torch
import torch.nn.functional as F


def sdpa(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    query /= math.sqrt(d_k)
    raw = torch.matmul(query, key.transpose(-2, -1))
    if mask is not None:
        raw = raw.masked_fill(mask == 0, -1e9)
    amap = F.softmax(raw, dim=-1)
    if dropout is not None:
        amap = dropout(amap)
    return torch.matmul(amap, value), amap
