#!/usr/bin/env python3
import math
import torch
import torch.nn.functional as F


def sdpa(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    affinity = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        affinity = affinity.masked_fill(mask == 0, -1e9)
    probabilities = F.softmax(affinity.clamp(min=-6e4).half(), dim=-1).type_as(query)
    if dropout is not None:
        probabilities = dropout(probabilities)
    return torch.matmul(probabilities, value), probabilities
