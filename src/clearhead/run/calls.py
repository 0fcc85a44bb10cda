"""Records of what was observed: a call of attention, how it was verified, a row of the head table.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size; n of the T queries
were sampled, where not all were.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from torch import Tensor

from clearhead.engine import Attended
from clearhead.map import AttentionMap
from clearhead.rule import Rule
from clearhead.run.joining import Joined, join
from clearhead.run.wholerule import Part

FIGURES = ("lse", "lse_low", "entropy", "max_score", "mean_key", "visible", "sink_mass")
KEPT = ("q", "k")


@dataclass(frozen=True)
class Check:
    """How the engine's own output compares with what the model really produced.

    rows     rows compared, of all `calls` together
    worst    the largest difference of an output; inf where one is not finite
    allowed  what the model's dtype loses on those rows: more is no agreement
    why      None; or why nothing could be compared, such as "dropout", and the others are 0
    calls    of how many calls
    """

    rows: int
    worst: float
    allowed: float
    why: str | None = None
    calls: int = 1

    def __post_init__(self) -> None:
        if math.isnan(self.worst):
            object.__setattr__(self, "worst", math.inf)

    @property
    def ok(self) -> bool:
        return self.why is None and self.worst <= self.allowed

    def merge(self, other: "Check") -> "Check":
        """Of the calls of both: the worse of the two by what it was allowed.

        Raises ValueError where only one could be verified: they are counted apart.
        """
        if (self.why is None) != (other.why is None):
            raise ValueError(f"a verified call and one that is not ({self.why or other.why})")
        worse = max(self, other, key=lambda c: (c.worst > c.allowed, c.worst, -c.allowed))
        rows, calls = self.rows + other.rows, self.calls + other.calls
        return Check(rows, worse.worst, worse.allowed, self.why, calls)


@dataclass(frozen=True, eq=False)
class Call:
    """One observed call of attention.

    module      the qualified name of the module that made it
    index       which call of this module within its forward pass
    layer       the ordinal of the place (module, index) in the model
    number      of the forward pass, from 0
    entry       what was called: "sdpa", "eager", "nn.MultiheadAttention", ...
    shape       (B, H, G, T, S, D) of the whole call, whatever was sampled or kept
    Dv          head size of the values
    rule        of the whole call, its tensors on the CPU
    key_start   the position in the sequence of its first key
    first_row   the position in the sequence of its first query
    sequence    forward passes that continue a cache belong to one sequence
    rows        which queries were sampled, (n,) ascending; None: all of them
    heads       the heads whose q and k were kept; None: all, if any
    tensors     lse, lse_low, entropy, max_score, mean_key, visible, sink_mass, each (B, H, T) or
                (B, H, n); where kept, q (B, heads, T or n, D) and k (B, key heads, S - held_from,
                D), the key heads being those that `heads` read, each once, in ascending order
    check       how it was verified
    dtype       of the model's q, "float32"
    impl        the engine's implementation that ran
    held_from   the first of its keys that `k` holds. The step of a generation need not hold again
                what the calls before it in its sequence hold
    cross       whether the keys are another sequence than the queries
    mask_bytes  of a mask that could not be reduced and is kept in `rule`
    """

    module: str
    index: int
    layer: int
    number: int
    entry: str
    shape: tuple[int, int, int, int, int, int]
    Dv: int
    rule: Rule
    tensors: Mapping[str, Tensor]
    check: Check
    key_start: int = 0
    first_row: int = 0
    sequence: int = 0
    rows: Tensor | None = None
    heads: tuple[int, ...] | None = None
    dtype: str = "float32"
    impl: str = "tiled"
    cross: bool = False
    mask_bytes: int = 0
    held_from: int = 0

    @property
    def name(self) -> str:
        """Which call it is, for people."""
        again = f"[{self.index}]" if self.index else ""
        return f"{self.module}{again}, forward pass {self.number}"

    @property
    def has_map(self) -> bool:
        """Whether q and k were kept."""
        return all(name in self.tensors for name in KEPT)

    def __repr__(self) -> str:
        sizes = " ".join(f"{a}={n}" for a, n in zip("BHGTSD", self.shape, strict=True))
        return f"Call({self.name}, layer {self.layer}, {self.entry}, {sizes})"

    @property
    def kept_heads(self) -> tuple[int, ...]:
        """The heads that have a map, in the order of its head axis."""
        return tuple(range(self.shape[1])) if self.heads is None else self.heads

    def attended(self) -> Attended:
        """The figures of its rows as `attention` returned them, without the output.

        Raises ValueError where rows were sampled: the rule is that of all rows.
        """
        if self.rows is not None:
            raise ValueError(f"{self.name}: {len(self.rows)} of its rows were sampled, not all")
        figures = {name: self.tensors[name] for name in FIGURES}
        return Attended(None, **figures, rule=self.rule, n_keys=self.shape[4], impl=self.impl)

    def map(self, head: int | None = None) -> AttentionMap:
        """Its map (B, H, T, S) of the heads that were kept, or of one head, (B, 1, T, S).

        Where rows were sampled, its rows are those. q and k are not copied, unless the heads that
        were kept share key heads unevenly. Raises ValueError where q and k were not kept.
        """
        return self.joined(head).map

    def joined(self, head: int | None = None) -> Joined:
        """Its map, and where its rows stand in the sequence; columns are its own keys."""
        if self.held_from:
            raise ValueError(
                f"{self.name}: its first {self.held_from} keys are kept with the calls before it, "
                'and not twice: run.map("layer.head") puts them together'
            )
        return join([replace(self.part(head), key_start=0)])

    def part(self, head: int | None = None) -> Part:
        """What joining.py needs of it, for all heads that were kept or for one."""
        if not self.has_map:
            raise ValueError(f'{self.name}: no q and k were kept; observe(keep="qk") keeps them')
        B, H, G, T, S, _ = self.shape
        kept = self.kept_heads
        if head is not None and head not in kept:
            some = "heads " + ", ".join(map(str, kept)) if self.heads else f"heads 0 to {H - 1}"
            raise ValueError(f"{self.name}: head {head} has no map; {some} have one")
        wanted = kept if head is None else (head,)
        found = self._several("q", "k", "lse", "lse_low")
        q, k = found["q"], found["k"]
        if head is not None:
            at = kept.index(head)
            q = q[:, at : at + 1]
        groups = sorted({h // (H // G) for h in kept})
        reads = [groups.index(h // (H // G)) for h in wanted]
        if len(reads) == 1:
            k = k[:, reads[0] : reads[0] + 1]
        elif reads != [i // max(len(wanted) // len(groups), 1) for i in range(len(wanted))]:
            k = k[:, reads]
        lse, low = (
            _of_heads(found[name], wanted) if name in found else None for name in ("lse", "lse_low")
        )
        return Part(
            self.name, q, k, lse, low, self.rule, (B, H, T, S), wanted, self.rows,
            self.first_row, self.key_start, self.held_from,
        )  # fmt: skip

    def _several(self, *names: str) -> dict[str, Tensor]:
        """Those of these tensors that there are."""
        return {name: self.tensors[name] for name in names if name in self.tensors}


def _of_heads(x: Tensor, heads: tuple[int, ...]) -> Tensor:
    """(B, H, T) -> (B, heads, T), without a copy where they are one or all."""
    if len(heads) == 1:
        return x[:, heads[0] : heads[0] + 1]
    return x if heads == tuple(range(x.shape[1])) else x[:, list(heads)]


# The table of heads -------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadRecord:
    """One head: means over its counted rows (max_score the largest), None what does not apply.

    role_source says where role_mass and role_uniform were measured: "text", the run's own, or
    "probe" or "sample", other tokens (clearhead.name_heads); role_text is that mass in the text.
    """

    head: str
    module: str
    layer: int
    index: int
    rows: int
    entropy: float | None
    normalized_entropy: float | None
    max_prob: float | None
    first_key: float | None
    first_key_uniform: float | None
    previous: float | None
    self_mass: float | None
    distance: float | None
    sink_mass: float | None
    max_score: float | None
    role: str | None
    role_mass: float | None
    role_uniform: float | None
    role_source: str | None = None
    role_text: float | None = None

    def as_dict(self) -> dict[str, str | int | float | None]:
        return asdict(self)


COLUMNS = tuple(field.name for field in fields(HeadRecord))


class Heads(list[HeadRecord]):
    """The records of heads: a list that sorts by a column and becomes a table of pandas."""

    def sorted(self, by: str, reverse: bool = False) -> "Heads":
        """By a column, smallest first; None comes last either way, equals keep their order.

        Raises ValueError for a column that is none.
        """
        if by not in COLUMNS:
            raise ValueError(f"no column is called {by!r}; {those(COLUMNS, by)}")

        def place(record: HeadRecord) -> Any:
            if by == "head":
                return tuple(map(int, record.head.split(".")))
            return getattr(record, by)

        known = [record for record in self if getattr(record, by) is not None]
        rest = [record for record in self if getattr(record, by) is None]
        return Heads([*sorted(known, key=place, reverse=reverse), *rest])

    def to_pandas(self) -> Any:
        """A pandas.DataFrame, a row a head. Raises ImportError where pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as error:
            raise ImportError(
                "to_pandas needs pandas, which is not installed: pip install pandas, or use "
                "[record.as_dict() for record in heads]"
            ) from error
        return pandas.DataFrame([record.as_dict() for record in self], columns=list(COLUMNS))


def those(known: Iterable[str], given: str) -> str:
    """The names that there are, after the one that was meant by what was given, if any is like it.

    For messages: "did you mean entropy? There are head, entropy, ...".
    """
    names = list(known)
    near = get_close_matches(given, names, n=1)
    begin = f"did you mean {near[0]}? There are" if near else "there are"
    return f"{begin} {', '.join(names)}"


def head_place(name: str) -> tuple[int, int]:
    """ "3.5" -> (3, 5). Raises ValueError for what names no head."""
    layer, dot, head = name.partition(".")
    if not (dot and layer.isdecimal() and head.isdecimal()):
        raise ValueError(f"a head is named by its layer and number, such as 3.5; got {name!r}")
    return int(layer), int(head)
