"""What a function that turns pairs by their positions is asked, and what may be in it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker import lines, steps
from clearhead.checker.about import About
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.crafts import (
    Craft,
    Hearing,
    normal_like,
    shapes_in,
)
from clearhead.checker.diagnosis import Convention, Found
from clearhead.checker.line import Changes
from clearhead.checker.lines import ROTARY, Rotation
from clearhead.checker.matching import Explanation, Made, computed, made_by, misfit
from clearhead.checker.mistakes import rotaries
from clearhead.checker.probes import Probe
from clearhead.checker.problem import Problem, Turn, normal
from clearhead.checker.rotary_way import RotaryWay
from clearhead.checker.signature import LETTER, numpy_first, plain, roles
from clearhead.checker.told import Reading, Told

LAYOUTS = ("BHTD", "BTHD", "HTD", "BTD", "TD", "THD")
AXES = {"B": "batch", "H": "heads", "T": "tokens", "D": "d_head"}
PAIRS = {"halves": "halves: (n, n + d/2)", "interleaved": "interleaved: (2n, 2n + 1)"}


class Rotaries(Craft):
    kind = "rotary"
    line = ROTARY
    mistakes = rotaries.MISTAKES

    def ways(self, subject: Subject, told: Told) -> Iterator[RotaryWay]:
        about, takes = subject.about, roles(subject.about.parameters)
        said = told.layout or _said(about)
        tables: tuple[tuple[str, str], ...] = (("", ""),)
        if "cos" in takes:
            first = ("halves", "interleaved")
            if told.turn is not None:
                first = (told.turn.pairing,)  # type: ignore[assignment]
            tables = tuple((t, w) for w in ("", "B", "H", "BH") for t in (*first, "half"))
        elif any(plain(p.name) in ("freqscis", "freqs", "cis") for p in about.parameters):
            tables = (("complex", ""), ("complex", "H"))
        for numpy in numpy_first(about):
            for D in _sizes(about):
                for layout in (said,) if said else LAYOUTS:
                    for table, wide in tables:
                        if "H" not in wide or "H" in layout:
                            yield RotaryWay(about, dict(told.values), layout, numpy, table, wide, D)

    def probes(self, way: RotaryWay, told: Told) -> Iterator[Probe]:
        known = roles(way.about.parameters).items()
        takes = {role for role, name in known if name not in way.values}

        def made(T: int, seed: int, D: int = way.D, most: int = 3, **rest: Any) -> Rotation:
            B, H = (min(2, most) if "B" in way.layout else 1), (most if "H" in way.layout else 1)
            q, k = normal(B, H, T, D, seed=seed), normal(B, H, T, D, seed=seed + 100)
            return Rotation(q=q, k=k, H=H, G=H, turn=told.turn, table=way.table, twins=way.twins,
                            **rest)  # fmt: skip

        yield Probe("plain", made(5, 1), why="random numbers", first=True)
        yield Probe("longer", made(11, 2), why="more positions")
        units = made(way.D + 1, 3)
        each = torch.eye(way.D + 1, way.D).double().expand_as(units.q)  # type: ignore[arg-type]
        yield Probe("one number each", replace(units, q=each, k=each),
                    why="each token has one number that is not 0")  # fmt: skip
        yield Probe("far positions", made(100, 4, most=1), why="100 tokens", close=2e-4)
        if way.about.kind != "module":
            yield Probe("wider", made(6, 5, D=16), why="d = 16")
        if "positions" in takes:
            some = torch.tensor([3, 9, 4, 0, 7, 30])
            yield Probe("other positions", made(6, 6, positions=some), frozenset({"positions"}),
                        "positions that are not 0, 1, 2, ..")  # fmt: skip
        if "base" in takes and not way.table:
            yield Probe("base of 500", made(6, 7, own_base=500.0), frozenset({"base"}),
                        "a base of the caller's own")  # fmt: skip

    def heard(self, hearing: Hearing) -> None:
        pass

    def readings(self, subject: Subject, hearing: Hearing, told: Told) -> list[Reading]:
        if told.turn is not None:
            return [Reading(turn=told.turn)]
        return [Reading(turn=Turn(pairing)) for pairing in ("halves", "interleaved")]

    def ours(self, hearing: Hearing, answer: Tensor) -> Tensor:
        return answer

    def guesses(
        self, subject: Subject, hearing: Hearing, told: Told, deep: bool = False
    ) -> list[Made]:
        """The base, from what fits the answers best."""
        if hearing.way.table or not hearing.asked:
            return []
        others = [
            made.changes for made in made_by(rotaries.MISTAKES) if "speed" not in made.changes
        ]
        bases: dict[str, float] = {}
        for reading in self.readings(subject, hearing, told):
            for changes in ({}, *(others if deep else ())):
                base = _base(hearing, reading, changes)
                if base is not None:
                    bases.setdefault(f"{base:.3g}", base)
        return [Made(rotaries.BASE, note, {"speed": rotaries.sped(base=base)})
                for note, base in bases.items()]  # fmt: skip

    def seen(
        self, subject: Subject, hearing: Hearing, told: Told, found: Explanation | None
    ) -> list[Found]:
        """What nothing explains, and is no rotation of pairs."""
        if found is not None or hearing.random:
            return []
        one = hearing.asked[0]
        x, out = one.probe.problem.q, one.answer.out[0]
        assert x is not None
        for pairing in ("halves", "interleaved"):
            lengths = [torch.hypot(*steps.parted(each, pairing)) for each in (x, out)]
            if float((lengths[0] - lengths[1]).abs().nan_to_num(9.0).max()) < 1e-3:
                return []
        m = rotaries.NOT_KEPT
        why = "neither pairs of halves nor of neighbors have the length they had"
        return [Found(m.name, m.family, m.title, m.does, m.mend, sure="likely", why=why)]

    def words(self, problem: Problem) -> str:
        assert problem.q is not None
        _, _, T, D = problem.q.shape
        return f"{T} token{'s' * (T > 1)}, one head of size {D}"

    def smaller(self, way: RotaryWay, probe: Probe) -> Iterator[Problem]:
        given = probe.problem
        assert isinstance(given, Rotation)
        for T in (1, 2, 3):
            for D in (2, 4, 8) if way.about.kind != "module" else (way.D,):
                for H in (1, 2) if "H" in way.layout else (1,):
                    x = torch.arange(1, H * T * D + 1).double().view(1, H, T, D)
                    at = None if given.positions is None else given.positions[:T]
                    yield replace(given, q=x, k=x, positions=at, H=H, G=H)
        yield given

    def leaf(self, way: Any, probe: Probe) -> tuple[Problem, Tensor]:
        assert probe.problem.q is not None
        leaf = probe.problem.q.clone().requires_grad_()
        return replace(probe.problem, q=leaf), leaf

    def push(self, out: Tensor) -> Tensor:
        """At the first tensor alone, as the request has it."""
        return normal_like(out) * (torch.arange(len(out)) == 0).view(-1, 1, 1, 1, 1)

    def bound(self, way: RotaryWay) -> int:
        """A module's sizes are its own; axes can be added."""
        return 20 * (way.about.kind == "module") - len(way.layout)

    def posed(self, way: RotaryWay, probe: Probe) -> Problem:
        assert isinstance(probe.problem, Rotation)
        for hand in sorted(probe.hands - set(roles(way.about.parameters))):
            raise Unanswerable(f"{way.about.name} takes no {hand}")
        return replace(probe.problem, table=way.table, twins=way.twins)

    def judged(self, gradient: Tensor) -> Tensor:
        return gradient

    def conventions(
        self, subject: Subject, hearing: Hearing, told: Told, explanation: Explanation
    ) -> Iterator[Convention]:
        way, turn = hearing.way, explanation.reading.turn or Turn()
        made = {each.mistake.family: each for each in explanation.made}

        def convention(name: str, value: str, family: str, state: str = "right") -> Convention:
            if family in made:
                return Convention(name, made[family].mistake.title, "mistake")
            return Convention(name, value, state)

        axes = "(" + ", ".join(AXES[letter] for letter in way.layout) + ")"
        yield Convention("layout", axes + (" (numpy)" if way.numpy else ""),
                         "different" if way.layout in ("BTHD", "THD") else "right")  # fmt: skip
        yield convention("pairs", PAIRS[turn.pairing], "rotary: pairs",
                         "right" if told.turn is not None or turn.pairing == "halves"
                         else "different")  # fmt: skip
        if way.table:
            yield Convention("table", {"half": "(tokens, d/2)", "complex": "complex, (tokens, d/2)"}
                             .get(way.table, f"(tokens, d), as for {way.table}"))  # fmt: skip
        else:
            yield convention("base", f"{turn.base:g}", "rotary: speeds")
            yield convention("positions", "from 0", "rotary: positions")
        yield convention("direction", "(a cos - b sin, a sin + b cos)", "rotary: angles")


