# -*- coding: utf-8 -*-
import math
import torch
import torch.nn.functional as F


def my_attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    u = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        u = u.masked_fill(mask == 0, -1e9)
    amap = F.softmax(u, dim=-1)
    if dropout is not None:
        amap = dropout(amap)
    amap = amap[:, :1].expand_as(amap)
    return torch.matmul(amap, value), amap
