import torch


def rope(x):
    # x: (B, H, T, D); neighbouring numbers are the real and imaginary part
    B, H, T, D = x.shape
    theta = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
    angle = torch.outer(torch.arange(T, dtype=torch.float64), theta)
    turn = torch.polar(torch.ones_like(angle), angle)
    z = torch.view_as_complex(x.double().reshape(B, H, T, D // 2, 2))
    return torch.view_as_real(z * turn).reshape(B, H, T, D).to(x.dtype)
