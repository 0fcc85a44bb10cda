import math
import torch
from torch import nn


class SelfAttn(nn.Module):
    def __init__(self, d_model, n_heads, p=0.1):
        super().__init__()
        self.h, self.dk, self.p = n_heads, d_model // n_heads, p
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        b, t, c = x.shape
        sh = lambda y: y.view(b, t, self.h, self.dk).transpose(1, 2)
        q, k, v = sh(self.wq(x)), sh(self.wk(x)), sh(self.wv(x))
        a = q @ k.transpose(-1, -2) / math.sqrt(self.dk)
        if mask is not None:
            a = a.masked_fill(~mask, -1e9)
        a = nn.functional.dropout(a.softmax(-1), self.p, self.training or self.p > 0)
        return self.wo((a @ v).transpose(1, 2).reshape(b, t, c))
