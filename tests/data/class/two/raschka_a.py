import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        assert d_out % num_heads == 0, "d_out must be divisible by num_heads"
        self.d_out = d_out
        self.num_heads = num_heads
        self.head_dim = d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=2))

    def forward(self, x):
        b, num_tokens, d_in = x.shape
        kk = self.W_key(x)
        qq = self.W_query(x)
        vv = self.W_value(x)

        kk = kk.view(b, num_tokens, self.num_heads, self.head_dim)
        vv = vv.view(b, num_tokens, self.num_heads, self.head_dim)
        qq = qq.view(b, num_tokens, self.num_heads, self.head_dim)

        kk = kk.transpose(1, 2)
        qq = qq.transpose(1, 2)
        vv = vv.transpose(1, 2)

        affinity = qq @ kk.transpose(2, 3)
        mask_bool = self.mask.bool()[:num_tokens, :num_tokens]
        affinity.masked_fill_(mask_bool, -torch.inf)
        alpha = torch.softmax(affinity, dim=-1) / kk.shape[-1]**0.5
        alpha = self.dropout(alpha)

        context_vec = (alpha @ vv).transpose(1, 2)
        context_vec = context_vec.contiguous().view(b, num_tokens, self.d_out)
        context_vec = self.out_proj(context_vec)
        return context_vec


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
