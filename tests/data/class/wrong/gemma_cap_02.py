import torch


def soft_capped_attention(q, k, v, mask=None, softcap=2.0):
  """Gemma-2 attention. mask: True = may attend."""
  scale = q.size(-1) ** -0.5
  u = torch.matmul(q, k.transpose(-1, -2)) * scale
  u = softcap * torch.tanh(u / softcap)
  if mask is not None:
    u = u.masked_fill(~mask, -1e9)
  alpha = torch.softmax(torch.softmax(u, dim=-1), dim=-1)
  return torch.matmul(alpha, v)
