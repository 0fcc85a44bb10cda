import torch


def attention(q, k, v:
    scores = q @ k.mT
    return scores.softmax(-1) @ v
