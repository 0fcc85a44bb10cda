"""Two implementations side by side, in words and on one screen."""

from collections.abc import Iterator

from clearhead.checker.peers import Comparison, Met
from clearhead.views.diagnosis import WIDTH, example_lines
from clearhead.views.wording import sentence, wrapped

WORDS = {"same": "same, to the bit", "rounding": "same but for rounding", "differ": "they differ",
         "refused": "not asked"}  # fmt: skip


def lines(found: Comparison) -> Iterator[str]:
    """Whether they agree; a line for each thing that both were asked; where they first differ."""
    for line in _lines(found):
        yield line.rstrip()


def _lines(found: Comparison) -> Iterator[str]:
    if found.trouble:
        yield f"=== {found.a} and {found.b} could not be compared ==="
        yield from wrapped(sentence(found.trouble), WIDTH)
        return
    first = found.first
    answered = [each for each in found.met if each.apart is not None]
    if not answered:
        yield f"=== {found.a} and {found.b} have nothing in common that both could be asked ==="
        for note in dict.fromkeys(each.note for each in found.met):
            yield from wrapped(sentence(note), WIDTH)
    elif first is None:
        yield f"=== {found.a} and {found.b} agree ==="
    else:
        yield f"=== {found.a} and {found.b} differ, first here: {first.name} ==="
    yield from _table(found)
    if first is not None:
        yield ""
        apart = first.note or f"they are {number(first.apart)} apart"
        apart = apart[:1].upper() + apart[1:]
        yield from wrapped(f"{first.name}: {first.why}. {apart}; {_who(found, first)}", WIDTH)
        if found.example is not None:
            yield ""
            yield from example_lines(found.example)


def _table(found: Comparison) -> Iterator[str]:
    width = max((len(each.name) for each in found.met), default=5)
    yield f"  {'asked':<{width}}  {'apart':>8}  {'A, exact':>8}  {'B, exact':>8}"
    for each in found.met:
        if each.apart is None:
            yield f"  {each.name:<{width}}  {'-':>8}  {'-':>8}  {'-':>8}  {WORDS['refused']}"
        else:
            yield (f"  {each.name:<{width}}  {number(each.apart):>8}  {number(each.of_a):>8}  "
                   f"{number(each.of_b):>8}  {WORDS[each.outcome]}")  # fmt: skip
    legend = f"A is {found.a}, B is {found.b}; exact: off from dense float64, as A means it"
    yield from (f"  {line}" for line in wrapped(legend, WIDTH - 2))


def _who(found: Comparison, first: Met) -> str:
    close = 1e-4
    a, b = first.of_a or 0.0, first.of_b or 0.0
    if a < close <= b:
        return f"{found.b} computes something else. `clearhead check` says what."
    if b < close <= a:
        return f"{found.a} computes something else. `clearhead check` says what."
    return "each computes something of its own. `clearhead check` says what."


def number(value: float | None) -> str:
    """A difference in two digits: 0, 1.2e-07, 0.31."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:.2g}" if 1e-3 <= value < 1e4 else f"{value:.1e}"
