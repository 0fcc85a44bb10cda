import numpy as np


def apply_rotary(x, positions):
    """x (..., T, D); RoFormer style, pairs of neighbours"""
    D = x.shape[-1]
    theta = np.power(10000.0, -2.0 * np.arange(D // 2) / D)
    angle = np.outer(positions + 1, theta)
    c, s = np.repeat(np.cos(angle), 2, -1), np.repeat(np.sin(angle), 2, -1)
    turned = np.stack([-x[..., 1::2], x[..., 0::2]], -1).reshape(x.shape)
    return x * c + turned * s
