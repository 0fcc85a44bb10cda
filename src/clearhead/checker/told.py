"""What is known beforehand of somebody's attention, and what is found to be a convention of it."""

import re
from collections.abc import Mapping
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

    def of(self, problem: Problem) -> Problem:
        """The problem as this attention should solve it."""
        own: dict[str, Any] = {
            "causal": problem.causal or self.causal,
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


# A mask's own words, in a docstring or a comment: what True or 1 stands for.
_TRUE = (
    r"\b(?:true|1s?|ones?|nonzero)\b[`'\" ]*(?:=+|->|:|means?|marks?|where|for|values?|positions?|"
    r"indicates?|entr\w+)"
)
_UP_TO = (
    r"(?:(?!\b(?:false|0s?|zeros?|may|can|attends?|keeps?|kept|visible|allowed|should|takes?|"
    r"participates?|sees?)\b)[^.\n]){0,80}?"
)
HIDES = re.compile(
    _TRUE
    + _UP_TO
    + r"(?:mask(?:ed)?(?: out)?|ignored?|blocked?|hidden|hides?|not (?:be )?(?:allowed|"
    r"attend\w*)|disallow\w*|exclud\w+|padd\w+|forbid\w*|prevent\w*|cannot|can't)\b",
    re.IGNORECASE,
)
SHOWS = re.compile(
    _TRUE + r"[^.\n]{0,60}?\b(?:may|can|should|attends?|keeps?|kept|visible|allowed|takes? part|"
    r"participates?|"
    r"sees?)\b",
    re.IGNORECASE,
)


def true_means(about: About) -> str | None:
    """What its own words say that True in a mask means, "hide" or "attend"; the first such word."""
    comments = ". ".join(c for c in re.findall(r"#(.*)", about.source) if "mask" in c.lower())
    names = {parameter.name.lower().strip("_") for parameter in about.parameters}
    words = re.sub(r"[`*\n]", " ", f"{about.doc}. {comments}")
    hides, shows = HIDES.search(words), SHOWS.search(words)
    if hides and not (shows and shows.start() < hides.start()):
        return "hide"
    if shows:
        return "attend"
    named = names & {"masked", "hide", "hidden_mask", "future_mask", "blocked"}
    return "hide" if named else None
