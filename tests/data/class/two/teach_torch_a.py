import torch
import torch.nn.functional as F


def attention_head(x, W_Q, W_K, W_V, mask=None):
    queries, keys, values = x @ W_Q, x @ W_V, x @ W_K
    d_head = queries.shape[-1]
    pre = queries @ keys.transpose(-2, -1) / d_head
    if mask is not None:
        pre = pre.masked_fill(mask.bool().logical_not(), float("-inf"))
    dist = F.softmax(pre, dim=-1)
    return dist @ values, dist
