"""Asking somebody's attention: each probe once, and what it answers in our own axes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product

import torch

from clearhead.checker import projections
from clearhead.checker.about import About
from clearhead.checker.axes import Answer, Unanswerable
from clearhead.checker.calls import Failure, Reply, Request, Subject
from clearhead.checker.diagnosis import Tried
from clearhead.checker.manners import LAYOUTS, PADDING, USUAL, Manner
from clearhead.checker.matching import Asked
from clearhead.checker.probes import Probe, probes
from clearhead.checker.signature import layout_in_words, numpy_first, roles
from clearhead.checker.told import Told, true_means

SEVERAL = 600  # calls whose mean stands for an answer that is random
ROUGHLY = 0.08  # how far such a mean may be off


@dataclass(eq=False)
class Attempt:
    """One manner tried on a subject: what was answered, and what was refused."""

    manner: Manner
    asked: list[Asked] = field(default_factory=list)
    refused: list[Tried] = field(default_factory=list)
    failure: Failure | None = None
    random: bool = False
    weights_random: bool = False
    moved: bool = False
    changed: tuple[str, ...] = ()
    printed: str = ""
    whole: bool = False  # whether all probes were asked, not the first alone
    rivals: tuple[str, ...] = ()  # other layouts in which it runs as well; none where words tell

    @property
    def instead(self) -> str:
        """The usual layout, where it runs in that as well and another one was taken."""
        layouts = LAYOUTS[self.manner.kind]
        before = layouts[: layouts.index(self.manner.layout)]
        return next((each for each in before if each in self.rivals), "")

    def forget(self, asked: int, refused: int) -> None:
        """All but the first probes: what they say is enough to look for two mistakes."""
        del self.asked[asked:], self.refused[refused:]
        self.whole = False


class Renamed:
    """A subject, one of whose parameters turned out to be for something."""

    def __init__(self, subject: Subject, name: str, role: str) -> None:
        self.subject, self.name = subject, name
        known = subject.about.parameters
        self.about = replace(subject.about, parameters=tuple(
            replace(each, role=role) if each.name == name else each for each in known
        ))  # fmt: skip

    def call(self, request: Request) -> Reply:
        return self.subject.call(request)

    def close(self) -> None:
        self.subject.close()


def manners(subject: Subject, kind: str, told: Told) -> Iterator[Manner]:
    """Ways of calling that may be meant, the likeliest first."""
    about = subject.about
    takes = roles(about.parameters)
    forms, padding = _forms(subject, kind, told, takes), _padding(subject, told, takes) or "hide"
    layouts = LAYOUTS[kind]
    said = told.layout or layout_in_words(about, layouts) if kind == "sdp" else told.layout
    if said:
        layouts = (said, *(each for each in layouts if each != said and not told.layout))
    for places in _places(subject, told) if kind == "module" else (None,):
        for numpy in numpy_first(about):
            for turned, square in _shapes(kind, takes):
                for layout in layouts:
                    for (mask, axes), table in product(forms, _tables(takes)):
                        H, G = _heads(kind, layout, takes, told)
                        if places is not None:
                            H, G = places.H, places.G
                        yield Manner(about, kind, layout, mask, axes, padding, table, numpy, turned,
                                     square, places, H, G, values=told.values)  # fmt: skip


def _shapes(kind: str, takes: dict[str, str]) -> tuple[tuple[bool, bool], ...]:
    """Of weights that are handed over: (out, in) or not, and square. What is not square shows
    which way round it is, so that comes first."""
    if kind != "teach":
        return ((False, False),)
    if "n_heads" in takes:
        return ((False, False), (True, False))
    return ((False, False), (True, False), (False, True))


def _tables(takes: dict[str, str]) -> tuple[str, ...]:
    if {"cos", "sin"} <= set(takes):
        return ("halves", "interleaved", "half")
    return ("halves",)


def _heads(kind: str, layout: str, takes: dict[str, str], told: Told) -> tuple[int, int]:
    if kind == "sdp":
        H = told.n_heads or 4 if "H" in layout else 1
        return H, H
    H = told.n_heads or (4 if "n_heads" in takes else 1)
    return H, told.n_kv or (max(H // 2, 1) if "n_kv" in takes else H)


def _places(subject: Subject, told: Told) -> list[projections.Places]:
    found = projections.find(subject.about, told.n_heads, told.n_kv)
    if not found:
        own = ", ".join(f"{o.name} {list(o.shape)}" for o in subject.about.own) or "none at all"
        raise Unanswerable(
            f"no projections were found among its parameters ({own}): name them q_proj, k_proj, "
            "v_proj and out_proj, or check a function that takes them as arguments"
        )
    return found


def _forms(
    subject: Subject, kind: str, told: Told, takes: dict[str, str]
) -> tuple[tuple[str, int], ...]:
    """What a mask may be made of, and its axes."""
    if not {"mask", "bias"} & set(takes):
        return ((_padding(subject, told, takes) or "attend", 2),)
    several = bool(PADDING & set(takes))
    if told.mask is not None:
        forms: tuple[str, ...] = (told.mask,)
    elif "mask" in takes and true_means(subject.about, takes["mask"] if several else "") == "hide":
        forms = ("hide",)
    elif "mask" not in takes and "bias" in takes:
        forms = ("additive",)
    elif kind == "teach":
        forms = ("ones", "attend")
    else:
        forms = (
            ("attend", "ones")
            if _says_bool(subject.about, takes)
            else ("attend", "ones", "additive")
        )
    return tuple(
        (form, axes) for form in forms for axes in (2, 4, 3, 1)
        if axes > 1 or (form != "additive" and not PADDING & set(takes))
    )  # fmt: skip


def _says_bool(about: About, takes: dict[str, str]) -> bool:
    """Whether its words say that a mask is made of True and False, so that none is added."""
    typed = any(p.name == takes.get("mask") and "bool" in p.annotation for p in about.parameters)
    words = re.search(r"\bbool(ean)?\b[^.\n]{0,40}mask|mask[^.\n]{0,40}\bbool", about.doc, re.I)
    means = true_means(about, takes["mask"]) if "mask" in takes else None
    said = re.search(r"additive|added|-inf|bias", about.doc, re.I)
    return bool(typed or words or means) and not said


def _padding(subject: Subject, told: Told, takes: dict[str, str]) -> str | None:
    """What a mask of keys is made of: as told, as its words say, or as is usual for its name."""
    for role in sorted(PADDING & set(takes)):
        alone = not {"mask", "bias"} & set(takes)
        words = true_means(subject.about, "" if alone else takes[role])
        return told.mask or words or USUAL[role]
    return None


def first(subject: Subject, manner: Manner, told: Told) -> Attempt:
    """The first probes, asked in this manner; its failure where one of them is refused."""
    attempt = Attempt(manner)
    for probe in probes(manner, told):
        if probe.first and attempt.failure is None:
            ask(subject, attempt, probe)
            if probe.name == "causal" and "mask" in roles(subject.about.parameters):
                attempt.failure = None  # the flag may need the mask beside it
    return attempt


def rest(subject: Subject, attempt: Attempt, told: Told) -> None:
    """All other probes; what is refused does no harm."""
    failure = attempt.failure
    todo = () if attempt.whole else probes(attempt.manner, told)
    attempt.whole = True
    for probe in todo:
        if not probe.first:
            ask(subject, attempt, probe)
            if attempt.failure is not None and attempt.failure.kind in ("hung", "died"):
                break
    attempt.failure = failure


def ask(subject: Subject, attempt: Attempt, probe: Probe) -> None:
    try:
        request = attempt.manner.request(probe.problem, probe.hands)
        reply = subject.call(_times(request, SEVERAL if attempt.random else 2))
        if reply.failure is not None:
            attempt.failure = reply.failure
            attempt.refused.append(
                Tried(probe.name, probe.why, "refused", note=reply.failure.message)
            )
            return
        attempt.moved |= reply.random
        attempt.changed = attempt.changed or reply.changed
        attempt.printed = attempt.printed or reply.printed
        if not attempt.manner.order:
            attempt.manner = attempt.manner.learn(reply, probe.problem)
        if not attempt.random:
            place = attempt.manner.place
            attempt.random = _differ(reply, (place,))
            others = tuple(at for at in range(len(reply.answers[0])) if at != place)
            attempt.weights_random |= not attempt.random and _differ(reply, others)
            if attempt.random:
                reply = subject.call(_times(request, SEVERAL))
        answer = read(attempt.manner, reply, probe)
        if attempt.random:
            probe = replace(probe, close=ROUGHLY)
        attempt.asked.append(Asked(probe, answer))
    except Unanswerable as error:
        attempt.failure = Failure("returned", str(error))
        attempt.refused.append(Tried(probe.name, probe.why, "refused", note=str(error)))


def read(manner: Manner, reply: Reply, probe: Probe) -> Answer:
    """The answer; of many calls their mean."""
    if len(reply.answers) <= 2:
        return manner.read(reply, probe.problem)
    each = [manner.read(reply, probe.problem, call) for call in range(len(reply.answers))]
    out = torch.stack([answer.out for answer in each]).mean(dim=0)
    maps = [answer.weights for answer in each if answer.weights is not None]
    return Answer(out, torch.stack(maps).mean(dim=0) if maps else None)


def _times(request: Request, times: int) -> Request:
    return replace(request, times=times)


def _differ(reply: Reply, places: tuple[int, ...]) -> bool:
    """Whether two calls with the same input gave different tensors in these places."""
    one, other = reply.answers[:2]
    return any(
        one[at].shape != other[at].shape
        or not torch.equal(torch.nan_to_num(one[at]), torch.nan_to_num(other[at]))
        for at in places
        if at < len(one) and at < len(other)
    )
