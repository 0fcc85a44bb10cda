"""Two implementations side by side: where they first differ, by how much, and whether that is
rounding."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from clearhead.checker import small
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.diagnosing import ATTENTIVE
from clearhead.checker.diagnosis import Diagnosis, Example
from clearhead.checker.line import Work
from clearhead.checker.manners import MASKING, Manner
from clearhead.checker.matching import Explanation, misfit
from clearhead.checker.placing import placed
from clearhead.checker.probes import probes
from clearhead.checker.problem import Problem
from clearhead.checker.signature import kind_of
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.steps import merge, output, project, split
from clearhead.checker.told import Told
from clearhead.checker.trying import Attempt

ROUNDING = 64 * 2.0**-24  # relative: what float32 loses in sums like ours, many times over


@dataclass(frozen=True)
class Met:
    """One thing that both were asked. apart is their largest difference, of_a and of_b are their
    distances from float64; None where it was refused (`note` says by whom)."""

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
    kinds = tuple(told.kind or kind_of(each.about) or "" for each in (a, b))
    for name, kind in zip(names, kinds, strict=True):
        if kind not in ATTENTIVE:
            return Comparison(*names, trouble=f"{name} is no attention (f(q, k, v), f(x, W_Q, W_K, "
                              f"W_V) or a module) but {kind or 'something else'}")  # fmt: skip
    sides = []
    for subject, kind in zip((a, b), kinds, strict=True):
        ways = placed(subject, kind, told)
        if isinstance(ways, Diagnosis):
            return Comparison(*names, trouble=f"{subject.about.name}: {ways.trouble}")
        sides.append(_Side(subject, *ways[0]))
    one, other = sides
    met = tuple(_meetings(one, other, told))
    return Comparison(*names, met, _example(one, other, met, told))


@dataclass(frozen=True, eq=False)
class _Side:
    """One of the two: how it is called, and what it was found to compute."""

    subject: Subject
    attempt: Attempt
    explanation: Explanation

    @property
    def manner(self) -> Manner:
        return self.attempt.manner

    @property
    def projects(self) -> bool:
        return self.manner.kind != "sdp"

    def answer(self, problem: Problem, hands: frozenset[str]) -> Tensor:
        """Its output for the problem; of heads alone, merged and projected as ours."""
        asked = problem
        if problem.x is not None and not self.projects:
            asked = _split(problem)
        for hand in hands - {"padding"}:
            takes = self.manner.takes
            if not takes & (MASKING if hand == "mask" else {hand}):
                raise Unanswerable(f"{self.manner.about.name} takes no {hand}")
        reply = self.subject.call(self.manner.request(asked, hands))
        if reply.failure is not None:
            raise Unanswerable(f"{self.manner.about.name}: {reply.failure.message}")
        out = self.manner.read(reply, asked).out
        if problem.x is not None and not self.projects:
            work = Work(p=problem, heads=out)
            merge(work)
            output(work)
            out = work.out
        return out


def _split(problem: Problem) -> Problem:
    """The queries, keys and values that x and its projections make."""
    work = Work(p=problem)
    project(work)
    split(work)
    return problem.but(q=work.q, k=work.k, v=work.v, x=None, W=None)


def _meetings(a: _Side, b: _Side, told: Told) -> Iterator[Met]:
    """What both can be asked, as the one that projects can (its sizes may be fixed)."""
    lead = a if a.projects or not b.projects else b
    if a.projects and b.projects and b.manner.places is not None:
        lead = b
    for probe in probes(lead.manner, told):
        problem = probe.problem
        try:
            one = a.answer(problem, probe.hands)
            other = b.answer(problem, probe.hands)
        except Unanswerable as error:
            yield Met(probe.name, probe.why, None, note=str(error))
            continue
        want = Explanation(a.explanation.reading).work(LINE, probe)
        apart = _apart(one, other)
        off = [math.inf if want is None else misfit(each, want) for each in (one, other)]
        yield Met(probe.name, probe.why, apart, off[0], off[1])


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, relative to numbers near 1 and above; NaN is like NaN."""
    if one.shape != other.shape:
        return math.inf
    both = one.isnan() & other.isnan()
    difference = (one - other).abs().masked_fill(both, 0.0).nan_to_num(math.inf)
    size = max(1.0, float(other.nan_to_num(0.0, 0.0, 0.0).abs().max())) if other.numel() else 1.0
    return float(difference.max()) / size if difference.numel() else 0.0


def _example(a: _Side, b: _Side, met: tuple[Met, ...], told: Told) -> Example | None:
    """The smallest input of the first difference."""
    name = next((each.name for each in met if each.outcome == "differ"), None)
    lead = a if a.projects or not b.projects else b
    for probe in probes(lead.manner, told):
        if probe.name == name:
            for problem in small.problems(lead.manner, probe):
                try:
                    one = a.answer(problem, probe.hands)
                    other = b.answer(problem, probe.hands)
                except Unanswerable:
                    continue
                if _apart(one, other) > small.SEEN:
                    found = small.pictured(replace(probe, problem=problem), one, other)
                    return replace(found, sides=(a.manner.about.name, b.manner.about.name))
    return None
