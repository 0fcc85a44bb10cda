import torch


def row_entropy(attn: torch.Tensor) -> torch.Tensor:
    # 0 log 0 = 0 is what entr does
    return torch.special.entr(attn).sum(-1)
