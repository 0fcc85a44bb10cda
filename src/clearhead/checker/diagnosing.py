"""From a subject to a diagnosis: what does it compute, and what is wrong with it?

ways of calling -> all probes -> right, one mistake or two -> effects, gradients, weights, a row
that sees nothing -> the smallest failing input
"""

import ast
import re
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from clearhead.checker import effects, saying, small, trying
from clearhead.checker.calls import Subject, Text
from clearhead.checker.conventions import conventions
from clearhead.checker.diagnosis import Convention, Diagnosis, Found
from clearhead.checker.functions import CRAFTS, diagnose_function
from clearhead.checker.matching import ROUGH, Explanation, Made, made_by, off
from clearhead.checker.mistakes import ATTENTION
from clearhead.checker.mistakes.effects import BY_NAME
from clearhead.checker.placing import as_window, explained, placed, readings_of
from clearhead.checker.projections import others
from clearhead.checker.signature import kind_of, roles
from clearhead.checker.steps import ATTENTION as LINE
from clearhead.checker.told import Reading, Told
from clearhead.checker.trying import Attempt

ATTENTIVE = ("sdp", "teach", "module")
ORDERS = ("qk-swapped", "kv-swapped", "qv-swapped", "qkv-rotated")
SEVERAL = 5  # ways of calling that are tried to the end


def diagnose_attention(subject: Subject, kind: str, told: Told) -> Diagnosis:
    """What an attention of kind "sdp", "teach" or "module" computes."""
    renamed = as_window(subject, kind, told)
    if renamed is None:
        return _diagnosed_attention(subject, kind, told)
    found = _diagnosed_attention(renamed, kind, told)
    taken = (f"its parameter {renamed.name} was taken for a window, and its answers are those of "
             "one: W keys, the query's own included")  # fmt: skip
    return replace(found, remarks=(*found.remarks, taken))


def _diagnosed_attention(subject: Subject, kind: str, told: Told) -> Diagnosis:
    began = time.monotonic()
    ways = placed(subject, kind, told)
    if isinstance(ways, Diagnosis):
        return ways
    for at, (attempt, explanation) in enumerate(ways[:SEVERAL]):  # the first that explains all
        trying.rest(subject, attempt, told)
        readings = readings_of(told, subject, attempt, chosen=explanation)
        pairs = len(explanation.made) == 2 or (
            at == 0 and not _more_than_attention(attempt, explanation)
        )
        found = explained(readings, attempt, explanation, told, subject, pairs)
        if found:
            return _told_of(subject, kind, told, attempt, found[0], found, began)
    if more := _more_than_attention(*ways[0]):
        return Diagnosis(
            subject.about.name, kind, "untried", seconds=time.monotonic() - began,
            trouble=f"it is not attention alone: it has {more} besides. Check the part of it that "
            "attends",
        )  # fmt: skip
    return _told_of(subject, kind, told, *ways[0], [], began)


def _more_than_attention(attempt: Attempt, explanation: Explanation) -> str:
    """Parameters of a module that are no projections, where that leaves it unexplained."""
    places = attempt.manner.places
    if places is None or _rough(attempt, explanation) is not None:
        return ""
    more = others(places, attempt.manner.about)
    return ", ".join(more[:3]) + (", ..." if len(more) > 3 else "")


@dataclass(frozen=True, eq=False)
class _Case:
    """All that is known when the words are looked for."""

    subject: Subject
    told: Told
    attempt: Attempt
    explanation: Explanation


def _told_of(
    subject: Subject, kind: str, told: Told, attempt: Attempt, explanation: Explanation,
    found: Sequence[Explanation], began: float,
) -> Diagnosis:  # fmt: skip
    case = _Case(subject, told, attempt, explanation)
    rough = None if found else _rough(attempt, explanation)
    made = explanation.made if found or rough is not None else ()
    mistakes = [_named(case, each, found) for each in made]
    unexplained, near = "", tuple[str, ...]()
    if not found:
        if rough is not None:
            mistakes.append(located(subject, rough))
        elif not any(bool(one.answer.out.isfinite().any()) for one in attempt.asked):
            nan = effects.of(BY_NAME["numbers-nan"], "no answer to any probe holds a number")
            mistakes.append(located(subject, nan))
        else:
            unexplained, near = saying.not_explained(
                explanation.reading, LINE, attempt.asked, ATTENTION
            )
            unexplained += _judged_as(attempt, explanation.reading)
    seen = effects.seen(subject, attempt, explanation, explained=bool(found))
    mistakes += [located(subject, each) for each in seen if not each.caution]
    cautions = [located(subject, each) for each in seen if each.caution]
    cautions += _doubtful(attempt, subject, told)
    if told.strict:
        mistakes, cautions = mistakes + cautions, []
    wrong = bool(mistakes or unexplained)
    shown = Explanation(explanation.reading) if unexplained else explanation
    example = small.smallest(subject, attempt, shown) if wrong else None
    return Diagnosis(
        target=subject.about.name,
        kind=kind,
        verdict="wrong" if wrong else "right",
        mistakes=tuple(mistakes),
        cautions=tuple(cautions),
        conventions=tuple(_known(attempt, conventions(attempt, explanation, kind), unexplained)),
        tried=(*saying.tried(explanation.reading, LINE, attempt.asked), *attempt.refused),
        example=example,
        unexplained=unexplained,
        nearest=near,
        remarks=tuple(_remarks(attempt, explanation, told)),
        seconds=time.monotonic() - began,
    )


