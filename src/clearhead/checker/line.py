"""A computation as a line of small named steps, and a mistake as other steps in some places of it.

Two mistakes that change different steps go together, so that what two of them compute is known
without anybody having written it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

Work = SimpleNamespace  # what the steps of a line hand on: .p is the problem, the rest is theirs
Step = Callable[[Any], None]
Changes = Mapping[str, Step]


def nothing(work: Work) -> None:
    """The step that is left out."""


@dataclass(frozen=True)
class Line:
    """Steps in their order, each of them right."""

    kind: str
    steps: Mapping[str, Step]

    def run(self, problem: object, changes: Changes) -> Work:
        """Everything that the line computes for a problem; `changes` in place of its own steps."""
        unknown = set(changes) - set(self.steps)
        if unknown:
            raise KeyError(f"{self.kind} has no step {', '.join(sorted(unknown))}")
        work = Work(p=problem)
        for name, step in self.steps.items():
            changes.get(name, step)(work)
        return work


@dataclass(frozen=True)
class Mistake:
    """A way to be wrong: its name, what it does to a model, how to mend it, and its computation.

    variants    (what sets this one apart, or "", and its steps): one mistake that can be made in
                several places or sizes
    also        other names of the very same function
    look        a pattern of the lines of source where it is usually made; of several, a line each,
                the likeliest first
    caution     not wrong for everybody: it is named, and the verdict stays
    unless      what makes it right, and how to say so; "" where nothing does
    """

    name: str
    family: str
    title: str
    does: str
    mend: str
    variants: tuple[tuple[str, Changes], ...] = ()
    also: tuple[str, ...] = ()
    look: str = ""
    caution: bool = False
    unless: str = ""


def one(**steps: Step) -> tuple[tuple[str, Changes], ...]:
    """The variants of a mistake that has only one."""
    return (("", steps),)
