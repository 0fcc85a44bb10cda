"""The algebra of partial softmax: a row's softmax, put together from pieces of its keys.

Over any set of keys, with m the largest score there, a row needs to remember no more than

    l = sum_j e^(s_j - m)                      o = sum_j e^(s_j - m) v_j
    u = sum_j e^(s_j - m) (s_j - m)            c = sum_j e^(s_j - m) j

and, where the distance is asked for, a = sum_j e^(s_j - m) |i - j|, i being where the row stands.

Two disjoint sets are brought to the larger of the two m and added: with d = m_old - m_new, u
becomes (u + d l) e^d, and l, c, a and o become e^d times what they were. That is a commutative
monoid, `empty` and `merge`: tiles of a row, chunks of a cache and ranks of a job combine alike, in
any order. At the end

    out = o / l    lse = m + log l    H = log l - u / l    mean_key = c / l    distance = a / l

where nothing large is subtracted from anything large. lse - E[s] is the same entropy on paper, and
loses it in float32 as soon as the scores are large. For the same reason lse comes in two parts: at
scores of 1e9 its last digit is worth 64, and log l would be lost in it. And l, where one key has
nearly all the weight, is 1 + little, and the little is all that the entropy is made of: such a row
is summed in float64.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

LOG2_E = 1 / math.log(2)
LN_2 = math.log(2)
FAR = -1e4  # e to this is 0, and 0 times this is 0; with -inf that would be NaN
LITTLE = 0.01  # beside 1; of less than that, float32 keeps too few digits


@dataclass(eq=False)
class Partial:
    """What rows remember of their keys so far: m, l, u, c, a (..., rows), o (..., rows, n).

    Where nothing has been seen m is the lowest finite number, so that m - m is 0 and not NaN.
    l becomes float64 when a row needs it, where the device has that.
    """

    m: Tensor
    l: Tensor  # noqa: E741 (the letter of the equation)
    u: Tensor
    c: Tensor
    o: Tensor
    a: Tensor | None = None  # like c; None if the distance is not asked for
    fresh: bool = False  # nothing absorbed yet, so nothing to rescale


@dataclass(frozen=True, eq=False)
class Finished:
    """The softmax of whole rows, (..., rows) each and out (..., rows, n).

    A row that saw nothing has zeros, and -inf as lse and max_score.
    """

    out: Tensor
    lse: Tensor
    lse_low: Tensor  # what rounding took from lse
    entropy: Tensor
    max_score: Tensor
    mean_key: Tensor
    distance: Tensor | None  # of the keys alone, as if there were no sink


def empty(shape: tuple[int, ...], n_values: int, like: Tensor, distance: bool = False) -> Partial:
    """Rows that have seen no key, for values of n_values numbers (0 for statistics only)."""
    return Partial(
        m=like.new_full(shape, torch.finfo(like.dtype).min),
        l=like.new_zeros(shape),
        u=like.new_zeros(shape),
        c=like.new_zeros(shape),
        o=like.new_zeros((*shape, n_values)),
        a=like.new_zeros(shape) if distance else None,
        fresh=True,
    )


def absorb(
    part: Partial,
    scores: Tensor,
    positions: Tensor | None = None,
    values: Tensor | None = None,
    masked: bool = False,
    room: Tensor | None = None,
    kept: Tensor | None = None,
    apart: Tensor | None = None,
    further: float = 0.0,
) -> None:
    """Add keys to the rows, in place.

    scores (N, rows, keys) are used up; positions (keys,) are the keys' own numbers: without them u
    and c, which only figures are made of, stay zero. values is (N, keys, n), and `kept`, like
    scores, a factor of each weight on its way to them (dropout). `masked` says that some scores are
    -inf, which hides the key. `room`, like scores, is used up as well. `apart` and `further`, which
    all share, add up to how far each key lies from its row; (b, 1, rows, keys), where the N rows
    are b times any number times rows.
    """
    m = torch.maximum(part.m, scores.amax(dim=-1))
    if not part.fresh:
        _rescale(part, m)
    part.m, part.fresh = m, False
    # Whole passes over a tile are what this costs. In place is cheaper than from one buffer into
    # another; torch's exp2 takes a third of the time of its exp; a product and a sum are faster
    # than its dot product and its matrix-vector product. That one reads a tile on one core alone,
    # and where two cores share no cache, the next pass pays ten times for what it has carried off.
    scores.sub_(m.unsqueeze(-1)).mul_(LOG2_E)
    if masked:
        scores.clamp_(min=FAR)
    weights = torch.exp2(scores, out=room)
    total = _add_up(part, weights)
    if positions is not None:
        part.u.add_(scores.mul_(weights).sum(dim=-1), alpha=LN_2)
    if values is not None:
        dropped = weights if kept is None else torch.mul(weights, kept, out=kept)
        part.o.baddbmm_(dropped, values)
    if part.a is not None and apart is not None:
        stacked = (len(apart), -1, *apart.shape[2:])
        torch.mul(weights.view(stacked), apart, out=scores.view(stacked))
        part.a.add_(scores.sum(dim=-1))
        if further:
            part.a.add_(total, alpha=further)
    if positions is not None:
        part.c.add_(weights.mul_(positions).sum(dim=-1))


def _add_up(part: Partial, weights: Tensor) -> Tensor:
    """Add the weights to l, in float64 as soon as a row has all but little of it on one key.

    Their sum is returned.
    """
    total = weights.sum(dim=-1)
    l = part.l + total  # noqa: E741
    if l.amin() < 1 + LITTLE:
        rows = ((l < 1 + LITTLE) & (total > 1 - LITTLE)).nonzero(as_tuple=True)  # the key is here
        l = _wide(l)  # noqa: E741
        l[rows] = part.l[rows] + weights[rows].sum(dim=-1, dtype=l.dtype)
    part.l = l
    return total


def _wide(x: Tensor) -> Tensor:
    return x if x.device.type == "mps" else x.double()  # which has no float64


def merge(a: Partial, b: Partial) -> Partial:
    """The same rows over the keys of both; a and b stay as they are."""
    m = torch.maximum(a.m, b.m)
    first, second = (
        replace(part, **{n: x.clone() for n in "lucoa" if (x := getattr(part, n)) is not None})
        for part in (a, b)
    )
    _rescale(first, m)
    _rescale(second, m)
    return Partial(
        m, _wide(first.l) + second.l, first.u + second.u, first.c + second.c, first.o + second.o,
        None if first.a is None or second.a is None else first.a + second.a,
    )  # fmt: skip


def _rescale(part: Partial, m: Tensor) -> None:
    """Express what has been summed up relative to m, in place."""
    d = (part.m - m).clamp_(min=FAR)
    factor = d.exp()
    part.u.addcmul_(d, part.l).mul_(factor)
    part.l.mul_(factor)
    part.c.mul_(factor)
    if part.a is not None:
        part.a.mul_(factor)
    if part.o.shape[-1]:
        part.o.mul_(factor.unsqueeze(-1))


def finish(part: Partial, sink: Tensor | None = None) -> Finished:
    """The results of rows that have seen all their keys.

    `sink`, broadcast to the rows, is the logit of one more outcome, which no key stands for.
    """
    max_score = part.m.masked_fill(part.l == 0, -math.inf)
    distance = None
    if part.a is not None:
        distance = (part.a / part.l.masked_fill(part.l == 0, 1.0)).to(part.m)
    if sink is not None:
        alone = empty(tuple(part.m.shape), part.o.shape[-1], part.m)
        part = merge(part, replace(alone, m=sink.to(part.m).expand_as(part.m), l=alone.l + 1))
    nothing = part.l == 0
    some = part.l.masked_fill(nothing, 1.0)  # an empty row: 0 / 1
    log_l = some.log()
    lse = (part.m + log_l).to(part.m)
    return Finished(
        out=part.o / some.to(part.o).unsqueeze(-1),
        lse=lse.masked_fill(nothing, -math.inf),
        lse_low=((part.m - lse) + log_l).to(part.m).nan_to_num_(nan=0.0),  # nothing seen, or a NaN
        entropy=((log_l - part.u / some).clamp_(min=0) + 0.0).to(part.m),
        max_score=max_score,
        mean_key=(part.c / some).to(part.m),
        distance=distance,
    )
