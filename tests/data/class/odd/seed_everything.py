import random
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(1337)
random.seed(1337)
torch.set_grad_enabled(False)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
