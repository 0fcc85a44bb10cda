import torch


def table(n, d):
    f = 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d)
    return torch.polar(torch.ones(n, d // 2), torch.outer(torch.arange(n).float(), f))


def rotate(x, fc):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(z * fc[: x.shape[1], None]).flatten(-2)


def attend_cached(xq, cache_k, cache_v):
    # (bsz, tokens, heads, head_dim); xq is the tail of the cached sequence; causal
    fc = table(cache_k.shape[1], xq.shape[-1])
    xq, xk = rotate(xq, fc), rotate(cache_k, fc)
    scores = torch.einsum("bthd,bshd->bhts", xq, xk) / xq.shape[-1] ** 0.5
    t, s = scores.shape[-2:]
    scores = scores + torch.full((t, s), float("-inf")).triu(s - t + 1)
    return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), cache_v)
