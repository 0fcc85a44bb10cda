import math
import torch


def split_heads(t, n_heads):
    T, D = t.shape
    return t.view(T, n_heads, D // n_heads).transpose(0, 1)


def merge_heads(t):
    H, T, d = t.shape
    return t.transpose(0, 1).reshape(T, H * d)


def multi_head_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q = split_heads(x @ W_Q, n_heads)
    k = split_heads(x @ W_K, n_heads)
    v = split_heads(x @ W_V, n_heads)
    scores = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float('-inf'))
    weights = torch.softmax(scores, dim=-1)
    out = merge_heads(torch.matmul(weights, v))
    return out @ W_O, weights
