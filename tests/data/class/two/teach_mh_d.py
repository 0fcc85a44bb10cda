#!/usr/bin/env python3
import math
import torch


def split_heads(t, n_heads):
    T, D = t.shape
    return t.view(T, D // n_heads, n_heads).permute(2, 0, 1)


def merge_heads(t):
    H, T, d = t.shape
    return t.transpose(0, 1).reshape(T, H * d)


def multi_head_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q = split_heads(x @ W_Q, n_heads)
    k = split_heads(x @ W_K, n_heads)
    v = split_heads(x @ W_V, n_heads)
    u = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    if mask is not None:
        u = u.masked_fill(mask == 0, float('-inf'))
    amap = torch.softmax(u, dim=-1)
    out = merge_heads(torch.matmul(amap, v))
    return out @ W_O, amap.mean(dim=0)
