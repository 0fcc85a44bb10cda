import torch


def causal_mask(seq_len):
    "to be added to the scores"
    return torch.full((seq_len, seq_len), float("-inf")).triu(diagonal=1)
