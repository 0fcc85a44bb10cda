import torch
import torch.nn.functional as F


def attn(xq, xk, xv, causal=True):
    """llama style. xq (bsz, seqlen, n_heads, hd), xk and xv (bsz, seqlen, n_kv_heads, hd)"""
    n_rep = xq.shape[2] // xk.shape[2]
    keys = torch.repeat_interleave(xk, dim=2, repeats=n_rep)
    values = torch.repeat_interleave(xv, dim=2, repeats=n_rep)
    xq = xq.transpose(1, 2)
    keys = keys.transpose(1, 2)
    values = values.transpose(1, 2)
    scores = xq @ keys.transpose(2, 3) / (xq.shape[-1] ** 0.5)
    if causal:
        L = scores.shape[-1]
        m = torch.full((L, L), float("-inf")).triu(1)
        scores = scores + m
    scores = F.softmax(scores.float(), dim=-1).type_as(xq)
    return (scores @ values).transpose(1, 2)
