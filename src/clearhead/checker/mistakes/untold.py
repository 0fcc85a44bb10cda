"""Rules inside that nobody told of, a window or ALiBi: wrong, unless they are meant."""

from dataclasses import replace

from clearhead.checker import steps
from clearhead.checker.line import Changes, Mistake, Work
from clearhead.checker.mistakes.masks import MASK
from clearhead.checker.mistakes.positions import ALIBI
from clearhead.checker.told import usual_slopes

WINDOW = Mistake(
    "window-untold", "window", "a window hides keys, and nobody asked for one",
    "If a window is meant, nothing is wrong with it. If none is, whatever lies farther back is out "
    "of reach, in every layer.",
    "if no window is meant, hide nothing but what the mask says", look=MASK + "|window",
)  # fmt: skip

SLOPES = Mistake(
    "alibi-untold", "ALiBi", "the scores lean to what is near, and nobody asked for ALiBi",
    "If ALiBi is meant, nothing is wrong with it. If it is not, far keys get less weight than "
    "their scores say.",
    "if no ALiBi is meant, add nothing to the scores", look=ALIBI,
    unless="ALiBi is meant: say --alibi",
)  # fmt: skip


def window_of(W: int) -> Mistake:
    return replace(WINDOW, unless=f"a window of {W} is meant: say --window {W}")


def seen_through(W: int) -> Changes:
    """The step that shows a window of W, whatever was told."""

    def see(work: Work) -> None:
        work.p = work.p.but(window=W)
        steps.see(work)

    return {"see": see}


def _leaning(work: Work) -> None:
    told, work.p = work.p, work.p.but(slopes=usual_slopes(work.p.H))
    steps.lean(work)
    work.p = told


LEANING: Changes = {"lean": _leaning}
