"""What is watched rather than computed: randomness, inputs written into, gradients, returned
weights, and what becomes of a row that sees nothing."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

import torch
from torch import Tensor

from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.diagnosis import Found
from clearhead.checker.line import Mistake
from clearhead.checker.matching import Explanation, computed, misfit
from clearhead.checker.mistakes import REPORTS
from clearhead.checker.mistakes.effects import BY_NAME
from clearhead.checker.probes import Probe, problem_for, some_mask
from clearhead.checker.problem import Problem, Projections, normal
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.steps import projected
from clearhead.checker.trying import Attempt

HALF = 1e-3  # a relative difference of gradients that rounding does not make


def seen(
    subject: Subject, attempt: Attempt, explanation: Explanation, explained: bool
) -> list[Found]:
    """Everything that was watched going wrong, the gravest first."""
    found = [*_randomness(attempt), *_inputs(attempt)]
    if explained and not attempt.random:
        found += _mixed(subject, attempt, explanation)
        found += [*_reported(attempt, explanation), *_empty(subject, attempt, explanation)]
        found += _gradients(subject, attempt, explanation)
    return found


def of(mistake: Mistake, why: str, note: str = "") -> Found:
    return Found(mistake.name, mistake.family, mistake.title, mistake.does, mistake.mend, note,
                 "seen", why, mistake.also, caution=mistake.caution)  # fmt: skip


def _randomness(attempt: Attempt) -> Iterator[Found]:
    if attempt.random and attempt.moved:
        yield of(BY_NAME["dropout-in-eval"],
                 "two calls with the same input gave different answers, drawn from the global "
                 "random state")  # fmt: skip
    elif attempt.random:
        yield of(BY_NAME["not-deterministic"],
                 "two calls with the same input gave different answers")  # fmt: skip
    elif attempt.weights_random:
        yield of(BY_NAME["dropout-on-weights"],
                 "two calls with the same input gave one output and different weights")  # fmt: skip
    elif attempt.moved:
        yield of(BY_NAME["random-state"],
                 "torch's, numpy's or random's state was another one after the call")  # fmt: skip


def _inputs(attempt: Attempt) -> Iterator[Found]:
    if attempt.changed:
        names = [_argument(attempt, key) for key in attempt.changed]
        yield of(BY_NAME["inputs-changed"],
                 f"{', '.join(names)} held other numbers afterwards", ", ".join(names))  # fmt: skip


def _argument(attempt: Attempt, key: str) -> str:
    head = key.split(".")[0]
    positional = [p.name for p in attempt.manner.about.parameters if p.kind == "positional"]
    return positional[int(head)] if head.isdigit() and int(head) < len(positional) else key


# Several inputs ---------------------------------------------------------------------------------


def _mixed(subject: Subject, attempt: Attempt, explanation: Explanation) -> Iterator[Found]:
    """Asked with another text for each input: which of them are q, k and v made of?"""
    sources, manner = attempt.manner.sources, attempt.manner
    if not sources or "project" in explanation.changes or not attempt.asked:
        return
    probe = attempt.asked[0].probe
    problem = explanation.reading.of(probe.problem)
    assert problem.x is not None
    names = list(dict.fromkeys(sources.values()))
    given = {name: normal(*problem.x.shape, seed=60 + at) for at, name in enumerate(names)}
    try:
        request = manner.request(probe.problem, probe.hands)
        reply = subject.call(manner.sourced(request, given))
        if reply.failure is not None:
            return
        got = manner.read(reply, probe.problem).out
    except Unanswerable:
        return

    def made_of(*three: str) -> bool:
        inputs = [given[name] for name in three]
        changes = {"project": lambda work: projected(work, *inputs)}
        work = computed(LINE, problem, changes | dict(explanation.changes))
        return work is not None and misfit(got, work) < 1e-4

    meant = tuple(sources[part] for part in "qkv")
    if made_of(*meant):
        return
    other = next((each for each in product(names, repeat=3) if made_of(*each)), None)
    if other is None:
        yield of(BY_NAME["inputs-mixed"], "with another text for each input the answer is not that "
                 "of attention across them")  # fmt: skip
        return
    parts = zip(("queries", "keys", "values"), other, meant, strict=True)
    note = ", ".join(f"{part} of {name}" for part, name, due in parts if name != due)
    yield of(BY_NAME["inputs-mixed"], "another text was handed over for each input", note)


# Returned weights -------------------------------------------------------------------------------


def _reported(attempt: Attempt, explanation: Explanation) -> Iterator[Found]:
    if attempt.weights_random:
        return
    given = [(one, one.answer.weights) for one in attempt.asked if one.answer.weights is not None]
    if not given:
        return

    def off(changes: Explanation, mistake: Mistake | None = None, at: int = 0) -> float:
        steps = dict(changes.changes) | (dict(mistake.variants[at][1]) if mistake else {})
        worst = 0.0
        for one, weights in given:
            work = computed(LINE, changes.reading.of(one.probe.problem), steps)
            if work is None:
                return math.inf
            want = work.reported
            if mistake is not None and mistake.name == "weights-scores":
                sees = work.visible.expand_as(want)  # whatever stands for minus infinity
                want, weights = want.masked_fill(~sees, 0), weights.masked_fill(~sees, 0)
            worst = max(worst, misfit(weights, work, want) / one.probe.close)
        return worst

    if off(explanation) <= 1:
        return
    for mistake in REPORTS:
        for at, (note, _) in enumerate(mistake.variants):
            if off(explanation, mistake, at) <= 1:
                yield of(mistake, "the output is that of other weights than those returned", note)
                return
    other = Mistake(
        "weights-other", "weights", "the returned weights are not those of the output",
        "Whoever reads them learns of something that the model did not do.",
        "return what the values are multiplied by", look=r"return|weights|attn",
    )  # fmt: skip
    yield of(other, "the output is that of other weights than those returned")


# A row that sees nothing ------------------------------------------------------------------------


def _empty(subject: Subject, attempt: Attempt, explanation: Explanation) -> Iterator[Found]:
    """Asked with a mask in which one query sees nothing."""
    takes = attempt.manner.takes
    if not {"mask", "bias"} & takes or any("see" in m.changes for m in explanation.made):
        return
    problem = problem_for(attempt.manner, seed=6)
    _, T, S = problem.sizes
    sees = some_mask(T, S)
    sees[2] = False
    probe = Probe("a row that sees nothing", problem.but(mask=sees), frozenset({"mask"}))
    try:
        reply = subject.call(attempt.manner.request(probe.problem, probe.hands))
        if reply.failure is not None:
            return
        got = attempt.manner.read(reply, probe.problem).out
    except Unanswerable:
        return
    row = got[..., 2, :]
    if bool(row.isnan().any()):
        yield of(BY_NAME["empty-nan"], "a mask with one row of nothing was handed over")
        return
    filled = []
    for value in (0.0, 1 / S):
        changes = {"after": partial(_filled, value=value)} | dict(explanation.changes)
        work = computed(LINE, explanation.reading.of(probe.problem), changes)
        if work is None:
            return
        filled.append(work.out[..., 2, :])
    nothing, even = filled
    if float((nothing - even).abs().max()) < 1e-3:
        return  # a sink takes it all
    if float((row - even).abs().max()) < 1e-3 * max(1.0, float(even.abs().max())):
        yield of(BY_NAME["empty-uniform"], "a mask with one row of nothing was handed over")


def _filled(work: object, value: float) -> None:
    work.weights = work.weights.nan_to_num(value)  # type: ignore[attr-defined]


# Gradients --------------------------------------------------------------------------------------


def _gradients(subject: Subject, attempt: Attempt, explanation: Explanation) -> Iterator[Found]:
    """Against those of the explained computation, so that a mistake is named once."""
    manner = attempt.manner
    if manner.numpy or not attempt.asked:
        return
    one = next((a for a in attempt.asked if a.probe.first and a.probe.name == "mask"),
               attempt.asked[0])  # fmt: skip
    problem, leaves = _leaves(explanation.reading.of(one.probe.problem))
    try:
        work = LINE.run(problem, explanation.changes)
        push = torch.randn(work.out.shape, generator=torch.Generator().manual_seed(9)).double()
        asked = [each for each in leaves.values() if each.requires_grad]
        wanted = torch.autograd.grad(work.out, asked, push, allow_unused=True)
        request = manner.request(one.probe.problem, one.probe.hands, push=manner.theirs(push),
                                 of=manner.place)  # fmt: skip
        reply = subject.call(request)
    except (Unanswerable, RuntimeError):
        return
    if reply.failure is not None or not reply.gradients:
        return
    pairs: list[tuple[str, Tensor | None]] = list(zip(leaves, wanted, strict=True))
    ours = {name: each for name, each in pairs if each is not None}
    stopped, wrong = [], []
    for name, role in _keys(attempt):
        want = None if role == "x" and manner.contexts else ours.get(role)  # x went in twice
        if name not in reply.gradients or want is None or math.isnan(float(want.sum())):
            continue
        got, size = reply.gradients[name], float(want.abs().max())
        if size < 1e-6:
            continue
        if got is None or float(got.abs().max()) == 0:
            stopped.append(_argument(attempt, name))
            continue
        laid = manner.laid_gradient(role, want)
        if laid.shape != got.shape or float((laid - got).abs().max()) > HALF * size:
            wrong.append(_argument(attempt, name))
    for name, part, got, want in _projections(attempt, reply.gradients, ours):
        if got is None or float(got.abs().max()) == 0:
            stopped.append(f"{name} ({part})" if part not in name else name)
        elif float((want - got).abs().max()) > HALF * float(want.abs().max()):
            wrong.append(name)
    if stopped:
        yield of(BY_NAME["gradient-stopped"], f"{', '.join(stopped)} got none", ", ".join(stopped))
    elif wrong:
        yield of(BY_NAME["gradient-wrong"],
                 f"that of {', '.join(wrong)} is off from that of the same computation",
                 ", ".join(wrong))  # fmt: skip


def _projections(
    attempt: Attempt, gradients: Mapping[str, Tensor | None], ours: Mapping[str, Tensor]
) -> Iterator[tuple[str, str, Tensor | None, Tensor]]:
    """Of each projection in a module: its parameter, which it is, its gradient and ours."""
    places = attempt.manner.places
    if places is None:
        return
    W = attempt.asked[0].probe.problem.W
    if W is None:
        return
    zeros = {"q": 0 * W.q, "k": 0 * W.k, "v": 0 * W.v}
    zeros |= {} if W.o is None else {"o": 0 * W.o}
    names = {"q": "W_Q", "k": "W_K", "v": "W_V", "o": "W_O"}
    for part, role in names.items():
        want = ours.get(role)
        if want is None or float(want.abs().max()) < 1e-6:
            continue
        ones = zeros | {part: torch.ones_like(want)}
        where = places.filled(Problem(W=_as(ones, W), H=places.H))
        values = places.filled(Problem(W=_as(zeros | {part: want}, W), H=places.H))
        for place in places.found:
            key, mine = f"parameters.{place.name}", where[place.name] != 0
            if part in place.parts and key in gradients:
                got = gradients[key]
                yield (place.name, f"W_{part.upper()}", None if got is None else got[mine],
                       values[place.name][mine])  # fmt: skip


def _as(matrices: Mapping[str, Tensor], like: Projections) -> Projections:
    biases = None if like.biases is None else tuple(0 * b for b in like.biases)
    return Projections(matrices["q"], matrices["k"], matrices["v"], matrices.get("o"), biases)


def _leaves(problem: object) -> tuple[object, dict[str, Tensor]]:
    """The problem again, whose inputs ask for gradients."""
    p = problem
    if p.x is not None:  # type: ignore[attr-defined]
        W = p.W  # type: ignore[attr-defined]
        names = {"x": p.x, "W_Q": W.q, "W_K": W.k, "W_V": W.v}  # type: ignore[attr-defined]
        names |= {} if W.o is None else {"W_O": W.o}
        leaves = {name: each.clone().requires_grad_() for name, each in names.items()}
        made = type(W)(leaves["W_Q"], leaves["W_K"], leaves["W_V"], leaves.get("W_O"), W.biases)
        return p.but(x=leaves["x"], W=made), leaves  # type: ignore[attr-defined]
    leaves = {name: getattr(p, name).clone().requires_grad_() for name in "qkv"}
    return p.but(**leaves), leaves  # type: ignore[attr-defined]


def _keys(attempt: Attempt) -> Iterator[tuple[str, str]]:
    """Names under which gradients come back, and whose they are."""
    at = 0
    for parameter, role in attempt.manner.handed:
        if parameter.kind == "var":
            continue
        if role in ("q", "k", "v", "x", "W_Q", "W_K", "W_V", "W_O"):
            yield str(at), role
            yield parameter.name, role
        at += parameter.kind == "positional"