def _named(case: _Case, made: Made, found: Sequence[Explanation]) -> Found:
    """A mistake of the explanation, and how sure that is."""
    attempt, mistake = case.attempt, made.mistake
    told = saying.named(made, case.explanation, found, len(attempt.asked))
    sure, why = told.sure, told.why
    if not found:
        sure, why = "likely", "with it the answers are explained but for digits"
    if mistake.unless:
        sure, why = "likely", (f"with it the answers to all {len(attempt.asked)} probes are right; "
                               "whether it is meant, nothing says")  # fmt: skip
    elif guessed := _guessed(attempt):
        sure, why = "likely", f"{why}. {guessed}"
    places = attempt.manner.places
    if mistake.name in ORDERS and places and any(len(p.parts) == 3 for p in places.found):
        sure = "likely"
        why += ". The order in a fused projection is a convention: if it is meant so, it is right"
    if mistake.name == "mask-inverted" and not case.explanation.reading.causal:
        why += _taken_for(case)
    mend = told.mend
    if mistake.name == "mask-inverted" and attempt.manner.mask == "hide":
        mend = "hide where the mask is True: scores.masked_fill(mask, -inf)"
    return located(case.subject, replace(told, sure=sure, why=why, mend=mend), mistake.look)


def _guessed(attempt: Attempt) -> str:
    """That another layout than the usual one was taken, where that is a guess."""
    usual = attempt.instead
    if not usual:
        return ""
    return (f"The layout {attempt.manner.layout} is a guess: {usual} runs as well. If that is "
            f"meant, say --layout {usual}")  # fmt: skip


def _judged_as(attempt: Attempt, reading: Reading) -> str:
    """What it was held against where nothing explains it, and how to say what it is instead."""
    takes, own = attempt.manner.takes, attempt.manner.kind == "module"
    options = {
        "causal mask": ("--causal", not (reading.causal or reading.open)),
        "window": ("--window W", reading.window is None and "window" not in takes),
        "ALiBi": ("--alibi", not reading.alibi and "slopes" not in takes),
        "rotary positions": ("--rotary PAIRS", not (own or reading.turn or "cos" in takes)),
    }
    left = {name: option for name, (option, without) in options.items() if without}
    if not left:
        return ""
    what = "causal attention" if reading.causal else "attention"
    names = " or ".join(filter(None, (", ".join([*left][:-1]), [*left][-1])))
    return (f" It was judged as {what} without {names} of its own: if it has such, say "
            f"{', '.join(left.values())}.")  # fmt: skip


def _known(attempt: Attempt, found: Iterable[Convention], unexplained: str) -> Iterable[Convention]:
    """The conventions that are known. A layout that nothing explains is as good as another one in
    which it runs."""
    for each in saying.surely(found, not unexplained):
        guess = unexplained and attempt.rivals and each.name == "layout"
        yield replace(each, value=f"taken for {each.value}", state="guessed") if guess else each


def _taken_for(case: _Case) -> str:
    """What True was taken for, where nobody said it."""
    if case.told.mask or case.attempt.manner.mask == "additive":
        return ""
    if case.attempt.manner.mask == "hide":
        return ". True is taken for: hidden. If it says: may look, tell --mask-means attend"
    return ". True is taken for: may look. If it says: hidden, tell --mask-means hide"


