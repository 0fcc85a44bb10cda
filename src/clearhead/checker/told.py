"""What is known beforehand of somebody's attention, and what is found to be a convention of it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.checker.about import About
from clearhead.checker.problem import Problem, Turn


@dataclass(frozen=True)
class Told:
    """What the person says; None where nothing is said, and it is found out by trying.

    kind      "sdp", "teach", "module", "entropy", "rotary" or "mask"
    layout    axes of q, k and v, such as "BHTD", or of x, such as "BTM"
    mask      what a mask says: "attend" (True or 1 = may look), "hide" or "additive"
    align     "end" or "start": where a causal mask begins if there are more keys than queries
    turn      rotary positions inside; window, softcap, alibi likewise
    strict    cautions count as mistakes
    values    values for parameters whose names say nothing, and for building a class
    """

    kind: str | None = None
    layout: str | None = None
    causal: bool | None = None
    mask: str | None = None
    align: str | None = None
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    alibi: bool = False
    turn: Turn | None = None
    n_heads: int | None = None
    n_kv: int | None = None
    strict: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """What an attention is taken to do of its own accord, without being asked by an argument."""

    causal: bool = False
    align: str = "end"
    window: int | None = None
    softcap: float | None = None
    scale: float | None = None
    alibi: bool = False
    turn: Turn | None = None
    open: bool = False  # somebody said that the future must be seen
    past: bool = False  # a window that is handed over hides the future too

    def of(self, problem: Problem) -> Problem:
        """The problem as this attention should solve it."""
        windowed = self.past and problem.window is not None
        own: dict[str, Any] = {
            "causal": problem.causal or self.causal or windowed,
            "align": self.align,
            "open": self.open,
        }
        for name in ("window", "softcap", "scale", "turn"):
            if getattr(problem, name) is None:
                own[name] = getattr(self, name)
        if self.alibi and problem.slopes is None:
            own["slopes"] = usual_slopes(problem.H)
        return problem.but(**own)

    def but(self, **changes: Any) -> "Reading":
        return replace(self, **changes)


def usual_slopes(H: int) -> Tensor:
    """2^(-8 (h + 1) / H), as ALiBi has it for a power of two heads."""
    return 2.0 ** (-8.0 * torch.arange(1, H + 1).double() / H)


# A mask's own words, in a docstring or a comment: what True or 1 stands for, or False or 0.
_IS = (
    r"[`'\" ]*(?:=+|->|:|means?|marks?|where|for|at|on|values?|positions?|indicates?|entr\w+|if|"
    r"denotes?|is|are)"
)
_TRUE, _FALSE = r"\b(?:true|1s?|ones?|non-?zero)\b" + _IS, r"\b(?:false|0s?|zeros?)\b" + _IS
_SEEN = (
    r"(?:may|can|should|attends?|attended|keeps?|kept|visible|allowed|takes? part|participates?|"
    r"sees?|real|valid|actual|unmasked|non-?padd?\w*|not (?:padd?\w*|masked|ignored|hidden))\b"
)
_HIDDEN = (
    r"(?:mask(?:ed)?(?: out)?|ignored?|blocked?|hidden|hides?|not (?:be )?(?:allowed|attend\w*)|"
    r"disallow\w*|exclud\w+|padd?\w*|forbid\w*|prevent\w*|cannot|can't)\b"
)
# As far as it speaks of nothing else: of the other value, or of the other thing to do.
_UP_TO = (
    r"(?:(?!\b(?:true|1s?|ones?|false|0s?|zeros?|may|can|attends?|keeps?|kept|visible|allowed|"
    r"should|takes?|participates?|sees?|real|valid|actual|unmasked|not|non-?padd?\w*)\b)"
    r"[^.\n]){0,80}?\b"
)
_FAR = r"(?:(?!\b(?:true|1s?|ones?|false|0s?|zeros?)\b)[^.\n]){0,60}?\b"
HIDES = (f"{_TRUE}{_UP_TO}{_HIDDEN}", f"{_FALSE}{_FAR}{_SEEN}")
SHOWS = (f"{_TRUE}{_FAR}{_SEEN}", f"{_FALSE}{_UP_TO}{_HIDDEN}")
ADDS = r"additive|\badd(ed|s)?\b|- ?inf|negative|minus infinity|finfo|-1e"  # where 0 may look


def true_means(about: About, name: str = "") -> str | None:
    """What its own words say that True in a mask means, "hide" or "attend"; the first such word.

    name   of one of several masks: the words on this parameter alone
    """
    comments = ". ".join(c for c in re.findall(r"#(.*)", about.source) if "mask" in c.lower())
    names = {parameter.name.lower().strip("_") for parameter in about.parameters}
    words = f"{about.doc}. {comments}"
    if name:
        words, names = "\n".join(_words_on(about, name)), {name.lower().strip("_")}
    words = re.sub(r"[`*\n]", " ", words)
    many = 1 if re.search(ADDS, words, re.IGNORECASE) else 2
    hides, shows = (
        re.search("|".join(each[:many]), words, re.IGNORECASE) for each in (HIDES, SHOWS)
    )
    if hides and not (shows and shows.start() < hides.start()):
        return "hide"
    if shows:
        return "attend"
    named = names & {"masked", "hide", "hidden_mask", "future_mask", "blocked"}
    return "hide" if named else None


def _words_on(about: About, name: str) -> Iterator[str]:
    """Lines of its docstring and comments that speak of this parameter, or go on doing so."""
    comments = re.findall(r"#(.*)", about.source)
    others = "|".join(re.escape(p.name.strip("*")) for p in about.parameters if p.name != name)
    inside = False
    for line in [*about.doc.splitlines(), *comments]:
        if re.search(rf"\b{re.escape(name)}\b|\b(?:both|all|every) masks?\b", line):
            inside = True
        elif not line.strip() or (others and re.match(rf"\W*(?:{others})\b", line)):
            inside = False
        if inside:
            yield line
