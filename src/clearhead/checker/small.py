"""The smallest input on which an attention is wrong, in numbers that can be checked by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker.axes import Unanswerable
from clearhead.checker.calls import Subject
from clearhead.checker.diagnosis import Example
from clearhead.checker.manners import Manner
from clearhead.checker.matching import Explanation, misfit, off
from clearhead.checker.probes import Probe, problem_for
from clearhead.checker.problem import Problem, Projections, embeddings, heads
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.trying import Attempt

# A difference that nobody overlooks, one that three digits show, and one that is no rounding.
CLEAR, SEEN, FINE = 0.2, 0.02, 5e-5
SIZES = [(T, D, H) for H in (1, 2, 4) for T in (1, 2, 3, 4) for D in (2, 1, 4)]


def smallest(subject: Subject, attempt: Attempt, explanation: Explanation) -> Example | None:
    """Tried from one token upwards; None where only larger inputs fail, or none that is small."""
    plain = Explanation(explanation.reading)
    failing = [one.probe for one in attempt.asked if off(plain, LINE, one) > one.probe.close]
    for seen in (CLEAR, SEEN, FINE):
        for probe in failing[:3]:
            for problem in problems(attempt.manner, probe):
                asked = replace(probe, problem=problem)
                found = _shown(subject, attempt.manner, plain, explanation, asked, seen)
                if found is not None:
                    return found
    return None


def problems(manner: Manner, probe: Probe) -> Iterator[Problem]:
    """Like this probe's problem, and smaller; whole numbers, and those as few as can be."""
    given = probe.problem
    _, T0, S0 = given.sizes
    if "scores" in probe.name:
        yield given  # its numbers are the point
        return
    for T, D, H in SIZES:
        if H == 4 and given.G == given.H:
            continue
        S = T + (S0 > T0) * (1 if T > 1 else 2)
        if manner.kind == "sdp":
            H = H if "H" in manner.layout else 1
            G = max(H // 2, 1) if given.G < given.H else H
            if given.G < given.H and H == 1:
                continue
            made = heads(B=1, H=H, G=G, T=T, S=S, D=D)
            assert made.q is not None and made.k is not None and made.v is not None
            made = made.but(q=_whole(made.q, 1), k=_whole(made.k, 2), v=_whole(made.v, 3))
        elif manner.places is None:
            H = H if manner.H > 1 else 1
            G = max(H // 2, 1) if given.G < given.H else H
            made = _by_hand(T, D, H, G, output=given.W is not None and given.W.o is not None)
        else:
            made = problem_for(manner, T=T)
            if made.x is not None:
                made = made.but(x=_whole(made.x[:1], 4))
        yield made.but(**_asked_like(given, T, S, made.H))


def _by_hand(T: int, D: int, H: int, G: int, output: bool) -> Problem:
    """x with projections that can be multiplied in the head: the identity where D is even, so that
    queries, keys and values are x itself, else small whole numbers; fewer key heads read the first
    columns of x."""
    M = H * D
    made = embeddings(1, T, M, H, G, output=output)
    assert made.x is not None and made.W is not None
    one = torch.eye(M, dtype=torch.float64)
    q, k, v = (one if D % 2 == 0 else _whole(one, seed) for seed in (5, 6, 7))
    k, v = k[:, : G * D], v[:, : G * D]
    return made.but(x=_whole(made.x, 4), W=Projections(q, k, v, one if output else None))


def _asked_like(given: Problem, T: int, S: int, H: int) -> dict[str, object]:
    """What was asked of the larger problem, cut to this size."""
    mask = given.mask
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], given.sizes[1], given.sizes[2])
        mask = mask[..., :T, :S] if mask.ndim == 2 else mask[:1, :1, :T, :S]
    return {
        "causal": given.causal, "mask": mask,
        "window": given.window, "scale": given.scale, "softcap": given.softcap,
        "slopes": None if given.slopes is None else given.slopes[:H],
        "sinks": None if given.sinks is None else given.sinks[:H],
    }  # fmt: skip


def _whole(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 3, like.shape, generator=generator).double()


def _shown(
    subject: Subject, manner: Manner, plain: Explanation, explanation: Explanation, probe: Probe,
    seen: float,
) -> Example | None:  # fmt: skip
    """The example, where the answer is seen to be wrong here."""
    try:
        request = manner.request(probe.problem, probe.hands)
        reply = subject.call(request)
        if reply.failure is not None:
            return None
        got = manner.read(reply, probe.problem)
        want = plain.work(LINE, probe)
    except Unanswerable:
        return None
    if (
        want is None
        or misfit(got.out, want) < seen
        or (got.out - want.out).abs().nan_to_num(1.0).max() < seen
    ):
        return None
    weights = got.weights
    if weights is None and explanation.made:
        work = explanation.work(LINE, probe)
        weights = None if work is None else work.weights
    own = None if weights is None or weights.ndim != 4 else weights[0]
    if own is not None and bool(own.isnan().any()) and not bool(got.out.isnan().any()):
        own = None  # hidden by a number: what a row that sees nothing does is not known
    found = pictured(probe, got.out, want.out, want.weights[0], own, manner.places is None,
                     manner.masks(request))  # fmt: skip
    alone = manner.kind == "sdp" and "H" not in manner.layout
    inputs = [(manner.own_names.get(name, name), x[0] if alone and name in "qkv" else x)
              for name, x in found.inputs]  # fmt: skip
    return replace(found, call=manner.words(probe.problem, probe.hands), inputs=tuple(inputs))


def pictured(
    probe: Probe, got: Tensor, want: Tensor, want_weights: Tensor | None = None,
    got_weights: Tensor | None = None, show_projections: bool = False,
    masks: Sequence[tuple[str, Tensor]] | None = None,
) -> Example:  # fmt: skip
    """What goes in and what came out, of the first element of the batch; masks as they were handed
    over, else as True = may look."""
    p = probe.problem
    inputs = [(n, getattr(p, n)[0]) for n in ("q", "k", "v", "x") if getattr(p, n) is not None]
    if masks is not None:
        inputs += masks
    elif p.mask is not None:
        inputs.append(("mask", p.mask[0, 0] if p.mask.ndim == 4 else p.mask))
    if p.W is not None and show_projections and p.W.q.numel() <= 16:
        inputs += [("W_Q", p.W.q), ("W_K", p.W.k), ("W_V", p.W.v)]
        inputs += [] if p.W.o is None else [("W_O", p.W.o)]
    return Example(_words(probe, _worst(got, want)), tuple(inputs), got[0], want[0],
                   want_weights, got_weights)  # fmt: skip


def _worst(got: Tensor, want: Tensor) -> int:
    """The query whose output is farthest off."""
    distance = (got - want).abs().nan_to_num(torch.inf)
    return int(distance.amax(dim=[d for d in range(distance.ndim) if d != got.ndim - 2]).argmax())


def _words(probe: Probe, row: int) -> str:
    _, T, S = probe.problem.sizes
    p = probe.problem
    size = f"{T} tokens" if T == S else f"{T} queries and {S} keys"
    if T == S == 1:
        size = "one token"
    heads_ = "one head" if p.H == 1 else f"{p.H} heads"
    return f"{size}, {heads_} of size {p.head_size} ({probe.name}); query {row} is farthest off"
