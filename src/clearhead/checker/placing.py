"""How somebody's attention is called, and what its first answers can be: the simplest explanation.

manners -> first probes -> right, one mistake, or two in some manner, the likeliest first
"""

import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from clearhead.checker import trying
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Failure, Subject
from clearhead.checker.diagnosis import Diagnosis
from clearhead.checker.manners import LAYOUTS
from clearhead.checker.matching import (
    ROUGH,
    Explanation,
    doubles,
    fitted,
    nearest,
    right,
    singles,
)
from clearhead.checker.mistakes import ATTENTION, OTHER_SCALE, scaled_by
from clearhead.checker.problem import Turn
from clearhead.checker.projections import others
from clearhead.checker.saying import untried
from clearhead.checker.signature import layout_in_words, roles
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.told import Reading, Told
from clearhead.checker.trying import Attempt

LIMIT = 60.0  # seconds in which pairs of mistakes are looked for: a bound for what is slow
NEAREST = 4  # ways of calling, the likeliest, among which what comes nearest is looked for
Way = tuple[Attempt, Explanation]


def placed(subject: Subject, kind: str, told: Told) -> list[Way] | Diagnosis:
    """How it may be called, with the simplest explanation of its first answers, the likeliest
    first; or why it cannot be."""
    attempts, failures = _attempts(subject, kind, told)
    if not attempts:
        return untried(subject.about.name, kind, failures)
    return _first_fit(attempts, told, subject, time.monotonic())


def _attempts(subject: Subject, kind: str, told: Told) -> tuple[list[Attempt], list[Failure]]:
    """Every manner in which the first probes were answered, in the order of likelihood."""
    answered: list[Attempt] = []
    failures: list[Failure] = []
    try:
        for manner in trying.manners(subject, kind, told):
            if manner.numpy and answered:
                break  # it takes tensors
            if manner.axes == 1 and any(other.manner.axes > 1 for other in answered):
                continue  # it takes a mask of pairs, and is judged by that
            attempt = trying.first(subject, manner, told)
            if attempt.failure is None:
                if any(_same(attempt, other) for other in answered):
                    continue
                answered.append(attempt)
                if right(readings_of(told, subject, attempt), LINE, attempt.asked):
                    break
            else:
                failures.append(attempt.failure)
                if attempt.failure.kind in ("hung", "died"):
                    break
    except Unanswerable as error:
        failures.append(Failure("returned", str(error)))
    return answered, failures


def _same(one: Attempt, other: Attempt) -> bool:
    """Whether another form of the mask gave the very same answers."""
    a, b = one.manner, other.manner
    return (a.layout, a.turned, a.places, a.table) == (b.layout, b.turned, b.places, b.table) and [
        x.probe.name for x in one.asked
    ] == [x.probe.name for x in other.asked] and all(
        torch.equal(x.answer.out, y.answer.out)
        for x, y in zip(one.asked, other.asked, strict=True)
    )  # fmt: skip


def _first_fit(
    attempts: Sequence[Attempt], told: Told, subject: Subject, began: float
) -> list[Way]:
    """Manners with the simplest explanation of their first answers.

    A function that takes (B, H, T, D) is judged there, though it may be right for (T, D).
    """

    def one(r: list[Reading], a: Attempt) -> list[Explanation]:
        return singles(r, LINE, a.asked, ATTENTION) or fitted(
            r, LINE, a.asked, OTHER_SCALE, scaled_by
        )

    def two(r: list[Reading], a: Attempt) -> list[Explanation]:
        late = partial(_late, began)
        r = _told_turns(r, told)
        return doubles(r, LINE, a.asked, ATTENTION, stop=late) or fitted(
            r, LINE, a.asked, OTHER_SCALE, scaled_by, beside=ATTENTION, stop=late
        )

    levels: list[Callable[[list[Reading], Attempt], list[Explanation]]]
    levels = [lambda r, a: right(r, LINE, a.asked), one, two]
    places = attempts[0].manner.places
    if places is not None and others(places, subject.about):
        levels = levels[:2]  # more than attention: two mistakes would be a guess
    said = layout_in_words(subject.about, LAYOUTS.get(attempts[0].manner.kind, ()))
    if said and any(a.manner.layout == said for a in attempts):
        attempts = [a for a in attempts if a.manner.layout == said]
    elif attempts[0].manner.kind == "sdp" and any_rank(subject):
        most = max(len(a.manner.layout) for a in attempts)
        attempts = [a for a in attempts if len(a.manner.layout) == most]
    for level in levels:
        later: list[Way] = []
        ways: list[Way] = []
        for attempt in attempts:
            if found := level(readings_of(told, subject, attempt), attempt):
                names = [m.mistake.name for m in found[0].made]
                # A softmax over the batch is more likely one over the queries of (T, D).
                (later if names == ["softmax-over-batch"] else ways).append((attempt, found[0]))
                if level is two:
                    break  # each takes its time
        if ways or later:
            return ways + later
    for attempt in attempts:
        rough = right(readings_of(told, subject, attempt), LINE, attempt.asked, loose=ROUGH)
        if rough:
            return [(attempt, rough[0])]
    best = [
        (nearest(readings_of(told, subject, a), LINE, a.asked, ATTENTION)[0], i)
        for i, a in enumerate(attempts[:NEAREST])
    ]
    (_, explanation), at = min(best, key=lambda pair: pair[0][0])
    return [(attempts[at], explanation)]


