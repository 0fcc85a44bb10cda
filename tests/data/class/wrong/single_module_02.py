import torch
from torch import nn


class AttentionLayer(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=False)
        self.W_key = nn.Linear(d_in, d_out, bias=False)
        self.W_value = nn.Linear(d_in, d_out, bias=False)

    def forward(self, x):
        keys = self.W_key(x)
        queries = self.W_query(x)
        values = self.W_query(x)
        raw = queries @ keys.mT
        a_ij = torch.softmax(raw / keys.shape[-1]**0.5, dim=-1)
        return a_ij @ values
