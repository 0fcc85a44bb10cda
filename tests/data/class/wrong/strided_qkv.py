import torch


def attention(x, W_Q, W_K, W_V, mask=None):
    """single head, batched x (T, D)"""
    Q = torch.einsum("td,de->te", x, W_Q)
    K = torch.einsum("td,de->te", x, W_K)
    V = torch.einsum("td,de->te", x, W_V)
    S = torch.einsum("te,se->st", Q, K).div_(Q.size(-1) ** 0.5)
    if mask is not None:
        S.masked_fill_(mask.eq(0), -1e4)
    A = S.softmax(-1)
    return torch.einsum("ts,se->te", A, V), A
