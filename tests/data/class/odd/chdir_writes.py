import torch


def attention(q, k, v):
    out = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
    with open("attention_dump.txt", "a") as f:
        f.write(str(tuple(out.shape)) + "\n")
    return out
