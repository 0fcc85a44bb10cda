"""Mistakes in the softmax over scores, in its digits, and with sinks."""

import math

import torch
from torch import Tensor

from clearhead.checker import steps
from clearhead.checker.line import Changes, Mistake, Step, Work, one

SOFTMAX = r"softmax|\bexp\("
# Where it is said over which axis: with powers and their sum on two lines, that of the sum.
OVER = r"softmax|\bsum\(|logsumexp" "\n" + SOFTMAX


def _outcomes(work: Work) -> Tensor:
    """What the softmax runs over: the scores, and the sink where there is one."""
    return work.scores if work.p.sinks is None else steps.with_sinks(work)


def _softmax_over(*axes: int, hidden: float = -math.inf) -> Step:
    """hidden stands for minus infinity: where all of an axis is hidden, it matters which."""

    def weigh(work: Work) -> None:
        scores = _outcomes(work)
        scores = scores.masked_fill(scores == -math.inf, hidden)
        if len(axes) == 1:
            weights = scores.softmax(dim=axes[0])
        else:
            weights = scores.flatten(-2).softmax(dim=-1).view_as(scores)
        work.weights = weights[..., : work.scores.shape[-1]]

    return weigh


def _naive(*axes: int) -> Step:
    """The same by hand, without the maximum, in float32."""

    def weigh(work: Work) -> None:
        exps = _outcomes(work).float().exp()
        weights = exps / exps.sum(dim=axes, keepdim=True)
        work.weights = weights[..., : work.scores.shape[-1]].double()

    return weigh


def _sums_unkept(work: Work) -> None:
    """The sum of row j divides column j."""
    sums = _outcomes(work).logsumexp(dim=-1)
    work.weights = (_outcomes(work) - sums[..., None, :]).exp()


def _shifted_unkept(work: Work) -> None:
    """The same with the maximum of each row subtracted, which no longer cancels out."""
    scores = _outcomes(work)
    exps = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    work.weights = exps / exps.sum(dim=-1)[..., None, :]


def _lowered(axis: int, hidden: float = -math.inf, whole: bool = False) -> Step:
    """In float32, with one maximum for a whole map, or for all of them, and not one for each row:
    rows whose scores lie far below it come out as 0 / 0."""

    def weigh(work: Work) -> None:
        scores = _outcomes(work)
        scores = scores.masked_fill(scores == -math.inf, hidden).float()
        most = scores.max() if whole else scores.amax(dim=(-2, -1), keepdim=True)
        exps = (scores - most).exp()
        weights = (exps / exps.sum(dim=axis, keepdim=True)).double()
        work.weights = weights[..., : work.scores.shape[-1]]

    return weigh


def _of_a_map(axis: int) -> tuple[tuple[str, Changes], ...]:
    return tuple(
        (note, {"weigh": _lowered(axis, hidden, whole)})
        for whole, whose in ((True, "of all scores"), (False, "of a map"))
        for hidden, note in ((-math.inf, whose), (-1e9, f"{whose}, hidden by a large number"))
    )


def _naive_unkept(work: Work) -> None:
    exps = _outcomes(work).float().exp()
    work.weights = (exps / exps.sum(dim=-1)[..., None, :]).double()


def _in(dtype: torch.dtype) -> Step:
    def weigh(work: Work) -> None:
        weights = _outcomes(work).to(dtype).softmax(dim=-1).double()
        work.weights = weights[..., : work.scores.shape[-1]]

    return weigh


def _scores_in(dtype: torch.dtype) -> Step:
    def score(work: Work) -> None:
        work.scores = (work.q.to(dtype) @ work.k.to(dtype).mT).double()

    return score


def _no_maximum(work: Work) -> None:
    """In float32, where exp(89) is inf and inf / inf is NaN."""
    exps = _outcomes(work).float().exp()
    weights = (exps / exps.sum(dim=-1, keepdim=True)).double()
    work.weights = weights[..., : work.scores.shape[-1]]


def _none(hidden: float) -> Step:
    def weigh(work: Work) -> None:
        work.weights = work.scores.masked_fill(work.scores == -math.inf, hidden)

    return weigh


def _twice(work: Work) -> None:
    steps.weigh(work)
    work.weights = work.weights.softmax(dim=-1)


def _base_2(work: Work) -> None:
    weights = (_outcomes(work) * math.log(2)).softmax(dim=-1)
    work.weights = weights[..., : work.scores.shape[-1]]