def _said(about: About) -> str | None:
    for shape in shapes_in(about):
        letters = "".join(LETTER.get(plain(part), "?") for part in shape)
        if letters in LAYOUTS:
            return letters
    return None


def _sizes(about: About) -> list[int]:
    """d_head: of a module, what its own numbers make likely."""
    if about.kind != "module":
        return [8]
    numbers = [int(n) for n in about.attributes.values() if isinstance(n, int) and not n % 2]
    widths = [o.shape[-1] * times for o in about.own if o.shape for times in (2, 1)]
    likely = [n for n in (*numbers, *widths) if 2 <= n <= 256]
    return list(dict.fromkeys([*likely, 8, 24]))[:6]


def _base(hearing: Hearing, reading: Reading, changes: Changes) -> float | None:
    """The base that fits best beside these changes, None where none does."""
    one = hearing.asked[0]

    def worst(power: float) -> float:
        turn = replace(reading.turn or Turn(), base=10**power)
        work = computed(lines.ROTARY, replace(one.probe.problem, turn=turn), changes)
        return 10.0 if work is None else misfit(one.answer.out, work)

    at, width = min((at / 10 for at in range(2, 90)), key=worst), 0.1
    if worst(at) > 0.3:
        return None
    for _ in range(45):  # by thirds
        at = min((at, at - width / 3, at + width / 3), key=worst)
        width *= 0.75
    return 10**at if worst(at) < 1e-3 else None


ROTARIES = Rotaries()
