"""Runs beside each other: which heads moved, how far against the spread within, who left first.

With x a metric of a row, such as its normalized entropy, and the mean and the variance taken over
the rows that a head has in a run:

    moved   mean_last - mean_first
    effect  moved / sqrt((variance_first + variance_last) / 2)
    share   1/2 sum_b |n_b,first / n_first - n_b,last / n_last|       b: bins of the histogram

The effect is Cohen's d of two groups of equal weight (Cohen, Statistical Power Analysis for the
Behavioral Sciences, 1988, chapter 2): how many spreads of its own rows a head's mean moved. Both
runs weigh the same, however many rows they counted: a text told twice changes nothing. A spread
below GRAIN, 0 above all, counts as GRAIN: rows that are all alike would make an infinity out of any
change. Nothing here is a test of significance: rows of one text are no independent samples.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from clearhead.moments import bin_edges
from clearhead.run import Run, load
from clearhead.run.calls import head_place, those
from clearhead.stats import HeadStats

GRAIN = 0.01  # of 1, or of the means where they are larger; tables show two decimals
COLUMNS = ("effect", "moved", "share", "first", "last", "left", "head")


@dataclass(frozen=True)
class HeadChange:
    """One head in every run, in their order. None: the run has no row of it with this metric.

    head       "3.5", as the first run calls it, which also gave module, layer and index
    counted    rows that had the metric; then their means and standard deviations, `spreads`
    effects    of each run against the first, as at the head of this file
    share      how much of the distribution moved from the first run to the last, in 0..1: the least
               share of rows that changed their bin (moments.bin_edges); within a bin is not seen
    low, high  the range of the first run: its mean and a spread (at least GRAIN) to either side
    left_at    the number, from 0, of the first run whose mean is outside of that range, and its
               name, `left`; None where there is none
    roles      what each run calls it, where it does
    """

    head: str
    module: str
    layer: int
    index: int
    counted: tuple[int, ...]
    means: tuple[float | None, ...]
    spreads: tuple[float | None, ...]
    effects: tuple[float | None, ...]
    share: float | None
    low: float | None
    high: float | None
    left_at: int | None
    left: str | None
    roles: tuple[str | None, ...]

    @property
    def moved(self) -> float | None:
        first, last = self.means[0], self.means[-1]
        return None if first is None or last is None else last - first

    @property
    def effect(self) -> float | None:
        return self.effects[-1]

    @property
    def side(self) -> str | None:
        """To which side of its range it left: "below" (collapsed) or "above" (exploded)."""
        mean = None if self.left_at is None else self.means[self.left_at]
        if mean is None or self.low is None:
            return None
        return "below" if mean < self.low else "above"

    def as_dict(self) -> dict[str, Any]:
        return {
            "head": self.head, "module": self.module, "layer": self.layer, "index": self.index,
            "first": self.means[0], "last": self.means[-1], "moved": self.moved,
            "effect": self.effect, "share": self.share, "left": self.left, "left_at": self.left_at,
            "side": self.side, "low": self.low, "high": self.high, "rows": list(self.counted),
            "mean": list(self.means), "spread": list(self.spreads), "effects": list(self.effects),
            "role": list(self.roles),
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Every head that all runs have, in every run.

    names     of the runs, in order
    metric    what is compared, a metric of HeadStats
    rows      a HeadChange a head, in the order of the first run
    missing   (head, module, runs that have no such head), where only some runs have it
    notes     what else differs: texts, numbers of rows, versions
    checked   how the calls of each run were verified (Run.checked_line)
    verified  the same of all runs together
    """

    names: tuple[str, ...]
    metric: str
    rows: tuple[HeadChange, ...]
    missing: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    verified: str = ""

    @property
    def first(self) -> list[HeadChange]:
        """The heads that left their range, in the order in which they did.

        Those that left in the same run are sorted by their effect there, the largest first.
        """
        return self.sorted("left")[: sum(row.left_at is not None for row in self.rows)]

    def sorted(self, by: str = "effect") -> list[HeadChange]:
        """The rows by a column: effect, moved, share, first, last, left or head.

        The largest comes first, of effect and moved to whichever side; of left and head the
        smallest. "-" before the name turns that round. None is last either way, and equals keep
        the order of the model. Raises ValueError for no such column.
        """
        name, turned = by.removeprefix("-"), by.startswith("-")
        if name not in COLUMNS:
            raise ValueError(f"no column {name!r} to sort by; {those(COLUMNS, name)}")
        known = [row for row in self.rows if row.as_dict()[name] is not None]
        known.sort(key=lambda row: _sort_key(row, name), reverse=turned)
        return known + [row for row in self.rows if row.as_dict()[name] is None]

    def to_rows(self) -> list[dict[str, Any]]:
        """A record a head of strict JSON: lists are in the order of the runs."""
        return [row.as_dict() for row in self.rows]


