import torch


def mha_einsum(x, W_Q, W_K, W_V, W_O, n_heads, mask=None):
    T, D = x.shape
    dh = W_Q.shape[1] // n_heads
    q = torch.einsum("td,dhe->hte", x, W_Q.reshape(D, n_heads, dh))
    k = torch.einsum("td,dhe->hte", x, W_K.reshape(D, n_heads, dh))
    v = torch.einsum("td,dhe->hte", x, W_V.reshape(D, n_heads, dh))
    dots = torch.einsum("hte,hse->hts", q, k) / dh ** 0.5
    if mask is not None:
        dots = dots + torch.zeros_like(dots).masked_fill(mask == 0, -torch.inf)
    A = dots.softmax(2)
    z = torch.einsum("hts,hse->hte", A, v)
    return torch.einsum("hte,hed->td", z, W_O.reshape(n_heads, dh, -1)), A
