"""Mistakes in a score and in the softmax over scores."""

import math

import torch
from torch import Tensor

from clearhead.checker import steps
from clearhead.checker.line import Changes, Mistake, Step, Work, nothing, one

SCALE = r"sqrt|\*\* ?\(?-?0?\.5|scal|(?<!/)/ ?\(?(self\.)?(d_k|d_head|head_dim|head_size)\b"
SOFTMAX = r"softmax|\bexp\("


def _times(work: Work, factor: float) -> None:
    work.scores = work.scores * factor


def _default(*steps_: tuple[str, Step]) -> tuple[tuple[str, Changes], ...]:
    """Made always, or only where no scale is handed over."""

    def unless(step: Step, right: Step) -> Step:
        return lambda work: (step if work.p.scale is None else right)(work)

    known = steps.ATTENTION.steps
    kept = {name: unless(step, known[name]) for name, step in steps_}
    return ("", dict(steps_)), ("where none is handed over", kept)


def _scaled_after(work: Work) -> None:
    work.weights = work.weights * steps.factor(work)


# The scale ------------------------------------------------------------------------------------

SCALES = (
    Mistake(
        "scale-missing", "scale", "the scores are not divided by sqrt(d_head)",
        "Scores grow like sqrt(d_head): the softmax gives nearly everything to one key, its slope "
        "there is near 0, and hardly a gradient comes back.",
        "scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])",
        _default(("scale", nothing)), look=SCALE + "|@|matmul|einsum",
    ),
    Mistake(
        "scale-model-width", "scale",
        "the scores are divided by sqrt(d_model), not by sqrt(d_head)",
        "With H heads the scores are sqrt(H) times too small: every head looks at everything a "
        "little, and what training can do about it costs it steps.",
        "divide by the square root of the size of one head: math.sqrt(q.shape[-1]) after the split "
        "into heads",
        _default(("scale", lambda w: _times(w, w.p.width**-0.5))), look=SCALE,
    ),
    Mistake(
        "scale-no-root", "scale", "the scores are divided by d_head, not by its square root",
        "Scores are sqrt(d_head) times too small: weights are nearly equal, whatever the keys say.",
        "divide once, by math.sqrt(d_head)",
        _default(("scale", lambda w: _times(w, 1 / w.p.head_size))),
        also=("1/d_head", "divided by sqrt(d_head) twice", "both q and k divided by sqrt(d_head)"),
        look=SCALE,
    ),
    Mistake(
        "scale-multiplied", "scale", "the scores are multiplied by sqrt(d_head), not divided by it",
        "Scores are d_head times too large: the softmax is a maximum, and no gradient comes back.",
        "divide by math.sqrt(d_head)",
        _default(("scale", lambda w: _times(w, w.p.head_size**0.5))), look=SCALE,
    ),
    Mistake(
        "scale-one-side", "scale", "the fourth root of d_head divides q or k, and not both",
        "Scores are d_head to the power 1/4 too large. The split of the scale over both sides is "
        "for half precision; done on one side it is half of the scale.",
        "divide q and k both by d_head ** 0.25, or the scores by d_head ** 0.5",
        _default(("scale", lambda w: _times(w, w.p.head_size**-0.25))), look=SCALE + r"|0\.25",
    ),
    Mistake(
        "scale-after-softmax", "scale", "the weights are divided by sqrt(d_head), not the scores",
        "A row of weights sums to 1/sqrt(d_head): the output is too small, and the softmax is as "
        "sharp as without any scale.",
        "divide before the softmax",
        _default(("scale", nothing), ("after", _scaled_after)), look=SCALE + "|softmax",
    ),
    Mistake(
        "scale-by-length", "scale", "the scores are divided by the square root of the length",
        "The sharpness of a head depends on how long the text is: what is learned on short texts "
        "does not hold on long ones.",
        "divide by math.sqrt(q.shape[-1]), the last axis, not the one of tokens",
        (
            ("the number of keys", {"scale": lambda w: _times(w, w.p.sizes[2] ** -0.5)}),
            ("the number of queries", {"scale": lambda w: _times(w, w.p.sizes[1] ** -0.5)}),
        ),
        look=SCALE,
    ),
    Mistake(
        "scale-by-heads", "scale",
        "the scores are divided by the square root of the number of heads",
        "The scale has nothing to do with the size of a score: too sharp with few heads, too flat "
        "with many.",
        "divide by math.sqrt(q.shape[-1]), the last axis, not the one of heads",
        _default(("scale", lambda w: _times(w, w.p.H**-0.5))), look=SCALE,
    ),
    Mistake(
        "scale-ignored", "scale", "the scale that is handed over is not used",
        "Models that ask for a scale of their own get 1/sqrt(d_head) instead.",
        "multiply the scores by the argument where it is given",
        one(scale=lambda w: _times(w, w.p.head_size**-0.5)), look=SCALE,
    ),
)  # fmt: skip


