import math
import torch
import torch.nn.functional as F


def attn_core(q, k, v, attn_mask=None, dropout_p=0.1, training=False):
    """(N*heads, L, E) as inside nn.MultiheadAttention; attn_mask is a float mask that is added"""
    E = q.size(-1)
    q_scaled = q / math.sqrt(E)
    if attn_mask is not None:
        w = torch.baddbmm(attn_mask.expand(q.size(0), -1, -1), q_scaled, k.transpose(-2, -1))
    else:
        w = torch.bmm(q_scaled, k.transpose(-2, -1))
    w = F.softmax(w, dim=-1)
    dropped = F.dropout(w, p=dropout_p, training=training)
    return torch.bmm(dropped, v), w
