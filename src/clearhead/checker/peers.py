"""Two implementations side by side: where they first differ, by how much, and whether that is
rounding."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from torch import Tensor

from clearhead.checker import small
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.diagnosis import Example
from clearhead.checker.matching import misfit
from clearhead.checker.sides import Side, sides
from clearhead.checker.told import Told

ROUNDING = 64 * 2.0**-24  # relative: what float32 loses in sums like ours, many times over


@dataclass(frozen=True)
class Met:
    """One thing that both were asked. apart is their largest difference, of_a and of_b are their
    distances from float64; None where it was refused (`note` says by whom), and infinite where one
    is no number and the other is, or their shapes are not alike (which `note` says)."""

    name: str
    why: str
    apart: float | None
    of_a: float | None = None
    of_b: float | None = None
    note: str = ""

    @property
    def outcome(self) -> str:
        """ "same" to the bit, "rounding", "differ" or "refused"."""
        if self.apart is None:
            return "refused"
        if self.apart == 0:
            return "same"
        return "rounding" if self.apart <= ROUNDING else "differ"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two implementations on the same inputs, the plainest first."""

    a: str
    b: str
    met: tuple[Met, ...] = ()
    example: Example | None = None
    trouble: str = ""

    @property
    def first(self) -> Met | None:
        """Where they first differ by more than rounding."""
        return next((each for each in self.met if each.outcome == "differ"), None)

    def called(self, a: str, b: str) -> "Comparison":
        """The same under other names."""
        example = None if self.example is None else replace(self.example, sides=(a, b))
        return replace(self, a=a, b=b, example=example)

    @property
    def status(self) -> int:
        """0 alike, 1 they differ, 2 could not be compared."""
        answered = any(each.apart is not None for each in self.met)
        return 2 if self.trouble or not answered else int(self.first is not None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        example = self.example
        return {
            "a": self.a, "b": self.b, "trouble": self.trouble, "status": self.status,
            "met": [{**asdict(each), "outcome": each.outcome} for each in self.met],
            "first": None if self.first is None else self.first.name,
            "example": None if example is None else example.to_dict(),
        }  # fmt: skip


def compare(a: Subject, b: Subject, told: Told) -> Comparison:
    """Ask both the same, and hold each against the other and against float64."""
    names = a.about.name, b.about.name
    both = sides(a, b, told)
    if isinstance(both, str):
        return Comparison(*names, trouble=both)
    met = tuple(_meetings(*both))
    return Comparison(*names, met, _example(*both, met))


def _meetings(a: Side, b: Side) -> Iterator[Met]:
    """What both can be asked."""
    for probe in _lead(a, b).probes():
        try:
            answers = a.answer(probe), b.answer(probe)
        except Unanswerable as error:
            yield Met(probe.name, probe.why, None, note=str(error))
            continue
        want = a.exact(probe)
        off = [math.inf if want is None else misfit(each, *want) for each in answers]
        shapes = [list(each.shape) for each in answers]
        note = "" if shapes[0] == shapes[1] else f"their answers are {shapes[0]} and {shapes[1]}"
        yield Met(probe.name, probe.why, _apart(*answers), off[0], off[1], note)


def _lead(a: Side, b: Side) -> Side:
    """Whose sizes both are asked in."""
    return b if b.bound > a.bound else a


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to numbers near 1 and above; NaN is like NaN."""
    if one.shape != other.shape:
        return math.inf
    both = one.isnan() & other.isnan()
    difference = (one - other).abs().masked_fill(both, 0.0).nan_to_num(math.inf)
    size = max(1.0, float(other.nan_to_num(0.0, 0.0, 0.0).abs().max())) if other.numel() else 1.0
    return float(difference.max()) / size if difference.numel() else 0.0


def _example(a: Side, b: Side, met: tuple[Met, ...]) -> Example | None:
    """The smallest input of the first difference."""
    lead = _lead(a, b)
    name = next((each.name for each in met if each.outcome == "differ"), None)
    named = [probe for probe in lead.probes() if probe.name == name]
    for seen, probe in product((small.SEEN, small.FINE), named):
        for problem in lead.smaller(probe):
            asked = replace(probe, problem=problem)
            try:
                one, other = a.answer(asked), b.answer(asked)
            except Unanswerable:
                continue
            if _apart(one, other) > seen:
                return replace(lead.pictured(asked, one, other), sides=(a.name, b.name))
    return None
