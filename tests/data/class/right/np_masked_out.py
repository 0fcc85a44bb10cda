import numpy as np


def masked_attention(queries, keys, values, masked=None):
    """
    Multi-head attention core.

    queries (H, T, D), keys (H, S, D), values (H, S, D)
    masked: optional boolean (T, S), True = masked out (not attended to)
    """
    scale = 1.0 / np.sqrt(queries.shape[-1])
    logits = np.einsum('htd,hsd->hts', queries, keys) * scale
    if masked is not None:
        logits = np.where(masked, -1e9, logits)
    logits = logits - np.max(logits, axis=-1, keepdims=True)
    probs = np.exp(logits)
    probs = probs / np.sum(probs, axis=-1, keepdims=True)
    return np.einsum('hts,hsd->htd', probs, values), probs
