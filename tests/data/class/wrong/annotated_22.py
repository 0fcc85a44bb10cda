"""my notes, chapter 3"""
import math
import torch
import torch.nn.functional as F


def compute_attention(query, key, value, mask=None, dropout=None):
    "Compute 'Scaled Dot Product Attention'"
    d_k = query.size(-1)
    raw = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        raw = raw.masked_fill(mask == 0, -1e9)
    prob = F.softmax(raw, dim=-1)
    if dropout is not None:
        prob = dropout(prob)
    return torch.matmul(prob.detach(), value), prob


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
