import torch
import torch.nn.functional as F


def mha(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    T, D = x.shape
    shape = (T, n_heads, D // n_heads)
    q = (x @ W_Q).view(shape).movedim(0, 1)
    k = (x @ W_K).view(shape).movedim(0, 1)
    v = F.linear(x, W_V).view(shape).movedim(0, 1)
    bias = None
    if mask is not None:
        bias = torch.zeros_like(mask, dtype=x.dtype).masked_fill(mask == 0, -1e9)
    dots = torch.einsum("htd,hsd->hts", q, k) * (D // n_heads) ** -0.5
    if bias is not None:
        dots = dots + bias
    p = dots.softmax(-1)
    return (p @ v).movedim(0, 1).flatten(1) @ W_O, p
