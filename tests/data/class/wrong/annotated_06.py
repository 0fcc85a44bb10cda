import math
import torch
import torch.nn.functional as F


def attn(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    pre = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        pre[0] = pre[0].masked_fill(mask.expand_as(pre)[0] == 0, -1e9)
    att_p = F.softmax(pre, dim=-1)
    if dropout is not None:
        att_p = dropout(att_p)
    return torch.matmul(att_p, value), att_p
