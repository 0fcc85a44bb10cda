import math
import torch
import torch.nn.functional as F


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    match = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        match = match.masked_fill(mask == 0, -1e9)
    a_ij = F.softmax(match, dim=-1)
    if dropout is not None:
        a_ij = dropout(a_ij)
    return torch.matmul(a_ij, value), a_ij
