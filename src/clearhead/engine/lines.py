"""Lines of a map: one key's column, and one diagonal.

By the native kernel where lse is its own, else in PyTorch: exp(s - lse) wants the same sums as lse,
for where scores are large their last digits are whole numbers.
"""

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.engine import native, tiled
from clearhead.engine.tiles import LogSum

DIAGONAL = tiled.DIAGONAL


def on_key(q: Tensor, k: Tensor, bound: BoundRule, lse: LogSum, j: int) -> Tensor:
    """Every row's weight on key j, (B, H, T), 0 where it does not see it. O(T D)."""
    if native.hindrance((q, k), bound.rule):
        return tiled.on_key(q, k, bound, lse, j)
    return native.cells(q, k, bound, (0, bound.T), (j, j + 1), lse)[..., 0]


def on_lag(q: Tensor, k: Tensor, bound: BoundRule, lse: LogSum, lag: int) -> Tensor:
    """Every row's weight on key i + offset - lag, (B, H, T), 0 where it sees none. O(T D)."""
    if native.hindrance((q, k), bound.rule):
        return tiled.on_lag(q, k, bound, lse, lag)
    found = torch.zeros_like(lse.high)
    for offset in set(bound.offsets):  # each is a diagonal of its own
        alike = [b for b, other in enumerate(bound.offsets) if other == offset]
        first, last = max(0, lag - offset), min(bound.T, bound.S + lag - offset)
        for i0 in range(first, last, DIAGONAL):
            rows = i0, min(i0 + DIAGONAL, last)
            keys = i0 + offset - lag, rows[1] + offset - lag
            square = native.cells(q, k, bound, rows, keys, lse[:, :, slice(*rows)])
            found[alike, :, slice(*rows)] = square.diagonal(dim1=-2, dim2=-1)[alike]
    return found


def column_sums(q: Tensor, k: Tensor, lse: LogSum, bound: BoundRule) -> Tensor:
    """What each key receives, (B, H, S), as tiled.column_sums has it."""
    if native.hindrance((q, k), bound.rule):
        return tiled.column_sums(q, k, lse, bound)
    return native.column_sums(q, k, lse, bound)
