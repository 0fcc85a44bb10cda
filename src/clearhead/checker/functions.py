"""From a function beside attention to a diagnosis: entropies, rotary positions, mask builders.

ways -> all probes in each -> right, a number that was estimated, one mistake or two
-> side effects, gradients -> the smallest failing input
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import torch

from clearhead.checker import saying
from clearhead.checker.axes import Answer, Unanswerable
from clearhead.checker.calls import Failure, Subject
from clearhead.checker.crafts import Craft, Hearing
from clearhead.checker.diagnosis import Diagnosis, Example, Found, Tried
from clearhead.checker.effects import HALF, of
from clearhead.checker.given_mask import diagnose_mask as diagnose_mask
from clearhead.checker.line import Line
from clearhead.checker.matching import (
    ROUGH,
    Asked,
    Explanation,
    Made,
    doubles,
    fits,
    made_by,
    misfit,
    nearest,
    off,
    right,
    singles,
)
from clearhead.checker.mistakes.effects import BY_NAME
from clearhead.checker.of_entropy import ENTROPIES
from clearhead.checker.of_masks import MASKS
from clearhead.checker.of_rotary import ROTARIES
from clearhead.checker.probes import Probe
from clearhead.checker.small import FINE, SEEN
from clearhead.checker.told import Reading, Told

CRAFTS: dict[str, Craft] = {"entropy": ENTROPIES, "rotary": ROTARIES, "mask": MASKS}
LIMIT = 8.0  # seconds in which pairs of mistakes are looked for
Level = Callable[[Hearing, Sequence[Reading]], list[Explanation]]
Place = Callable[[Subject, Found, str], Found]  # finds the lines of source for a mistake


def diagnose_function(subject: Subject, kind: str, told: Told, located: Place) -> Diagnosis:
    """What an entropy, a rotary or a mask builder computes, and what is wrong with it."""
    began, craft = time.monotonic(), CRAFTS[kind]
    heard, failures = hearings(subject, craft, told)
    if not heard:
        return saying.untried(subject.about.name, kind, failures)
    hearing, found, chosen = explained(subject, craft, told, heard, began)
    asked = hearing.asked
    mistakes = [saying.named(made, chosen, found, len(asked)) for made in chosen.made if found]
    looks = {made.mistake.name: made.mistake.look for made in chosen.made}
    unexplained, near = "", tuple[str, ...]()
    watched = [*_effects(subject, craft, hearing, chosen if found else None)]
    watched += craft.seen(subject, hearing, told, chosen if found else None)
    if not found:
        rough = _rough(craft, hearing, chosen)
        watched += [] if rough is None else [rough]
        if rough is None and not any(each.family == "mask: values" for each in watched):
            unexplained, near = saying.not_explained(
                chosen.reading, craft.line, asked, craft.mistakes
            )
    mistakes += [each for each in watched if not each.caution]
    cautions = [each for each in watched if each.caution]
    if told.strict:
        mistakes, cautions = mistakes + cautions, []
    wrong = bool(mistakes or unexplained)
    return Diagnosis(
        target=subject.about.name,
        kind=kind,
        verdict="wrong" if wrong else "right",
        mistakes=tuple(located(subject, each, looks.get(each.name, "")) for each in mistakes),
        cautions=tuple(located(subject, each, "") for each in cautions),
        conventions=tuple(
            saying.surely(craft.conventions(subject, hearing, told, chosen), not unexplained)
        ),
        tried=tuple(_tried(craft, hearing, chosen)),
        example=_smallest(subject, craft, hearing, chosen) if wrong else None,
        unexplained=unexplained,
        nearest=near,
        remarks=tuple(saying.printing(hearing.printed)),
        seconds=time.monotonic() - began,
    )


# Asking -----------------------------------------------------------------------------------------


def hearings(subject: Subject, craft: Craft, told: Told) -> tuple[list[Hearing], list[Failure]]:
    """Every way in which the first probe was answered, until one of them turns out right."""
    heard: list[Hearing] = []
    failures: list[Failure] = []
    for way in craft.ways(subject, told):
        if heard and way.takes != heard[0].way.takes:
            break  # something else is what it takes
        hearing = Hearing(way)
        for probe in craft.probes(way, told):
            failure = _ask(subject, hearing, probe)
            if failure is not None and probe.first:
                failures.append(failure)
                break
        if failures and failures[-1].kind in ("hung", "died"):
            break
        craft.heard(hearing)
        if not hearing.asked or (failures and hearing.refused and hearing.refused[0][0].first):
            continue
        heard.append(hearing)
        if right(craft.readings(subject, hearing, told), craft.line, hearing.asked):
            break
    return heard, failures


def _ask(subject: Subject, hearing: Hearing, probe: Probe) -> Failure | None:
    way = hearing.way
    try:
        reply = subject.call(replace(way.request(probe), times=2))
        failure = reply.failure
        if failure is None:
            answers = [way.read(reply, probe, call) for call in range(2)]
            hearing.replies.append((probe, reply))
            hearing.asked.append(Asked(probe, Answer(answers[0])))
            hearing.random |= not torch.equal(*(torch.nan_to_num(each) for each in answers))
            hearing.moved |= reply.random
            hearing.changed = hearing.changed or reply.changed
            hearing.printed = hearing.printed or reply.printed
    except Unanswerable as error:
        failure = Failure("returned", str(error))
    if failure is not None:
        hearing.refused.append((probe, failure.message))
    return failure


# Explaining -------------------------------------------------------------------------------------


def explained(
    subject: Subject, craft: Craft, told: Told, hearings: Sequence[Hearing], began: float
) -> tuple[Hearing, list[Explanation], Explanation]:
    """The simplest explanations in any way of calling; without one, what comes nearest."""
    cases = [(h, craft.readings(subject, h, told)) for h in hearings]
    line = craft.line
    levels: tuple[tuple[int, Level], ...] = (
        (len(cases), lambda h, r: right(r, line, h.asked)),
        (6, lambda h, r: singles(r, line, h.asked, craft.mistakes)
        + _guessed(r, line, h.asked, craft.guesses(subject, h, told))),
        (2, lambda h, r: _beside(r, line, h.asked, craft.guesses(subject, h, told, True), craft)
        or doubles(r, line, h.asked, craft.mistakes,
                   stop=lambda: time.monotonic() - began > LIMIT)),
    )  # fmt: skip
    for many, level in levels:
        for hearing, readings in cases[:many]:
            if found := level(hearing, readings):
                return hearing, found, found[0]
    cases = cases[:3]
    ranked = [(nearest(r, line, h.asked, craft.mistakes)[0], i) for i, (h, r) in enumerate(cases)]
    (_, best), at = min(ranked, key=lambda pair: pair[0][0])
    return hearings[at], [], Explanation(best.reading)


def _guessed(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], guesses: Sequence[Made]
) -> list[Explanation]:
    tried = [Explanation(reading, (made,)) for reading in readings for made in guesses]
    return [each for each in tried if fits(each, line, asked)]


def _beside(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], guesses: Sequence[Made],
    craft: Craft,
) -> list[Explanation]:  # fmt: skip
    """A mistake with a number, and another one."""
    pairs = [(a, b) for a in guesses for b in made_by(craft.mistakes)] + [*combinations(guesses, 2)]
    return [
        each
        for reading in readings
        for a, b in pairs
        if a.mistake is not b.mistake and not set(a.changes) & set(b.changes)
        and fits(each := Explanation(reading, (a, b)), line, asked)
    ]  # fmt: skip


def _rough(craft: Craft, hearing: Hearing, chosen: Explanation) -> Found | None:
    errors = [off(chosen, craft.line, one) for one in hearing.asked]
    if not errors or max(errors) > ROUGH or hearing.random:
        return None
    return of(BY_NAME["numbers-rough"],
              f"answers are off by {max(errors):.1e}, where float32 loses about 1e-06")  # fmt: skip


def _tried(craft: Craft, hearing: Hearing, chosen: Explanation) -> Iterator[Tried]:
    yield from saying.tried(chosen.reading, craft.line, hearing.asked)
    for probe, message in hearing.refused:
        yield Tried(probe.name, probe.why, "refused", note=message)


# Watching ---------------------------------------------------------------------------------------


def _effects(
    subject: Subject, craft: Craft, hearing: Hearing, found: Explanation | None
) -> Iterator[Found]:
    """Randomness, inputs that are written into, and gradients."""
    if hearing.random:
        yield of(BY_NAME["not-deterministic"],
                 "two calls with the same input gave different answers")  # fmt: skip
    elif hearing.moved:
        yield of(BY_NAME["random-state"],
                 "torch's, numpy's or random's state was another one after the call")  # fmt: skip
    if hearing.changed:
        names = [p.name for p in subject.about.parameters if p.kind != "var"]
        changed = [names[int(c)] if c.isdigit() and int(c) < len(names) else c
                   for c in hearing.changed]  # fmt: skip
        said = ", ".join(changed)
        yield of(BY_NAME["inputs-changed"], f"{said} held other numbers after the call", said)
    if found is not None and hearing.way.plain is not None and not hearing.random:
        yield from _gradients(subject, craft, hearing, found)


def _gradients(
    subject: Subject, craft: Craft, hearing: Hearing, found: Explanation
) -> Iterator[Found]:
    """Against that of the explained computation, so that a mistake is named once."""
    probe, first = hearing.replies[0]
    if first.shape_of_answer == "float":
        return  # meant to be read, not to be trained on
    problem, leaf = craft.leaf(hearing.way, probe)
    try:
        work = craft.line.run(found.reading.of(problem), found.changes)
        push = craft.push(work.out)
        (want,) = torch.autograd.grad(work.out, leaf, push)
        given = hearing.way.request(probe, push=hearing.way.theirs(push, first))
    except (Unanswerable, RuntimeError, LookupError):
        return
    reply = subject.call(given)
    if reply.failure is not None or hearing.way.plain not in reply.gradients:
        return
    got, want = reply.gradients[hearing.way.plain], craft.judged(want)
    size = float(want.abs().max())
    if size < 1e-6 or not bool(want.isfinite().all()):
        return
    if got is None or float(got.abs().max()) == 0:
        yield of(BY_NAME["gradient-stopped"], "the input got none")
    elif (laid := hearing.way.laid(want)).shape != got.shape or float(
        (laid - craft.judged(got)).abs().nan_to_num(torch.inf).max()
    ) > HALF * size:
        yield of(BY_NAME["gradient-wrong"],
                 "that of the input is off from that of the same computation")  # fmt: skip


# The smallest input -----------------------------------------------------------------------------


def _smallest(
    subject: Subject, craft: Craft, hearing: Hearing, chosen: Explanation
) -> Example | None:
    plain, way = Explanation(chosen.reading), hearing.way
    failing = [o.probe for o in hearing.asked if off(plain, craft.line, o) > o.probe.close]
    for seen, probe in product((SEEN, FINE), failing[:3]):
        for problem in craft.smaller(way, probe):
            asked = replace(probe, problem=problem)
            try:
                reply = subject.call(way.request(asked))
                if reply.failure is not None:
                    continue
                got = craft.ours(hearing, way.read(reply, asked))
            except Unanswerable:
                continue
            want = plain.work(craft.line, asked)
            if want is None or misfit(got, want) < seen:
                continue
            return Example(
                words=craft.words(problem) + f" ({probe.name})",
                inputs=way.inputs(asked), got=_flat(got), want=_flat(want.out),
            )  # fmt: skip
    return None


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    while tensor.ndim > 2 and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor
