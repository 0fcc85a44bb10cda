def attention(q, k, v):
    return "attention is all you need"
