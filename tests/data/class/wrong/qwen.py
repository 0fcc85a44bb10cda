import torch
from torch import nn
import torch.nn.functional as F


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


class QwenAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, rope_theta=10000.0):
        super().__init__()
        self.nh, self.nkv = num_heads, num_kv_heads
        self.hd = hidden_size // num_heads
        self.theta = rope_theta
        self.q_proj = nn.Linear(hidden_size, self.nh * self.hd, bias=True)
        self.k_proj = nn.Linear(hidden_size, self.nkv * self.hd, bias=True)
        self.v_proj = nn.Linear(hidden_size, self.nkv * self.hd, bias=True)
        self.o_proj = nn.Linear(self.nh * self.hd, hidden_size, bias=False)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.nh, self.hd).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.nkv, self.hd).transpose(1, 2)
        v = self.v_proj(x).view(B, T, self.nkv, self.hd).transpose(1, 2)
        inv = 1.0 / self.theta ** (torch.arange(0, self.hd, 2) / self.hd)
        emb = torch.outer(torch.arange(T), inv).repeat(1, 2)
        cos, sin = emb.cos(), emb.sin()
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        n = self.nh // self.nkv
        k = torch.cat([k] * n, dim=1)
        v = torch.cat([v] * n, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))
