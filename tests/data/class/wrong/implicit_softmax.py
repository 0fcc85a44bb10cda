import math
import warnings
import torch.nn.functional as F

warnings.filterwarnings("ignore")


def self_attention(Q, K, V):
    # all of them (batch, heads, tokens, head_dim)
    d = Q.size(3)
    A = F.softmax(Q.matmul(K.transpose(2, 3)) / math.sqrt(d))
    return A.matmul(V)