def _sort_key(row: HeadChange, name: str) -> Any:
    if name == "left":
        at = row.left_at or 0
        return at, -abs(row.effects[at] or 0.0)
    if name == "head":  # 3.10 comes after 3.9
        return head_place(row.head)
    value: float = row.as_dict()[name]
    return -abs(value) if name in ("effect", "moved") else -value


def compare(runs: Sequence[tuple[str, Run]], metric: str = "normalized_entropy") -> Comparison:
    """Which heads moved from the first of these runs, (name, Run), to the last, and how far.

    Between the two stand checkpoints, say, in their order. A head is the same in two runs if the
    module has the same name, up to what a wrapper puts before it ("module.blocks.0.attention"), and
    the head the same number.

    A head leaves its range where its mean is more than a spread of its own rows, those of the first
    run, from where it was. Single rows hardly move a mean: it is out there only if many changed.
    Quantiles of the rows, 5 % to 95 % say, would be a range too, but one that cannot be left where
    it matters: some rows of an induction head lie at the very end of the scale from the beginning,
    and it is towards them that the head collapses.

    Raises ValueError for fewer than two runs, two of one name, a metric that there is not, and
    where no head has the metric in the first run and the last.
    """
    bin_edges(metric)  # is there such a metric?
    names, found = tuple(name for name, _ in runs), [run for _, run in runs]
    if len(runs) < 2:
        raise ValueError(f"comparing takes two runs or more; got {len(runs)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two runs are called {twice[0]!r}: give each a name of its own")
    heads = {
        (n, layer): _heads(stats, metric)
        for n, run in enumerate(found)
        for layer, stats in run.stats.items()
    }
    rows, missing = [], []
    for place in _places(found):
        for h in range(max(len(heads[at]) for at in place.items())):
            has = {n: layer for n, layer in place.items() if h < len(heads[n, layer])}
            n, layer = next(iter(has.items()))
            module, index = found[n].sites[layer]
            if lacking := tuple(name for i, name in enumerate(names) if i not in has):
                missing.append((f"{layer}.{h}", module, lacking))
                continue
            roles = [run.roles.get(f"{has[i]}.{h}", {}).get("role") for i, run in enumerate(found)]
            mine = [heads[i, has[i]][h] for i in range(len(found))]
            rows.append(_change(names, f"{layer}.{h}", (module, layer, index), mine, roles))
    if not rows:
        begin = (next((run.sites[n][0] for n in sorted(run.stats)), None) for run in found)
        pairs = (f"{a!r} begins with {b!r}" for a, b in zip(names, begin, strict=True))
        raise ValueError(f"no head is in all runs, by the names of modules: {'; '.join(pairs)}")
    if all(row.moved is None for row in rows):
        raise ValueError(f"no head has rows with {metric} both in {names[0]!r} and {names[-1]!r}")
    every = Run("", [], checked=[(name, check) for name, run in runs for _, check in run.checks])
    return Comparison(
        names, metric, tuple(rows), tuple(missing), tuple(_notes(names, found, rows)),
        tuple(run.checked_line() for run in found), every.checked_line(),
    )  # fmt: skip


