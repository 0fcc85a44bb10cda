def attention(q, k, v, mask=None):
    raise NotImplementedError("TODO: your code here")
