"""One of two implementations that are held against each other: how it is asked what both can be
asked, and its answers in axes that both have."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import monotonic
from typing import Protocol

import torch
from torch import Tensor

from clearhead.checker import small
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.crafts import Craft, Hearing
from clearhead.checker.diagnosing import ATTENTIVE
from clearhead.checker.diagnosis import Diagnosis, Example
from clearhead.checker.functions import CRAFTS, explained, hearings
from clearhead.checker.line import Line, Work
from clearhead.checker.lines import Rotation
from clearhead.checker.manners import MASKING, Manner
from clearhead.checker.matching import Explanation
from clearhead.checker.placing import placed
from clearhead.checker.probes import Probe, probes
from clearhead.checker.problem import Problem, of_head, of_text
from clearhead.checker.saying import untried
from clearhead.checker.signature import kind_of
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.steps import merge, output, project, split
from clearhead.checker.told import Told


class Side(Protocol):
    """One of the two. The one that is less free (`bound`) says what both are asked."""

    @property
    def name(self) -> str: ...
    @property
    def bound(self) -> int: ...
    def probes(self) -> Iterator[Probe]: ...
    def smaller(self, probe: Probe) -> Iterator[Problem]: ...
    def answer(self, probe: Probe) -> Tensor:
        """Unanswerable: it cannot be asked this."""
        ...

    def exact(self, probe: Probe) -> tuple[Work, Tensor] | None:
        """What it should compute, in float64, and in the axes of `answer`."""
        ...

    def pictured(self, probe: Probe, one: Tensor, other: Tensor) -> Example: ...


def sides(a: Subject, b: Subject, told: Told) -> tuple[Side, Side] | str:
    """Both, or why they cannot be compared."""
    kinds = [told.kind or kind_of(each.about) or "" for each in (a, b)]
    for subject, kind in zip((a, b), kinds, strict=True):
        if not kind:
            return f"nothing says what {subject.about.name} is: say it with --kind"
    beside = all(kind in ATTENTIVE for kind in kinds)
    if not beside and kinds[0] != kinds[1]:
        return f"{a.about.name} is of the kind {kinds[0]}, and {b.about.name} is {kinds[1]}"
    found: list[Side] = []
    for subject, kind in zip((a, b), kinds, strict=True):
        side = _attention(subject, kind, told) if beside else _craft(subject, kind, told)
        if isinstance(side, Diagnosis):
            return f"{subject.about.name}: {side.trouble}"
        found.append(side)
    if beside and "teach" in kinds:
        found = [replace(side, unbiased=True) for side in found]  # type: ignore[type-var]
    if any(isinstance(side, CraftSide) and side.twins for side in found):
        found = [replace(side, twins=True) for side in found]  # type: ignore[type-var]
    return found[0], found[1]


def _attention(subject: Subject, kind: str, told: Told) -> Side | Diagnosis:
    ways = placed(subject, kind, told)
    if isinstance(ways, Diagnosis):
        return ways
    attempt, explanation = ways[0]
    return AttentionSide(subject, told, attempt.manner, explanation)


def _craft(subject: Subject, kind: str, told: Told) -> Side | Diagnosis:
    craft = CRAFTS[kind]
    heard, failures = hearings(subject, craft, told)
    if not heard:
        return untried(subject.about.name, kind, failures)
    hearing, _, explanation = explained(subject, craft, told, heard, monotonic())
    twins = getattr(hearing.way, "twins", False)
    return CraftSide(subject, told, craft, hearing, explanation, twins)


# Attention ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttentionSide:
    """Attention of q, k, v, of x and weights, or a module."""

    subject: Subject
    told: Told
    manner: Manner
    explanation: Explanation
    unbiased: bool = False  # whether one of the two has no place for biases

    @property
    def name(self) -> str:
        return self.manner.about.name

    @property
    def bound(self) -> int:
        """A module's sizes may be fixed, and heads alone can be had of any x; what takes less can
        be asked less."""
        return 100 * ATTENTIVE.index(self.manner.kind) - len(self.manner.takes)

    def probes(self) -> Iterator[Probe]:
        for probe in probes(self.manner, self.told):
            yield replace(probe, problem=self._posed(probe.problem))

    def smaller(self, probe: Probe) -> Iterator[Problem]:
        return map(self._posed, small.problems(self.manner, probe))

    def _posed(self, problem: Problem) -> Problem:
        W = problem.W
        if W is None or W.biases is None or not self.unbiased:
            return problem
        return problem.but(W=replace(W, biases=tuple(0 * b for b in W.biases)))

    def answer(self, probe: Probe) -> Tensor:
        """Its output; of heads alone, merged and projected as ours."""
        problem = asked = probe.problem
        alone = problem.x is not None and self.manner.kind == "sdp"
        if alone:
            asked = _split(problem)
        for hand in probe.hands - {"padding"}:
            if not self.manner.takes & (MASKING if hand == "mask" else {hand}):
                raise Unanswerable(f"{self.name} takes no {hand}")
        out = self._asked(asked, probe.hands)
        if alone:
            work = Work(p=problem, heads=out)
            merge(work)
            output(work)
            out = work.out
        return out

    def _asked(self, problem: Problem, hands: frozenset[str]) -> Tensor:
        """Its answer; where it has no axis for texts or heads, of each by itself."""
        B, H = problem.sizes[0], problem.H
        if B > 1 and "B" not in self.manner.layout:
            return torch.cat([self._asked(of_text(problem, b), hands) for b in range(B)])
        if H > 1 and self.manner.kind == "sdp" and "H" not in self.manner.layout:
            each = [self._asked(of_head(problem, h), hands) for h in range(H)]
            return torch.cat(each, dim=1)
        reply = self.subject.call(self.manner.request(problem, hands))
        if reply.failure is not None:
            raise Unanswerable(f"{self.name}: {reply.failure.message}")
        return self.manner.read(reply, problem).out

    def exact(self, probe: Probe) -> tuple[Work, Tensor] | None:
        return _exact(self.explanation, LINE, probe)

    def pictured(self, probe: Probe, one: Tensor, other: Tensor) -> Example:
        return small.pictured(probe, one, other)


def _split(problem: Problem) -> Problem:
    """The queries, keys and values that x and its projections make."""
    work = Work(p=problem)
    project(work)
    split(work)
    return problem.but(q=work.q, k=work.k, v=work.v, x=None, W=None)


def _exact(explanation: Explanation, line: Line, probe: Probe) -> tuple[Work, Tensor] | None:
    work = Explanation(explanation.reading).work(line, probe)
    return None if work is None else (work, work.out)


# Beside attention ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CraftSide:
    """An entropy, a rotary function or a mask builder."""

    subject: Subject
    told: Told
    craft: Craft
    hearing: Hearing
    explanation: Explanation
    twins: bool = False  # whether one of the two turns q and k

    @property
    def name(self) -> str:
        return self.subject.about.name

    @property
    def bound(self) -> int:
        return self.craft.bound(self.hearing.way)

    def probes(self) -> Iterator[Probe]:
        return self.craft.probes(self.hearing.way, self.told)

    def smaller(self, probe: Probe) -> Iterator[Problem]:
        return self.craft.smaller(self.hearing.way, probe)

    def answer(self, probe: Probe) -> Tensor:
        problem = probe.problem
        if not isinstance(problem, Rotation) or not self.twins or self.hearing.way.twins:
            return _plain(self._answered(probe))
        # The other turns q and k: of one tensor, first the one and then the other.
        each = [replace(probe, problem=replace(problem, q=x)) for x in (problem.q, problem.k)]
        return torch.cat([self._answered(one) for one in each])

    def _answered(self, probe: Probe) -> Tensor:
        way = self.hearing.way
        asked = replace(probe, problem=self.craft.posed(way, probe))
        reply = self.subject.call(way.request(asked))
        if reply.failure is not None:
            raise Unanswerable(f"{self.name}: {reply.failure.message}")
        return self.craft.ours(self.hearing, way.read(reply, asked))

    def exact(self, probe: Probe) -> tuple[Work, Tensor] | None:
        if isinstance(probe.problem, Rotation):
            probe = replace(probe, problem=replace(probe.problem, twins=self.twins))
        found = _exact(self.explanation, self.craft.line, probe)
        return None if found is None else (found[0], _plain(found[1]))

    def pictured(self, probe: Probe, one: Tensor, other: Tensor) -> Example:
        words = f"{self.craft.words(probe.problem)} ({probe.name})"
        return Example(words, self.hearing.way.inputs(probe), one, other)


def _plain(out: Tensor) -> Tensor:
    """Without axes of size 1 in front, which one of the two may have and the other not."""
    while out.ndim > 1 and out.shape[0] == 1:
        out = out[0]
    return out
