"""Mistakes in where a token stands: rotary angles and ALiBi."""

import torch

from clearhead.checker import steps
from clearhead.checker.line import Mistake, Step, Work, nothing, one

ROTARY = r"rot|rope|cos|sin|freq|theta|base|10000"
ALIBI = r"alibi|slope|bias|dist|arange"


def _turned(
    keys: bool = True, values: bool = False, queries: bool = True, other_pairs: bool = False,
    sign: float = 1.0, base: float | None = None, axis: int = -2,
) -> Step:  # fmt: skip
    def turn(work: Work) -> None:
        how, (_, T, S) = work.p.turn, work.p.sizes
        if how is None:
            return
        pairing = how.pairing
        if other_pairs:
            pairing = "interleaved" if pairing == "halves" else "halves"
        rest = (base or how.base, pairing, sign, axis)
        at_q, at_k = torch.arange(T) + work.at, torch.arange(S)
        if axis != -2:
            at_q, at_k = torch.arange(work.q.shape[1]), torch.arange(work.k.shape[1])
        work.q = steps.rotated(work.q, at_q, *rest) if queries else work.q
        work.k = steps.rotated(work.k, at_k, *rest) if keys else work.k
        work.v = steps.rotated(work.v, at_k, *rest) if values else work.v

    return turn


def _restarted(work: Work) -> None:
    work.at = 0


BASES = (100.0, 1000.0, 10000.0, 500000.0, 1000000.0)

ROTARIES = (
    Mistake(
        "rotary-missing", "rotary", "queries and keys are not turned by their positions",
        "The head cannot tell near from far: order comes from the causal mask alone.",
        "turn q and k after the split into heads, before the scores",
        one(turn=nothing), look=ROTARY,
    ),
    Mistake(
        "rotary-pairing", "rotary", "the pairs are other ones than the weights expect",
        "Halves (n, n + d/2) and interleaved (2n, 2n + 1) are both in use; weights trained with "
        "one are wrong with the other, though nothing raises an error.",
        "pair the numbers as the model's own code does, or permute the rows of W_Q and W_K",
        one(turn=_turned(other_pairs=True)), look=ROTARY + r"|::2|chunk|cat|stack",
    ),
    Mistake(
        "rotary-sign", "rotary", "the angles have the other sign",
        "Scores depend on j - i where they should on i - j. From scratch it works as well; "
        "trained weights do not fit.",
        "(a, b) -> (a cos - b sin, a sin + b cos)",
        one(turn=_turned(sign=-1.0)), look=ROTARY,
    ),
    Mistake(
        "rotary-queries-only", "rotary", "only queries or only keys are turned",
        "Scores depend on the absolute position of one side instead of the distance.",
        "turn both, q and k",
        (("queries", {"turn": _turned(keys=False)}), ("keys", {"turn": _turned(queries=False)})),
        look=ROTARY,
    ),
    Mistake(
        "rotary-on-values", "rotary", "the values are turned too",
        "What is handed over depends on where it stood: sums over keys no longer add like to like.",
        "turn q and k alone",
        one(turn=_turned(values=True)), look=ROTARY,
    ),
    Mistake(
        "rotary-offset", "rotary", "with a cache the queries' positions begin at 0 again",
        "A decoded token believes to be the first: all distances are wrong from the first step on.",
        "positions of the queries begin at S - T",
        one(place=_restarted), look=ROTARY + "|position|offset|arange",
    ),
    Mistake(
        "rotary-base", "rotary", "the base of the angles is another one",
        "All pairs turn at another speed: near tokens may look alike still, far ones do not.",
        "take the base that the weights were trained with (rope_theta; 10,000 if nothing is said)",
        tuple((f"{base:g}", {"turn": _turned(base=base)}) for base in BASES),
        also=("the frequencies are base^(-n/d), not base^(-2n/d): the base is its square root",),
        look=ROTARY,
    ),
    Mistake(
        "rotary-over-heads", "rotary", "the angle is that of the head, not of the token",
        "Every token of a head is turned alike: there are no positions at all.",
        "positions run along the axis of tokens; mind (B, T, H, D) and (B, H, T, D)",
        one(turn=_turned(axis=-3)), look=ROTARY + "|transpose",
    ),
)  # fmt: skip


def _leaning(sign: float = 1.0, flip: bool = False, scaled: bool = False) -> Step:
    def lean(work: Work) -> None:
        slopes = work.p.slopes
        if slopes is None:
            return
        slopes = (slopes.flip(0) if flip else slopes) * (steps.factor(work) if scaled else 1)
        work.scores = work.scores - sign * slopes.view(1, -1, 1, 1) * steps.back(work)

    return lean


ALIBIS = (
    Mistake(
        "alibi-sign", "ALiBi", "ALiBi has the wrong sign",
        "Far keys are preferred: the farther back, the more weight.",
        "scores - slope * (i - j)",
        one(lean=_leaning(sign=-1.0)), look=ALIBI,
    ),
    Mistake(
        "alibi-slopes-reversed", "ALiBi", "the slopes go to the heads in reverse order",
        "Heads trained to look near look far, and the other way round.",
        "head h has slope 2 ** (-8 (h + 1) / H)",
        one(lean=_leaning(flip=True)), look=ALIBI,
    ),
    Mistake(
        "alibi-missing", "ALiBi", "there is no ALiBi",
        "The head cannot tell near from far.",
        "scores - slope * (i - j), after the scale",
        one(lean=nothing), look=ALIBI,
    ),
    Mistake(
        "alibi-scaled", "ALiBi", "ALiBi is divided by sqrt(d_head) with the scores",
        "The slopes are sqrt(d_head) times too small.",
        "scale first, then add ALiBi",
        one(lean=_leaning(scaled=True)), look=ALIBI,
    ),
)  # fmt: skip

MISTAKES = (*ROTARIES, *ALIBIS)
