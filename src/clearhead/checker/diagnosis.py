"""What came of a check: the record that every report is a reading of."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Found:
    """A mistake that was found.

    note   which of its kinds, "" where it has one
    sure   "certain": every probe agrees, and no other mistake that we know does; "likely": another
           one would give the same answers (they are in `or_else`); "seen": it was watched
    why    what makes us say so, in a sentence
    look   lines of source where it may be: (number in the file, text)
    unless what makes it right, and how to say so; "" where nothing does
    """

    name: str
    family: str
    title: str
    does: str
    mend: str
    note: str = ""
    sure: str = "certain"
    why: str = ""
    also: tuple[str, ...] = ()
    or_else: tuple[str, ...] = ()
    look: tuple[tuple[int, str], ...] = ()
    caution: bool = False
    unless: str = ""


@dataclass(frozen=True)
class Convention:
    """How this attention does what others do otherwise. state: "right", "different" (as good),
    "mistake", "guessed" where other ways would do as well, or "unknown" where nothing that was
    asked shows it."""

    name: str
    value: str
    state: str = "right"


@dataclass(frozen=True)
class Tried:
    """A probe: came out "right" or "wrong", or was "refused" (the words are in note)."""

    name: str
    why: str
    outcome: str
    off: float | None = None
    note: str = ""


@dataclass(frozen=True, eq=False)
class Example:
    """The smallest input on which it is wrong.

    inputs   names and tensors that go in; got and want come out, of one element and head
    weights  the weights that should be, and those that the mistake makes or that were returned
    call     how it was called, in words
    """

    words: str
    inputs: tuple[tuple[str, Tensor], ...]
    got: Tensor
    want: Tensor
    want_weights: Tensor | None = None
    got_weights: Tensor | None = None
    call: str = ""
    sides: tuple[str, str] = ("got", "want")

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it; what is not finite as a word."""
        return {
            "words": self.words, "call": self.call,
            "inputs": {name: plain(each) for name, each in self.inputs},
            "sides": list(self.sides), "got": plain(self.got), "want": plain(self.want),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What somebody's attention computes, and what is wrong with it.

    verdict  "right", "wrong", or "untried" where it could not be tried (`trouble` says why)
    """

    target: str
    kind: str
    verdict: str
    mistakes: tuple[Found, ...] = ()
    cautions: tuple[Found, ...] = ()
    conventions: tuple[Convention, ...] = ()
    tried: tuple[Tried, ...] = ()
    example: Example | None = None
    unexplained: str = ""
    nearest: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    trouble: str = ""
    trouble_at: tuple[int, str] | None = None
    seconds: float = 0.0
    pictures: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it is right, cautions apart."""
        return self.verdict == "right"

    @property
    def status(self) -> int:
        """Of the process: 0 right, 1 wrong, 2 could not be tried."""
        return {"right": 0, "wrong": 1}.get(self.verdict, 2)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the mistakes, then of the cautions."""
        return tuple(each.name for each in (*self.mistakes, *self.cautions))

    def __str__(self) -> str:
        """The report, as `clearhead check` prints it."""
        from clearhead.views.diagnosis import lines

        return "\n".join(lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pictures, as JSON holds it."""
        made = {
            name: getattr(self, name)
            for name in ("target", "kind", "verdict", "unexplained", "nearest", "remarks",
                         "trouble", "trouble_at", "seconds")
        }  # fmt: skip
        for name in ("mistakes", "cautions", "conventions", "tried"):
            made[name] = [_finite(asdict(each)) for each in getattr(self, name)]
        made["example"] = None if self.example is None else self.example.to_dict()
        return made


def plain(tensor: Tensor) -> Any:
    """Nested lists; NaN and the infinities as the words "nan", "inf" and "-inf"."""

    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(one) for one in value]
        return value if not isinstance(value, float) or math.isfinite(value) else str(value)

    return each(tensor.tolist())


def _finite(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }
