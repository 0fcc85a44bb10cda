"""Weights as 16-bit codes, in equal steps of their logarithm: what a pixel of a map is sent as.

    0           hidden: nobody may see any cell of the pixel
    1           a weight of 0, or below 2^-32
    2 .. 65534  p = 2^(32 (code - 65534) / 65532), from 2^-32 to 1, in steps of 0.034 %
    65535       no number

A larger weight never has a smaller code, so the largest code of a block is that of its largest
weight. web/codes.js reads them.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HIDDEN, ZERO, ONE, NO_NUMBER = 0, 1, 65534, 65535
SMALLEST = 2.0**-32
STEPS = 65532 / 32  # codes to a factor of two

Codes = NDArray[np.uint16]


def encode(weights: Tensor, seen: Tensor | None = None) -> Codes:
    """The code of each weight, of any shape; HIDDEN where `seen` (of that shape) is False."""
    p = weights.to(torch.float64)
    code = p.log2().mul_(STEPS).add_(ONE).round_().clamp_(ZERO, ONE)
    code.masked_fill_(p < SMALLEST, ZERO).nan_to_num_(nan=NO_NUMBER)
    if seen is not None:
        code.masked_fill_(~seen, HIDDEN)
    return code.to(torch.int32).numpy().astype("<u2")


def decode(codes: Codes) -> NDArray[np.float64]:
    """The weight of each code; 0 for HIDDEN and ZERO."""
    p: NDArray[np.float64] = np.exp2((codes.astype(np.float64) - ONE) / STEPS)
    p[codes <= ZERO] = 0.0
    p[codes == NO_NUMBER] = np.nan
    return p
