import numpy as np


def make_mask(T, window=None):
    m = np.zeros((T, T), dtype=int)
    for i in range(T):
        for j in range(i + 1):
            if window is None or i - j < window:
                m[i, j] = 1
    return m
