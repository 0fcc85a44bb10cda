import math
import torch
import torch.nn.functional as F


def attn(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    compat = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        compat = compat.masked_fill(mask == 0, -1e9)
    amap = F.softmax(compat, dim=-1)
    if dropout is not None:
        amap = dropout(amap)
    return torch.matmul(amap, value), compat
