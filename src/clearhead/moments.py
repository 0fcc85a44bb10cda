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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# Figures of a row. Those of ROW come out of the call itself, those of MAP need the weights.
ROW = ("entropy", "normalized_entropy", "max_prob", "sink_mass", "max_score")
KEYS = ("first_key", "previous", "self_mass")  # weights of one key
MAP = ("distance", *KEYS, *(f"{name}_uniform" for name in KEYS))
BENT = ("entropy", "distance", "max_score")  # all others lie in [0, 1], in equal bins
TOGETHER = 1 << 18  # numbers that are measured at a time, if one metric has not more


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


def measure(values: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Moments]:
    """The moments of each metric: its x (B, H, T) where `counted` (B, H, T), float64 throughout.

    In two passes, over as many metrics at a time as lie well in the caches.
    """
    found: dict[str, Moments] = {}
    names = list(values)
    B, H, T = values[names[0]][0].shape
    n = max(1, TOGETHER // max(1, B * H * T))
    for at in range(0, len(names), n):
        found |= _measure({name: values[name] for name in names[at : at + n]}, H, B * T)
    return found


def _measure(
    values: Mapping[str, tuple[Tensor, Tensor]], n_heads: int, n_rows: int
) -> dict[str, Moments]:
    shape = (len(values), n_heads, n_rows)
    given, which = ([pair[n].transpose(0, 1) for pair in values.values()] for n in (0, 1))
    absent = ~torch.stack(which).reshape(shape)
    x = torch.empty(shape, dtype=torch.float64, device=absent.device)
    for mine, each in zip(x, given, strict=True):
        mine.view(each.shape).copy_(each)
    x.masked_fill_(absent, 0.0)
    count = n_rows - absent.sum(dim=-1)
    mean = x.sum(dim=-1) / count.clamp(min=1)
    m2 = (x - mean[..., None]).masked_fill_(absent, 0.0).square_().sum(dim=-1)
    bins = [_histogram(name, *pair) for name, *pair in zip(values, x, absent, strict=True)]
    low, high = (torch.full_like(mean, end) for end in (math.inf, -math.inf))
    if n_rows:  # extremes want one at least
        low = x.masked_fill_(absent, math.inf).amin(dim=-1)
        high = x.masked_fill_(absent, -math.inf).amax(dim=-1)
    figures = (figure.cpu() for figure in (count, mean, m2, low, high))
    return {
        name: Moments(*(figure.clone() for figure in (*each, histogram)))
        for name, *each, histogram in zip(values, *figures, bins, strict=True)
    }


@cache
def _inner_edges(metric: str) -> Tensor:
    with torch.inference_mode(False):
        edges = bin_edges(metric)
        return edges[1:-1].contiguous()


def _histogram(metric: str, x: Tensor, absent: Tensor) -> Tensor:
    """How many x (H, rows) lie in each bin, (H, bins), those left out that are absent."""
    inner = _inner_edges(metric).to(x.device)
    n_heads, n_bins = len(x), len(inner) + 1
    if metric in BENT:
        cell = torch.bucketize(x, inner, right=True)
    else:  # equal bins in [0, 1], as many as a power of two: the product is exact
        cell = (x * n_bins).long().clamp_(0, n_bins - 1)
    cell += torch.arange(n_heads, device=x.device)[:, None] * n_bins
    cell.masked_fill_(absent, n_heads * n_bins)  # one more bin, for what is absent
    found = torch.bincount(cell.flatten(), minlength=n_heads * n_bins + 1)
    return found[:-1].view(n_heads, n_bins).cpu()
