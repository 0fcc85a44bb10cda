"""Whether answers are right under a rule that nobody told of: a window of some size, or ALiBi."""

from collections.abc import Sequence

from clearhead.checker.line import Line
from clearhead.checker.matching import SMALL, Asked, Explanation, Made, fits
from clearhead.checker.mistakes.untold import LEANING, SLOPES, seen_through, window_of
from clearhead.checker.told import Reading, Told

ALONE = "each query sees its own key alone"


def free(told: Told, takes: set[str]) -> frozenset[str]:
    """The rules of which nothing was told, and for which there is no argument."""
    known = {"window": told.window is not None or "window" in takes,
             "alibi": told.alibi or "slopes" in takes}  # fmt: skip
    return frozenset(name for name, said in known.items() if not said)


def untold(
    readings: Sequence[Reading], line: Line, asked: Sequence[Asked], rules: frozenset[str]
) -> list[Explanation]:
    """A window, ALiBi or both that explain all answers. A window without a causal mask reaches to
    both sides."""
    short = [one for one in asked if one.probe.problem.sizes[2] <= SMALL]
    far = [one for one in asked if one.probe.problem.sizes[2] > SMALL]
    found: list[Explanation] = []
    for reading in readings:
        for lean in ((), (Made(SLOPES, "", LEANING),)) if "alibi" in rules else ((),):
            alone = Explanation(reading, lean)
            fit = fits(alone, line, short)
            if lean and fit and fits(alone, line, far or short):
                found.append(alone)
            elif "window" in rules and reading.window is None:
                # A window that no short text shows is looked for in the long ones.
                some = far if fit else short
                most = max((one.probe.problem.sizes[2] for one in some), default=1)
                for W in range(1, most):
                    each = Explanation(reading, (_windowed(reading, W), *lean))
                    if fits(each, line, some) and fits(each, line, asked):
                        found.append(each)
        if found:
            break
    return found


def _windowed(reading: Reading, W: int) -> Made:
    sides = "" if reading.causal else " on either side"
    words = f"it sees {W} keys{sides}, the query's own included" if W > 1 else ALONE
    return Made(window_of(W), words, seen_through(W))
