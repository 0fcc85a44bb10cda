"""Mistakes in the weights that are returned beside a right output."""

import torch

from clearhead.checker import steps
from clearhead.checker.line import Mistake, Work, one

RETURN = r"return|weights|attn|softmax"


def _averaged(work: Work) -> None:
    work.reported = work.weights.mean(dim=1)


def _first_head(work: Work) -> None:
    work.reported = work.weights[:, 0]


def _scores(work: Work) -> None:
    work.reported = work.scores


def _scores_before_mask(work: Work) -> None:
    work.reported = work.q @ work.k.mT * steps.factor(work)


def _unmasked(work: Work) -> None:
    work.reported = (work.q @ work.k.mT * steps.factor(work)).softmax(dim=-1)


def _transposed(work: Work) -> None:
    work.reported = work.weights.mT


def _logarithms(work: Work) -> None:
    work.reported = torch.log_softmax(work.scores, dim=-1)


def _unscaled(work: Work) -> None:
    scores = (work.q @ work.k.mT).masked_fill(~work.visible, -torch.inf)
    work.reported = scores.softmax(dim=-1)


REPORTS = (
    Mistake(
        "weights-averaged", "weights", "the returned weights are averaged over the heads",
        "What one head looks at is gone: a mean of heads shows what no head does.",
        "return them for each head: (B, H, T, S)",
        (("", {"report": _averaged}), ("the first head's alone", {"report": _first_head})),
        look=RETURN + "|mean",
    ),
    Mistake(
        "weights-scores", "weights",
        "what is returned as weights are scores from before the softmax",
        "Rows do not sum to 1, and entropies made of them mean nothing.",
        "return what the values are multiplied by",
        (
            ("", {"report": _scores}),
            ("without the mask", {"report": _scores_before_mask}),
            ("as logarithms", {"report": _logarithms}),
        ),
        look=RETURN,
    ),
    Mistake(
        "weights-unmasked", "weights", "the returned weights were computed without the mask",
        "Maps show a look into the future that never was.",
        "return what the values are multiplied by",
        one(report=_unmasked), look=RETURN,
    ),
    Mistake(
        "weights-unscaled", "weights", "the returned weights were computed without the scale",
        "Maps look sharper than the head is.",
        "return what the values are multiplied by",
        one(report=_unscaled), look=RETURN,
    ),
    Mistake(
        "weights-transposed", "weights", "the returned weights are transposed",
        "Rows are keys and columns queries: whoever reads them sees each look the wrong way round.",
        "return them as (..., queries, keys)",
        one(report=_transposed), look=RETURN + "|transpose",
    ),
)  # fmt: skip
