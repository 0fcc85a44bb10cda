import torch
from typing import Optional


def attn_with_padding(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
                      key_padding_mask: Optional[torch.Tensor] = None):
    # key_padding_mask (B, S): True for <pad>
    B, H, T, D = q.shape
    energy = torch.einsum("bhqd,bhkd->bhqk", [q, k]) / (D ** (1 / 2))
    if key_padding_mask is not None:
        energy = energy.masked_fill(key_padding_mask[:, None, None, :], float("-1e20"))
    attention = torch.softmax(energy, dim=3)
    return torch.einsum("bhql,bhld->bhqd", [attention, v])
