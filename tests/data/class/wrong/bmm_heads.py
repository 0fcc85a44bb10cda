import torch
from torch import nn


class FastMHA(nn.Module):
    """bmm over batch*heads, one kernel per product"""

    def __init__(self, hidden, nheads):
        super().__init__()
        self.nheads = nheads
        self.dim = hidden // nheads
        self.q_linear = nn.Linear(hidden, hidden)
        self.k_linear = nn.Linear(hidden, hidden)
        self.v_linear = nn.Linear(hidden, hidden)
        self.o_linear = nn.Linear(hidden, hidden)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_linear(x).view(B * self.nheads, T, self.dim)
        k = self.k_linear(x).view(B * self.nheads, T, self.dim)
        v = self.v_linear(x).view(B * self.nheads, T, self.dim)
        attn = torch.bmm(q, k.transpose(1, 2)).mul_(self.dim ** -0.5).softmax(dim=-1)
        o = torch.bmm(attn, v)
        o = o.view(B, self.nheads, T, self.dim).transpose(1, 2).reshape(B, T, -1)
        return self.o_linear(o)
