"""What a head does: the most specific role for which the evidence is clear.

A role names keys (rolekeys.py); it is clear where the head's mean mass on them is half of the way
from what uniform attention puts there to all of the weight:

    (mass - uniform) / (1 - uniform) >= CLEAR

docs/roles.md has every role's keys, rows and source, and why the constants are what they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clearhead.cells import is_integer
from clearhead.engine import Attended
from clearhead.map import AttentionMap
from clearhead.rolekeys import BAND, LAG, LAGS, TALLIES, WIDE, Call, Sums, far, key_sets, near

CLEAR = 0.5  # how much of the way from uniform attention to all of the weight
BROAD = 0.75  # as even as over this share of the keys
MIN_ROWS = 16  # fewer rows leave a role untested

# The most specific first: of several that are clear, a head has the first for a name.
ROLES = (
    "induction", "same token", "previous token", "self", "delimiter", "first token", "positional",
    "local window", "broad",
)  # fmt: skip
PARTS = ("mass", "uniform", "rows")  # of Evidence
UNCLEAR, UNTESTED = "unclear", "untested"


@dataclass(frozen=True, eq=False)
class Evidence:
    """What the rows of H heads say about every role: sums that add up over any number of calls.

    mass, uniform  for each of TALLIES the sum over its rows, float64 (H,); (H, LAGS) for "lag"
    rows           how many rows that are, int64 of the same shape; 0 where nothing could show it

    On the CPU. `empty` and `merge` are a commutative monoid, up to rounding in float64.
    """

    mass: Mapping[str, Tensor]
    uniform: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]

    @property
    def n_heads(self) -> int:
        return len(self.rows[LAG])

    def __repr__(self) -> str:
        most = {name: int(rows.max()) for name, rows in self.rows.items() if rows.any()}
        counts = ", ".join(f"{name} {n}" for name, n in most.items()) or "none"
        return f"Evidence({self.n_heads} heads; rows: {counts})"

    @classmethod
    def empty(cls, n_heads: int) -> "Evidence":
        """Heads that have seen no row: the identity of merge."""
        if not is_integer(n_heads) or n_heads < 0:
            raise ValueError(f"n_heads must be an integer of 0 or more; got {n_heads!r}")
        mass, uniform, rows = (
            {name: torch.zeros(_shape(name, n_heads), dtype=dtype) for name in TALLIES}
            for dtype in (torch.float64, torch.float64, torch.int64)
        )
        return cls(mass, uniform, rows)

    def merge(self, other: "Evidence") -> "Evidence":
        """Over the rows of both. Raises ValueError for different numbers of heads."""
        if self.n_heads != other.n_heads:
            raise ValueError(
                f"evidence of {self.n_heads} heads cannot be merged with that of {other.n_heads}: "
                "merge what belongs to one attention module"
            )
        mass, uniform, rows = (
            {name: getattr(self, part)[name] + getattr(other, part)[name] for name in TALLIES}
            for part in PARTS
        )
        return Evidence(mass, uniform, rows)

    __add__ = merge

    def to_tensors(self) -> dict[str, Tensor]:
        """Everything as named tensors, "induction.mass" and the like: what safetensors stores."""
        return {f"{name}.{part}": getattr(self, part)[name] for name in TALLIES for part in PARTS}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "Evidence":
        """The inverse of to_tensors. Raises ValueError for what is missing or does not fit."""
        names = [f"{name}.{part}" for name in TALLIES for part in PARTS]
        if missing := [name for name in names if name not in tensors]:
            raise ValueError(f"this is no evidence of roles: {', '.join(missing)} missing")
        n_heads = tensors[f"{LAG}.rows"].shape[0] if tensors[f"{LAG}.rows"].ndim else 0
        for full in names:
            name, part = full.split(".")
            got = (tensors[full].dtype, tuple(tensors[full].shape))
            wanted = (torch.int64 if part == "rows" else torch.float64, _shape(name, n_heads))
            if got != wanted:
                raise ValueError(f"{full} must be {wanted[0]} {wanted[1]}; got {got[0]} {got[1]}")
        parts = ({name: tensors[f"{name}.{part}"] for name in TALLIES} for part in PARTS)
        return cls(*parts)


@dataclass(frozen=True)
class Role:
    """How far one head plays one role: means over `rows` rows, None where there is no row.

    lag  of "positional": how many keys before the query's own; negative is after it
    """

    name: str
    mass: float | None
    uniform: float | None
    rows: int
    lag: int | None = None

    @property
    def tested(self) -> bool:
        return self.rows >= MIN_ROWS

    @property
    def clear(self) -> bool:
        if not self.tested or self.mass is None or self.uniform is None:
            return False
        if self.name == "broad":
            return self.mass >= BROAD
        return self.mass - self.uniform >= CLEAR * (1 - self.uniform)


@dataclass(frozen=True)
class HeadRole:
    """What one head does: `name` is one of ROLES, "unclear", or "untested" if no role could be.

    mass, uniform, lag  those of the role of that name, None where there is none
    all                 every role by name, clear or not, tested or not
    """

    name: str
    mass: float | None
    uniform: float | None
    lag: int | None
    all: Mapping[str, Role]

    @property
    def untested(self) -> tuple[str, ...]:
        """The roles that nothing is said about: they had fewer than MIN_ROWS rows."""
        return tuple(name for name, role in self.all.items() if not role.tested)


def name_roles(evidence: Evidence) -> list[HeadRole]:
    """What each head does: the most specific role that is clear (ROLES is that order)."""
    found = []
    for h in range(evidence.n_heads):
        roles = {name: _role(evidence, name, h) for name in ROLES}
        clear = next((role for role in roles.values() if role.clear), None)
        if clear is not None:
            found.append(HeadRole(clear.name, clear.mass, clear.uniform, clear.lag, roles))
        else:
            name = UNCLEAR if any(role.tested for role in roles.values()) else UNTESTED
            found.append(HeadRole(name, None, None, None, roles))
    return found


def _role(evidence: Evidence, name: str, h: int) -> Role:
    lags = {"self": 0, "previous token": 1}
    if name in lags:
        return _mean(evidence, name, LAG, (h, BAND - lags[name]))
    if name != "positional":
        return _mean(evidence, name, name, (h,))
    rows = evidence.rows[LAG][h]
    means = evidence.mass[LAG][h] / rows.clamp(min=1)
    means[rows < MIN_ROWS] -= 2.0  # behind all that are tested, in the same order
    means[[BAND - n for n in lags.values()]] = -4.0  # these have names of their own
    best = int(means.argmax())
    return replace(_mean(evidence, name, LAG, (h, best)), lag=BAND - best)


def _mean(evidence: Evidence, name: str, tally: str, at: tuple[int, ...]) -> Role:
    mass, uniform, rows = (getattr(evidence, part)[tally][at].item() for part in PARTS)
    return Role(name, mass / rows, uniform / rows, rows) if rows else Role(name, None, None, 0)


def _shape(tally: str, n_heads: int) -> tuple[int, ...]:
    return (n_heads, LAGS) if tally == LAG else (n_heads,)


# Measuring a call ---------------------------------------------------------------------------------


def gather(
    amap: AttentionMap, figures: Attended | Mapping[str, Tensor], tokens: Tensor | None = None,
    delimiters: Tensor | None = None, *, cross: bool = False, query_tokens: Tensor | None = None,
) -> Evidence:  # fmt: skip
    """The evidence of one call of attention: amap (B, H, T, S), of consecutive queries.

    figures       what attention(q, k, v, rule) returned, or its entropy, visible, max_score and
                  sink_mass by name, (B, H, T) each
    tokens        (B, S) integers, the tokens of the keys; query i's own is that of key i + offset
    delimiters    (B, S) bool, which keys are punctuation, line ends or special tokens
    cross         the queries stand in another sequence than the keys: they have no own key
    query_tokens  (B, T) integers of the same vocabulary; with `cross` only

    Without tokens or delimiters the roles that need them stay untested. Counted are the rows of
    HeadStats: real, finite, with a key to see. Weights are as they are, a learned sink's share not
    divided out. Memory O(T) and a few tiles; one pass over the scores, sums in float64.

    Raises ValueError or TypeError for what does not fit the map.
    """
    rows = _rows(amap, figures)
    bound = amap._bound
    _check_tokens("tokens", tokens, (bound.B, bound.S))
    _check_tokens("query_tokens", query_tokens, (bound.B, bound.T))
    _check_tokens("delimiters", delimiters, (bound.B, bound.S), boolean=True)
    if query_tokens is not None and (tokens is None or not cross):
        raise ValueError(
            "query_tokens are for cross=True and beside tokens: the tokens of queries that stand "
            "among the keys are those of their own keys"
        )
    kind = bound.device.type
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(kind, enabled=False):
        call, sums = Call(bound, rows, cross), Sums(bound)
        outcomes = call.visible + (bound.sinks is not None)
        even = (rows["entropy"].double().exp() / outcomes.clamp(min=1)).clamp(max=1)
        wide = call.counted & (call.visible >= WIDE)
        sums.add("broad", slice(0, bound.H), even, torch.ones_like(even), wide)
        if call.counted.any():
            if not cross:
                near(amap, call, sums)
            far(amap, call, key_sets(call, tokens, delimiters, query_tokens), sums)
        return Evidence(*sums.parts())


def _rows(amap: AttentionMap, figures: Attended | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The figures of the rows that are needed, (B, H, T) each, if they are those of this map."""
    if len(amap.shape) != 4:
        raise ValueError(f"gather takes a map (B, H, T, S); got one of shape {amap.shape}")
    if isinstance(figures, Attended) and not amap.rule.same_as(figures.rule):
        raise ValueError(
            f"the map is under {amap.rule}, but the call was under {figures.rule}: pass "
            "AttentionMap(q, k, rule) of the call itself"
        )
    rows = {}
    for name in ("entropy", "max_score", "sink_mass", "visible"):
        x = figures.get(name) if isinstance(figures, Mapping) else getattr(figures, name, None)
        if not isinstance(x, Tensor) or tuple(x.shape) != amap.shape[:-1]:
            got = tuple(x.shape) if isinstance(x, Tensor) else f"a {type(figures).__name__} without"
            raise ValueError(
                f"figures must hold {name} {amap.shape[:-1]}, one for each row of the map, as "
                f"attention(q, k, v, rule) returns it; got {got}"
            )
        rows[name] = x.detach().to(amap._bound.device)
    return rows


def _check_tokens(
    name: str, x: Tensor | None, shape: tuple[int, int], boolean: bool = False
) -> None:
    if x is None:
        return
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(x).__name__}")
    kind = x.dtype == torch.bool if boolean else not (x.is_floating_point() or x.is_complex())
    if tuple(x.shape) != shape or not kind or (x.dtype == torch.bool) != boolean:
        raise ValueError(
            f"{name} must hold {'booleans' if boolean else 'integers'} {shape}; got {x.dtype} "
            f"{tuple(x.shape)}"
        )
