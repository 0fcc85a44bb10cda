import math
import torch
import torch.nn.functional as F


def attn(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    similarity = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        similarity = similarity.masked_fill(mask == 0, -1e9)
    dist = F.softmax(similarity, dim=-1)
    if dropout is not None:
        dist = dropout(dist)
    return torch.matmul(dist, value), dist.mean(dim=1)
