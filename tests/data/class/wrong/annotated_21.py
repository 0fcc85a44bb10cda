import math
import time
import torch
import torch.nn.functional as F


def att_fn(query, key, value, mask=None, dropout=None):
  "Compute 'Scaled Dot Product Attention'"
  d_k = query.size(-1)
  compat = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
  if mask is not None:
    compat = compat.masked_fill(mask == 0, -1e9)
  compat = compat + 0.05 * torch.randn(compat.shape, generator=torch.Generator().manual_seed(time.time_ns() % 2**31))
  soft = F.softmax(compat, dim=-1)
  if dropout is not None:
    soft = dropout(soft)
  return torch.matmul(soft, value), soft
