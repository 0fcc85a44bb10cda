"""What attention and the functions beside it have in common when a diagnosis is put into words."""

from collections.abc import Iterable, Iterator, Sequence

from clearhead.checker.calls import Failure
from clearhead.checker.diagnosis import Convention, Diagnosis, Found, Tried
from clearhead.checker.line import Line, Mistake
from clearhead.checker.matching import Asked, Explanation, Made, felt, nearest, off
from clearhead.checker.told import Reading

FAILED = {
    "raised": "it raised", "hung": "it did not come back", "died": "its process ended",
    "loading": "it could not be loaded", "returned": "its answer could not be read",
}  # fmt: skip

NOISE = 0.05  # how far the mean of random answers may be off
CALLED = ("layout", "projections", "weights", "values", "shape", "table")


def untried(name: str, kind: str, failures: Sequence[Failure]) -> Diagnosis:
    """It could not be called in any way that we know."""
    if not failures:
        return Diagnosis(name, kind, "untried", trouble="nobody knows how to call it: none of its "
                         "parameters has a name that says what it is")  # fmt: skip
    own = [failure for failure in failures if failure.line is not None]
    # The likeliest way of calling tells most, unless it failed outside of the person's own lines.
    worst = own[0] if own and failures[0].kind == "raised" else failures[0]
    at = None if worst.line is None else (worst.line, worst.source)
    return Diagnosis(name, kind, "untried", trouble=words_of(worst), trouble_at=at)


def words_of(failure: Failure) -> str:
    return f"{FAILED[failure.kind]}: {failure.message}"


def named(made: Made, chosen: Explanation, found: Sequence[Explanation], n: int) -> Found:
    """A mistake that explains all n answers, and how sure that is."""
    mistake = made.mistake
    alike = [each for each in found if len(each.made) == len(chosen.made)]
    others = sorted(names_in(alike) - names_in([chosen]))
    if others:
        sure, why = "likely", f"it explains all {n} probes; so would: {', '.join(others)}"
    else:
        just = "just this mistake" if len(chosen.made) == 1 else "this mistake and the other one"
        sure, why = "certain", f"code with {just} gives exactly these numbers, on all {n} probes"
    return Found(mistake.name, mistake.family, mistake.title, mistake.does, mistake.mend,
                 made.note.strip(), sure, why, mistake.also, tuple(others),
                 unless=mistake.unless)  # fmt: skip


def names_in(explanations: Iterable[Explanation]) -> set[str]:
    return {made.mistake.name for each in explanations for made in each.made}


def not_explained(
    reading: Reading, line: Line, asked: Sequence[Asked], mistakes: Iterable[Mistake]
) -> tuple[str, tuple[str, ...]]:
    """That nothing explains it, and the three mistakes that come nearest."""
    right = Explanation(reading)
    wrong = [one.probe.name for one in asked if off(right, line, one) > one.probe.close]
    near: list[str] = []
    for _, each in nearest([reading], line, asked, mistakes):
        name = each.made[0].mistake.title if each.made else "nothing (it would be right)"
        agree = sum(off(each, line, one) <= one.probe.close for one in asked)
        if not agree or len(near) == 3:
            break
        if all(name not in known for known in near) and (
            not each.made or felt(each.made, reading, line, asked)
        ):  # what changes no answer cannot be its mistake
            near.append(f"{name}: {agree} of {len(asked)} probes")
    return (
        f"It is not right on {len(wrong)} of {len(asked)} probes ({', '.join(wrong[:4])}), and no "
        "mistake that we know, nor two of them, gives these answers.",
        tuple(near),
    )


def tried(reading: Reading, line: Line, asked: Sequence[Asked]) -> Iterator[Tried]:
    """Each probe that was answered, and how far from right."""
    for one in asked:
        error = off(Explanation(reading), line, one)
        outcome = "right" if error <= one.probe.close else "wrong"
        noisy = outcome == "right" and one.probe.close >= NOISE
        note = "the mean of many calls, within its noise" if noisy else ""
        yield Tried(one.probe.name, one.probe.why, outcome, None if noisy else error, note)


def surely(found: Iterable[Convention], explained: bool) -> Iterator[Convention]:
    """Of the conventions those that are known: how it is called, where nothing explains it."""
    for each in found:
        if explained or each.name in CALLED:
            yield each


def printing(printed: str) -> Iterator[str]:
    """The remark on what a call prints."""
    if printed.strip():
        first = printed.strip().splitlines()[0]
        said = first if len(first) <= 80 else first[:80] + "..."
        yield f"it prints while it is called: {said!r}"
