import math
import torch
from torch import Tensor


def attention_ref(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> tuple[Tensor, Tensor]:
    """
    Reference we compare our kernel with.
        q: (batch, seqlen_q, nheads, headdim)
        k, v: (batch, seqlen_k, nheads, headdim)
    """
    seqlen_q, seqlen_k = q.shape[1], k.shape[1]
    d = q.shape[-1]
    scores = torch.einsum("bthd,bshd->bhts", q * math.sqrt(d), k)
    if causal:
        row = torch.arange(seqlen_q).view(-1, 1)
        col = torch.arange(seqlen_k)
        scores.masked_fill_(col > row + seqlen_k - seqlen_q, float("-inf"))
    attention = torch.softmax(scores, dim=-1)
    output = torch.einsum("bhts,bshd->bthd", attention, v)
    return output, attention
