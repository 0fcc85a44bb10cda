"""The rule of calls of one place that are put together, or of some rows of a call.

It is made of the fields of theirs where such a rule hides exactly what each of them hides, checked
cell by cell; else a mask and a bias are built from theirs.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.cells import readable
from clearhead.rule import Rule

BLOCK = 1 << 22  # cells that are compared at once
LIMIT = 1 << 30  # bytes of a mask that has to be built


@dataclass(frozen=True, eq=False)
class Part:
    """One call as joining needs it; q, k and lse hold its `heads` only, the rule speaks of all.

    size is (B, H, T, S) of the whole call; q has T rows, or those in `rows`, and k the keys from
    held_from on.
    """

    name: str
    q: Tensor
    k: Tensor
    lse: Tensor | None
    low: Tensor | None
    rule: Rule
    size: tuple[int, int, int, int]
    heads: tuple[int, ...]
    rows: Tensor | None
    first_row: int
    key_start: int
    held_from: int = 0

    @property
    def held(self) -> int:
        """The position of the first key that it holds."""
        return self.key_start + self.held_from

    @property
    def end(self) -> int:
        """Behind the position of its last key."""
        return self.key_start + self.size[3]

    @property
    def positions(self) -> Tensor:
        """Where its rows stand among the queries of the sequence, (rows,)."""
        rows = torch.arange(self.size[2]) if self.rows is None else self.rows
        return rows + self.first_row


def rule_of_heads(part: Part) -> Rule:
    """The rule of a call for the heads that the part holds."""
    rule, (_, H, _, _) = part.rule, part.size
    if part.heads == tuple(range(H)):
        return rule
    heads = list(part.heads)
    per_head = {
        name: getattr(rule, name)[heads]
        for name in ("alibi", "sinks")
        if getattr(rule, name) is not None
    }
    for name in ("mask", "bias"):
        x = getattr(rule, name)
        if x is not None and x.ndim > 2 and x.shape[-3] > 1:
            one = slice(heads[0], heads[0] + 1)
            per_head[name] = x[..., one, :, :] if len(heads) == 1 else x[..., heads, :, :]
    return replace(rule, **per_head)


def whole_rule(parts: Sequence[Part], rules: Sequence[Rule], q: Tensor, k: Tensor) -> Rule:
    """The rule of parts with these rules (rule_of_heads) under the q and k of the whole.

    Raises ValueError for a mask of more than LIMIT bytes.
    """
    if all(part.rows is None for part in parts):
        for rule in _that_fit(parts, rules, q, k):
            return rule
    return _explicit(parts, rules, q, k)


def same(name: str, a: Rule, b: Rule) -> bool:
    x, y = getattr(a, name), getattr(b, name)
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x is y or torch.equal(x, y)
    return bool(x is y or (x is not None and y is not None and x == y))


def bound_of(part: Part, rule: Rule) -> BoundRule:
    """The rule of a part, bound to the sizes of the whole call."""
    (B, _, T, S), q, k = part.size, part.q, part.k
    one = q.new_zeros(1)  # sizes are all that is asked of q and k
    return BoundRule(rule, *(one.expand(B, x.shape[1], n, x.shape[3]) for x, n in ((q, T), (k, S))))


def _that_fit(parts: Sequence[Part], rules: Sequence[Rule], q: Tensor, k: Tensor) -> Iterator[Rule]:
    """Rules without a mask that hide exactly what those of the parts hide."""
    if any(rule.mask is not None or rule.bias is not None for rule in rules):
        return
    if not all(same("alibi", rule, rules[0]) for rule in rules):
        return
    B, S = k.shape[0], k.shape[2]
    base = replace(
        rules[0], key_mask=_by_key("key_mask", parts, rules, B, S),
        query_mask=_query_mask(parts, rules), segments=_by_key("segments", parts, rules, B, S),
    )  # fmt: skip
    windows = dict.fromkeys(rule.window for rule in rules)
    # A cache that hands over the last W keys only says so by that alone.
    windows |= {part.size[3]: None for part in parts if part.key_start and part.size[2] == 1}
    windows[None] = None
    likely = any(rule.causal for rule in rules)
    for offset in _offsets(parts, rules):
        for causal in (likely, not likely):
            for window in windows:
                placed = causal or window is not None
                if (placed and offset is None) or (isinstance(window, int) and not causal):
                    continue
                rule = replace(base, offset=offset, causal=causal, window=window)
                if _hides_alike(BoundRule(rule, q, k), parts, rules):
                    yield rule


def _stands(rule: Rule) -> bool:
    """Whether it matters where a query stands."""
    placed = (rule.window, rule.alibi, rule.segments)
    return rule.causal or any(x is not None for x in placed)


def _offsets(parts: Sequence[Part], rules: Sequence[Rule]) -> list[int | Tensor | None]:
    """Where the first query of the whole may stand: None is anywhere, where nothing depends on it.

    Only a part whose rule depends on it knows. Else it is where all say by their sizes; or, with a
    cache whose end is not filled yet, where it stands among the queries.
    """
    found, knows = [], [_stands(rule) for rule in rules]
    for part, rule in zip(parts, rules, strict=True):
        own = part.size[3] - part.size[2] if rule.offset is None else rule.offset
        found.append(own + part.key_start - (part.first_row - parts[0].first_row))
    if any(knows):
        found = [x for x, known in zip(found, knows, strict=True) if known]
    first = torch.as_tensor(found[0])
    if all(bool((first == torch.as_tensor(x)).all()) for x in found):
        return [next((x for x in found if isinstance(x, Tensor)), found[0])]
    return [] if any(knows) else [None, parts[0].first_row]


def _by_key(
    name: str, parts: Sequence[Part], rules: Sequence[Rule], B: int, S: int
) -> Tensor | None:
    """key_mask: the keys that are real to anybody; segments: each as the last part has it."""
    if all(getattr(rule, name) is None for rule in rules):
        return None
    dtype = torch.bool if name == "key_mask" else torch.int64
    whole = torch.zeros(B, S, dtype=dtype)
    for part, rule in zip(parts, rules, strict=True):
        x = getattr(rule, name)
        here = slice(part.key_start, part.end)
        if name == "key_mask":
            whole[:, here] |= True if x is None else x
        elif x is not None:
            whole[:, here] = x
    return None if name == "key_mask" and bool(whole.all()) else whole


def _query_mask(parts: Sequence[Part], rules: Sequence[Rule]) -> Tensor | None:
    if all(rule.query_mask is None for rule in rules):
        return None
    found = []
    for part, rule in zip(parts, rules, strict=True):
        mask = torch.ones(part.size[0], part.size[2], dtype=torch.bool)
        mask = mask if rule.query_mask is None else rule.query_mask
        found.append(mask if part.rows is None else mask[:, part.rows])
    return torch.cat(found, dim=1)


def _hides_alike(whole: BoundRule, parts: Sequence[Part], rules: Sequence[Rule]) -> bool:
    starts = accumulate((part.size[2] for part in parts), initial=0)
    all_of_them = list(zip(parts, rules, starts, strict=False))
    step = max(1, BLOCK // max(whole.S * whole.B, 1))
    for part, rule, start in reversed(all_of_them):  # the short ones tell soonest
        T = part.size[2]
        if _clearly_alike(whole, part, rule, start):
            continue
        own = bound_of(part, rule)
        for i0 in range(0, T, step):
            i1 = min(i0 + step, T)
            a = whole.hidden(start + i0, start + i1, 0, whole.S)
            b = _hidden(own, part, i0, i1, whole.S)
            if a is None or b is None:
                if not (_nowhere(a) and _nowhere(b)):
                    return False
            elif not bool((a == b).all()):
                return False
    return True


def _clearly_alike(whole: BoundRule, part: Part, rule: Rule, start: int) -> bool:
    """Whether that shows without looking at a cell: the same causal band over the same keys."""
    one, (_, _, T, S) = whole.rule, part.size
    own = S - T if rule.offset is None else rule.offset
    if isinstance(own, Tensor) or isinstance(whole.offset, Tensor):
        return False
    if not (rule.causal and one.causal) or rule.window != one.window:
        return False
    if any(x is not None for x in (rule.segments, one.segments, rule.mask, rule.bias)):
        return False
    if part.key_start or own != whole.offset + start or own + T > S:  # beyond its keys it sees none
        return False
    mine, theirs = (
        torch.ones(whole.B, S, dtype=torch.bool) if x is None else x[:, :S]
        for x in (rule.key_mask, one.key_mask)
    )
    return bool((mine == theirs).all())


def _nowhere(hidden: Tensor | None) -> bool:
    return hidden is None or not bool(hidden.any())


def _hidden(own: BoundRule, part: Part, i0: int, i1: int, S: int) -> Tensor | None:
    """What a part hides of all keys of the sequence: what it was not given, too."""
    hidden = own.hidden(i0, i1, 0, part.size[3])
    if part.size[3] == S:
        return hidden
    lead = (1, 1) if hidden is None else hidden.shape[:2]
    whole = torch.ones(*lead, i1 - i0, S, dtype=torch.bool)
    whole[..., part.key_start : part.end] = False if hidden is None else hidden
    return whole


def _explicit(parts: Sequence[Part], rules: Sequence[Rule], q: Tensor, k: Tensor) -> Rule:
    """The same with a mask of what is hidden, and a bias for what is added, row by row.

    Where queries stand is said as far as it can be: it hides nothing, but lags are counted from it.
    """
    (B, H, T, _), S = q.shape, k.shape[2]
    dtype = torch.promote_types(q.dtype, torch.float32)
    per_head = any(rule.mask is not None or rule.bias is not None for rule in rules)
    adds = any(rule.alibi is not None or rule.bias is not None for rule in rules)
    need = B * T * S * ((H if per_head else 1) + (H * dtype.itemsize if adds else 0))
    if need > LIMIT:
        raise ValueError(
            f"what these rows may see is no simple rule, and a mask of {T} x {S} would take "
            f"{readable(need)}: ask for one head, or for one call"
        )
    mask = torch.zeros(B, H if per_head else 1, T, S, dtype=torch.bool)
    bias = torch.zeros(B, H, T, S, dtype=dtype) if adds else None
    at = 0
    for part, rule in zip(parts, rules, strict=True):
        bound = bound_of(part, rule)
        keys = slice(part.key_start, part.end)
        for i0, i1 in _runs(part, max(1, BLOCK // max(S * B * H, 1))):
            here = slice(at, at + i1 - i0)
            hidden = bound.hidden(i0, i1, 0, part.size[3])
            mask[:, :, here, keys] = True if hidden is None else ~hidden
            if bias is not None:
                added = torch.zeros(B, H, i1 - i0, part.size[3], dtype=dtype)  # a cap leaves 0 at 0
                bound.shape_scores_(added, i0, i1, 0, part.size[3])
                bias[:, :, here, keys] = added if hidden is None else added.masked_fill_(hidden, 0)
            at = here.stop
    sampled = any(part.rows is not None for part in parts)  # such rows stand anywhere
    offset = None if sampled else next(iter(_offsets(parts, rules)), None)
    return Rule(
        scale=rules[0].scale, offset=offset, softcap=rules[0].softcap, sinks=rules[0].sinks,
        query_mask=_query_mask(parts, rules), mask=mask, bias=bias,
    )  # fmt: skip


def _runs(part: Part, most: int) -> Iterator[tuple[int, int]]:
    """The rows of a part as spans i0:i1 of its call."""
    if part.rows is not None:
        yield from ((i, i + 1) for i in part.rows.tolist())
    else:
        for i0 in range(0, part.size[2], most):
            yield i0, min(i0 + most, part.size[2])