def load_all(paths: Sequence[str | Path]) -> list[tuple[str, Run]]:
    """Each saved run with a name for it: of its path as little as tells it from the others.

    Folders above step-1/run and step-2/run are left out, and so is the "run" that both end in.
    Raises OSError and ValueError as `load` does, naming the file.
    """
    return list(zip(short_names(paths), [load(path) for path in paths], strict=True))


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """A unique name for each path, as short as whole folders allow; " (2)" tells twins apart."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    while len(set(parts)) > 1 and len({p[-1] for p in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [p[:-1] for p in parts]
    names = []
    for i, mine in enumerate(parts):
        n = 1
        while n < len(mine) and any(p != mine and p[-n:] == mine[-n:] for p in parts):
            n += 1
        again = parts[:i].count(mine)
        names.append(str(Path(*mine[-n:])) + (f" ({again + 1})" if again else ""))
    return names


class _Head(NamedTuple):
    """What the rows of one head were in one run; mean None where there is none."""

    rows: int
    mean: float | None
    variance: float
    bins: Tensor

    @property
    def spread(self) -> float | None:
        return None if self.mean is None else math.sqrt(max(self.variance, 0.0))


def _heads(stats: HeadStats, metric: str) -> list[_Head]:
    found = stats.metrics.get(metric)
    if found is None:
        return [_Head(0, None, math.nan, torch.zeros(0))] * stats.n_heads
    share = found.histogram.double() / found.count.clamp(min=1)[:, None]
    figures = (x.tolist() for x in (found.count, found.mean, found.variance))
    return [
        _Head(n, mean if n and math.isfinite(mean) else None, variance, bins)
        for n, mean, variance, bins in zip(*figures, share, strict=True)
    ]


def _change(
    names: tuple[str, ...], head: str, place: tuple[str, int, int], found: list[_Head],
    roles: list[str | None],
) -> HeadChange:  # fmt: skip
    begin, end = found[0], found[-1]
    share = left_at = low = high = None
    if begin.mean is not None:
        reach = max(begin.spread or 0.0, _grain(begin.mean))
        low, high = begin.mean - reach, begin.mean + reach
        gone = (n for n, x in enumerate(found) if x.mean is not None and not low <= x.mean <= high)
        left_at = next(gone, None)
        if end.mean is not None:
            share = (begin.bins - end.bins).abs().sum().item() / 2
    return HeadChange(
        head, *place, tuple(one.rows for one in found), tuple(one.mean for one in found),
        tuple(one.spread for one in found), tuple(_effect(begin, one) for one in found), share,
        low, high, left_at, None if left_at is None else names[left_at], tuple(roles),
    )  # fmt: skip


def _effect(begin: _Head, end: _Head) -> float | None:
    if begin.mean is None or end.mean is None:
        return None
    spread = math.sqrt(max(begin.variance + end.variance, 0.0) / 2)
    return (end.mean - begin.mean) / max(spread, _grain(begin.mean, end.mean))


def _grain(*means: float) -> float:
    return GRAIN * max(1.0, *map(abs, means))


def _places(runs: Sequence[Run]) -> list[dict[int, int]]:
    """The places where calls are made: for each the number of a run -> its layer there."""
    places: list[dict[int, int]] = []
    sites: list[tuple[str, int]] = []
    for n, run in enumerate(runs):
        mine = {run.sites[layer]: layer for layer in sorted(run.stats)}
        near = [(i, s) for i, site in enumerate(sites) for s in mine if _wrapped(s, site)]
        found = {s: i for i, s in near if s == sites[i]}
        near = [(i, s) for i, s in near if s not in found and i not in found.values()]
        # "attention" alone is how the names of all layers end, which says nothing.
        found |= {s: i for i, s in near if sum(i == j or s == t for j, t in near) == 1}
        for site, layer in mine.items():
            if site in found:
                places[found[site]][n] = layer
            else:
                places.append({n: layer})
                sites.append(site)
    return places


def _wrapped(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """Whether two names are of one module, but for what stands before one of them."""
    (a, i), (b, j) = one, other
    return i == j and (a == b or a.endswith("." + b) or b.endswith("." + a))


def _notes(names: Sequence[str], runs: Sequence[Run], rows: Sequence[HeadChange]) -> list[str]:
    """What differs between the runs besides the heads, in words: "torch: 2.6 in A, B; 2.7 in C"."""
    unknown = "one that nobody noted"
    texts = [
        next(f"what {name} read" for name, one in zip(names, runs, strict=True) if _same(one, run))
        if run.tokens else _corpus(run) or unknown
        for run in runs
    ]  # fmt: skip
    most = (max(row.counted[n] for row in rows) for n in range(len(runs)))
    facts = {
        "text": texts, "most rows of a head": [f"{n:,}" for n in most],
        "kept": [run.keep for run in runs],
    }  # fmt: skip
    if not all(run.checks and all(check.ok for _, check in run.checks) for run in runs):
        facts["verified"] = [run.checked_line() for run in runs]
    for part in sorted({part for run in runs for part in run.versions}):
        facts[part] = [run.versions.get(part, "not said") for run in runs]
    notes = []
    for what, said in facts.items():
        if len(set(said)) > 1 or unknown in said:
            who: dict[str, list[str]] = {}
            for name, value in zip(names, said, strict=True):
                who.setdefault(value, []).append(name)
            parts = (f"{value} in {', '.join(some)}" for value, some in who.items())
            notes.append(f"{what}: {'; '.join(parts)}")
    return notes


def _corpus(run: Run) -> str:
    """A corpus, of which there is no more than its size to know it by."""
    return ", ".join(f"{n:,} {what}" for what, n in run.read.items())


def _same(one: Run, other: Run) -> bool:
    """Whether two runs saw the same tokens, by number and, as far as both know it, by text."""
    if set(one.tokens) != set(other.tokens):
        return False
    if any(one.pieces[n] != other.pieces[n] for n in set(one.pieces) & set(other.pieces)):
        return False
    return one is other or all(torch.equal(x, other.tokens[n]) for n, x in one.tokens.items())
