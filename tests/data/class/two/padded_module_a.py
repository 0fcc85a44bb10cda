import torch
import torch.nn as nn


class AttentionBlock(nn.Module):
    def __init__(self, embed_dim, heads):
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, key_padding_mask=None):
        """key_padding_mask: (N, L) bool, True = padding, to be ignored"""
        N, L, E = x.shape
        d = E // self.heads
        q = self.q_proj(x).unflatten(-1, (self.heads, d)).transpose(1, 2)
        k = self.k_proj(x).unflatten(-1, (self.heads, d)).transpose(1, 2)
        v = self.v_proj(x).unflatten(-1, (self.heads, d)).transpose(1, 2)
        dot_products = q @ k.transpose(-1, -2) * d ** 0.5
        if key_padding_mask is not None:
            dot_products = dot_products.masked_fill(~key_padding_mask.view(N, 1, 1, L), -1e20)
        wts = torch.softmax(dot_products, dim=-1)
        out = (wts @ v).transpose(1, 2).flatten(2)
        return self.out_proj(out)
