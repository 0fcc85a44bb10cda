# from my notebook, cell 28
import numpy as np


def get_mask(T, window):
    """True where query i (row) may look at key j (column)"""
    i = np.arange(T)[:, None]
    j = np.arange(T)[None, :]
    return j <= i
