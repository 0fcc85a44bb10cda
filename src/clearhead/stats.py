"""Statistics of the heads of one attention module that add up, over any number of calls.

Batches, rows, ranks and steps combine alike, in any order: `empty` and `merge` are a commutative
monoid, up to rounding in float64. moments.py has the equations of one figure.

Letters: B batch, H heads, T queries, S keys. Query i stands at key position i + offset.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from clearhead.engine import Attended, attention
from clearhead.map import AttentionMap
from clearhead.moments import KEYS, MAP, ROW, Moments, bin_edges, measure

FEW = 4  # rows that saw a NaN or an infinity, located for each head

_COUNTS = ("rows", "pad_rows", "empty_rows", "nonfinite_rows")


@dataclass(frozen=True, eq=False)
class HeadStats:
    """What each of the H heads of one attention module did, pooled over batch and rows.

    Made by `of`, from what `attention` returned, and added up by `merge`:

        stats = HeadStats.of(attention(q, k, v, rule))
        stats.mean("entropy"), stats.quantile("max_prob", 0.9), stats.summary()

    metrics         for each metric its Moments over the counted rows
    nonfinite_at    (batch, head, row) of the first FEW non-finite rows of each head, in their call
    rows            (H,) int64, counted rows: real, with a key to see, and finite
    pad_rows        (H,) left out: the query mask says they are padding
    empty_rows      (H,) left out: real, but they see no key
    nonfinite_rows  (H,) left out: they see a NaN or an infinity, or a score overflowed

    Metrics of a row, in ROW: entropy (nats), normalized_entropy, max_prob, sink_mass, max_score.
    Those in MAP are absent, not zero, where `of` had neither distance nor map, or no row to count:

        distance    sum_j p_ij |i + offset - j| / (1 - sink_mass), in keys
        first_key   the weight of the lowest real key of the query's own document (not of column 0),
                    over the rows that see it and at least one other key
        previous    the weight of key i + offset - 1, over the rows that see it
        self_mass   the weight of key i + offset, over the rows that see it
        *_uniform   over the same rows, what uniform attention would put there: 1 / visible
    """

    metrics: Mapping[str, Moments]
    nonfinite_at: tuple[tuple[int, int, int], ...]
    rows: Tensor
    pad_rows: Tensor
    empty_rows: Tensor
    nonfinite_rows: Tensor

    @property
    def n_heads(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        counts = (f"{sum(getattr(self, n).tolist())} {n}" for n in _COUNTS)
        found = self.metrics["entropy"]
        means = found.mean[found.count > 0]
        span = f"; mean entropy {means.min():.3f} to {means.max():.3f} nats" if len(means) else ""
        also = "" if "distance" in self.metrics else "; no map"
        return f"HeadStats({self.n_heads} heads: {', '.join(counts)}{span}{also})"

    @classmethod
    def empty(cls, n_heads: int) -> "HeadStats":
        """Heads that have seen no row: the identity of merge."""
        none, x = torch.zeros(n_heads, dtype=torch.int64), torch.zeros(1, n_heads, 0)
        return cls(measure(dict.fromkeys(ROW, (x, x > 0))), (), none, none, none, none)

    @classmethod
    def of(cls, attended: Attended, amap: AttentionMap | None = None) -> "HeadStats":
        """The statistics of one call, those of MAP too if it was attention(..., distance=True).

        For a call that was not, its map gives them, for one more pass over it.
        O(T) memory; sums in float64 on the call's own device; the result is on the CPU, without
        gradient. Raises ValueError if amap has another shape or rule.
        """
        if not isinstance(attended, Attended):
            raise TypeError(
                f"of takes what attention(q, k, v, rule) returned; got {type(attended).__name__}"
            )
        if amap is not None:
            call = (*attended.lse.shape, attended.n_keys)
            if tuple(amap.shape) != call or not amap.rule.same_as(attended.rule):
                raise ValueError(
                    f"the map is {tuple(amap.shape)} under {amap.rule}, but the call was {call} "
                    f"under {attended.rule}: pass AttentionMap(q, k, rule) of the call itself"
                )
        device = attended.lse.device.type
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
            found = {name: getattr(attended, name) for name in ("visible", "lse", *ROW)}
            figures = {name: x[(None,) * (3 - x.ndim)] for name, x in found.items()}  # (B, H, T)
            finite = torch.stack([x.isfinite() for x in figures.values()]).all(dim=0)
            real, sees = torch.ones_like(finite), figures["visible"] > 0
            if attended.rule.query_mask is not None:
                real &= attended.rule.query_mask.to(real.device)[:, None]
            counted, bad = real & sees & finite, real & sees & ~finite
            values = {name: (figures[name], counted) for name in ROW}
            if attended.distance is None and amap is not None:
                attended = attention(amap._q, amap._k, None, amap.rule, distance=True)
            if attended.distance is not None and counted.any():
                values |= _map_figures(attended, figures, counted)
            first = (bad & (bad.cumsum(dim=2) <= FEW)).nonzero().tolist()
            rows = (which.sum(dim=(0, 2)).cpu() for which in (counted, ~real, real & ~sees, bad))
            return cls(measure(values), _first_few((b, h, i) for b, h, i in first), *rows)

    def merge(self, other: "HeadStats") -> "HeadStats":
        """Over the rows of both. Associative and commutative up to rounding; `empty` is neutral.

        Raises ValueError for different numbers of heads, and if both sides have counted rows but
        only one had its map: a mean over some of the rows would pass for one over all.
        """
        if self.n_heads != other.n_heads:
            raise ValueError(
                f"statistics of {self.n_heads} heads cannot be merged with those of {other.n_heads}"
                ": merge what belongs to one attention module"
            )
        mine, theirs = self.metrics, other.metrics
        metrics = mine if self.rows.any() else theirs
        if self.rows.any() and other.rows.any():
            if names := [name for name in (*ROW, *MAP) if (name in mine) != (name in theirs)]:
                which = "first" if names[0] in mine else "second"
                raise ValueError(
                    f"only the {which} of the two statistics has {', '.join(names)}: give both "
                    "their map, as in HeadStats.of(attended, amap), or neither"
                )
            metrics = {name: mine[name].merge(theirs[name]) for name in mine}
        rows = (getattr(self, name) + getattr(other, name) for name in _COUNTS)
        return HeadStats(metrics, _first_few((*self.nonfinite_at, *other.nonfinite_at)), *rows)

    __add__ = merge

    def mean(self, metric: str) -> Tensor | None:
        """(H,) float64, NaN for a head without a row that has the metric. None: it is absent."""
        bin_edges(metric)  # is there such a metric?
        found = self.metrics.get(metric)
        return None if found is None else found.mean.masked_fill(found.count == 0, math.nan)

    def quantile(self, metric: str, p: float) -> Tensor | None:
        """What a share p of the rows, in [0, 1], lies below: (H,) float64; NaN and None as in mean.

        Right to within the bin (bin_edges) that holds it, where rows are taken to lie evenly; p = 0
        and p = 1 are exact. Raises ValueError for other p.
        """
        edges, found = bin_edges(metric), self.metrics.get(metric)
        if not 0 <= p <= 1:
            raise ValueError(f"p is a share of the rows, in [0, 1]; got {p!r}")
        if found is None:
            return None
        up_to, wanted = found.histogram.cumsum(dim=1), p * found.count.double()[:, None]
        # The first bin that reaches the wanted row, or has any row at all.
        at = (up_to < wanted.clamp(min=1)).sum(dim=1, keepdim=True).clamp(max=up_to.shape[1] - 1)
        inside = found.histogram.gather(1, at)
        part = (wanted - up_to.gather(1, at) + inside) / inside
        edges[0], edges[-1] = -math.inf, math.inf  # the end bins hold what lies beyond them too
        low = torch.maximum(edges[at], found.minimum[:, None])
        high = torch.minimum(edges[at + 1], found.maximum[:, None])
        return torch.lerp(low, high, part)[:, 0].masked_fill(found.count == 0, math.nan)

    def summary(self) -> list[dict[str, int | float | None]]:
        """A record for each head: counts of rows, and each metric's mean (the largest max_score).

        None for what is absent, has no row or is not finite: strict JSON takes it.
        """
        cols = {name: getattr(self, name) for name in _COUNTS}
        cols |= {name: self.mean(name) for name in (*ROW, *MAP)}
        cols["max_score"] = self.metrics["max_score"].maximum
        return [
            {k: None if x is None or not x[h].isfinite() else x[h].item() for k, x in cols.items()}
            for h in range(self.n_heads)
        ]

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors, "entropy.mean" and the like: what safetensors stores."""
        found = {name: getattr(self, name) for name in _COUNTS}
        found["nonfinite_at"] = torch.tensor(self.nonfinite_at, dtype=torch.int64).reshape(-1, 3)
        for name, moments in self.metrics.items():
            found |= {f"{name}.{f.name}": getattr(moments, f.name) for f in fields(Moments)}
        return found

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "HeadStats":
        """The inverse of to_tensors. Raises ValueError for a missing tensor and for other bins."""
        stored = dict.fromkeys((*ROW, *(name.split(".")[0] for name in tensors if "." in name)))
        parts = [f.name for f in fields(Moments)]
        needed = [*_COUNTS, "nonfinite_at", *(f"{m}.{part}" for m in stored for part in parts)]
        if missing := [name for name in needed if name not in tensors]:
            raise ValueError(f"these are no head statistics: {', '.join(missing)} missing")
        metrics = {m: Moments(*(tensors[f"{m}.{part}"] for part in parts)) for m in stored}
        for m, moments in metrics.items():
            bins, n_bins = moments.histogram.shape[-1], len(bin_edges(m)) - 1
            if bins != n_bins:
                raise ValueError(f"{m} was stored in {bins} bins; this version has {n_bins}")
        at = tuple((b, h, i) for b, h, i in tensors["nonfinite_at"].tolist())
        return cls(metrics, at, *(tensors[name] for name in _COUNTS))


def _first_few(found: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """(batch, head, row) sorted by head, FEW of each head: the same for any order of merging."""
    order = sorted(found, key=lambda at: (at[1], at[0], at[2]))
    return tuple(at for n, at in enumerate(order) if n < FEW or order[n - FEW][1] != at[1])


# What needs the weights ---------------------------------------------------------------------------


def _map_figures(
    attended: Attended, figures: Mapping[str, Tensor], counted: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Each metric of MAP with the rows that have it, (B, H, T) both."""
    distance, weights = attended.distance, attended.key_weights
    assert distance is not None
    assert weights is not None
    found = {"distance": (distance.view_as(counted), counted)}
    uniform = 1 / figures["visible"].double()
    for name, weight in zip(KEYS, weights.view(*counted.shape, len(KEYS)).unbind(-1), strict=True):
        seen = counted & ~weight.isnan()
        if name == "first_key":
            seen &= figures["visible"] > 1  # where it is the only one, the row has no choice
        found[name] = (weight, seen)
        found[f"{name}_uniform"] = (uniform, seen)
    return found
