"""What the kinds of functions beside attention have in common: a `Craft` knows how one kind is
called, what it is asked, and what it may do of its own accord; a `Way` is one way of calling."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from clearhead.checker.about import About, Parameter
from clearhead.checker.arguments import LEFT_OUT
from clearhead.checker.calls import Reply, Request, Subject
from clearhead.checker.diagnosis import Convention, Found
from clearhead.checker.line import Line, Mistake
from clearhead.checker.matching import Asked, Explanation, Made
from clearhead.checker.probes import Probe
from clearhead.checker.problem import Problem
from clearhead.checker.signature import role_of
from clearhead.checker.told import Reading, Told


class Way(Protocol):
    """One way of calling: a probe as a request, and a reply as a tensor of our own axes.

    `read` raises Unanswerable; `plain` is the argument whose gradient is asked for, as its name
    among gradients, and None where none is; `takes` is "arrays", "tensors" or "numbers".
    """

    @property
    def plain(self) -> str | None: ...
    @property
    def takes(self) -> str: ...
    def laid(self, ours: Tensor) -> Tensor: ...
    def request(self, probe: Probe, **rest: Any) -> Request: ...
    def read(self, reply: Reply, probe: Probe, call: int = 0) -> Tensor: ...
    def theirs(self, ours: Tensor, reply: Reply) -> Tensor: ...
    def inputs(self, probe: Probe) -> tuple[tuple[str, Tensor], ...]: ...


class OfTensors:
    """A way whose first argument is a tensor, or an array of numpy."""

    numpy: bool

    @property
    def plain(self) -> str | None:
        return None if self.numpy else "0"

    @property
    def takes(self) -> str:
        return "arrays" if self.numpy else "tensors"


@dataclass(eq=False)
class Hearing:
    """All that was asked in one way, and what was seen beside the answers."""

    way: Any  # a Way, of the craft's own
    asked: list[Asked] = field(default_factory=list)
    refused: list[tuple[Probe, str]] = field(default_factory=list)
    replies: list[tuple[Probe, Reply]] = field(default_factory=list)
    random: bool = False
    moved: bool = False
    changed: tuple[str, ...] = ()
    printed: str = ""
    raw: list[Tensor] = field(default_factory=list)  # masks as they came
    form: str = "attend"  # how they are read


class Craft(Protocol):
    """A kind of function. `guesses` are mistakes with a number in them, taken from the answers,
    `deep` beside another mistake; `seen` is what no line computes; `smaller` are inputs for an
    example, the smallest first; `judged` is the part of a gradient in which right functions agree.
    Of two ways the one that is more `bound` says what both are asked, and a probe of that one is
    `posed` to the other (Unanswerable).
    """

    kind: str
    line: Line
    mistakes: tuple[Mistake, ...]

    def ways(self, subject: Subject, told: Told) -> Iterator[Any]: ...
    def probes(self, way: Any, told: Told) -> Iterator[Probe]: ...
    def heard(self, hearing: Hearing) -> None: ...
    def readings(self, subject: Subject, hearing: Hearing, told: Told) -> list[Reading]: ...
    def ours(self, hearing: Hearing, answer: Tensor) -> Tensor: ...
    def guesses(
        self, subject: Subject, hearing: Hearing, told: Told, deep: bool = False
    ) -> list[Made]: ...
    def seen(
        self, subject: Subject, hearing: Hearing, told: Told, found: Explanation | None
    ) -> list[Found]: ...
    def words(self, problem: Problem) -> str: ...
    def smaller(self, way: Any, probe: Probe) -> Iterator[Problem]: ...
    def leaf(self, way: Any, probe: Probe) -> tuple[Problem, Tensor]: ...
    def judged(self, gradient: Tensor) -> Tensor: ...
    def push(self, out: Tensor) -> Tensor:
        return normal_like(out)

    def bound(self, way: Any) -> int: ...
    def posed(self, way: Any, probe: Probe) -> Problem:
        return probe.problem

    def conventions(
        self, subject: Subject, hearing: Hearing, told: Told, explanation: Explanation
    ) -> Iterator[Convention]: ...


Value = Callable[[str | None, Parameter], Any]


def called(about: About, value: Value, values: dict[str, Any], **rest: Any) -> Request:
    """A request whose arguments are `value(role, parameter)`, where `values` says nothing."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    stopped = False
    for parameter in about.parameters:
        if parameter.kind == "var":
            stopped = stopped or not parameter.name.startswith("**")
            continue
        one = values.get(parameter.name, LEFT_OUT)
        if one is LEFT_OUT:
            one = value(role_of(parameter.name), parameter)
        if one is LEFT_OUT:
            stopped = stopped or parameter.kind == "positional"
        elif parameter.kind == "keyword" or stopped:
            keywords[parameter.name] = one
        else:
            positional.append(one)
    return Request(tuple(positional), keywords, **rest)


def required(about: About) -> list[Parameter]:
    return [p for p in about.parameters if p.required and p.kind != "var"]


def words_of(about: About) -> str:
    """Its own words: name, docstring and comments."""
    comments = re.findall(r"#(.*)", about.source)
    names = [p.name for p in about.parameters]
    return " ".join([about.name, *names, about.doc, *comments])


def shapes_in(about: About) -> list[list[str]]:
    """Shapes that its words speak of, "(B, H, T, T)", but for those of tables of cosines."""
    text = re.sub(r"\b(cos|sin)\b[^(\n]*\([^)\n]*\)", "", words_of(about))
    found = re.findall(r"[(\[]([\w* .]+(?:, *[\w* .]+){1,3})[)\]]", text)
    found += re.findall(
        r"^\s*(\w+(?:, *\w+){1,3}) ?= ?\w+\.(?:shape|size\(\))\s*$", about.source, re.M
    )
    return [[part.strip() for part in shape.split(",")] for shape in found]


def normal_like(tensor: Tensor) -> Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9)).to(tensor)
