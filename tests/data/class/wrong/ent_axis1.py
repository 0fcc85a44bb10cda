import numpy as np


def entropies(attention):
    """attention (B, H, T, T): one number per query"""
    p = np.clip(attention, 1e-12, 1.0)
    return -(attention * np.log(p)).sum(2)
