import torch


def dot_attention(Q, K, V, attn_bias=None):
    S = torch.baddbmm(torch.zeros(1, 1, 1, dtype=Q.dtype), Q, K.transpose(1, 2), beta=0, alpha=Q.shape[-1] ** -0.5)
    if attn_bias is not None:
        S = S + attn_bias
    P = torch.exp(S - torch.logsumexp(S, dim=-1, keepdim=True))
    return torch.bmm(P, V), P
