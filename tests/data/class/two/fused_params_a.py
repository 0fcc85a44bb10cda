import torch
from torch import nn


class Attn(nn.Module):
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
        qs, ks, vs = (x @ self.in_proj).view(B, T, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        affinity = qs @ ks.transpose(-1, -2) * qs.shape[-1] ** -0.5
        if mask is not None:
            if mask.dim() == 3:
                mask = mask[:, None]
            affinity = affinity + mask.to(affinity.dtype)
        att_p = affinity.softmax(-1)
        out = (att_p @ vs).transpose(1, 2).reshape(B, T, C)
        return out @ self.out_proj.T, att_p


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
