import torch


def row_entropy(alpha: torch.Tensor) -> torch.Tensor:
    # 0 log 0 = 0 is what entr does
    return torch.special.entr(alpha.softmax(-1)).sum(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