def located(subject: Subject, found: Found, look: str = "") -> Found:
    """With the lines of source where this mistake is usually made."""
    about = subject.about
    pattern = look or (BY_NAME[found.name].look if found.name in BY_NAME else "")
    if not pattern or not about.source:
        return found
    code = []
    for part in (Text(about.first_line, about.source), *about.helpers):
        told = _words_in(part.source)
        for number, text in enumerate(part.source.splitlines(), part.first_line):
            does = "" if number - part.first_line in told else text.split("#")[0]
            if not re.match(r"\s*(def|class|import|from|@)\b", does):
                code.append((number, text.strip(), does))
    places = [(number, text) for one in pattern.splitlines() for number, text, does in code
              if re.search(one, does)]  # fmt: skip
    return replace(found, look=tuple(dict.fromkeys(places))[:4])


def _words_in(source: str) -> set[int]:
    """The lines, counted from 0, that hold docstrings and no code."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return set()
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno - 1, (node.end_lineno or node.lineno))
    }


def _doubtful(attempt: Attempt, subject: Subject, told: Told) -> list[Found]:
    """A mask that is added, where neither its name nor the words around it say so."""
    name = roles(subject.about.parameters).get("mask")
    said = re.search(r"additive|added|-inf|bias|0 ?(and|or|/) ?-", subject.about.doc, re.I)
    usual = name in (None, "attn_mask", "attention_mask")
    if attempt.manner.mask != "additive" or told.mask or usual or said:
        return []
    added = next(m for m in ATTENTION if m.name == "mask-added")
    return [located(subject, Found(
        added.name, added.family, f"{name} is added to the scores as it is", added.does, added.mend,
        sure="likely", caution=True,
        why="with 0 and -inf it is right; nothing says that it wants these, and a mask of True and "
        "False, or of 1 and 0, hides nothing",
    ), added.look)]  # fmt: skip


def _rough(attempt: Attempt, explanation: Explanation) -> Found | None:
    """Right but for digits: half precision somewhere."""
    errors = [off(explanation, LINE, one) for one in attempt.asked]
    if not errors or max(errors) > ROUGH:
        return None
    halves = made_by(m for m in ATTENTION if m.name in ("scores-half", "softmax-half"))
    best, ratio = None, 0.5
    for made in halves:
        tried = Explanation(explanation.reading, (*explanation.made, made))
        if set(explanation.changes) & set(made.changes):
            continue
        share = sum(off(tried, LINE, one) for one in attempt.asked) / (sum(errors) or 1.0)
        if share < ratio:
            best, ratio = made, share
    kind = best.mistake if best is not None else BY_NAME["numbers-rough"]
    why = f"answers are off by {max(errors):.1e}, where float32 loses about 1e-06"
    if best is not None:
        why += f"; computed in {best.note} they are {1 / max(ratio, 1e-3):.0f} times nearer"
    return Found(kind.name, kind.family, kind.title, kind.does, kind.mend,
                 best.note if best is not None else "", "likely", why)  # fmt: skip


def _remarks(attempt: Attempt, explanation: Explanation, told: Told) -> Iterable[str]:
    yield from saying.printing(attempt.printed)
    window = explanation.reading.window
    if window is not None and told.window is None and "window" not in attempt.manner.takes:
        yield (f"it holds {window} as its window, and was judged by that: {window} keys, the "
               "query's own included")  # fmt: skip
    if attempt.manner.mask == "additive":
        yield (
            "its mask is added: 0 where a query may look and -inf where not. One of True and "
            "False, or of 1 and 0, would be added as it is, and hide nothing"
        )


def diagnose(subject: Subject, told: Told) -> Diagnosis:
    """Whatever it is: by what was told, by names, or by trying."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of tiny products: a second thread would only wait
    try:
        return _diagnosed(subject, told)
    finally:
        torch.set_num_threads(threads)


def _diagnosed(subject: Subject, told: Told) -> Diagnosis:
    kind = told.kind or kind_of(subject.about)
    if kind is not None:
        return _of_kind(subject, kind, told)
    required = sum(p.required and p.kind != "var" for p in subject.about.parameters)
    for guess in ("entropy", "mask", "rotary") if required == 1 else ():
        found = _of_kind(subject, guess, told)
        if found.ok:  # nothing but this gives all these numbers
            return found
    names = ", ".join(p.name for p in subject.about.parameters) or "none"
    return Diagnosis(
        subject.about.name, "", "untried",
        trouble=f"nothing says what it is: neither its name nor its parameters ({names}). Say it: "
        "--kind sdp, teach, module, entropy, rotary or mask",
    )  # fmt: skip


def _of_kind(subject: Subject, kind: str, told: Told) -> Diagnosis:
    if kind in CRAFTS:
        return diagnose_function(subject, kind, told, located)
    return diagnose_attention(subject, kind, told)
