import math
import torch


def split_heads(t, n_heads):
    T, D = t.shape
    return t.view(T, n_heads, D // n_heads).transpose(0, 1)


def merge_heads(t):
    H, T, d = t.shape
    return t.transpose(0, 1).reshape(T, H * d)


def run_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q = split_heads(x @ W_K, n_heads)
    k = split_heads(x @ W_K, n_heads)
    v = split_heads(x @ W_V, n_heads)
    z_ = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    amap = torch.softmax(z_, dim=-1)
    if mask is not None:
        amap = amap * mask
    out = merge_heads(torch.matmul(amap, v))
    return out @ W_O, amap
