"""Which mistakes explain an answer: none, one, or two at once.

Every explanation is computed and held against every answer. The simplest that fits all of them
wins; of equally simple ones the first in the order of the library.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from clearhead.checker.axes import Answer
from clearhead.checker.line import Changes, Line, Mistake, Work
from clearhead.checker.probes import Probe
from clearhead.checker.told import Reading

FAR = 1e-3  # what differs by less cannot be told apart
HOPELESS = 0.6  # of an answer, even by the number next to the one that fits
FITTED = 8  # mistakes beside which a number is refined
SMALL = 40  # a longer answer is not computed for every mistake, to see which of them change it
ROUGH = 0.03  # what half precision loses at most on our probes


@dataclass(frozen=True, eq=False)
class Made:
    """One way to make a mistake: which, what sets it apart from the mistake's others, its steps."""

    mistake: Mistake
    note: str
    changes: Changes


@dataclass(frozen=True, eq=False)
class Explanation:
    """What an attention computes: what it does of its own accord, and the mistakes in it."""

    reading: Reading
    made: tuple[Made, ...] = ()

    @property
    def changes(self) -> Changes:
        return {step: do for made in self.made for step, do in made.changes.items()}

    def work(self, line: Line, probe: Probe) -> Work | None:
        return computed(line, self.reading.of(probe.problem), self.changes)


@dataclass(frozen=True, eq=False)
class Asked:
    """A probe and what came of it."""

    probe: Probe
    answer: Answer


def misfit(got: Tensor, work: Work, want: Tensor | None = None) -> float:
    """The largest difference, relative to numbers near 1 and above; inf where a number is none.

    What follows from a row that sees nothing (NaN in ours) is not compared; NaN if no number is
    left to compare.
    """
    want = work.out if want is None else want
    if got.shape != want.shape:
        return math.inf
    plain = float((got - want).abs().max()) if want.numel() else math.nan
    if math.isfinite(plain):  # so is every number in both
        return plain / max(1.0, float(want.abs().max()))
    compared = torch.ones_like(want, dtype=torch.bool)
    if hasattr(work, "visible") and not bool(work.visible.any(dim=-1).all()):
        compared = ~want.isnan()
        if not bool(compared.any()):
            return math.nan
    ours, theirs = want[compared], got[compared]
    finite = ours.isfinite()
    if bool((finite != theirs.isfinite()).any()):
        return math.inf
    if not bool(finite.any()):
        return math.nan
    ours, theirs = ours[finite], theirs[finite]
    return float((ours - theirs).abs().max() / max(1.0, float(ours.abs().max())))


def fits(
    explanation: Explanation, line: Line, asked: Sequence[Asked], loose: float = 0,
    each: bool = False,
) -> bool:  # fmt: skip
    """each: it must say something of every answer of which some row sees a key; what makes NaN of
    all rows would fit anything."""
    told = 0  # how many answers say anything
    for one in asked:
        error = off(explanation, line, one)
        if error > max(loose, one.probe.close):
            return False
        if each and error != error and _sees(explanation.work(line, one.probe)):
            return False
        told += error == error
    return told > 0


def _sees(work: Work | None) -> bool:
    return bool(work is not None and hasattr(work, "visible") and work.visible.any())


def computed(line: Line, problem: object, changes: Changes) -> Work | None:
    """What the line makes of a problem; None where nobody can make these mistakes."""
    try:
        return line.run(problem, changes)
    except (LookupError, RuntimeError, ValueError):
        return None


def off(explanation: Explanation, line: Line, one: Asked) -> float:
    """How far the answer is from what is explained; inf where that cannot be computed."""
    work = explanation.work(line, one.probe)
    return math.inf if work is None else misfit(one.answer.out, work)


def made_by(mistakes: Iterable[Mistake]) -> list[Made]:
    return [Made(m, note, changes) for m in mistakes for note, changes in m.variants]


def felt(
    made: Sequence[Made], reading: Reading, line: Line, asked: Sequence[Asked], apart: bool = False
) -> list[Made]:
    """Those that change an answer by more than can be overlooked.

    apart   of those that change the same steps and give the same answers, only the first: for pairs
    """
    problems = [reading.of(one.probe.problem) for one in asked]
    right = [computed(line, problem, {}) for problem in problems]
    kept: list[Made] = []
    known: list[tuple[frozenset[str], list[Tensor | None]]] = []
    for each in made:
        works = [computed(line, problem, each.changes) for problem in problems]
        pairs = [(w, r) for w, r in zip(works, right, strict=True) if w and r]
        if not any(misfit(w.out, r) > FAR for w, r in pairs):
            continue
        steps, outs = frozenset(each.changes), [None if w is None else w.out for w in works]
        if apart and any(steps == of and _alike(outs, other) for of, other in known):
            continue
        known.append((steps, outs))
        kept.append(each)
    return kept


def _alike(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    """Whether two made the same of every problem."""
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and a.shape == b.shape
            and bool(((a - b).abs() < FAR / 10).logical_or(a.isnan() & b.isnan()).all()))
        for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def right(readings: Sequence[Reading], line: Line, asked: Sequence[Asked], loose: float = 0
          ) -> list[Explanation]:  # fmt: skip
    """Readings under which the answers are right."""
    found = [Explanation(reading) for reading in readings]
    return [each for each in found if fits(each, line, asked, loose)]


