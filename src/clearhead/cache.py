"""The cache of keys and values: what a causal module has seen, for decoding piece by piece."""

import torch
from torch import Tensor

from clearhead.rule import shape_of

Seen = tuple[Tensor, Tensor, Tensor | None]  # keys and values (B, G, S, D), key mask (B, S)


class KVCache:
    """Keys and values that one causal module has seen, for decoding in chunks of any length.

    Give the same cache to each call and only the new tokens. With a window only the keys that a
    later query can still see are kept. `length` is how many tokens have been seen. A call that
    fails leaves it as it was.
    """

    def __init__(self) -> None:
        self.length = 0
        self.k: Tensor | None = None  # turned by their positions already
        self.v: Tensor | None = None
        self.key_mask: Tensor | None = None  # True = a real key; None: all are

    def grown(self, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Seen:
        """What is kept here and the keys of new tokens behind it; nothing is kept yet."""
        if self.k is None or self.v is None:
            return k, v, key_mask
        same = self.k.shape[:2] == k.shape[:2] and self.k.shape[3] == k.shape[3]
        if not same or (self.k.dtype, self.k.device) != (k.dtype, k.device):
            raise ValueError(
                f"the cache holds keys {shape_of(self.k)} of {self.k.dtype} on {self.k.device}, "
                f"the new ones are {shape_of(k)} of {k.dtype} on {k.device}: all but the length "
                "must agree"
            )
        if key_mask is not None or self.key_mask is not None:
            masks = (self.key_mask, self.k), (key_mask, k)
            key_mask = torch.cat([_mask_of(*each) for each in masks], dim=1)
        return torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2), key_mask

    def keep(self, seen: Seen, n_new: int, before: int | None) -> None:
        """Keep what `grown` gave, n_new tokens more.

        `before` is how many keys in front of its own a query sees; None is all of them.
        """
        k, v, key_mask = seen
        if before is not None and before < k.shape[2]:
            k, v = (x[:, :, x.shape[2] - before :].clone() for x in (k, v))
            key_mask = None if key_mask is None else key_mask[:, key_mask.shape[1] - before :]
        self.k, self.v, self.key_mask = k, v, key_mask
        self.length += n_new


def _mask_of(key_mask: Tensor | None, k: Tensor) -> Tensor:
    """Which keys are real, (B, S): all, where nothing was said."""
    return k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
