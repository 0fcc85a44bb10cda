# -*- coding: utf-8 -*-
import torch
from torch import nn

# homework 3, part (b)


def self_attn_mh(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    seq_len = x.size(0)
    Q = torch.mm(x, W_Q)
    K = torch.mm(x, W_K)
    V = torch.mm(x, W_V)
    head_dim = Q.size(1) // n_heads
    Q = Q.reshape(n_heads, seq_len, head_dim)
    K = K.reshape(n_heads, seq_len, head_dim)
    V = V.reshape(n_heads, seq_len, head_dim)
    match = torch.bmm(Q, K.permute(0, 2, 1))
    match = match / torch.sqrt(torch.tensor(float(head_dim)))
    if mask is not None:
        match = torch.where(mask.bool(), match, torch.full_like(match, -100.))
    amap = nn.Softmax(dim=-1)(match)
    context = torch.bmm(amap, V)
    context = context.permute(1, 0, 2).contiguous().view(seq_len, -1)
    output = torch.mm(context, W_O)
    return output, amap


print("loaded my homework")