OTHER_SCALE = Mistake(
    "scale-other", "scale", "the scores are multiplied by another number than 1/sqrt(d_head)",
    "Heads are too sharp or too flat from the start, and trained weights do not fit.",
    "divide by math.sqrt(q.shape[-1])", look=SCALE,
)  # fmt: skip


def scaled_by(number: float) -> Changes:
    """The step that multiplies scores by this number."""
    return {"scale": lambda work: _times(work, work.p.scale or number)}


# The soft-cap ---------------------------------------------------------------------------------


def _cap_not_multiplied(work: Work) -> None:
    if work.p.softcap is not None:
        work.scores = torch.tanh(work.scores / work.p.softcap)


def _cap_not_divided(work: Work) -> None:
    if work.p.softcap is not None:
        work.scores = work.p.softcap * torch.tanh(work.scores)


CAPS = (
    Mistake(
        "softcap-missing", "softcap", "scores are not capped",
        "Weights that were trained with a cap meet scores that they never met.",
        "scores = cap * tanh(scores / cap), after the scale and before the mask",
        one(cap=nothing), look="cap|tanh",
    ),
    Mistake(
        "softcap-after-mask", "softcap", "the cap comes after the mask",
        "tanh makes -cap of -inf: hidden keys come back with a weight, and the future is seen.",
        "cap first, then mask",
        one(cap=nothing, **{"late cap": steps.cap}), look="cap|tanh",
    ),
    Mistake(
        "softcap-before-scale", "softcap", "the cap comes before the scale",
        "Scores end at cap / sqrt(d_head), far below the cap that was meant.",
        "scale first, then cap",
        one(cap=nothing, **{"early cap": steps.cap}), look="cap|tanh",
    ),
    Mistake(
        "softcap-not-multiplied", "softcap", "tanh(scores / cap) is not multiplied by the cap",
        "All scores lie between -1 and 1: no key can get more than e^2 times another's weight.",
        "scores = cap * tanh(scores / cap)",
        one(cap=_cap_not_multiplied), look="cap|tanh",
    ),
    Mistake(
        "softcap-not-divided", "softcap", "the score is not divided by the cap inside tanh",
        "Each score above 2 is as good as the cap: tanh knows the sign and little else.",
        "scores = cap * tanh(scores / cap)",
        one(cap=_cap_not_divided), look="cap|tanh",
    ),
)  # fmt: skip


# The softmax ----------------------------------------------------------------------------------


def _outcomes(work: Work) -> Tensor:
    """What the softmax runs over: the scores, and the sink where there is one."""
    return work.scores if work.p.sinks is None else steps.with_sinks(work)


def _softmax_over(*axes: int) -> Step:
    def weigh(work: Work) -> None:
        scores = _outcomes(work)
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
         ("and without the maximum", {"weigh": _naive(-2)})), look=SOFTMAX,
    ),
    Mistake(
        "softmax-over-heads", "softmax", "the softmax runs over the heads",
        "Heads compete with each other instead of keys: a row of one head sums to anything.",
        "softmax(dim=-1): the last axis is that of the keys",
        (("", {"weigh": _softmax_over(1)}),
         ("and without the maximum", {"weigh": _naive(1)})), look=SOFTMAX,
    ),
    Mistake(
        "softmax-over-batch", "softmax", "the softmax runs over the batch",
        "Texts that have nothing to do with each other share their weights.",
        "softmax(dim=-1): the last axis is that of the keys",
        one(weigh=_softmax_over(0)), look=SOFTMAX,
    ),
    Mistake(
        "softmax-over-all", "softmax", "one softmax runs over all scores of a map at once",
        "The whole map sums to 1, so that each row gets about 1/T of what is its own.",
        "softmax(dim=-1), each row by itself",
        (("", {"weigh": _softmax_over(-2, -1)}),
         ("and without the maximum", {"weigh": _naive(-2, -1)}),
         ("and of all heads and texts", {"weigh": _naive(0, 1, 2, 3)})), look=SOFTMAX,
    ),
    Mistake(
        "softmax-sums-unkept", "softmax", "the sum of a row divides a column",
        "Without keepdim the sums of the rows stand as a row, so that weight (i, j) is divided by "
        "the sum of row j: no row sums to 1.",
        "exps / exps.sum(-1, keepdim=True)",
        (("", {"weigh": _sums_unkept}),
         ("and without the maximum", {"weigh": _naive_unkept})), look=SOFTMAX + "|sum",
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
        "subtract scores.amax(dim=-1, keepdim=True) before exp, or use torch.softmax, which does",
        one(weigh=_no_maximum), look=SOFTMAX,
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

MISTAKES = (*SCALES, *CAPS, *SOFTMAXES, *SINKS)
