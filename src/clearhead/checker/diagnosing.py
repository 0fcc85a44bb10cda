"""From a subject to a diagnosis: how is it called, what does it compute, and what is wrong with it?

    manners -> first probes -> right, one mistake or two in some manner -> all probes -> the same
    again -> effects, gradients, weights, a row that sees nothing -> the smallest failing input
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clearhead.checker import effects, small, trying
from clearhead.checker.calls import Failure, Subject
from clearhead.checker.conventions import conventions
from clearhead.checker.diagnosis import Diagnosis, Found, Tried
from clearhead.checker.functions import CRAFTS, diagnose_function
from clearhead.checker.line import Mistake
from clearhead.checker.manners import LAYOUTS, Unanswerable
from clearhead.checker.matching import (
    ROUGH,
    Explanation,
    doubles,
    fits,
    fitted,
    made_by,
    nearest,
    off,
    right,
    singles,
)
from clearhead.checker.mistakes import ATTENTION, OTHER_SCALE, scaled_by
from clearhead.checker.mistakes.effects import BY_NAME
from clearhead.checker.problem import Turn
from clearhead.checker.signature import kind_of, layout_in_words, roles
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.told import Reading, Told
from clearhead.checker.trying import Attempt

ATTENTIVE = ("sdp", "teach", "module")
SEVERAL = 5  # ways of calling that are tried to the end
LIMIT = 4.0  # seconds in which pairs of mistakes are looked for


def diagnose_attention(subject: Subject, kind: str, told: Told) -> Diagnosis:
    """What an attention of kind "sdp", "teach" or "module" computes."""
    began = time.monotonic()
    ways = placed(subject, kind, told)
    if isinstance(ways, Diagnosis):
        return ways
    for attempt, explanation in ways[:SEVERAL]:  # the first that explains all that is asked
        trying.rest(subject, attempt, told)
        found = _explained(_readings(told, subject, attempt, chosen=explanation), attempt)
        if found:
            return _told_of(subject, kind, told, attempt, found[0], found, began)
    return _told_of(subject, kind, told, *ways[0], [], began)


def placed(
    subject: Subject, kind: str, told: Told
) -> list[tuple[Attempt, Explanation]] | Diagnosis:
    """How it may be called, with the simplest explanation of its first answers, the likeliest
    first; or why it cannot be."""
    attempts, failures = _attempts(subject, kind, told)
    if not attempts:
        return untried(subject, kind, failures)
    return _first_fit(attempts, told, subject, time.monotonic())


def untried(subject: Subject, kind: str, failures: Sequence[Failure]) -> Diagnosis:
    """It could not be called in any way that we know."""
    own = [failure for failure in failures if failure.line is not None]
    worst = own[0] if own else failures[0] if failures else Failure("raised", "no way to call it")
    at = None if worst.line is None else (worst.line, worst.source)
    return Diagnosis(subject.about.name, kind, "untried", trouble=words_of(worst), trouble_at=at)


def words_of(failure: Failure) -> str:
    words = {
        "raised": "it raised", "hung": "it did not come back", "died": "its process ended",
        "loading": "it could not be loaded", "returned": "its answer could not be read",
    }  # fmt: skip
    return f"{words[failure.kind]}: {failure.message}"


# The way of calling -----------------------------------------------------------------------------


def _attempts(
    subject: Subject, kind: str, told: Told
) -> tuple[list[Attempt], list[Failure]]:
    """Every manner in which the first probes were answered, in the order of likelihood."""
    answered: list[Attempt] = []
    failures: list[Failure] = []
    try:
        for manner in trying.manners(subject, kind, told):
            if manner.numpy and answered:
                break  # it takes tensors
            attempt = trying.first(subject, manner, told)
            if attempt.failure is None:
                if any(_same(attempt, other) for other in answered):
                    continue
                answered.append(attempt)
                if right(_readings(told, subject, attempt), LINE, attempt.asked):
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
) -> list[tuple[Attempt, Explanation]]:
    """Manners with the simplest explanation of their first answers.

    A function that takes (B, H, T, D) is judged there, though it may be right for (T, D).
    """
    levels = {
        right: lambda r, a: right(r, LINE, a.asked),
        singles: lambda r, a: singles(r, LINE, a.asked, ATTENTION)
        or fitted(r, LINE, a.asked, OTHER_SCALE, scaled_by),
        doubles: lambda r, a: doubles(_told_turns(r, told), LINE, a.asked, ATTENTION,
                                      stop=lambda: time.monotonic() - began > LIMIT),
    }  # fmt: skip
    said = layout_in_words(subject.about, LAYOUTS.get(attempts[0].manner.kind, ()))
    if said and any(a.manner.layout == said for a in attempts):
        attempts = [a for a in attempts if a.manner.layout == said]
    elif attempts[0].manner.kind == "sdp" and any_rank(subject):
        most = max(len(a.manner.layout) for a in attempts)
        attempts = [a for a in attempts if len(a.manner.layout) == most]
    for level in levels.values():
        later: list[tuple[Attempt, Explanation]] = []
        ways: list[tuple[Attempt, Explanation]] = []
        for attempt in attempts:
            if found := level(_readings(told, subject, attempt), attempt):
                names = [m.mistake.name for m in found[0].made]
                # A softmax over the batch is more likely one over the queries of (T, D).
                (later if names == ["softmax-over-batch"] else ways).append((attempt, found[0]))
                if level is levels[doubles]:
                    break  # each takes its time
        if ways or later:
            return ways + later
    for attempt in attempts:
        rough = right(_readings(told, subject, attempt), LINE, attempt.asked, loose=ROUGH)
        if rough:
            return [(attempt, rough[0])]
    best = [
        (nearest(_readings(told, subject, a), LINE, a.asked, ATTENTION)[0], i)
        for i, a in enumerate(attempts)
    ]
    (_, explanation), at = min(best, key=lambda pair: pair[0][0])
    return [(attempts[at], explanation)]


def _told_turns(readings: Sequence[Reading], told: Told) -> list[Reading]:
    """Those without guessed rotary positions: pairs of mistakes take long enough."""
    return [r for r in readings if r.turn == told.turn] or list(readings)


def any_rank(subject: Subject) -> bool:
    """Whether it is written for any number of axes: it counts them from the last."""
    pattern = r"transpose\(-[12], ?-[12]\)|swapaxes\([^)]*-1|\.m[TH]\b|[\"']\.\.\.|permute\(\.\.\."
    return bool(re.search(pattern, subject.about.source))


def _readings(
    told: Told, subject: Subject, attempt: Attempt, chosen: Explanation | None = None
) -> list[Reading]:
    """What it may do of its own accord, the likeliest first."""
    own = {name: _own(subject, told, name) for name in ("window", "softcap", "scale")}
    base = Reading(alibi=told.alibi, turn=told.turn, align=told.align or "end", **own)
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
    if chosen is None and attempt.manner.kind == "sdp" or chosen is not None:
        readings = [r.but(align=a) for r in readings for a in (aligns if chosen else aligns[:1])]
    turns = told.turn is None and chosen is None
    if turns and "cos" in _takes(subject):
        return [r.but(turn=Turn(pairing)) for pairing in ("halves", "interleaved") for r in
                readings]  # fmt: skip
    if turns and attempt.manner.kind == "module":
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
    doubt = re.compile(r"\b(if|optional\w*|whether|config\w*|flag|set|when|non|not|or|default|may|can|"
                       r"bidirectional)\b|=", re.I)  # fmt: skip
    sentences = re.split(r"[.;\n]", about.doc)
    return bool(promise.search(about.name)) or any(
        promise.search(each) and not doubt.search(each) for each in sentences
    )

def _explained(readings: Sequence[Reading], attempt: Attempt) -> list[Explanation]:
    """The simplest explanations of all answers."""
    began = time.monotonic()
    for found in (
        lambda: right(readings, LINE, attempt.asked),
        lambda: singles(readings, LINE, attempt.asked, ATTENTION),
        lambda: fitted(readings, LINE, attempt.asked, OTHER_SCALE, scaled_by),
        lambda: doubles(readings, LINE, attempt.asked, ATTENTION,
                        stop=lambda: time.monotonic() - began > LIMIT),
    ):  # fmt: skip
        if explanations := found():
            return explanations
    return []


# What is said of it -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Case:
    """All that is known when the words are looked for."""

    subject: Subject
    told: Told
    attempt: Attempt
    explanation: Explanation


def _told_of(
    subject: Subject, kind: str, told: Told, attempt: Attempt, explanation: Explanation,
    found: Sequence[Explanation], began: float,
) -> Diagnosis:  # fmt: skip
    case = _Case(subject, told, attempt, explanation)
    mistakes = [_named(case, made.mistake, made.note, found) for made in explanation.made]
    unexplained, near = "", ()
    if not found:
        rough = _rough(attempt, explanation)
        if rough is not None:
            mistakes.append(located(subject, rough))
        else:
            unexplained, near = _not_explained(attempt, explanation)
    seen = effects.seen(subject, attempt, explanation, explained=bool(found))
    mistakes += [located(subject, each) for each in seen if not each.caution]
    cautions = [located(subject, each) for each in seen if each.caution]
    cautions += _doubtful(attempt, subject, told)
    if told.strict:
        mistakes, cautions = mistakes + cautions, []
    wrong = bool(mistakes or unexplained)
    example = small.smallest(subject, attempt, explanation) if wrong else None
    return Diagnosis(
        target=subject.about.name,
        kind=kind,
        verdict="wrong" if wrong else "right",
        mistakes=tuple(mistakes),
        cautions=tuple(cautions),
        conventions=tuple(conventions(attempt, explanation, kind)),
        tried=tuple(_tried(attempt, explanation)),
        example=example,
        unexplained=unexplained,
        nearest=near,
        remarks=tuple(_remarks(attempt)),
        seconds=time.monotonic() - began,
    )


def _named(case: _Case, mistake: Mistake, note: str, found: Sequence[Explanation]) -> Found:
    """A mistake of the explanation, and how sure that is."""
    chosen = case.explanation
    others = {
        made.mistake.name
        for each in found
        if len(each.made) == len(chosen.made)
        for made in each.made
    } - {made.mistake.name for made in chosen.made}
    n = len(case.attempt.asked)
    if not found:
        sure, why = "likely", "it comes nearest to what was answered, and does not explain all"
    elif others:
        sure = "likely"
        why = f"it explains all {n} probes; so would: {', '.join(sorted(others))}"
    else:
        sure = "certain"
        with_ = "" if len(chosen.made) == 1 else ", together with the other mistake"
        why = f"it gives the very numbers that were answered to all {n} probes{with_}"
    return located(case.subject, Found(
        mistake.name, mistake.family, mistake.title, mistake.does, mistake.mend, note, sure, why,
        mistake.also, tuple(sorted(others)),
    ), mistake.look)  # fmt: skip


def located(subject: Subject, found: Found, look: str = "") -> Found:
    """With the lines of source where this mistake is usually made."""
    about = subject.about
    pattern = look or (BY_NAME[found.name].look if found.name in BY_NAME else "")
    if not pattern or not about.source:
        return found
    lines = []
    for number, text in enumerate(about.source.splitlines(), about.first_line):
        code = text.split("#")[0]
        if re.search(pattern, code) and not re.match(r"\s*(def|class|import|from|@)\b", code):
            lines.append((number, text.strip()))
    return replace(found, look=tuple(lines[:4]))


def _doubtful(attempt: Attempt, subject: Subject, told: Told) -> list[Found]:
    """A mask that is added, where neither its name nor the words around it say so."""
    name = roles(subject.about.parameters).get("mask")
    said = re.search(r"additive|added|-inf|bias|0 ?(and|or|/) ?-", subject.about.doc, re.I)
    if attempt.manner.mask != "additive" or told.mask or name in (None, "attn_mask",
                                                                  "attention_mask") or said:  # fmt: skip
        return []
    added = next(m for m in ATTENTION if m.name == "mask-added")
    return [located(subject, Found(
        added.name, added.family, f"{name} is added to the scores as it is", added.does, added.mend,
        sure="likely", caution=True,
        why="with 0 and -inf it is right; nothing says that it wants these, and a mask of True and "
        "False, or of 1 and 0, hides nothing",
    ), added.look)]  # fmt: skip


def _rough(attempt: Attempt, explanation: Explanation) -> Found | None:
    """Right but for digits: half precision somewhere."""
    errors = [off(explanation, LINE, one) for one in attempt.asked]
    if not errors or max(errors) > ROUGH:
        return None
    halves = made_by(m for m in ATTENTION if m.name in ("scores-half", "softmax-half"))
    best, ratio = None, 0.5
    for made in halves:
        tried = Explanation(explanation.reading, (*explanation.made, made))
        if set(explanation.changes) & set(made.changes):
            continue
        share = sum(off(tried, LINE, one) for one in attempt.asked) / sum(errors)
        if share < ratio:
            best, ratio = made, share
    kind = best.mistake if best is not None else BY_NAME["numbers-rough"]
    why = f"answers are off by {max(errors):.1e}, where float32 loses about 1e-06"
    if best is not None:
        why += f"; computed in {best.note} they are {1 / max(ratio, 1e-3):.0f} times nearer"
    return Found(kind.name, kind.family, kind.title, kind.does, kind.mend,
                 best.note if best is not None else "", "likely", why)  # fmt: skip


def _not_explained(
    attempt: Attempt, explanation: Explanation
) -> tuple[str, tuple[str, ...]]:
    ranked = nearest([explanation.reading], LINE, attempt.asked, ATTENTION)
    wrong = [
        one.probe.name
        for one in attempt.asked
        if off(Explanation(explanation.reading), LINE, one) > one.probe.close
    ]
    near = []
    for score, each in ranked:
        name = each.made[0].mistake.title if each.made else "nothing (it would be right)"
        agree = sum(off(each, LINE, one) <= one.probe.close for one in attempt.asked)
        if agree and all(name not in known for known in near):
            near.append(f"{name}: {agree} of {len(attempt.asked)} probes")
        if len(near) == 3:
            break
    return (
        f"It is not right on {len(wrong)} of {len(attempt.asked)} probes ({', '.join(wrong[:4])}), "
        "and no mistake that we know, nor two of them, gives these answers.",
        tuple(near),
    )


def _tried(attempt: Attempt, explanation: Explanation) -> Iterable[Tried]:
    plain = Explanation(explanation.reading)
    for one in attempt.asked:
        error = off(plain, LINE, one)
        outcome = "right" if error <= one.probe.close else "wrong"
        yield Tried(one.probe.name, one.probe.why, outcome, error)
    yield from attempt.refused


def _remarks(attempt: Attempt) -> Iterable[str]:
    if attempt.printed.strip():
        first = attempt.printed.strip().splitlines()[0][:80]
        yield f"it prints while it is called: {first!r}"
    if attempt.manner.mask in ("additive", "lowest"):
        yield (
            "its mask is added: 0 where a query may look and -inf where not. One of True and "
            "False, or of 1 and 0, would be added as it is, and hide nothing"
        )


__all__ = ["diagnose_attention", "fits", "located", "untried"]


def diagnose(subject: Subject, told: Told) -> Diagnosis:
    """Whatever it is: by what was told, by names, or by trying."""
    kind = told.kind or kind_of(subject.about)
    if kind in ATTENTIVE:
        return diagnose_attention(subject, kind, told)
    if kind in CRAFTS:
        return diagnose_function(subject, kind, told, located)
    return untried(subject, kind or "", [])
