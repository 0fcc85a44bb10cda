import torch
import torch.nn.functional as F


def attention_head(x, W_Q, W_K, W_V, mask=None):
    queries, keys, values = x @ W_Q, x @ W_K, x @ W_V
    d_head = queries.shape[-1]
    # step 1: how well does each query fit each key?
    scores = queries @ keys.transpose(-2, -1) * d_head ** -0.5
    # step 2: forbidden pairs
    if mask is not None:
        scores = scores.masked_fill(mask.bool().logical_not(), float("-inf"))
    # step 3: to probabilities
    weights = F.softmax(scores, dim=-1)
    # step 4: mix
    return weights @ values, weights
