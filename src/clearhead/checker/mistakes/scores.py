"""Mistakes in a score: its scale and its cap."""

import torch

from clearhead.checker import steps
from clearhead.checker.line import Changes, Mistake, Step, Work, nothing, one

SCALE = (
    r"sqrt|\*\* ?\(?-? ?(0?\.5|1 ?/ ?2)|scal|(?<!/)/ ?\(?(self\.)?(d_k|d_head|head_dim|head_size)\b"
)


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


MISTAKES = (*SCALES, *CAPS)
