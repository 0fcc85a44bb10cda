"""One call of attention, looked at: its figures by the engine, and proof that it is that call.

The proof: on sampled rows the engine's output is held against what the model got. What they may
differ by is some roundings, and, where that is not enough, what the model's own dtype loses on
those very rows, found by computing them a third time, densely, in that dtype.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.capture.inputs import AttentionInputs, Unreadable, same
from clearhead.engine import Attended, attention
from clearhead.map import AttentionMap
from clearhead.rule import Rule
from clearhead.run.calls import FIGURES, Check
from clearhead.stats import HeadStats

BLOCK = 16  # neighboring rows that are sampled together
CHECKED, TOGETHER = 64, 32  # rows that are compared in a call, and in one piece
SLACK = 4  # times what the dense way loses
ROUNDINGS = {True: 16, False: 2}  # of an output, in float32 and wider, and in half precision

Spans = list[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class Looked:
    """What the engine found in all rows of some spans, and statistics of the heads over them."""

    spans: Spans
    attended: Attended
    stats: HeadStats

    @property
    def figures(self) -> dict[str, Tensor]:
        """The figures of the rows that were looked at, (B, H, R) each, on the CPU."""
        return {n: getattr(self.attended, n).cpu() for n in FIGURES}

    def rows(self, i0: int, i1: int) -> Attended:
        """The figures of some rows, all of which lie in one span."""
        at = 0
        for first, last in self.spans:
            if first <= i0 and i1 <= last:
                here = slice(at + i0 - first, at + i1 - first)
                return replace(
                    self.attended, **{n: getattr(self.attended, n)[..., here] for n in FIGURES}
                )
            at += last - first
        raise ValueError(f"rows {i0}:{i1} were not looked at; {self.spans} were")


def spans_of(T: int, rows: int | None, seed: str, block: int = BLOCK) -> Spans:
    """Blocks of neighboring rows, `rows` in all, one in each part of the T; all rows for None."""
    if rows is None or rows >= T:
        return [(0, T)]
    n = -(-rows // block)
    phase, spans = random.Random(seed).randrange(T), list[tuple[int, int]]()
    for part in range(n):  # equally far apart, from anywhere: every row is as likely as another
        size = rows * (part + 1) // n - rows * part // n
        at = (phase + T * part // n) % T
        spans.append((at, min(at + size, T)))
        if at + size > T:
            spans.append((0, at + size - T))
    spans.sort()
    return spans


def rule_of_rows(rule: Rule, bound: BoundRule, i0: int, i1: int) -> Rule:
    """What a rule says to the queries i0:i1, as a call of their own."""
    if (i0, i1) == (0, bound.T):
        return rule
    parts: dict[str, Tensor | int | None] = {"offset": bound.offset + i0}
    if rule.query_mask is not None:
        parts["query_mask"] = rule.query_mask[:, i0:i1]
    for name in ("mask", "bias"):
        value = getattr(rule, name)
        if value is not None and value.ndim > 1 and value.shape[-2] > 1:
            parts[name] = value[..., i0:i1, :]
    return replace(rule, **parts)  # type: ignore[arg-type]


@torch.no_grad()
def look(inputs: AttentionInputs, rows: int | None, seed: str, output: bool = False) -> Looked:
    """Every figure of a call, of all its rows or of a sample of them against all their keys.

    The keys of cross-attention are another sequence: no key is first, previous or far there.
    With `output` the engine's own output too, of all rows.
    """
    q, k, rule = inputs.q.detach(), inputs.k.detach(), inputs.rule
    v = inputs.v.detach() if output else None
    bound = BoundRule(rule, q, k)
    spans = spans_of(bound.T, rows, seed)
    parts = [
        attention(
            q[:, :, i0:i1], k, v, rule_of_rows(rule, bound, i0, i1), distance=not inputs.cross
        )
        for i0, i1 in spans
    ]
    attended = parts[0] if len(parts) == 1 else _joined(parts)
    return Looked(spans, attended, _with_places(HeadStats.of(attended), spans))


def _joined(parts: list[Attended]) -> Attended:
    """The rows of calls that share their keys as those of one; of its rule, only padding is so."""
    rows: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], dim=2)
            for name, x in vars(parts[0]).items() if isinstance(x, Tensor)}  # fmt: skip
    masks = [part.rule.query_mask for part in parts if part.rule.query_mask is not None]
    rule = replace(parts[0].rule, query_mask=torch.cat(masks, dim=1) if masks else None)
    return replace(parts[0], rule=rule, **rows)


def _with_places(stats: HeadStats, spans: Spans) -> HeadStats:
    """The rows that are not finite, by where they stand in the call."""
    if not stats.nonfinite_at:
        return stats
    at = [i for span in spans for i in range(*span)]
    return replace(stats, nonfinite_at=tuple((b, h, at[i]) for b, h, i in stats.nonfinite_at))


@torch.no_grad()
def check(inputs: AttentionInputs, looked: Looked, seed: str) -> Check:
    """How closely the engine's output agrees with what the model got, on rows that see something.

    The output is made of the very weights that the figures describe, exp(s - lse). Raises
    Unreadable, with both numbers, where they do not sum to 1, or to 1 - sink, and where the call is
    not the one that was read.
    """
    if inputs.unsure is not None or inputs.made is None:
        return Check(0, 0.0, 0.0, inputs.unsure or "nothing to compare with")
    bound = BoundRule(inputs.rule, inputs.q, inputs.k)
    spans = looked.spans
    if spans == [(0, bound.T)]:
        spans = spans_of(bound.T, CHECKED, seed, TOGETHER)
    rows, gap, allowed = 0, torch.zeros(1), torch.zeros(1)  # the two for each channel of an output
    longest = _longest(inputs.k) * abs(bound.scale)
    for i0, i1 in spans:
        rule, ours = rule_of_rows(inputs.rule, bound, i0, i1), looked.rows(i0, i1)
        seen = (ours.visible > 0).all(dim=1)  # (B, R): a row that sees nothing is made up by each
        if rule.query_mask is not None:
            seen = seen & rule.query_mask.to(seen.device)
        seen = seen & ours.lse.isfinite().all(dim=1)  # and one that sees a NaN is NaN
        if not seen.any():
            continue
        off, size, terms, loss = _compared(inputs, rule, ours, seen, (i0, i1))
        # A score is a sum of products, and each rounds: large ones by more than a weight shows.
        # They are below |q| |k| times the scale, or the largest score where a bias is larger.
        products = max(_longest(inputs.q[:, :, i0:i1]) * longest, _largest_score(ours))
        rounded = 2 * torch.finfo(ours.lse.dtype).eps * products
        eps = ROUNDINGS[inputs.made.dtype.itemsize > 2] * torch.finfo(inputs.made.dtype).eps
        within = (eps + rounded) * size
        if not (off <= within).all():  # often that is enough, and then nearly always
            within = (eps + rounded) * torch.maximum(size, terms())
        if not (off <= within).all():
            within = within + SLACK * loss()
        gap, rows = torch.maximum(gap, off), rows + int(seen.sum())
        allowed = torch.maximum(allowed, within)
    if not rows:
        return Check(0, 0.0, 0.0, "no sampled row sees anything, or all is NaN")
    at = int((gap / allowed.clamp(min=1e-300)).argmax())
    worst, most = float(gap[at]), float(allowed[at])
    if not worst <= most < math.inf:
        raise Unreadable(
            f"the engine's output differs from the model's by {worst:.3g} where its dtype explains "
            f"{most:.3g}; read as softmax(q k') v under {inputs.rule!r}"
        )
    return Check(rows, worst, most, None)


def _compared(
    inputs: AttentionInputs, rule: Rule, ours: Attended, seen: Tensor, span: tuple[int, int]
) -> tuple[Tensor, Tensor, Callable[[], Tensor], Callable[[], Tensor]]:
    """Of some rows, for each channel of the output: the largest difference, the largest output, and
    what finds out more.

    Which is the largest sum_j p_ij |v_j|, as each of its terms is rounded (the output again where
    something was made of it), and what the model's dtype loses.
    """
    i0, i1 = span
    q, k, v = (x.detach() for x in (inputs.q[:, :, i0:i1], inputs.k, inputs.v))
    values = _by_query_head(v, q.shape[1])
    amap = AttentionMap(q, k, rule, lse=ours)
    out, mass = _out_of_weights(amap, values)
    apart = float((mass + ours.sink_mass - 1).abs().amax(dim=1)[seen].max())
    if not apart <= 16 * torch.finfo(mass.dtype).eps * math.sqrt(k.shape[2]):
        raise Unreadable(f"the weights of a row sum to 1 only within {apart:.3g}")
    assert inputs.made is not None
    made = inputs.made.detach()
    made = made[:, i0:i1] if made.ndim == 3 else made[:, :, i0:i1]
    at = torch.arange(i0, i1, device=q.device)
    wide = torch.promote_types(made.dtype, torch.float32)
    exact = inputs.finish(out.to(wide), at)

    def terms() -> Tensor:
        same_rows = _out_of_weights(amap, values.abs())[0] if inputs.finish is same else exact
        return _largest(same_rows, seen)

    def loss() -> Tensor:
        rough = inputs.finish(_dense(q, k, values, rule, made.dtype).to(wide), at)
        return _largest(rough - exact, seen)

    return _largest(made.to(wide) - exact, seen), _largest(exact, seen), terms, loss


def _longest(x: Tensor) -> float:
    """The largest finite norm of the vectors (B, H, n, D)."""
    return float(x.detach().float().norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0).max())


def _largest_score(ours: Attended) -> float:
    scores = ours.max_score.abs()
    scores = scores[scores.isfinite()]
    return float(scores.max()) if len(scores) else 0.0


def _by_query_head(x: Tensor, n_heads: int) -> Tensor:
    """(B, G, S, n) as (B, H, S, n): a copy only where heads share."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], dim=1)


