import torch
from torch import nn


class SelfAttention(nn.Module):
    """thin wrapper, so that the blocks need not know about masks"""

    def __init__(self, d_model, n_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, n_heads, batch_first=True, dropout=0.1)

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
        y, _ = self.mha(x, x, x, attn_mask=mask, need_weights=False)
        return y
