import math
import torch


def split_heads(t, n_heads):
    T, D = t.shape
    return t.view(T, n_heads, D // n_heads).transpose(0, 1)


def merge_heads(t):
    H, T, d = t.shape
    return t.reshape(T, H * d)


def attention_block(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    q = split_heads(x @ W_Q, n_heads)
    k = split_heads(x @ W_K, n_heads)
    v = split_heads(x @ W_V, n_heads)
    dot_products = torch.matmul(q, k.transpose(1, 2)) / math.sqrt(x.size(-1))
    if mask is not None:
        dot_products = dot_products.masked_fill(mask == 0, float('-inf'))
    wts = torch.softmax(dot_products, dim=-1)
    out = merge_heads(torch.matmul(wts, v))
    return out @ W_O, wts
