import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Parameter(torch.empty(d_model, 3 * d_model))
        self.out_proj = nn.Parameter(torch.empty(d_model, d_model))
        nn.init.xavier_uniform_(self.in_proj)
        nn.init.xavier_uniform_(self.out_proj)

    def forward(self, x, mask=None):
        """mask (T, T) or (B, T, T), bool, True = may look. Returns (out, weights)."""
        B, T, C = x.shape
        q, k, v = (x @ self.in_proj).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        sim = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask[:, None]
            sim = sim.masked_fill(~mask, torch.finfo(sim.dtype).min)
        attn = sim.softmax(-1)
        out = (attn @ v).transpose(1, 2).reshape(B, T, C)
        return out @ self.out_proj.T, attn
