import torch


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, s):
        p = torch.exp(s - s.amax(-1, keepdim=True))
        p = p / p.sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx, g):
        p, = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True))


def attention(q, k, v, mask=None):
    s = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        s = s.masked_fill(~mask, -1e9)
    p = Softmax.apply(s)
    return p @ v, p
