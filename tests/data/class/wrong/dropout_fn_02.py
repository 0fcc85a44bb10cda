import math
import torch
import torch.nn.functional as F


def attention(q, k, v, attn_mask=None, dropout_p=0.1, training=False):
  """(N*heads, L, E) as inside nn.MultiheadAttention; attn_mask is a float mask that is added"""
  E = q.size(-1)
  q_scaled = q / math.sqrt(E)
  if attn_mask is not None:
    a_ij = torch.baddbmm(attn_mask.expand(q.size(0), -1, -1), q_scaled, k.transpose(-2, -1))
  else:
    a_ij = torch.bmm(q_scaled, k.transpose(-2, -1))
  a_ij = F.softmax(a_ij, dim=-1)
  dropped = F.dropout(a_ij, p=dropout_p, training=True)
  return torch.bmm(a_ij, v), dropped
