"""Calls of one place put together into one map: the steps of a generation, or sampled rows.

The rows of the parts follow each other; a key is the one at its position in the sequence, which a
cache hands over again and again, all of them or the last few.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from clearhead.cells import readable
from clearhead.engine import Attended
from clearhead.map import AttentionMap
from clearhead.rule import Rule
from clearhead.run.wholerule import LIMIT, Part, bound_of, rule_of_heads, same, whole_rule


@dataclass(frozen=True, eq=False)
class Joined:
    """A map and where its rows stand among the queries of the sequence, (T,)."""

    map: AttentionMap
    positions: Tensor


def join(parts: Sequence[Part]) -> Joined:
    """One map of parts that belong together, in the order of their rows.

    Its columns are positions of the sequence; keys that nobody has, before the first that a cache
    handed over, are zeros that nobody sees. Raises ValueError where parts do not fit: other sizes,
    rows that are missing or computed twice, keys that changed in between, or a mask of more than
    LIMIT bytes.
    """
    parts = sorted(parts, key=lambda part: part.first_row)
    positions = torch.cat([part.positions for part in parts])
    first, rules = parts[0], [rule_of_heads(part) for part in parts]
    if len(parts) == 1 and first.rows is None and not first.held:
        return Joined(_map(first.q, first.k, rules[0], parts), positions)
    if len({rule.scale for rule in rules}) > 1:  # what one leaves out another may say
        rules = [
            replace(x, scale=first.q.shape[-1] ** -0.5) if x.scale is None else x for x in rules
        ]
    _check_fit(parts, rules)
    k, q = _keys(parts), first.q if len(parts) == 1 else torch.cat([p.q for p in parts], dim=2)
    rule = whole_rule(parts, rules, q, k)
    return Joined(_map(q, k, rule, parts), positions)


def _map(q: Tensor, k: Tensor, rule: Rule, parts: Sequence[Part]) -> AttentionMap:
    if any(part.lse is None for part in parts):
        return AttentionMap(q, k, rule)
    lse = torch.cat([part.lse for part in parts if part.lse is not None], dim=2)
    lows = [torch.zeros_like(p.lse) if p.low is None else p.low for p in parts if p.lse is not None]
    low, none = torch.cat(lows, dim=2), lse.new_zeros(0)
    known = Attended(  # lse is all that a map asks of it
        None, lse=lse, lse_low=low, entropy=none, max_score=none, mean_key=none, visible=none,
        sink_mass=none, rule=rule, n_keys=k.shape[2], impl="kept",
    )  # fmt: skip
    return AttentionMap(q, k, rule, known)


# Whether they fit ---------------------------------------------------------------------------------


def _check_fit(parts: Sequence[Part], rules: Sequence[Rule]) -> None:
    one = "ask for one call of them: run.map(module, call=n)"
    for (a, rule_a), (b, rule_b) in pairwise(zip(parts, rules, strict=True)):
        for what, x, y in (
            ("batch, heads, key heads and head size", _sizes(a), _sizes(b)),
            ("dtype", a.q.dtype, b.q.dtype),
            ("heads", a.heads, b.heads),
        ):
            if x != y:
                raise ValueError(f"{a.name} and {b.name} differ in {what}, {x} and {y}: {one}")
        end = a.first_row + a.size[2]
        if b.first_row != end:
            seen = "are missing" if b.first_row > end else "were computed twice"
            low, high = sorted((end, b.first_row))
            raise ValueError(f"the rows {low} to {high - 1} before {b.name} {seen}: {one}")
        for name in ("scale", "softcap", "sinks"):
            if not same(name, rule_a, rule_b):
                raise ValueError(f"{a.name} and {b.name} differ in {name}: {one}")
        if not _same_keys(a, b, rule_a):
            raise ValueError(
                f"{b.name} was given other keys for positions that {a.name} has seen (a cache that "
                f"is reordered, rotated or rounded): {one}"
            )


def _sizes(part: Part) -> tuple[int, ...]:
    return (part.q.shape[0], part.q.shape[1], part.k.shape[1], part.q.shape[3])


def _same_keys(a: Part, b: Part, rule: Rule) -> bool:
    """Whether b has the keys that the last row of a has seen: its first, middle and last are read.

    Only what every batch element and head sees counts: elsewhere a cache may hold anything. What
    is not held twice cannot differ.
    """
    start, stop = max(a.held, b.held), min(a.end, b.end)
    if not a.size[2] or start >= stop:
        return True
    bound = bound_of(a, rule)
    span = (start - a.key_start, stop - a.key_start)
    hidden = bound.hidden(a.size[2] - 1, a.size[2], *span)
    seen = torch.arange(start, stop)
    if hidden is not None:
        seen = seen[~hidden.flatten(0, 2).any(dim=0)]
    for j in {int(seen[at]) for at in (0, len(seen) // 2, -1)} if len(seen) else ():
        x, y = a.k[:, :, j - a.held], b.k[:, :, j - b.held]
        if not bool(((x == y) | (x.isnan() & y.isnan())).all()):
            return False
    return True


def _keys(parts: Sequence[Part]) -> Tensor:
    """(B, G, S, D): each key from the last part that holds it; 0 where nobody was given one."""
    end = max(part.end for part in parts)
    pieces: list[Tensor] = []
    for part in reversed(parts):  # from the right to the left
        if part.held >= end or part.held == part.end:
            continue
        if part.end < end:
            pieces.append(_nothing(parts, part.end, end))
            end = part.end
        pieces.append(part.k[:, :, : end - part.held])
        end = part.held
    if end:
        pieces.append(_nothing(parts, 0, end))
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces[::-1], dim=2)


def _nothing(parts: Sequence[Part], start: int, end: int) -> Tensor:
    """Zeros for the keys start:end, which nobody was given."""
    if had := [part for part in parts if part.key_start < end and start < part.end]:
        raise ValueError(
            f"the keys {start} to {end - 1} that {had[0].name} was given are with calls that were "
            "not kept"
        )
    B, G, _, D = parts[0].k.shape
    need = B * G * D * (end - start) * parts[0].k.itemsize
    if need > LIMIT or end - start > LIMIT:
        raise ValueError(
            f"{end - start:,} keys were not kept, and zeros for them take {readable(need)}"
        )
    return parts[0].k.new_zeros(B, G, end - start, D)
