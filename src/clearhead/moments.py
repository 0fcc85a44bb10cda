"""One figure of many rows: count, mean, variance, extremes and histogram, which add up.

Two sets of rows, A and B, combine as

    n = n_A + n_B        d = mean_B - mean_A
    mean = mean_A + d n_B / n
    M2   = M2_A + M2_B + d² n_A n_B / n        variance = M2 / n

(Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances,
1979), and histograms, over bins that are the same for all data, by adding them.

Letters: B batch, H heads, T queries.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

# Figures of a row. Those of ROW come out of the call itself, those of MAP need the weights.
ROW = ("entropy", "normalized_entropy", "max_prob", "sink_mass", "max_score")
KEYS = ("first_key", "previous", "self_mass")  # weights of one key
MAP = ("distance", *KEYS, *(f"{name}_uniform" for name in KEYS))


def bin_edges(metric: str) -> Tensor:
    """The n + 1 edges of a metric's n bins, float64. They depend on no data.

    Bin i holds edges[i] <= x < edges[i + 1]; what lies outside counts in the first or last bin.

        max_score      0, and 2^(n/4) to either side of it from 2^-6 to 2^20
        entropy        eighths of a bit, in nats, up to log(2^24)
        distance       0, then quarters of an octave, 2^(n/4), from 1/16 to 2^24 keys
        the others     64 equal bins in [0, 1]

    Raises ValueError for any other name.
    """
    if metric not in (*ROW, *MAP):
        raise ValueError(f"no metric is called {metric!r}; there are {', '.join((*ROW, *MAP))}")
    if metric == "entropy":
        edges = [n * math.log(2) / 8 for n in range(24 * 8 + 1)]
    elif metric == "distance":
        edges = [0.0, *(2.0 ** (n / 4) for n in range(-16, 97))]
    elif metric == "max_score":
        above = [2.0 ** (n / 4) for n in range(-24, 81)]
        edges = [*(-x for x in reversed(above)), 0.0, *above]
    else:
        edges = [n / 64 for n in range(65)]
    return torch.tensor(edges, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Moments:
    """One figure of a row over the rows of each of H heads, on the CPU, int64 and float64.

    count             (H,) rows that have the figure
    mean, m2          (H,) their mean and the sum of squares about it; 0 where count is 0
    minimum, maximum  (H,) inf and -inf where count is 0
    histogram         (H, bins) over bin_edges(metric); adds up to count
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    minimum: Tensor
    maximum: Tensor
    histogram: Tensor

    @property
    def variance(self) -> Tensor:
        """Of the rows themselves, m2 / count (not count - 1); NaN where count is 0."""
        return self.m2 / self.count

    def merge(self, other: "Moments") -> "Moments":
        """Over the rows of both: the equations at the head of this file."""
        count = self.count + other.count
        share = other.count / count.clamp(min=1).double()  # exactly 0 or 1 if one has no row
        d = other.mean - self.mean
        return Moments(
            count, self.mean + d * share, self.m2 + other.m2 + d.square() * share * self.count,
            torch.minimum(self.minimum, other.minimum), torch.maximum(self.maximum, other.maximum),
            self.histogram + other.histogram,
        )  # fmt: skip


def measure(metric: str, x: Tensor, counted: Tensor) -> Moments:
    """The moments of x (B, H, T) where `counted`, in two passes; float64 from the start."""
    edges = bin_edges(metric).to(x.device)
    n_heads, n_bins = x.shape[1], len(edges) - 1
    counted = counted.transpose(0, 1).reshape(n_heads, x.shape[0] * x.shape[2])
    x = x.transpose(0, 1).reshape(counted.shape).double().masked_fill(~counted, 0.0)
    count = counted.sum(dim=1)
    mean = x.sum(dim=1) / count.clamp(min=1)
    m2 = (x - mean[:, None]).masked_fill_(~counted, 0.0).square_().sum(dim=1)
    head = torch.arange(n_heads, device=x.device)[:, None] * n_bins
    cell = torch.bucketize(x, edges[1:-1].contiguous(), right=True) + head
    histogram = torch.bincount(cell[counted], minlength=n_heads * n_bins)
    ends = (math.inf, -math.inf)  # in one column more: extremes want one and there may be no row
    low, high = (F.pad(x.masked_fill(~counted, end), (0, 1), value=end) for end in ends)
    found = (count, mean, m2, low.amin(dim=1), high.amax(dim=1), histogram.view(n_heads, n_bins))
    return Moments(*(figure.cpu() for figure in found))
