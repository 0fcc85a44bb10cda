def attention(q, k, v, mask=None):
    return attention(q, k, v, mask)
