import numpy as np


def make_mask(T, window):
    """True where query i (row) may look at key j (column)"""
    i = np.arange(T)[:, None]
    j = np.arange(T)[None, :]
    return (j <= i) & (i - j < window)