SOFTMAXES = (
    Mistake(
        "softmax-over-queries", "softmax", "the softmax runs over the queries, not over the keys",
        "Columns sum to 1 and rows do not: each key shares itself out among the queries, and with "
        "a causal mask an early position learns of later ones through the sum.",
        "softmax(dim=-1): the last axis is that of the keys",
        (("", {"weigh": _softmax_over(-2)}),
         ("hidden by a large number", {"weigh": _softmax_over(-2, hidden=-1e9)}),
         ("and without the maximum", {"weigh": _naive(-2)}),
         *((f"and with the maximum {note}", changes) for note, changes in _of_a_map(-2))),
        look=OVER,
    ),
    Mistake(
        "softmax-over-heads", "softmax", "the softmax runs over the heads",
        "Heads compete with each other instead of keys: a row of one head sums to anything.",
        "softmax(dim=-1): the last axis is that of the keys",
        (("", {"weigh": _softmax_over(1)}),
         ("hidden by a large number", {"weigh": _softmax_over(1, hidden=-1e9)}),
         ("and without the maximum", {"weigh": _naive(1)})), look=OVER,
    ),
    Mistake(
        "softmax-over-batch", "softmax", "the softmax runs over the batch",
        "Texts that have nothing to do with each other share their weights.",
        "softmax(dim=-1): the last axis is that of the keys",
        one(weigh=_softmax_over(0)), look=OVER,
    ),
    Mistake(
        "softmax-over-all", "softmax", "one softmax runs over all scores of a map at once",
        "The whole map sums to 1, so that each row gets about 1/T of what is its own.",
        "softmax(dim=-1), each row by itself",
        (("", {"weigh": _softmax_over(-2, -1)}),
         ("and without the maximum", {"weigh": _naive(-2, -1)}),
         ("and of all heads and texts", {"weigh": _naive(0, 1, 2, 3)})), look=OVER,
    ),
    Mistake(
        "softmax-sums-unkept", "softmax", "the sum of a row divides a column",
        "Without keepdim the sums of the rows stand as a row, so that weight (i, j) is divided by "
        "the sum of row j: no row sums to 1.",
        "exps / exps.sum(-1, keepdim=True)",
        (("", {"weigh": _sums_unkept}),
         ("of powers below the row's maximum", {"weigh": _shifted_unkept}),
         ("and without the maximum", {"weigh": _naive_unkept})), look=OVER,
    ),
    Mistake(
        "softmax-missing", "softmax", "there is no softmax: scores are used as weights",
        "Weights are negative or above 1 and sum to anything; the output grows with the scores.",
        "weights = scores.softmax(dim=-1)",
        (
            ("hidden ones as 0", {"weigh": _none(0.0)}),
            ("hidden ones as -inf", {"weigh": _none(-math.inf)}),
        ),
        look=SOFTMAX + "|@|matmul|einsum",
    ),
    Mistake(
        "softmax-twice", "softmax", "the softmax is applied twice",
        "The second one sees numbers between 0 and 1: no key can get more than e times another's "
        "weight, and hidden keys (0) get their share again.",
        "apply it once",
        one(weigh=_twice), look=SOFTMAX,
    ),
    Mistake(
        "softmax-base-2", "softmax", "the powers are of 2, not of e",
        "Scores count only 0.69 of what they should: all heads are flatter.",
        "use exp, or multiply the scores by log2(e) before exp2",
        one(weigh=_base_2), look=SOFTMAX + "|exp2|2 ?\\*\\*",
    ),
    Mistake(
        "softmax-overflow", "softmax", "the softmax overflows: the row's maximum is not subtracted",
        "exp(89) is more than float32 can hold: one large score makes NaN of a whole row.",
        "subtract scores.amax(dim=-1, keepdim=True) before exp (numpy: max(-1, keepdims=True)), or "
        "use torch.softmax, which does",
        one(weigh=_no_maximum), look=SOFTMAX,
    ),
    Mistake(
        "softmax-one-maximum", "softmax", "one maximum is subtracted from all rows of a map",
        "Right until a row's scores lie some 90 below the largest of the map: then all its powers "
        "are 0, and 0 / 0 makes NaN of the row.",
        "subtract each row's own: scores.max(-1, keepdim=True) in torch, keepdims=True in numpy",
        _of_a_map(-1), look=r"max\(",
    ),
    Mistake(
        "softmax-half", "softmax", "the softmax is computed in half precision",
        "Weights below 6e-5 (6e-8 at the least) are rough or 0 in float16, and bfloat16 keeps two "
        "digits: long rows no longer sum to 1.",
        "softmax(scores.float(), dim=-1), and back afterwards",
        (
            ("float16", {"weigh": _in(torch.float16)}),
            ("bfloat16", {"weigh": _in(torch.bfloat16)}),
        ),
        look=SOFTMAX + "|half|float16|bfloat16",
    ),
    Mistake(
        "scores-half", "numbers", "the scores are computed in half precision",
        "A score of 50 is off by 0.02 in float16 and by 0.1 in bfloat16, and above 65,504 float16 "
        "has no number at all.",
        "multiply q and k in float32, or scale q before the product",
        (
            ("float16", {"score": _scores_in(torch.float16)}),
            ("bfloat16", {"score": _scores_in(torch.bfloat16)}),
        ),
        look="half|float16|bfloat16|@|matmul|einsum",
    ),
)  # fmt: skip


# Sinks ----------------------------------------------------------------------------------------


def _sinks_missing(work: Work) -> None:
    work.weights = work.scores.softmax(dim=-1)


def _renormalized(work: Work) -> None:
    """In float32, where a sink that takes everything leaves 0 / 0."""
    weights = _outcomes(work).float().softmax(dim=-1)[..., : work.scores.shape[-1]]
    work.weights = (weights / weights.sum(dim=-1, keepdim=True)).double()


SINKS = (
    Mistake(
        "sinks-missing", "sinks", "the sinks have no part in the weights",
        "Rows sum to 1, always: a head has nowhere to put what it does not need, and weights that "
        "were trained with sinks are too large.",
        "softmax over the scores and the head's sink together, then drop the sink's column",
        (("dropped before the softmax", {"weigh": _sinks_missing}),
         ("rows divided by their sum", {"weigh": _renormalized})),
        also=("sinks-renormalized",),
        look="sink|softmax|cat",
    ),
)  # fmt: skip

MISTAKES = (*SOFTMAXES, *SINKS)