def singles(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], mistakes: Iterable[Mistake]
) -> list[Explanation]:  # fmt: skip
    """One mistake that explains all answers."""
    found = []
    for reading in readings:
        for each in made_by(mistakes):
            explanation = Explanation(reading, (each,))
            # First whether it fits: most do not, and the first answer shows it.
            if fits(explanation, line, asked) and felt([each], reading, line, asked):
                found.append(explanation)
    return found


def fitted(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], mistake: Mistake,
    step: Callable[[float], Changes], beside: Iterable[Mistake] = (),
    stop: Callable[[], bool] = lambda: False,
) -> list[Explanation]:  # fmt: skip
    """A mistake with a number in it, looked for from 1/100 to 100: the number that fits best.

    beside   mistakes of which one is made as well; none where none is named
    """
    steps, made, found = set(step(1.0)), made_by(beside), list[Explanation]()
    if not any(bool(one.answer.out.isfinite().any()) for one in asked[:3]):
        return found
    for reading in readings:
        apart = felt(made, reading, line, asked[:3], apart=True)
        others: list[tuple[Made, ...]]
        others = [(m,) for m in apart if not steps & set(m.changes)] if made else [()]
        likely = [_Fit(reading, other, line, asked[:3], mistake, step) for other in others]
        for fit in sorted(likely, key=lambda fit: fit.error)[:FITTED]:
            if fit.error > HOPELESS * len(fit.asked):
                break
            explanation = fit.refined()
            own = asked[0].probe.problem.head_size ** -0.5
            if abs(fit.number / own - 1) < 0.03:
                continue  # as good as right: digits are missing, not a scale
            if fits(explanation, line, asked, loose=2e-4):
                found.append(explanation)
        if found or stop():
            break
    return found


class _Fit:
    """The number of a mistake beside others, first roughly and then refined."""

    def __init__(
        self, reading: Reading, others: tuple[Made, ...], line: Line, asked: Sequence[Asked],
        mistake: Mistake, step: Callable[[float], Changes],
    ) -> None:  # fmt: skip
        self.reading, self.others, self.line, self.asked = reading, others, line, asked
        self.mistake, self.step = mistake, step
        width = 15 if not others else 6
        self.width = 1 / width
        powers = [at / width for at in range(-2 * width, 2 * width + 1)]
        self.error, self.power = min((self.worst(power), power) for power in powers)

    @property
    def number(self) -> float:
        return 10**self.power

    def made(self, power: float) -> Explanation:
        own = Made(self.mistake, _about(10**power), self.step(10**power))
        return Explanation(self.reading, (own, *self.others))

    def worst(self, power: float) -> float:
        tried = self.made(power)
        errors = [off(tried, self.line, one) for one in self.asked]
        return sum(min(error, 10.0) for error in errors if error == error)  # NaN says nothing

    def refined(self) -> Explanation:
        width = self.width
        for _ in range(40):  # by thirds
            near = (self.power, self.power - width / 3, self.power + width / 3)
            self.power = min(near, key=self.worst)
            width *= 0.7
        return self.made(self.power)


def _about(number: float) -> str:
    """A number that was found, and what it may come from."""
    root = 1 / number**2  # of which it is one over the square root
    whole = round(root)
    from_root = f", 1/sqrt({whole})" if 0 < whole <= 4096 and abs(root - whole) < 0.02 else ""
    return f"about {number:.4g}{from_root}"


def doubles(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], mistakes: Iterable[Mistake],
    stop: Callable[[], bool] = lambda: False,
) -> list[Explanation]:  # fmt: skip
    """Two mistakes in different steps that explain all answers, each of them needed."""
    made = made_by(mistakes)
    found: list[Explanation] = []
    asked = [one for one in asked if bool(one.answer.out.isfinite().any())]
    small = [one for one in asked if max(one.answer.out.shape) <= SMALL]
    if not small:
        return found
    for reading in readings:
        apart = felt(made, reading, line, small, apart=True)
        for one, other in combinations(apart, 2):
            if one.mistake is other.mistake or set(one.changes) & set(other.changes):
                continue
            explanation = Explanation(reading, (one, other))
            if fits(explanation, line, asked, each=True):
                found.append(explanation)
        if found or stop():
            break
    return found


def nearest(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], mistakes: Iterable[Mistake]
) -> list[tuple[float, Explanation]]:
    """The explanations that come nearest: by how many probes they miss, then by how far."""
    made = made_by(mistakes)
    ranked = []
    for reading in readings:
        for explanation in (Explanation(reading), *(Explanation(reading, (m,)) for m in made)):
            errors = [off(explanation, line, one) for one in asked]
            missed = sum(error > one.probe.close for error, one in zip(errors, asked, strict=True))
            size = sum(min(error, 10.0) for error in errors) / max(len(errors), 1)
            ranked.append((missed + min(size, 10.0) / 20, explanation))
    return sorted(ranked, key=lambda pair: pair[0])
