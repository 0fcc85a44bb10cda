"""Three functions that run, train and are wrong. None of them raises an error.

    clearhead check examples/broken_attention.py:attention

names what is wrong with the first; find the others by reading, before you ask.
"""

import math

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention. q, k and v are (B, H, T, d_head)."""
    T, d_head = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d_head)
    future = torch.ones(T, T, dtype=torch.bool).triu(diagonal=2)
    weights = scores.masked_fill(future, -math.inf).softmax(dim=-1)
    return weights @ v, weights


def multi_head_attention(
    x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, n_heads: int, mask: Tensor
) -> Tensor:
    """n_heads heads side by side. x is (T, d_model); mask is (T, T), 1 = may look."""
    T, d_model = x.shape
    d_head = d_model // n_heads
    q, k, v = (joined.view(n_heads, T, d_head) for joined in (x @ W_Q, x @ W_K, x @ W_V))
    scores = q @ k.transpose(-2, -1) / math.sqrt(d_head)
    weights = scores.masked_fill(mask == 0, -math.inf).softmax(dim=-1)
    return (weights @ v).transpose(0, 1).reshape(T, d_model) @ W_O


def attention_entropy(weights: Tensor) -> Tensor:
    """Entropy of each row of weights, (..., keys) -> (...), in nats."""
    return -(weights * (weights + 1e-4).log()).sum(dim=-1)