def _out_of_weights(amap: AttentionMap, values: Tensor) -> tuple[Tensor, Tensor]:
    """sum_j p_ij v_j and sum_j p_ij of the weights of a map: (B, H, R, Dv) and (B, H, R)."""
    B, H, R, S = amap.shape
    lse = amap._lse_of(0, R)
    out = values.new_zeros((B, H, R, values.shape[-1]), dtype=amap.dtype)
    mass = torch.zeros_like(lse.high)
    for where, j0, p in amap._tiles((0, R), (0, S), lse):
        mass[where] += p.sum(dim=-1)
        out[where] += p @ values[where[0], where[1], j0 : j0 + p.shape[-1]].to(p.dtype)
    return out, mass


def _largest(x: Tensor, seen: Tensor) -> Tensor:
    """The largest number of each channel in the rows that are seen, float64 on the CPU, (n,).

    x is (B, H, R, Dv), whose channels are those of all heads, or (B, R, n).
    """
    x = x if x.ndim == 3 else x.transpose(1, 2).flatten(2)
    return x.abs()[seen].amax(dim=0).double().nan_to_num(nan=torch.inf).cpu()


def _dense(q: Tensor, k: Tensor, v: Tensor, rule: Rule, dtype: torch.dtype) -> Tensor:
    """Rows (B, H, R, Dv) as whoever works in `dtype` would compute them, one tensor a step.

    v is (B, H, S, Dv).
    """
    bound = BoundRule(rule, q, k)
    first, last = bound.keys(0, bound.T)
    q, k, v = (x.to(dtype) for x in (q, k[:, :, first:last], v[:, :, first:last]))
    scores = (q * bound.scale) @ _by_query_head(k, bound.H).transpose(-1, -2)
    where = (0, bound.T, first, last)
    scores = bound.shape_scores_(scores, *where)
    hidden = bound.hidden(*where)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    if rule.sinks is not None:
        sink = rule.sinks.to(scores)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], dim=-1)
    return torch.softmax(scores, dim=-1)[..., : last - first] @ v
