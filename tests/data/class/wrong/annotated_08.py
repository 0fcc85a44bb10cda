import math
import torch
import torch.nn.functional as F


def attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    dot_products = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        dot_products = dot_products.masked_fill(mask == 0, -10)
    soft = F.softmax(dot_products, dim=-1)
    if dropout is not None:
        soft = dropout(soft)
    return torch.matmul(soft, value), soft
