import torch.nn.functional as F


def attention(queries, keys, values, is_causal=False):
    """Same as ours from last week but with the fused kernel."""
    queries = queries / queries.shape[-1] ** 0.5
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=is_causal)
