"""The cache of keys and values: what a causal module has seen, for decoding piece by piece."""

import torch
from torch import Tensor

from clearhead.rule import shape_of


class KVCache:
    """Keys and values that one causal module has seen, for decoding in chunks of any length.

    Give the same cache to each call and only the new tokens. With a window only the keys that a
    later query can still see are kept. `length` is how many tokens have been seen.
    """

    def __init__(self) -> None:
        self.length = 0
        self.k: Tensor | None = None  # (B, G, S, D), turned by their positions already
        self.v: Tensor | None = None
        self.key_mask: Tensor | None = None  # (B, S), True = a real key

    def extend(
        self, k: Tensor, v: Tensor, key_mask: Tensor | None, before: int | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the keys of new tokens; returns all that these may see.

        `before` is how many keys in front of its own a query sees; None is all of them.
        """
        n_new = k.shape[2]
        if self.k is not None and self.v is not None:
            if self.k.shape[:2] != k.shape[:2] or self.k.shape[3] != k.shape[3]:
                raise ValueError(
                    f"the cache holds keys {shape_of(self.k)}, the new ones are {shape_of(k)}: "
                    "batch, heads and head size must agree"
                )
            if key_mask is not None or self.key_mask is not None:
                masks = (self.key_mask, self.k), (key_mask, k)
                key_mask = torch.cat([_mask_of(*each) for each in masks], dim=1)
            k = torch.cat([self.k, k], dim=2)
            v = torch.cat([self.v, v], dim=2)
        keep = slice(0 if before is None else max(0, k.shape[2] - before), None)
        self.k, self.v = k[:, :, keep], v[:, :, keep]
        self.key_mask = None if key_mask is None else key_mask[:, keep]
        self.length += n_new
        return k, v, key_mask


def _mask_of(key_mask: Tensor | None, k: Tensor) -> Tensor:
    """Which keys are real, (B, S): all, where nothing was said."""
    return k.new_ones(k.shape[0], k.shape[2], dtype=torch.bool) if key_mask is None else key_mask
