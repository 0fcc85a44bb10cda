"""What somebody's attention is asked: inputs on which no two mistakes give the same answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clearhead.checker.manners import MASKING, Manner
from clearhead.checker.problem import Problem, Projections, embeddings, heads, normal
from clearhead.checker.signature import roles
from clearhead.checker.told import Told, usual_slopes

MORE_KEYS, WINDOW = "more keys than queries", "window of 3"
LONGEST = 131  # tokens


@dataclass(frozen=True, eq=False)
class Probe:
    """A problem, what of it is handed over as an argument, and why it is asked.

    hands   "mask", "padding" (a mask over keys), "causal", "window", "softcap", "sinks", "slopes",
            "scale"
    first   asked first, while the way of calling is looked for
    close   how far an answer in float32 may be off, relative to numbers near 1
    """

    name: str
    problem: Problem
    hands: frozenset[str] = frozenset()
    why: str = ""
    first: bool = False
    close: float = 2e-5


def probes(manner: Manner, told: Told) -> Iterator[Probe]:
    """All that this way of calling can be asked, the plainest first."""
    takes = manner.takes
    masks = bool(takes & {"mask", "bias"}) and manner.axes != 1
    base = problem_for(manner, T=length(told))
    yield Probe("plain", base, why="random numbers, nothing asked for", first=True)
    if "causal" in takes:
        yield Probe("causal", base.but(causal=True), frozenset({"causal"}),
                    "the causal flag", first=True)  # fmt: skip
    B, T, _ = base.sizes
    if masks:
        yield Probe("mask", base.but(mask=some_mask(T, T)), frozenset({"mask"}),
                    "a mask that is no triangle", first=True)  # fmt: skip
        yield Probe("a mask for each text", base.but(mask=some_mask(T, T, B)),
                    frozenset({"mask"}), "each element of the batch has its own")  # fmt: skip
    if takes & MASKING:
        sees = torch.ones(B, 1, 1, T, dtype=torch.bool)
        sees[0, ..., 1] = False
        if B > 1:
            sees[1, ..., 2:4] = False
        yield Probe("padding", base.but(mask=sees), frozenset({"mask", "padding"}),
                    "keys that no query of a text may see", first=manner.axes == 1)  # fmt: skip
    yield from _longer(manner, told, takes, masks)
    yield from _named(manner, base, takes, masks)
    yield from _hostile(manner, base, takes, masks)
    yield from _far(manner, takes, masks)


def length(told: Told) -> int:
    """Tokens enough for a window to hide something, and no size of another axis."""
    least = 5 if told.window is None else told.window + 3
    return next((T for T in (5, 7, 9, 10, 11) if least <= T), max(13, least))


def problem_for(manner: Manner, seed: int = 0, size: float = 1.0, T: int = 5) -> Problem:
    """A random problem of the sizes that this manner takes; they all differ."""
    if manner.kind == "sdp":
        made = heads(
            B=2 if "B" in manner.layout else 1, H=manner.H, G=manner.G, T=T, D=8, seed=seed,
            size=size,
        )  # fmt: skip
        return needing(manner, made)
    where = manner.places
    B = 2 if "B" in manner.layout else 1
    takes = roles(manner.about.parameters)
    if where is None:
        M = 24 if "n_heads" in takes else 12
        D = M // manner.H if "n_heads" in takes or manner.square else 6
        made = embeddings(
            B, T, M, manner.H, manner.G, D=D, output="W_O" in takes, seed=seed, size=size
        )
        return needing(manner, made)
    made = embeddings(
        B, T, where.M, where.H, where.G, where.D, where.Dv, output=where.output,
        biases=any(where.biased), seed=seed, size=size,
    )  # fmt: skip
    if made.W is not None and made.W.biases is not None:
        kept = zip(made.W.biases, where.biased, strict=False)
        made = made.but(W=_biased(made.W, tuple(b if has else 0 * b for b, has in kept)))
    if where.sinks is not None:
        made = made.but(sinks=normal(where.H, seed=77))
    return needing(manner, made)


def needing(manner: Manner, problem: Problem) -> Problem:
    """The problem with what must always be handed over, since the parameter has no default."""
    required = [p for p in manner.about.parameters if p.required]
    must = {role for p in required for role in roles((p,))}
    own: dict[str, Any] = {}
    if "softcap" in must:
        own["softcap"] = 5.0
    if "sinks" in must or ("module" in must and "sinks" in manner.about.source):
        own["sinks"] = normal(problem.H, seed=77)  # transformers' functions find them in `module`
    if "slopes" in must:
        own["slopes"] = usual_slopes(problem.H)
    masks = [p for p in required if MASKING & set(roles((p,)))]
    if any("None" not in p.annotation for p in masks):
        _, T, S = problem.sizes
        own["mask"] = torch.ones(T, S, dtype=torch.bool)
    return problem.but(**own)


def _biased(W: Projections, biases: tuple[Tensor, ...]) -> Projections:
    return Projections(W.q, W.k, W.v, W.o, biases)


def some_mask(T: int, S: int, B: int = 1) -> Tensor:
    """(T, S) or (B, 1, T, S): half of all pairs, each query its own key, no two rows alike."""
    generator = torch.Generator().manual_seed(5)
    sees = torch.rand(B, 1, T, S, generator=generator) < 0.5
    sees |= torch.eye(T, S, dtype=torch.bool)
    return sees[0, 0] if B == 1 else sees


def _longer(manner: Manner, told: Told, takes: set[str], masks: bool) -> Iterator[Probe]:
    """More keys than queries, as with a cache; and fewer key heads than query heads."""
    if manner.kind != "sdp":
        return
    B = 2 if "B" in manner.layout else 1
    if "cos" in takes:
        return  # one table, of as many positions as there are queries
    S = 7 if told.window is None else length(told) + 4
    # D is 6 here and there: a scale that is written as a number is right for one D alone.
    long = needing(manner, heads(B=B, H=manner.H, G=manner.G, T=3, S=S, D=6, seed=3))
    yield Probe(MORE_KEYS, long, why="as in decoding with a cache")
    if "causal" in takes:
        yield Probe("causal, more keys", long.but(causal=True), frozenset({"causal"}),
                    "where the causal mask begins with a cache")  # fmt: skip
    if takes & {"mask", "bias"} and manner.mask == "additive":
        lean = normal(3, long.sizes[2], seed=8)
        yield Probe("a bias", long.but(bias=lean), frozenset({"mask", "bias"}),
                    "numbers that are added to the scores")  # fmt: skip
    if masks:
        sees = some_mask(3, long.sizes[2])
        yield Probe("mask, more keys", long.but(mask=sees), frozenset({"mask"}),
                    "a mask (T, S) that is not square")  # fmt: skip
    if "window" in takes:
        hands = frozenset({"causal"}) if "causal" in takes else frozenset[str]()
        yield Probe("window, more keys", long.but(window=3, causal=bool(hands)),
                    frozenset({"window"}) | hands, "a window in a cache")  # fmt: skip
    wide = needing(manner, heads(B=B, H=manner.H, G=manner.H, T=5, D=6, Dv=8, seed=4))
    yield Probe("values of another size", wide, why="D_v is not D")
    if manner.H > 1:
        shared = needing(manner, heads(B=B, H=manner.H, G=manner.H // 2, T=5, D=8, seed=5))
        yield Probe("shared key heads", shared, why="each key head serves two query heads")


def _named(manner: Manner, base: Problem, takes: set[str], masks: bool) -> Iterator[Probe]:
    """One for each argument of the rule that this attention takes."""
    _, T, _ = base.sizes
    causal = frozenset({"causal"}) if "causal" in takes else frozenset[str]()
    if "window" in takes:
        for W in (3, 2):
            yield Probe(f"window of {W}", base.but(window=W, causal=bool(causal)),
                        frozenset({"window"}) | causal, "W keys, its own included")  # fmt: skip
        if masks and not causal:
            tril = torch.ones(T, T, dtype=torch.bool).tril()
            yield Probe("window, causal mask", base.but(window=3, mask=tril),
                        frozenset({"window", "mask"}), "W keys, its own included")  # fmt: skip
    large = problem_for(manner, seed=1, size=2.0)
    if "softcap" in takes:
        yield Probe("softcap", large.but(softcap=1.5, causal=bool(causal)),
                    frozenset({"softcap"}) | causal, "scores capped at 1.5")  # fmt: skip
        if masks:
            yield Probe("softcap and mask", large.but(softcap=1.5, mask=some_mask(T, T)),
                        frozenset({"softcap", "mask"}), "the cap comes first")  # fmt: skip
    if "sinks" in takes:
        sinks = normal(base.H, seed=77)
        yield Probe("sinks", base.but(sinks=sinks), frozenset({"sinks"}),
                    "one more logit for each head")  # fmt: skip
    if "slopes" in takes:
        yield Probe("ALiBi", base.but(slopes=usual_slopes(base.H), causal=bool(causal)),
                    frozenset({"slopes"}) | causal, "a slope for each head")  # fmt: skip
    scale = next((p for p in manner.about.parameters if roles((p,)).get("scale")), None)
    if "scale" in takes and scale is not None and not isinstance(scale.default, bool):
        yield Probe("scale of 0.3", base.but(scale=0.3), frozenset({"scale"}),
                    "a scale of the caller's own")  # fmt: skip


def _hostile(manner: Manner, base: Problem, takes: set[str], masks: bool) -> Iterator[Probe]:
    """Numbers on which a careless softmax or mask breaks."""
    hands = frozenset({"causal"}) if "causal" in takes else frozenset[str]()
    asked = base.but(causal=True) if hands else base
    if not hands and masks:
        _, T, S = base.sizes
        hands, asked = frozenset({"mask"}), base.but(mask=torch.ones(T, S).tril().bool())
    elif not hands and takes & {"mask", "bias", "hidden", "keep"}:
        sees = torch.ones(base.sizes[0], 1, 1, base.sizes[2], dtype=torch.bool)
        sees[..., -1] = False
        hands, asked = frozenset({"mask", "padding"}), base.but(mask=sees)
    yield Probe("large scores", large(asked), hands, "a score of 2000 that all who see it must "
                "choose, and that is hidden from the others", close=1e-4)  # fmt: skip
    yield Probe("large hidden scores", large(asked, hidden=True), hands, "a score of 2000 that no "
                "query of a causal text both has and sees", close=1e-4)  # fmt: skip
    for low in (30.0, 3000.0):
        yield Probe(f"scores of -{low:g}", all_low(asked, low), hands,
                    "visible scores lower than a number that some hide with",
                    close=1e-4)  # fmt: skip
    wide = problem_for(manner, seed=2, size=6.0)
    yield Probe("wide scores", asked.but(q=wide.q, k=wide.k, v=wide.v, x=wide.x, W=wide.W), hands,
                "where half precision shows", close=1e-4)  # fmt: skip


def _far(manner: Manner, takes: set[str], masks: bool) -> Iterator[Probe]:
    """Texts longer than a tile or a table, whose scores rise, so that the largest moves on."""
    if "cos" in takes:
        return
    for T in (61, LONGEST):
        long = problem_for(manner, seed=7, T=T)
        rise = torch.linspace(0.5, 2.5, T).double()[:, None]
        hands = frozenset({"causal"}) if "causal" in takes else frozenset[str]()
        if hands:
            long = long.but(causal=True)
        elif masks:
            hands, long = frozenset({"mask"}), long.but(mask=torch.ones(T, T).tril().bool())
        if long.x is not None:
            long = long.but(x=long.x * rise)
        elif long.k is not None:
            long = long.but(k=long.k * rise)
        yield Probe(f"{T} tokens", long, hands, "a longer text, whose scores rise",
                    close=1e-4)  # fmt: skip


def large(problem: Problem, size: float = 2000.0, hidden: bool = False) -> Problem:
    """The last key's score is `size` for every query, all other scores are 0; with `hidden` also
    that of the last query, which alone sees this key in a causal text."""
    D = problem.head_size
    if problem.x is not None and problem.W is not None:
        x, W = torch.zeros_like(problem.x), problem.W
        T = x.shape[1]
        x[:, torch.arange(T), torch.arange(T)] = 1.0
        q, k = torch.zeros_like(W.q), torch.zeros_like(W.k)
        q[: T - hidden, ::D], k[T - 1, ::D] = 10.0, size / 10 * D**0.5
        return problem.but(x=x, W=Projections(q, k, W.v, W.o, _none(W.biases)))
    assert problem.q is not None and problem.k is not None
    q, k = torch.zeros_like(problem.q), torch.zeros_like(problem.k)
    q[..., : q.shape[-2] - hidden, 0], k[..., -1, 0] = 10.0, size / 10 * D**0.5
    return problem.but(q=q, k=k)


def all_low(problem: Problem, low: float) -> Problem:
    """All scores are -low, hidden ones too."""
    D = problem.head_size
    if problem.x is not None and problem.W is not None:
        x, W = problem.x.clone(), problem.W
        x[..., 0] = 1.0
        q, k = torch.zeros_like(W.q), torch.zeros_like(W.k)
        q[0, ::D], k[0, ::D] = 1.0, -low * D**0.5
        return problem.but(x=x, W=Projections(q, k, W.v, W.o, _none(W.biases)))
    assert problem.q is not None and problem.k is not None
    q, k = torch.zeros_like(problem.q), torch.zeros_like(problem.k)
    q[..., 0], k[..., 0] = 1.0, -low * D**0.5
    return problem.but(q=q, k=k)


def _none(biases: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
    """No bias of queries and keys, so that scores are what they are meant to be."""
    return None if biases is None else (0 * biases[0], 0 * biases[1], *biases[2:])
