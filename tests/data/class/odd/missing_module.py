import my_lab_utils_2031 as u


def attention(q, k, v):
    return u.softmax(q @ k.T) @ v
