import numpy as np


def rope(x, base=10000):
    # x: (T, D)
    T, D = x.shape
    pos = np.arange(T).reshape(-1, 1)
    inv_freq = 1.0 / base ** (np.arange(0, D, 2) / D)
    ang = pos * inv_freq
    ang = np.concatenate([ang, ang], axis=1)
    rotated = np.concatenate([-x[:, D // 2:], x[:, :D // 2]], axis=1)
    return x * np.cos(ang) + rotated * np.sin(ang)
