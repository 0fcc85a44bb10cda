"""How an entropy of weights is called, and what it is asked."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker import lines
from clearhead.checker.about import About, Parameter
from clearhead.checker.arguments import LEFT_OUT
from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Reply, Request, Subject
from clearhead.checker.crafts import Craft, Hearing, OfTensors, called, required, shapes_in
from clearhead.checker.diagnosis import Convention, Found
from clearhead.checker.lines import ENTROPY, POOLS, EntropyReading, Weights, queries_and_keys
from clearhead.checker.matching import Explanation, Made
from clearhead.checker.mistakes import entropies
from clearhead.checker.probes import Probe
from clearhead.checker.problem import Problem, normal
from clearhead.checker.signature import numpy_first
from clearhead.checker.told import Reading, Told

LAYOUTS = {"BHTS": 4, "HTS": 3, "TS": 2}
SAID = {"rows": "one for each query", "all": "the mean over everything",
        "heads": "the mean over the queries of each head",
        "batch": "the mean over heads and queries", "tokens": "the mean over the heads",
        "positions": "the mean over batch and heads",
        "heads of all": "the mean over batch and queries of each head"}  # fmt: skip


@dataclass(frozen=True, eq=False)
class EntropyWay(OfTensors):
    """axes: how many the weights have; logits: their logarithms are handed over instead."""

    about: About
    values: dict[str, Any]
    axes: int = 4
    numpy: bool = False
    logits: bool = False

    def request(self, probe: Probe, **rest: Any) -> Request:
        assert isinstance(probe.problem, Weights) and probe.problem.p is not None
        p = self.laid(probe.problem.p)
        p = p if "float64" in probe.hands else p.float()
        first = required(self.about)[0].name if required(self.about) else None

        def value(role: str | None, parameter: Parameter) -> Any:
            if parameter.name == first:
                return p.log() if self.logits else p
            if not parameter.required:
                return LEFT_OUT
            if role == "axis" or parameter.name == "dim":
                return -1
            if role == "eps":
                return 1e-12
            raise Unanswerable(
                f"nobody knows what {parameter.name!r} is: --set {parameter.name}=VALUE"
            )

        return called(self.about, value, self.values, numpy=self.numpy, **rest)

    def laid(self, p: Tensor) -> Tensor:
        """The weights with as many axes as this way has: of the first texts and heads."""
        while p.ndim > self.axes:
            p = p[0]
        return p[(None,) * (self.axes - p.ndim)]

    def read(self, reply: Reply, probe: Probe, call: int = 0) -> Tensor:
        tensors = reply.answers[call]
        if len(tensors) != 1:
            raise Unanswerable(f"{len(tensors)} tensors came back where one was due")
        out = tensors[0].double()
        if out.ndim == self.axes and out.shape[-1] == 1:
            out = out[..., 0]  # keepdim
        return out

    def theirs(self, ours: Tensor, reply: Reply) -> Tensor:
        there = reply.answers[0][0]
        return ours.reshape(there.shape).to(there.dtype)

    def inputs(self, probe: Probe) -> tuple[tuple[str, Tensor], ...]:
        p = probe.problem
        assert isinstance(p, Weights) and p.p is not None
        return (("weights", p.p.reshape(p.p.shape[-2:])),)


def rows(*given: list[float]) -> Tensor:
    return torch.tensor(given, dtype=torch.float32).double()


def random_rows(*shape: int, seed: int, size: float = 1.0) -> Tensor:
    return normal(*shape, seed=seed, size=size).softmax(dim=-1)


def causal_rows(*shape: int, seed: int) -> Tensor:
    scores = normal(*shape, seed=seed)
    sees = torch.ones(shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~sees, -math.inf).softmax(dim=-1)


class Entropies(Craft):
    kind = "entropy"
    line = ENTROPY
    mistakes = entropies.MISTAKES

    def ways(self, subject: Subject, told: Told) -> Iterator[EntropyWay]:
        about = subject.about
        said = [len(shape) for shape in shapes_in(about) if len(shape) in LAYOUTS.values()
                and not any("." in part for part in shape)]  # fmt: skip
        if told.layout:
            said = [len(told.layout)]
        axes = (said[0],) if said else (4, 3, 2)
        names = " ".join(p.name for p in required(about)[:1])
        logits = bool(re.search(r"logit|score", f"{names} {about.doc}", re.I))
        for numpy in numpy_first(about):
            for n in axes:
                for given in (True, False) if logits else (False,):
                    yield EntropyWay(about, dict(told.values), n, numpy, given)

    def probes(self, way: EntropyWay, told: Told) -> Iterator[Probe]:
        shape = ((2, 3) if way.axes == 4 else (3,))[: way.axes - 2]

        def probe(
            name: str, p: Tensor, why: str, first: bool = False, exact: bool = False
        ) -> Probe:
            p = p.expand(*shape, *p.shape[-2:])
            hands = frozenset({"float64"}) if exact else frozenset[str]()
            return Probe(name, Weights(p=p.contiguous()), hands, why, first)

        yield probe("a random map", random_rows(*shape, 4, 7, seed=1), "no weight is 0", True)
        yield probe("a causal map", causal_rows(*shape, 5, 5, seed=2), "hidden keys weigh 0")
        yield probe("a longer map", causal_rows(*shape, 9, 9, seed=3), "other sizes")
        yield probe("uniform rows", torch.full((3, 8), 1 / 8).double(), "ln 8 = 2.079")
        yield probe("one-hot rows", torch.eye(6).double(), "0, and 0 log 0 is 0")
        yield probe("sharp rows", random_rows(*shape, 5, 6, seed=4, size=6.0), "weights of 1e-6")
        tiny = rows([1.0, 1e-30, 0.0], [1.0, 1e-45, 0.0], [0.5, 0.5, 1e-38], [0.999, 0.001, 0.0])
        yield probe("tiny weights", tiny, "1e-30 and 1e-45, the smallest float32")
        yield probe("1,000 keys", torch.full((2, 1000), 1e-3).double(), "ln 1000 = 6.908")
        yield probe("1,000 keys in float64", torch.full((2, 1000), 1e-3).double(),
                    "shows a small number in the logarithm", exact=True)  # fmt: skip

    def heard(self, hearing: Hearing) -> None:
        pass

    def readings(self, subject: Subject, hearing: Hearing, told: Told) -> list[Reading]:
        if not hearing.asked:
            return []
        shape = hearing.asked[0].answer.out.shape
        fitting: list[Reading] = []
        for pool in POOLS:
            work = _pooled(hearing, pool)
            if work is not None and (pool == "rows" or work == shape):
                fitting.append(EntropyReading(pool=pool))
        return fitting

    def ours(self, hearing: Hearing, answer: Tensor) -> Tensor:
        return answer

    def guesses(
        self, subject: Subject, hearing: Hearing, told: Told, deep: bool = False
    ) -> list[Made]:
        """What is added to a weight, from a uniform row: H = -log(p + eps)."""
        made = []
        sizes = {epsilon(hearing, name) for name in ("uniform rows", "1,000 keys in float64")}
        sizes |= {given for p in subject.about.parameters
                  if isinstance(given := p.default, float) and 0 < given < 0.1}  # fmt: skip
        sizes |= {
            float(each) for each in re.findall(r"\b\d*\.?\d+e-\d+|\b0\.0*1\b", subject.about.source)
        }
        for size in sorted(s for s in sizes if 1e-7 < s < 0.1):
            for form in entropies.FORMS:
                made.append(Made(entropies.EPSILON, f"{form} with eps = {size:.3g}",
                                 entropies.with_epsilon(size, form)))  # fmt: skip
        return made

    def seen(
        self, subject: Subject, hearing: Hearing, told: Told, found: Explanation | None
    ) -> list[Found]:
        """A number in the logarithm that is too small for the probes, and not for the eye."""
        if found is None or any(m.mistake.name == "entropy-epsilon" for m in found.made):
            return []
        if found.made or found.reading != EntropyReading():
            return []
        size = epsilon(hearing, "1,000 keys in float64")
        wrong = 1000 * size
        if size < 1e-10:
            return []
        e = entropies.EPSILON
        why = f"1,000 equal keys give ln 1000 - {wrong:.1e}, computed in float64"
        return [Found(e.name, e.family, e.title, e.does, e.mend, f"eps is about {size:.1e}", "seen",
                      why, caution=wrong <= 1e-5)]  # fmt: skip

    def words(self, problem: Problem) -> str:
        assert isinstance(problem, Weights) and problem.p is not None
        return f"weights of {queries_and_keys(*problem.p.shape[-2:])}"

    def smaller(self, way: EntropyWay, probe: Probe) -> Iterator[Problem]:
        ones = [1] * (way.axes - 2)
        for p in (
            rows([1.0]), rows([0.5, 0.5]), rows([1.0, 0.0]), rows([1.0, 0.0], [0.5, 0.5]),
            rows([1.0, 0.0], [0.25, 0.75]), rows([0.5, 0.5], [0.5, 0.5]),
            rows([1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]),
        ):  # fmt: skip
            yield Weights(p=p.view(*ones, *p.shape))
        given = probe.problem
        if isinstance(given, Weights) and given.p is not None and given.p.shape[-1] < 20:
            yield replace(given, p=given.p[(slice(0, 1),) * (way.axes - 2)])

    def leaf(self, way: Any, probe: Probe) -> tuple[Problem, Tensor]:
        assert isinstance(probe.problem, Weights) and probe.problem.p is not None
        p = probe.problem.p
        leaf = (p.log() if way.logits else p.clone()).requires_grad_()
        return replace(probe.problem, p=leaf.softmax(dim=-1) if way.logits else leaf), leaf

    def bound(self, way: EntropyWay) -> int:
        return -way.axes

    def judged(self, gradient: Tensor) -> Tensor:
        """Along what keeps the sum of a row: some divide by it, and that changes nothing else."""
        return gradient - gradient.mean(dim=-1, keepdim=True)

    def conventions(
        self, subject: Subject, hearing: Hearing, told: Told, explanation: Explanation
    ) -> Iterator[Convention]:
        way = hearing.way
        made = {each.mistake.name: each.mistake for each in explanation.made}
        families = {each.family: each for each in made.values()}

        def convention(name: str, value: str, family: str) -> Convention:
            if family in families:
                return Convention(name, families[family].title, "mistake")
            return Convention(name, value)

        axes = "(" + ", ".join(["batch", "heads", "queries", "keys"][-way.axes :]) + ")"
        yield Convention("weights", axes + (" (numpy)" if way.numpy else ""))
        yield Convention("takes", "logits, of which it makes weights" if way.logits
                         else "weights whose rows sum to 1",
                         "different" if way.logits else "right")  # fmt: skip
        yield convention("unit", "nats", "entropy: unit")
        yield convention("over", "the keys of each row", "entropy: axis")
        yield convention("0 log 0", "0", "entropy: zeros")
        pool = getattr(explanation.reading, "pool", "rows")
        yield Convention("returns", SAID[pool], "right" if pool == "rows" else "different")
        probe, reply = hearing.replies[0]
        assert isinstance(probe.problem, Weights)
        there = reply.answers[0][0]
        if there.ndim == way.axes and there.shape[-1] == 1:
            yield Convention("axes", "the axis of keys is kept, of size 1", "different")


def _pooled(hearing: Hearing, pool: str) -> torch.Size | None:
    try:
        problem = EntropyReading(pool=pool).of(hearing.asked[0].probe.problem)
        return torch.Size(lines.ENTROPY.run(problem, {}).out.shape)
    except LookupError:
        return None


def epsilon(hearing: Hearing, name: str) -> float:
    """What must have been added to each of n equal weights; 0 where the answer is of no use."""
    for one in hearing.asked:
        if one.probe.name == name and isinstance(one.probe.problem, Weights):
            p = one.probe.problem.p
            out = one.answer.out
            if p is None or not bool(out.isfinite().all()) or float(out.abs().max()) > 50:
                return 0.0
            return math.exp(-float(out.flatten()[0])) - 1 / p.shape[-1]
    return 0.0


ENTROPIES = Entropies()
