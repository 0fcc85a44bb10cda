"""How a function that builds a causal mask is called, and how its mask is read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker.about import About, Parameter
from clearhead.checker.arguments import LEFT_OUT
from clearhead.checker.axes import Answer, Unanswerable
from clearhead.checker.calls import Reply, Request, Subject
from clearhead.checker.crafts import Craft, Hearing, called
from clearhead.checker.diagnosis import Convention, Found
from clearhead.checker.lines import MASK, queries_and_keys, sized, sizes_only
from clearhead.checker.matching import Explanation, Made
from clearhead.checker.mistakes import triangles
from clearhead.checker.probes import Probe
from clearhead.checker.problem import Problem
from clearhead.checker.signature import plain, role_of
from clearhead.checker.told import Reading, Told, true_means

LOW = -1e4  # what is above it is not low enough to hide
HIDING = r"hidden|hides?\b|look_?ahead|blocked|masked_out|masked_positions|forbidden|future_mask"
ADDING = r"additive|\badd(ed|s)? to\b|\bbias\b|-inf|minus infinity"
FORMS = {"attend": "True or 1 = may look", "hide": "True or 1 = hidden",
         "additive": "added to the scores: 0 = may look, -inf (or very low) = hidden"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class MaskWay:
    """first: what the first argument is, a number of tokens "T" or a tensor of them "x"."""

    about: About
    values: dict[str, Any]
    first: str = "T"

    plain: None = None

    @property
    def takes(self) -> str:
        return "numbers" if self.first == "T" else "tensors"

    @property
    def sizes(self) -> list[str]:
        """Names of the parameters for T and, where there is one, S."""
        found = []
        for parameter in self.about.parameters:
            role, word = mask_role(parameter.name), plain(parameter.name)
            if parameter.name in self.values or role == "window" or parameter.kind == "var":
                continue
            other = isinstance(parameter.default, bool | str) or word in OTHERS
            numbers = role in ("size", "more") or parameter.required
            if numbers and not other and "head" not in word and "batch" not in word:
                found.append(parameter.name)
        return found[:2]

    def request(self, probe: Probe, **rest: Any) -> Request:
        p, names = probe.problem, self.sizes
        _, T, S = p.sizes

        def value(_: str | None, parameter: Parameter) -> Any:
            role = mask_role(parameter.name)
            if parameter.name in names:
                at = names.index(parameter.name)
                if at == 1 and "S" not in probe.hands and not parameter.required:
                    return LEFT_OUT
                if at == 0 and self.first == "x":
                    return torch.zeros(1, T, 4)
                return (T, S)[at]
            if role == "window" and (parameter.required or "window" in probe.hands):
                return p.window if p.window is not None else T
            if not parameter.required:
                return LEFT_OUT
            word = plain(parameter.name)
            if "head" in word or "batch" in word or word in ("b", "bs", "bsz", "h"):
                return 1
            known = {"device": "cpu", "dtype": None}
            if word in known:
                return known[word]
            raise Unanswerable(
                f"nobody knows what {parameter.name!r} is: --set {parameter.name}=VALUE"
            )

        return called(self.about, value, self.values, **rest)

    def read(self, reply: Reply, probe: Probe, call: int = 0) -> Tensor:
        tensors = reply.answers[call]
        _, T, S = probe.problem.sizes
        if len(tensors) != 1:
            raise Unanswerable(f"{len(tensors)} tensors came back where one was due")
        mask = tensors[0].double()
        while mask.ndim > 2 and mask.shape[0] == 1:
            mask = mask[0]
        if tuple(mask.shape) != (T, S):
            raise Unanswerable(
                f"the mask is {list(tensors[0].shape)} where [{T}, {S}] was due, with axes of size "
                "1 before it or not"
            )
        return mask

    def laid(self, ours: Tensor) -> Tensor:
        return ours

    def theirs(self, ours: Tensor, reply: Reply) -> Tensor:
        return ours

    def inputs(self, probe: Probe) -> tuple[tuple[str, Tensor], ...]:
        _, T, S = probe.problem.sizes
        given = [("T", T)] + [("S", S)] * ("S" in probe.hands or S != T)
        if probe.problem.window is not None:
            given.append(("window", probe.problem.window))
        return tuple((name, torch.tensor(number)) for name, number in given)


OTHERS = ("device", "dtype", "diagonal", "offset", "pad", "padidx", "value", "fill", "k")
BANDS = ("w", "win", "band", "bandwidth", "width", "span", "lookback")


def mask_role(name: str) -> str | None:
    """As `role_of`, where no weights can be meant."""
    return "window" if plain(name) in BANDS or "window" in plain(name) else role_of(name)


@dataclass(frozen=True)
class MaskReading(Reading):
    """form: "attend", "hide" or "additive"."""

    form: str = "attend"


def adds(about: About) -> bool:
    """Whether its own words say that the mask is added to the scores."""
    return bool(re.search(ADDING, f"{about.name} {about.doc}", re.I))


def form_of(masks: list[Tensor], hides: bool) -> str:
    """How these masks are written, from all numbers in them."""
    numbers = torch.cat([mask.flatten() for mask in masks])
    if bool((numbers < 0).any()) or bool(numbers.isnan().any()):
        return "additive"
    return "hide" if hides else "attend"


def seen_in(mask: Tensor, form: str) -> Tensor:
    """1 where this mask lets a query look, as numbers; NaN counts as a look, and is told apart."""
    if form == "attend":
        return (mask != 0).double()
    if form == "hide":
        return (mask == 0).double()
    return (~(mask < 0)).double()


class Masks(Craft):
    kind = "mask"
    line = MASK
    mistakes = triangles.MISTAKES

    def ways(self, subject: Subject, told: Told) -> Iterator[MaskWay]:
        for first in ("T", "x"):
            yield MaskWay(subject.about, dict(told.values), first)

    def probes(self, way: MaskWay, told: Told) -> Iterator[Probe]:
        takes = {mask_role(p.name) for p in way.about.parameters if p.name not in way.values}
        two = len(way.sizes) == 2
        must = {mask_role(p.name) for p in way.about.parameters if p.required}
        ask = frozenset({"S"}) if two else frozenset[str]()
        wide = 100 if "window" in must else None  # so wide that it hides nothing
        own = None if "window" in takes else told.window
        for T in (5, 2, 1, 8):
            yield Probe(sized(T, T), sizes_only(T, window=wide or own), ask,
                        "the triangle", first=T == 5)  # fmt: skip
        if two:
            for T, S in ((3, 5), (1, 4), (4, 9)):
                yield Probe(queries_and_keys(T, S), sizes_only(T, S, window=wide or own), ask,
                            "as in decoding with a cache")  # fmt: skip
        if "window" in takes:
            for W in (3, 1, 2):
                yield Probe(f"window of {W}", sizes_only(7, window=W), ask | {"window"},
                            "W keys, its own included")  # fmt: skip

    def heard(self, hearing: Hearing) -> None:
        """Masks as they came are read once all of them are known."""
        about = hearing.way.about
        hides = bool(re.search(HIDING, about.name, re.I)) or true_means(about) == "hide"
        hearing.raw = [one.answer.out for one in hearing.asked]
        if hearing.raw:
            if adds(about):  # of 1 and 0 that are to be added nobody can say which is meant
                hides = bool(hearing.raw[0].triu(1).any())
            _read_as(hearing, form_of(hearing.raw, hides))

    def readings(self, subject: Subject, hearing: Hearing, told: Told) -> list[Reading]:
        if told.mask is not None and hearing.asked:
            hides = told.mask in ("hide", "hidden")
            _read_as(hearing, form_of(hearing.raw, hides))
        aligns = [told.align] if told.align else ["end", "start"]
        form = hearing.form
        return [MaskReading(causal=True, align=align, form=form) for align in aligns]

    def ours(self, hearing: Hearing, answer: Tensor) -> Tensor:
        return seen_in(answer, hearing.form)

    def guesses(
        self, subject: Subject, hearing: Hearing, told: Told, deep: bool = False
    ) -> list[Made]:
        return []

    def seen(
        self, subject: Subject, hearing: Hearing, told: Told, found: Explanation | None
    ) -> list[Found]:
        """What the numbers of a mask do wrong, whatever they hide."""
        raw = torch.cat([mask.flatten() for mask in hearing.raw])
        names = []
        if bool(raw.isnan().any()):
            names.append(
                (triangles.NAN, f"{int(raw.isnan().sum())} of {raw.numel()} numbers", False)
            )
        below = raw[raw < 0]
        if below.numel() and float(below.max()) > LOW:
            names.append((triangles.NOT_LOW, f"{float(below.max()):g}", False))
        binary = not below.numel() and not bool(raw.isnan().any())
        if binary and (told.mask == "additive" or (told.mask is None and adds(subject.about))):
            names.append((triangles.ADDED, "", False))
        return [Found(m.name, m.family, m.title, m.does, m.mend, note, "seen",
                      "these are the numbers in the mask", caution=caution)
                for m, note, caution in names]  # fmt: skip

    def words(self, problem: Problem) -> str:
        _, T, S = problem.sizes
        window = "" if problem.window is None else f", a window of {problem.window}"
        return sized(T, S) + window

    def smaller(self, way: MaskWay, probe: Probe) -> Iterator[Problem]:
        _, T, S = probe.problem.sizes
        for n in range(1, T):
            yield replace(probe.problem, **{name: getattr(sizes_only(n, n + S - T), name)
                                            for name in "qk"})  # fmt: skip
        yield probe.problem

    def leaf(self, way: Any, probe: Probe) -> tuple[Problem, Tensor]:
        raise LookupError("a mask has no gradient")

    def bound(self, way: MaskWay) -> int:
        return len(way.sizes)

    def posed(self, way: MaskWay, probe: Probe) -> Problem:
        takes = {mask_role(p.name) for p in way.about.parameters}
        if "window" in probe.hands - takes:
            raise Unanswerable(f"{way.about.name} takes no window")
        return probe.problem

    def judged(self, gradient: Tensor) -> Tensor:
        return gradient

    def conventions(
        self, subject: Subject, hearing: Hearing, told: Told, explanation: Explanation
    ) -> Iterator[Convention]:
        made = {each.mistake.family: each.mistake for each in explanation.made}
        form = hearing.form
        kind = str(hearing.replies[0][1].answers[0][0].dtype).removeprefix("torch.")
        state = "right" if form == "attend" else "different"
        yield Convention("values", f"{FORMS[form]} ({kind})",
                         "mistake" if "mask: values" in made else state)  # fmt: skip
        shape = hearing.replies[0][1].answers[0][0].shape
        axes = ", ".join(["1"] * (len(shape) - 2) + ["queries", "keys"])
        yield Convention("shape", f"({axes})", "right" if len(shape) == 2 else "different")
        title = made["mask: triangle"].title if "mask: triangle" in made else ""
        yield Convention("causal", title or "query i sees keys 0 to i, its own included",
                         "mistake" if title else "right")  # fmt: skip
        probes = [one.probe for one in hearing.asked]
        if any(p.problem.sizes[1] != p.problem.sizes[2] for p in probes):
            end = explanation.reading.align == "end"
            yield Convention("more keys than queries", "bottom-right: the last query sees all keys"
                             if end else "top-left: query i sees keys 0 to i",
                             "right" if end else "different")  # fmt: skip
        if any("window" in p.hands for p in probes):
            title = made["mask: window"].title if "mask: window" in made else ""
            yield Convention("window", title or "W keys, the query's own included",
                             "mistake" if title else "right")  # fmt: skip


def _read_as(hearing: Hearing, form: str) -> None:
    hearing.form = form
    hearing.asked = [
        replace(one, answer=Answer(seen_in(raw, form)))
        for one, raw in zip(hearing.asked, hearing.raw, strict=True)
    ]


MASKS = Masks()
