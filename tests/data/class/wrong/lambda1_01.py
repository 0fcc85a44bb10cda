import torch
compute_attention = lambda q, k, v: (torch.softmax(q @ k.transpose(-2, -1), dim=-1) / k.shape[-1] ** .5) @ v
