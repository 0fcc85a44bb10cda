"""What is said of a diagnosis in a sentence, on the terminal and on the page alike."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import TYPE_CHECKING

from clearhead.views.inline import escaped_text
from clearhead.views.labels import columns, readable

if TYPE_CHECKING:
    from clearhead.checker.diagnosis import Diagnosis, Found

LONGEST = 1200  # columns of a paragraph on a page
MOST = 8  # lines of a paragraph: whoever raises an error may say anything
KINDS = {
    "sdp": "attention of q, k and v", "teach": "attention of x and its projections",
    "module": "a module of attention", "entropy": "an entropy", "rotary": "rotary positions",
    "mask": "a mask",
}  # fmt: skip
SURE = {"certain": "Certain", "likely": "Likely", "seen": "Seen"}
STATES = {
    "right": "", "different": "different", "mistake": "a mistake", "unknown": "not seen",
    "guessed": "a guess",
}  # fmt: skip
LEGEND = {
    "different": "different: others do otherwise, and this is as good",
    "unknown": "not seen: nothing that was asked shows it",
    "guessed": "a guess: it runs in other layouts too; --layout says which is meant",
}  # fmt: skip


def verdict(d: Diagnosis) -> str:
    """The name of what was checked, and what came out, in a line."""
    name = readable(d.target or "it", 40)
    if d.verdict == "right":
        worst = max((t.off for t in d.tried if t.outcome == "right" and t.off is not None),
                    default=None)  # fmt: skip
        count = sum(t.outcome == "right" for t in d.tried)
        facts = [counted(count, "probe")] * bool(count)
        if worst is not None:
            facts.append(f"worst difference {worst:.1g}")
        return f"{name}: right" + (f". {', '.join(facts)}" if facts else "")
    if d.verdict == "untried":
        return f"{name}: it could not be tried"
    n = len(d.mistakes)
    if n and not d.unexplained and all(found.unless for found in d.mistakes):
        return f"{name}: wrong, unless {', and '.join(found.unless for found in d.mistakes)}"
    if d.unexplained:
        more = f"{counted(n, 'mistake')}, and more that no mistake we know explains"
        return f"{name}: wrong. " + (more if n else "No mistake we know explains it")
    return f"{name}: wrong. {counted(n, 'mistake')}"


def proof(d: Diagnosis) -> str:
    """What was probed, in a sentence: how many came out right, wrong, or were refused."""
    if not d.tried:
        return "No probe was made."
    counts = {outcome: sum(t.outcome == outcome for t in d.tried)
              for outcome in ("right", "wrong", "refused")}  # fmt: skip
    parts = [f"{n} {outcome}" for outcome, n in counts.items() if outcome != "refused"]
    names = [readable(t.name, 40) for t in d.tried if t.outcome == "refused"]
    which = ", ".join([*names[:3], *["..."] * (len(names) > 3)])
    parts += [f"{counts['refused']} could not be asked ({which})"] * bool(names)
    total = counted(len(d.tried), "probe")
    return f"{total} (right answers known): {', '.join(parts)}."


def counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def sentence(text: str) -> str:
    """With a capital letter where it begins with a word, and a full stop where it ends in one."""
    text = text.strip()
    first = text.split(" ", 1)[0].rstrip(",;:")
    if first.isalpha() and first.islower() and (len(first) > 1 or first == "a"):
        text = text[0].upper() + text[1:]
    return text + "." * (bool(text) and text[-1] not in ".!?:")


def titled(found: Found) -> str:
    """What is wrong, and in which of its forms."""
    return sentence(found.title + f" ({found.note})" * bool(found.note))


def sureness(found: Found) -> str:
    """How sure it is, and why."""
    said = f"{SURE.get(found.sure, found.sure)}{': ' * bool(found.why)}{found.why}"
    others = [name for name in found.or_else if name not in found.why]
    if others:
        said += f"; it may also be {' or '.join(others)}"
    return sentence(said)


def place(file: str | None, number: int) -> str:
    """homework.py:12, or line 12."""
    return f"line {number}" if file is None else f"{file}:{number}"


def wrapped(text: str, width: int) -> list[str]:
    """A text as at most 8 lines of `width` columns of visible characters, cut at spaces."""
    text = readable(text, 2 * MOST * width)
    if any(unicodedata.east_asian_width(c) in "WF" for c in text):
        width //= 2
    return textwrap.wrap(text, width, break_on_hyphens=False, max_lines=MOST, placeholder=" \u2026")


def tail(text: str, room: int) -> str:
    """Of a long path the end."""
    text = readable(text, 12 * len(text) + 16)
    if columns(text) <= room:
        return text
    while columns(text) >= room:
        text = text[max(1, len(text) - 2 * room) :]
    return "…" + text


def safe(text: object, limit: int = LONGEST) -> str:
    """Text of whoever was checked, for the page: visible characters, and not too many."""
    shown = str(text)
    return escaped_text(readable(shown, limit)) if shown else ""