def _told_turns(readings: Sequence[Reading], told: Told) -> list[Reading]:
    """Those without guessed rotary positions: pairs of mistakes take long enough."""
    return [r for r in readings if r.turn == told.turn] or list(readings)


def any_rank(subject: Subject) -> bool:
    """Whether it is written for any number of axes: it counts them from the last, or nobody can
    read how it is written."""
    pattern = r"transpose\(-[12], ?-[12]\)|swapaxes\([^)]*-1|\.m[TH]\b|[\"']\.\.\.|permute\(\.\.\."
    return not subject.about.source or bool(re.search(pattern, subject.about.source))


def readings_of(
    told: Told, subject: Subject, attempt: Attempt, chosen: Explanation | None = None
) -> list[Reading]:
    """What it may do of its own accord, the likeliest first."""
    own = {name: _own(subject, told, name) for name in ("window", "softcap", "scale")}
    base = Reading(alibi=told.alibi, turn=told.turn, align=told.align or "end",
                   open=told.causal is False, **own)  # fmt: skip
    if chosen is not None:
        base = chosen.reading
        causals = [base.causal]
    elif told.causal is not None:
        causals = [told.causal and "causal" not in _takes(subject)]
    elif says_causal(subject) and not {"causal", "mask", "bias"} & _takes(subject):
        causals = [True]
    else:
        causals = [False, True]
    aligns = [told.align] if told.align else ["end", "start"]
    readings = [base.but(causal=c) for c in causals]
    if (chosen is None and attempt.manner.kind == "sdp") or chosen is not None:
        readings = [r.but(align=a) for r in readings for a in (aligns if chosen else aligns[:1])]
    if chosen is not None and "window" in _takes(subject) and not base.causal:
        readings += [r.but(past=True) for r in readings if told.causal is not False]
    turns = told.turn is None and chosen is None
    if turns and "cos" in _takes(subject):
        return [r.but(turn=Turn(pairing)) for pairing in ("halves", "interleaved") for r in
                readings]  # fmt: skip
    spoken = re.search(r"rope|rotary|rotat|freqs|polar", subject.about.source, re.I)
    if turns and (attempt.manner.kind == "module" or spoken):
        readings += [r.but(turn=Turn(pairing)) for r in readings for pairing in
                     ("halves", "interleaved")]  # fmt: skip
    return readings


def _own(subject: Subject, told: Told, name: str) -> Any:
    """What is in force where nothing is handed over: a default, or what was told of the inside."""
    for parameter in subject.about.parameters:
        if roles((parameter,)).get(name):
            number = parameter.default
            return number if type(number) in (int, float) and number else None
    return getattr(told, name)


def _takes(subject: Subject) -> set[str]:
    return set(roles(subject.about.parameters))


def says_causal(subject: Subject) -> bool:
    """Whether its name, or a sentence of its own without an if, promises that nobody sees the
    future."""
    about = subject.about
    promise = re.compile(r"causal|autoregressive", re.I)
    doubt = re.compile(r"\b(if|optional\w*|whether|config\w*|flag|set|when|non|not|or|default|"
                       r"may|can|"
                       r"bidirectional)\b|=", re.I)  # fmt: skip
    sentences = re.split(r"[.;\n]", about.doc)
    return bool(promise.search(about.name)) or any(
        promise.search(each) and not doubt.search(each) for each in sentences
    )


def explained(
    readings: Sequence[Reading], attempt: Attempt, guess: Explanation, pairs: bool = True
) -> list[Explanation]:
    """The simplest explanations of all answers, where this was guessed from the first ones."""
    asked = attempt.asked
    simple = (
        right(readings, LINE, asked)
        or singles(readings, LINE, asked, ATTENTION)
        or fitted(readings, LINE, asked, OTHER_SCALE, scaled_by)
    )
    if simple or not pairs:
        return simple
    guessed = [made.mistake for made in guess.made]
    beside = [mistake for mistake in guessed if mistake.family != "scale"]
    found: list[Explanation] = []
    if len(beside) < len(guessed) and not doubles(readings, LINE, asked, guessed):
        # A scale was one of ours for the first probes alone: which number is it?
        found = fitted(readings, LINE, asked, OTHER_SCALE, scaled_by, beside)
    late = partial(_late, time.monotonic())
    return found or doubles(readings, LINE, asked, ATTENTION, stop=late)


def _late(began: float) -> bool:
    return time.monotonic() - began > LIMIT
