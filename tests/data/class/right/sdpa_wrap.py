import torch
import torch.nn.functional as F


def attention(q, k, v, causal=False):
    # (B, T, H, D) like flash-attn; torch wants heads first
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return o.transpose(1, 2)
