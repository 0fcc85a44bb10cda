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
from clearhead.checker.probes import LONGEST, MORE_KEYS, WINDOW, probes
from clearhead.checker.problem import Turn
from clearhead.checker.projections import others
from clearhead.checker.saying import untried
from clearhead.checker.signature import ROLE, layout_in_words, plain, role_of, roles
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.told import Reading, Told
from clearhead.checker.trying import Attempt, Renamed
from clearhead.checker.untold import free, untold

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


def as_window(subject: Subject, kind: str, told: Told) -> Renamed | None:
    """The subject with a number known as its window, where nothing says what that number is for
    and all answers are right if it is one: by its default and by others that are handed over."""
    if told.window is not None or "window" in _takes(subject):
        return None
    for parameter in subject.about.parameters:
        number, role = parameter.default, role_of(parameter.name)
        if role not in (None, "weights") or parameter.name in told.values:
            continue
        if type(number) is not int or number < 1 or parameter.required:
            continue
        renamed = Renamed(subject, parameter.name, "window")
        for attempt in _attempts(renamed, kind, told)[0]:
            for found in right(readings_of(told, renamed, attempt), LINE, attempt.asked):
                readings = readings_of(told, renamed, attempt, found)
                handed = [p for p in probes(attempt.manner, told) if p.name == WINDOW]
                for probe in handed:  # by this one most turn out to be none
                    trying.ask(renamed, attempt, probe)
                if right(readings, LINE, attempt.asked):
                    trying.rest(renamed, attempt, told)
                    if right(readings, LINE, attempt.asked):
                        return renamed
    return None


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

    def ruled(r: list[Reading], a: Attempt) -> list[Explanation]:
        if not (first := _untold(r, a, told, subject)):
            return []
        known = len(a.asked), len(a.refused)
        trying.rest(subject, a, told)  # all must agree: some mistake looks like it on a few
        kept = dict.fromkeys(each.reading for each in first)
        r = [more for each in kept for more in readings_of(told, subject, a, Explanation(each))]
        found = _untold(r, a, told, subject)
        if not found:
            a.forget(*known)
        return found

    levels: list[Callable[[list[Reading], Attempt], list[Explanation]]]
    levels = [lambda r, a: right(r, LINE, a.asked), ruled, one, two]
    if _held(subject, told.window):
        levels = [levels[0], one, ruled, two]  # a window is told of, if not by anybody's word
    places = attempts[0].manner.places
    if places is not None and others(places, subject.about):
        levels = levels[:3]  # more than attention: two mistakes would be a guess
    said = layout_in_words(subject.about, LAYOUTS.get(attempts[0].manner.kind, ()))
    if said and any(a.manner.layout == said for a in attempts):
        attempts = [a for a in attempts if a.manner.layout == said]
    elif attempts[0].manner.kind == "sdp" and any_rank(subject):
        most = max(len(a.manner.layout) for a in attempts)
        attempts = [a for a in attempts if len(a.manner.layout) == most]
    if not any(levels[0](readings_of(told, subject, a), a) for a in attempts):
        attempts = _likely(attempts, told, subject, bool(said))
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
    usual = attempts[0].manner.layout
    best = [
        (nearest(readings_of(told, subject, a), LINE, a.asked, ATTENTION)[0], i)
        for i, a in enumerate(attempts[:NEAREST])
    ]

    def rank(pair: tuple[tuple[float, Explanation], int]) -> tuple[int, bool, float]:
        """Of layouts in which as many probes are missed, the usual one."""
        (error, _), at = pair
        return int(error), attempts[at].manner.layout != usual, error

    (_, explanation), at = min(best, key=rank)
    return [(attempts[at], explanation)]


def _untold(
    readings: Sequence[Reading], attempt: Attempt, told: Told, subject: Subject
) -> list[Explanation]:
    if attempt.random:
        return []  # a mean would look like a window of many sizes
    return untold(readings, LINE, attempt.asked, free(told, _takes(subject)))


def _likely(
    attempts: Sequence[Attempt], told: Told, subject: Subject, said: bool
) -> Sequence[Attempt]:
    """Those in a layout that can be meant. With more keys than queries only the right one fits,
    as a rule; what is left then is a guess, and each knows its rivals."""
    kind = attempts[0].manner.kind
    if kind == "sdp" and not said and len({a.manner.layout for a in attempts}) > 1:
        able = {a.manner.layout for a in attempts if _takes_more_keys(a, told, subject)}
        attempts = [a for a in attempts if not able or a.manner.layout in able]
    layouts = dict.fromkeys(a.manner.layout for a in attempts)
    for attempt in attempts:
        if not said and not told.layout:
            attempt.rivals = tuple(each for each in layouts if each != attempt.manner.layout)
    return attempts


def _takes_more_keys(attempt: Attempt, told: Told, subject: Subject) -> bool:
    probe = next((p for p in probes(attempt.manner, told) if p.name == MORE_KEYS), None)
    if probe is None:
        return False
    try:
        reply = subject.call(attempt.manner.request(probe.problem, probe.hands))
        if reply.failure is None:
            attempt.manner.read(reply, probe.problem)
    except Unanswerable:
        return False
    return reply.failure is None


def _told_turns(readings: Sequence[Reading], told: Told) -> list[Reading]:
    """Those without guessed rotary positions, and with the window that a module holds: pairs of
    mistakes take long enough."""
    readings = [r for r in readings if r.turn == told.turn] or list(readings)
    return [r for r in readings if r.window == readings[-1].window]


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
    if chosen is None and (wide := _held(subject, base.window)):
        readings += [r.but(window=wide) for r in readings]
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


def _held(subject: Subject, told: int | None) -> int | None:
    """The window that a module holds as a number of that name. Whether it is in force is seen."""
    if subject.about.kind != "module" or told is not None or "window" in _takes(subject):
        return None
    for name, value in subject.about.attributes.items():
        word = plain(name.rpartition(".")[2])
        named = ROLE.get(word) == "window" or word == "w"
        if named and type(value) is int and 0 < value < LONGEST:
            return value
    return None


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
    readings: Sequence[Reading], attempt: Attempt, guess: Explanation, told: Told,
    subject: Subject, pairs: bool = True,
) -> list[Explanation]:  # fmt: skip
    """The simplest explanations of all answers, where this was guessed from the first ones."""
    asked = attempt.asked
    simple = (
        right(readings, LINE, asked)
        or _untold(readings, attempt, told, subject)
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
