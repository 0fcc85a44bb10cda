"""Everything that people get wrong in attention, as far as we know it, the likeliest first."""

from clearhead.checker.line import Mistake
from clearhead.checker.mistakes import heads, masks, positions, scores, sharing, softmaxes
from clearhead.checker.mistakes.effects import OBSERVED
from clearhead.checker.mistakes.scores import OTHER_SCALE, scaled_by
from clearhead.checker.mistakes.weights import REPORTS

ATTENTION: tuple[Mistake, ...] = (
    *scores.MISTAKES, *softmaxes.MISTAKES, *masks.MISTAKES, *heads.MISTAKES, *sharing.MISTAKES,
    *positions.MISTAKES,
)  # fmt: skip

__all__ = ["ATTENTION", "OBSERVED", "OTHER_SCALE", "REPORTS", "scaled_by"]
