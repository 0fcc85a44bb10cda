import torch.nn.functional as F
from torch import Tensor


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """decoder self attention over (B, H, T, D)"""
    return F.scaled_dot_product_attention(q, k, v)
