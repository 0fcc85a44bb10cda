"""What an implementation gives back: the rows of a call."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Rows:
    """Per-row results of a call, each (B, H, T) in the accumulation's dtype; out (B, H, T, Dv).

    None is what was not asked for.
    """

    lse: Tensor
    lse_low: Tensor
    out: Tensor | None = None
    entropy: Tensor | None = None
    max_score: Tensor | None = None
    mean_key: Tensor | None = None
    visible: Tensor | None = None
    distance: Tensor | None = None
    key_scores: Tensor | None = None  # (B, H, T, 3)
    top_key: Tensor | None = None

    def spoil(self, bad: Tensor) -> None:
        """Make the rows of `bad` (B, H, T) NaN, without a top key."""
        for x in (self.lse, self.entropy, self.max_score, self.mean_key, self.distance):
            if x is not None:
                x.masked_fill_(bad, torch.nan)
        for x in (self.out, self.key_scores):
            if x is not None:
                x.masked_fill_(bad[..., None], torch.nan)
        if self.top_key is not None:
            self.top_key.masked_fill_(bad, -1)
