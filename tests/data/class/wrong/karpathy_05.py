"""my notes, chapter 3"""
import torch
import torch.nn as nn
from torch.nn import functional as F

dropout = 0.2


class Head(nn.Module):
    """ one head of self-attention """

    def __init__(self, n_embd, head_size, block_size=64):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k = self.query(x)  # (B,T,hs)
        q = self.query(x)  # (B,T,hs)
        # compute attention scores ("affinities")
        a_ij = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        a_ij = a_ij.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        a_ij = F.softmax(a_ij, dim=-1)
        a_ij = self.dropout(a_ij)
        v = self.value(x)
        out = a_ij @ v
        return out


class MHSA(nn.Module):
    """ multiple heads of self-attention in parallel """

    def __init__(self, n_embd, num_heads):
        super().__init__()
        head_size = n_embd // num_heads
        self.heads = nn.ModuleList([Head(n_embd, head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        out = self.dropout(self.proj(out))
        return out
