import torch
import torch.nn as nn


class EncoderAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_size // heads
        self.to_v = nn.Linear(embed_size, embed_size)
        self.to_k = nn.Linear(embed_size, embed_size)
        self.to_q = nn.Linear(embed_size, embed_size)
        self.fc = nn.Linear(embed_size, embed_size)

    def forward(self, x):
        N, L, E = x.shape
        q, k, v = [m(x).reshape(N, L, self.heads, self.head_dim) for m in (self.to_q, self.to_k, self.to_v)]
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / self.head_dim ** 0.5
        alpha = torch.softmax(scores, dim=-1)
        mixed = torch.einsum("nhqk,nqhd->nkhd", alpha, v)
        return self.fc(mixed.reshape(N, L, E))
