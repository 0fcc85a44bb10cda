"""What the weights that a run keeps say about the roles of its heads, layer by layer.

Letters: B batch, T queries, S keys, L tokens of a sequence.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.roles import Evidence, gather
from clearhead.run.calls import Call
from clearhead.run.joining import Joined, join
from clearhead.run.looks import Kept
from clearhead.run.words import delimiters_of

FIGURES = ("entropy", "visible", "max_score", "sink_mass")


class Found(NamedTuple):
    """The evidence of those heads of a layer whose q and k were kept, in their order."""

    heads: tuple[int, ...]
    evidence: Evidence


def evidence_of(run: Kept, special: Collection[int] = ()) -> tuple[dict[int, Found], list[str]]:
    """The evidence of every layer of which there are maps, and what was left out of it, and why.

    `special` are tokens that delimit, whatever they say. Sampled rows are no neighbors, and are
    left out.
    """
    found: dict[int, Found] = {}
    left_out: list[str] = []
    calls = [c for c in run.calls if c.has_map]
    for layer, sequence in dict.fromkeys((c.layer, c.sequence) for c in calls):
        mine = [c for c in calls if (c.layer, c.sequence) == (layer, sequence)]
        mine.sort(key=lambda c: c.first_row)
        try:
            new = _of_calls(mine, run, special)
        except ValueError as error:  # calls that do not fit together
            left_out.append(f"layer {layer}, sequence {sequence}: {error}")
            continue
        if layer in found:
            new = found[layer].evidence.merge(new)
        found[layer] = Found(mine[0].kept_heads, new)
    return found, left_out


def _of_calls(calls: Sequence[Call], run: Kept, special: Collection[int]) -> Evidence:
    """The evidence of the calls of a layer in a sequence."""
    if any(c.rows is not None for c in calls):
        raise ValueError("a sample of its rows was looked at, and a role is told from neighbors")
    joined, heads = join([c.part() for c in calls]), list(calls[0].kept_heads)
    figures = {
        name: torch.cat([c.tensors[name][:, heads] for c in calls], dim=2) for name in FIGURES
    }
    cross = calls[0].cross
    tokens = None if cross else _tokens(run.tokens.get(calls[0].sequence), joined)
    marks = None
    if tokens is not None and run.pieces:
        marks = delimiters_of(tokens, run.pieces, special)
    return gather(joined.map, figures, tokens, marks, cross=cross)


def _tokens(ids: Tensor | None, joined: Joined) -> Tensor | None:
    """The tokens of the keys of a map, (B, S); None where that cannot be told.

    The last token of a generation is never a key. Of a cache that is longer than the text, the
    keys behind it are nobody's.
    """
    if ids is None:
        return None
    ids = ids if ids.ndim == 2 else ids[None]
    (B, _, _, S), L = joined.map.shape, ids.shape[1]
    offset = joined.map._bound.offset
    stands = not isinstance(offset, Tensor) and offset == int(joined.positions[0])
    if ids.shape[0] != B or not (L in (S, S + 1) or (L < S and stands)):
        return None
    behind = -1 - torch.arange(max(S - L, 0)).expand(B, -1)
    return torch.cat([ids[:, :S], behind], dim=1)
