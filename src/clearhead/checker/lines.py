"""Entropies, rotary positions and masks as lines of steps, in float64, as `steps.py` has attention.

entropy   take -> log -> term -> reduce -> unit -> share -> pool
rotary    place -> speed -> angle -> wave -> apply -> which
mask      causal -> near -> join -> tell
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from clearhead.checker.line import Line, Work, nothing
from clearhead.checker.problem import Problem, Turn
from clearhead.checker.steps import turned
from clearhead.checker.told import Reading

# Entropy ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Weights(Problem):
    """Weights (..., T, S), and over what the entropies of the rows are averaged."""

    p: Tensor | None = None
    pool: str = "rows"


@dataclass(frozen=True)
class EntropyReading(Reading):
    """What comes out: one number for each of the `pool`, "rows" being every single one."""

    pool: str = "rows"

    def of(self, problem: Problem) -> Problem:
        return super().of(problem).but(pool=self.pool)


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda H: H,
    "all": lambda H: H.mean(),
    "heads": lambda H: H.mean(dim=-1),
    "batch": lambda H: H.mean(dim=(-2, -1)),
    "tokens": lambda H: H.mean(dim=-2),
    "positions": lambda H: H.mean(dim=(-3, -2)),
    "heads of all": lambda H: H.mean(dim=(-3, -1)),
}


def take(work: Work) -> None:
    work.weights = work.p.p


def log(work: Work) -> None:
    p = work.weights
    work.logs = torch.where(p > 0, p, 1.0).log()  # 0 log 0 = 0


def term(work: Work) -> None:
    work.terms = -work.weights * work.logs


def reduce(work: Work) -> None:
    work.entropy = work.terms.sum(dim=-1)


def pool(work: Work) -> None:
    try:
        work.out = POOLS[work.p.pool](work.entropy)
    except IndexError as error:  # as few axes have no such mean
        raise LookupError from error


ENTROPY = Line(
    "entropy",
    {"take": take, "log": log, "term": term, "reduce": reduce, "unit": nothing, "share": nothing,
     "pool": pool},
)  # fmt: skip

# Rotary -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rotation(Problem):
    """x is q (B, H, T, D); k beside it where two are turned. positions and own_base are None, and
    table is "", where they are not handed over."""

    positions: Tensor | None = None
    own_base: float | None = None
    table: str = ""
    twins: bool = False


def place(work: Work) -> None:
    p = work.p
    work.positions = torch.arange(p.q.shape[2]) if p.positions is None else p.positions


def speed(work: Work) -> None:
    work.speeds = speeds(work, turn_of(work).base)


def turn_of(work: Work) -> Turn:
    """How it should turn; LookupError where nobody knows."""
    if work.p.turn is None:
        raise LookupError("there are no rotary positions")
    return cast(Turn, work.p.turn)


def speeds(work: Work, base: float, power: float = 2.0, first: int = 0) -> Tensor:
    """(D/2,): the angle of each pair from one position to the next."""
    D = work.p.q.shape[-1]
    base = base if work.p.own_base is None else work.p.own_base
    found: Tensor = base ** (-power * (torch.arange(D // 2).double() + first) / D)
    return found


def angle(work: Work) -> None:
    work.angles = work.positions.double()[:, None] * work.speeds  # (T, D/2)


def wave(work: Work) -> None:
    work.cos, work.sin = work.angles.cos(), work.angles.sin()


def apply(work: Work) -> None:
    pairing = turn_of(work).pairing
    work.turned = [turned(x, work.cos, work.sin, pairing) for x in (work.p.q, work.p.k)]


def which(work: Work) -> None:
    """(1 or 2, B, H, T, D)"""
    work.out = torch.stack(work.turned if work.p.twins else work.turned[:1])


ROTARY = Line(
    "rotary",
    {"place": place, "speed": speed, "angle": angle, "wave": wave, "apply": apply, "which": which},
)  # fmt: skip

# Masks ------------------------------------------------------------------------------------------


def sizes_only(T: int, S: int | None = None, **rest: Any) -> Problem:
    """T queries and S keys of which nothing but their number is known."""
    S = T if S is None else S
    return Problem(q=torch.zeros(1, 1, T, 1), k=torch.zeros(1, 1, S, 1), causal=True, **rest)


def sized(T: int, S: int) -> str:
    """How many tokens, or queries and keys, in words."""
    return f"{T} token{'s' * (T > 1)}" if T == S else queries_and_keys(T, S)


def queries_and_keys(T: int, S: int) -> str:
    return f"{T} {'query' if T == 1 else 'queries'} and {S} key{'s' * (S > 1)}"


def lag(work: Work, align: str | None = None) -> Tensor:
    """(T, S): how many positions key j lies before query i."""
    _, T, S = work.p.sizes
    at = S - T if (align or work.p.align) == "end" else 0
    return torch.arange(T)[:, None] + at - torch.arange(S)


def causal(work: Work) -> None:
    work.past = lag(work) >= 0


def near(work: Work) -> None:
    far = math.inf if work.p.window is None else work.p.window
    work.near = lag(work) < far


def join(work: Work) -> None:
    work.sees = work.past & work.near


def tell(work: Work) -> None:
    work.out = work.sees.double()


MASK = Line("mask", {"causal": causal, "near": near, "join": join, "tell": tell})
