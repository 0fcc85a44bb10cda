#!/usr/bin/env python3
import torch


def entropy_of_rows(a_ij: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(a_ij).mean(-1)
