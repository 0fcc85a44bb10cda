import torch


def alibi_attention(q, k, v, slopes):
    "causal, q k v: (B, H, T, D), slopes (H,)"
    T, D = q.shape[-2:]
    pos = torch.arange(T)
    distance = pos[None, :] - pos[:, None]
    scores = q @ k.transpose(-1, -2) / D ** 0.5
    scores = scores + slopes.view(-1, 1, 1) * distance
    scores = scores.masked_fill(distance > 0, float("-inf"))
    weights = scores.softmax(dim=-1)
    return weights @ v, weights
