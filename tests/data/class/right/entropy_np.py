import numpy as np


def entropy(p):
    p = np.asarray(p)
    safe = np.where(p > 0, p, 1.0)
    return -np.sum(p * np.log(safe), axis=-1)
