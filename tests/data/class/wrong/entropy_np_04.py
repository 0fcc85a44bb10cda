import numpy as np


def entropy_of_rows(p):
    p = np.asarray(p)
    return -np.sum(p * np.log(p), axis=-1)
