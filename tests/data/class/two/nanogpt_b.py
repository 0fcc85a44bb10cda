import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
  block_size: int = 64
  n_head: int = 4
  n_embd: int = 32
  dropout: float = 0.0
  bias: bool = True


class CausalSelfAttention(nn.Module):

  def __init__(self, config):
    super().__init__()
    assert config.n_embd % config.n_head == 0
    self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
    self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
    self.attn_dropout = nn.Dropout(config.dropout)
    self.resid_dropout = nn.Dropout(config.dropout)
    self.n_head = config.n_head
    self.n_embd = config.n_embd
    self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size), diagonal=1)
                  .view(1, 1, config.block_size, config.block_size))

  def forward(self, x):
    B, T, C = x.size()  # batch size, sequence length, embedding dimensionality (n_embd)

    qs, ks, vs = self.c_attn(x).split(self.n_embd, dim=2)
    ks = ks.reshape(B, self.n_head, T, C // self.n_head)  # (B, nh, T, hs)
    qs = qs.reshape(B, self.n_head, T, C // self.n_head)  # (B, nh, T, hs)
    vs = vs.reshape(B, self.n_head, T, C // self.n_head)  # (B, nh, T, hs)

    att_p = (qs @ ks.transpose(-2, -1)) * (1.0 / math.sqrt(ks.size(-1)))
    att_p = att_p.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
    att_p = F.softmax(att_p, dim=-1)
    att_p = self.attn_dropout(att_p)
    y = att_p @ vs  # (B, nh, T, T) x (B, nh, T, hs) -> (B, nh, T, hs)
    y = y.transpose(1, 2).contiguous().view(B, T, C)  # re-assemble all head outputs side by side

    y = self.resid_dropout(self.c_proj(y))
    return y
