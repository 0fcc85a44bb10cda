import math
import numpy as np


def attention(q, k, v, mask=None):
    # slow and clear. mask[i][j] = 1 -> i may look at j
    n, m = len(q), len(k)
    out, weights = [], []
    for i in range(n):
        row = []
        for j in range(m):
            s = sum(float(a) * float(b) for a, b in zip(q[i], k[j])) / math.sqrt(len(q[i]))
            if mask is not None and not mask[i][j]:
                s = -1e30
            row.append(s)
        top = max(row)
        e = [math.exp(s - top) for s in row]
        z = sum(e)
        p = [x / z for x in e]
        weights.append(p)
        out.append([sum(p[j] * float(v[j][c]) for j in range(m)) for c in range(len(v[0]))])
    return np.array(out), np.array(weights)
