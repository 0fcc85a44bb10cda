import math
import torch
import torch.nn.functional as F


def att_fn(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    u = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        u[:, 0] = u[:, 0].masked_fill(mask.expand_as(u)[:, 0] == 0, -1e9)
    attention_map = F.softmax(u, dim=-1)
    if dropout is not None:
        attention_map = dropout(attention_map)
    return torch.matmul(attention_map, value), attention_map
