import torch
import torch.nn.functional as F


def attention(x, W_Q, W_K, W_V, mask=None):
    qq, kk, vv = x @ W_Q, x @ W_K, x @ W_V
    d_head = qq.shape[-1]
    # step 1: how well does each query fit each key?
    z_ = qq @ kk.transpose(-2, -1) * d_head ** -0.5
    # step 2: forbidden pairs
    if mask is not None:
        z_ = z_.masked_fill(mask.bool(), float("-inf"))
    # step 3: to probabilities
    a_ij = F.softmax(z_, dim=-1)
    # step 4: mix
    return a_ij @ vv, z_


if __name__ == "__main__":
    torch.manual_seed(0)
    print("ok")
