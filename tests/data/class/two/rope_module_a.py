import torch
from torch import nn
import torch.nn.functional as F


class RotaryCausalAttention(nn.Module):
    """fused qkv, NeoX rotary (first half / second half), torch SDPA"""

    def __init__(self, d_model, n_heads, base=10000.0):
        super().__init__()
        self.h = n_heads
        self.d = d_model // n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)
        inv = base ** (-torch.arange(0, self.d, 2).float() / self.d)
        self.register_buffer("inv_freq", inv, persistent=False)

    def rotate(self, x):
        t = torch.arange(x.shape[-2], device=x.device).float()
        ang = torch.outer(t, self.inv_freq)
        c, s = ang.cos(), ang.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * c - b * s, b * c + a * s], dim=-1).flatten(-2).to(x.dtype)

    def forward(self, x):
        B, T, C = x.shape
        qs, ks, vs = self.qkv(x).chunk(3, dim=-1)
        qs = qs.view(B, T, self.h, self.d).transpose(1, 2)
        ks = ks.view(B, T, self.h, self.d).transpose(1, 2)
        vs = vs.view(B, T, self.h, self.d).transpose(1, 2)
        qs, ks = self.rotate(qs) * self.d ** -0.5, self.rotate(ks)
        y = F.scaled_dot_product_attention(qs, ks, vs, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
