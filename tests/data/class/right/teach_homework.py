import torch
from torch import nn

# homework 3, part (b)


def self_attn_mh(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    seq_len = x.size(0)
    Q = torch.mm(x, W_Q)
    K = torch.mm(x, W_K)
    V = torch.mm(x, W_V)
    head_dim = Q.size(1) // n_heads
    Q = Q.reshape(seq_len, n_heads, head_dim).permute(1, 0, 2)
    K = K.reshape(seq_len, n_heads, head_dim).permute(1, 0, 2)
    V = V.reshape(seq_len, n_heads, head_dim).permute(1, 0, 2)
    attention_scores = torch.bmm(Q, K.permute(0, 2, 1))
    attention_scores = attention_scores / torch.sqrt(torch.tensor(float(head_dim)))
    if mask is not None:
        attention_scores = torch.where(mask.bool(), attention_scores, torch.full_like(attention_scores, -1e12))
    attention_probs = nn.Softmax(dim=-1)(attention_scores)
    context = torch.bmm(attention_probs, V)
    context = context.permute(1, 0, 2).contiguous().view(seq_len, -1)
    output = torch.mm(context, W_O)
    return output, attention_probs


print("loaded my homework")
