import torch
from torch import nn


class Attention(nn.Module):
    """weights kept per head, the interpretability way"""

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        self.d_head = d_model // n_heads
        s = d_model ** -0.5
        self.W_Q = nn.Parameter(torch.randn(n_heads, d_model, self.d_head) * s)
        self.W_K = nn.Parameter(torch.randn(n_heads, d_model, self.d_head) * s)
        self.W_V = nn.Parameter(torch.randn(n_heads, d_model, self.d_head) * s)
        self.W_O = nn.Parameter(torch.randn(n_heads, self.d_head, d_model) * s)

    def forward(self, resid):
        q = torch.einsum("bpm,hmd->bphd", resid, self.W_Q)
        k = torch.einsum("bpm,hmd->bphd", resid, self.W_K)
        v = torch.einsum("bpm,hmd->bphd", resid, self.W_V)
        attn_scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / self.d_head ** 0.5
        P = attn_scores.shape[-1]
        causal = torch.triu(torch.ones(P, P), diagonal=1).bool()
        attn_scores = attn_scores.masked_fill(causal, -1e5)
        pattern = attn_scores.softmax(dim=-1)
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        return torch.einsum("bqhd,hdm->bqm", z, self.W_O)
