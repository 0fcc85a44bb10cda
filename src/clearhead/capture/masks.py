"""The Rule that a model's own mask came from, so that nothing of size T x S is kept.

A model hands its attention a mask of T x S that it built from a handful of facts: causal, a window,
padding, documents. They are guessed from a few rows and columns and then proved, bit for bit, by
what BoundRule hides. What no guess reproduces is kept as it is.

Letters: B batch, H query heads, T queries, S keys.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from clearhead.bound import BoundRule
from clearhead.capture.guesses import Cells, Looked, guesses
from clearhead.rule import Rule, shape_of

ROWS = 128  # of a tile of the proof, at most: the edge of a band is a square of them


@dataclass(frozen=True, eq=False)
class Reduced:
    """What a mask says.

    rule        causal, offset, window, key_mask, query_mask and segments where they reproduce the
                mask bit for bit; otherwise mask or bias hold it, beside key_mask and query_mask if
                the mask shows padding
    kept_bytes  of that mask or bias: a copy, axes along which it is constant not repeated; else 0
    """

    rule: Rule
    kept_bytes: int


def reduce_mask(
    mask: Tensor, B: int, H: int, T: int, S: int, self_attention: bool = True
) -> Reduced:
    """The smallest rule found that says exactly what this mask says.

        hidden(rule)_bhij = not mask_bhij                     booleans, True = may attend
        hidden(rule)_bhij = mask_bhij <= finfo(dtype).min     floats, which are added to the scores

    mask            booleans or floats that broadcast to (B, H, T, S), of any strides
    self_attention  whether query i and key i + offset are the same token: only then is a query
                    padding because nobody sees its key

    Floats that are neither 0 nor hide (-1e4, 1.0) are numbers that the model adds: the rule's bias.
    Looks at a few rows at a time. Raises ValueError for a mask of integers or of another shape.

    A lone query that sees keys a to e: its own key is e, and the keys before a lie outside of a
    window if one window explains the whole batch; otherwise they are padding. In self-attention
    with T == S query i stands at key i, unless no query sees its own key.
    """
    _check(mask, (B, H, T, S))
    if not B * H * T * S:
        return Reduced(Rule(), 0)
    # What is made here outlives the forward pass: no graph, and no tensor of inference mode.
    with torch.inference_mode(False), torch.no_grad():
        cells = Cells(mask.detach(), T, S)
        looked = cells.look()
        if cells.additive or not cells.heads_agree:
            return _keep(cells, looked, B, self_attention)
        for guess in guesses(cells, looked, self_attention):
            rule = guess.rule(T, S, mask.device)
            if _proves(rule, cells):
                rule = _with_queries(rule, T, S) if self_attention else rule
                return Reduced(_expand(rule, B), 0)
        return _keep(cells, looked, B, self_attention)


class MaskCache:
    """What reduce_mask found, remembered for as long as the mask lives: layers share masks.

    A mask is known again if it is the same tensor object, unchanged: same version, memory, shape
    and strides. Tensors of inference mode have no version and are looked at anew. Of equal masks
    that had to be kept, one copy is shared for as long as somebody holds it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], tuple[object, ...], Reduced]] = {}
        self._kept: list[weakref.ref[Tensor]] = []

    def reduce(
        self, mask: Tensor, B: int, H: int, T: int, S: int, self_attention: bool = True
    ) -> Reduced:
        """As reduce_mask; for a mask that is known, the very same record."""
        if mask.is_inference():
            return self._share(reduce_mask(mask, B, H, T, S, self_attention))
        state = (
            *(mask._version, mask.data_ptr(), mask.shape, mask.stride(), mask.storage_offset()),
            *(mask.dtype, mask.device, B, H, T, S, self_attention),
        )
        name = id(mask)
        known = self._known.get(name)
        if known is not None and known[0]() is mask and known[1] == state:
            return known[2]
        found = self._share(reduce_mask(mask, B, H, T, S, self_attention))

        def forget(dead: "weakref.ref[Tensor]") -> None:
            # A new tensor may have got the name of the dead one.
            if name in self._known and self._known[name][0] is dead:
                del self._known[name]

        self._known[name] = (weakref.ref(mask, forget), state, found)
        return found

    def _share(self, found: Reduced) -> Reduced:
        """The same with the copy that is alive already, where a mask is kept once more."""
        name = "mask" if found.rule.bias is None else "bias"
        kept: Tensor | None = getattr(found.rule, name)
        if kept is None:
            return found
        alive = [(reference, x) for reference in self._kept if (x := reference()) is not None]
        self._kept = [reference for reference, _ in alive]
        for _, x in alive:
            if x.dtype == kept.dtype and x.device == kept.device and torch.equal(x, kept):
                shared: dict[str, Any] = {name: x}
                return replace(found, rule=replace(found.rule, **shared))
        self._kept.append(weakref.ref(kept))
        return found


def _check(mask: Tensor, full: tuple[int, int, int, int]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ValueError(
            "a mask must be boolean, True = may attend, or floats to add to the scores; got "
            f"{mask.dtype} {shape_of(mask)}"
        )
    missing = 4 - mask.ndim
    if missing < 0 or any(a not in (1, b) for a, b in zip(mask.shape, full[missing:], strict=True)):
        raise ValueError(f"a mask must broadcast to (B, H, T, S) = {full}, got {shape_of(mask)}")


# Proving -----------------------------------------------------------------------------------------


def _proves(rule: Rule, cells: Cells) -> bool:
    """Whether the rule hides exactly what is hidden, by what the engine will ask it."""
    nothing = torch.empty(1, device=cells.x.device)
    b, T, S = cells.batch, cells.T, cells.S
    bound = BoundRule(rule, nothing.expand(b, 1, T, 1), nothing.expand(b, 1, S, 1))
    for i0, i1 in cells.blocks(ROWS):
        tile = cells.tile(i0, i1)
        j0, j1 = bound.keys(i0, i1)
        for outside in (tile[..., :j0], tile[..., j1:]):
            if outside.numel() and bool(outside.amax()):
                return False
        for a, e in _pieces(bound, i0, i1, j0, j1):
            piece, hidden = tile[..., a:e], bound.hidden(i0, i1, a, e)
            if hidden is not None:
                piece = piece ^ hidden.view(torch.uint8)
            if not bool(piece.amin()):
                return False
    return True


def _pieces(bound: BoundRule, i0: int, i1: int, j0: int, j1: int) -> Iterator[tuple[int, int]]:
    """The keys j0:j1 in up to three pieces, so that the band hides nothing in the middle one."""
    start = bound.offset
    lowest, highest = (
        (int(start.min()), int(start.max())) if isinstance(start, Tensor) else (start, start)
    )
    a = j0 if bound.before is None else max(j0, i1 - 1 + highest - bound.before)
    e = j1 if bound.after is None else min(j1, i0 + lowest + bound.after + 1)
    cuts = [j0, a, e, j1] if a < e else [j0, j1]
    yield from ((x, y) for x, y in pairwise(cuts) if x < y)


# What comes out ----------------------------------------------------------------------------------


def _with_queries(rule: Rule, T: int, S: int) -> Rule:
    """With the query mask: queries that stand at keys which nobody may see."""
    placed = T == S or rule.causal or rule.window is not None
    if rule.key_mask is None or not placed:
        return rule
    keys = rule.key_mask
    offset = S - T if rule.offset is None else rule.offset
    start = torch.as_tensor(offset, device=keys.device).expand(len(keys))[:, None]
    own = start + torch.arange(T, device=keys.device)
    real = keys.gather(1, own.clamp(0, S - 1)) | (own < 0) | (own >= S)
    return rule if bool(real.all()) else replace(rule, query_mask=real)


def _expand(rule: Rule, B: int) -> Rule:
    """From the batch elements that were looked at, B or one, to B."""
    fields: dict[str, Any] = {
        name: value.expand(B, *value.shape[1:])
        for name in ("offset", "key_mask", "query_mask", "segments")
        if isinstance(value := getattr(rule, name), Tensor)
    }
    return replace(rule, **fields)


def _keep(cells: Cells, looked: Looked, B: int, self_attention: bool) -> Reduced:
    """The mask itself, or the numbers, without what is only repeated; padding beside it."""
    x = cells.x
    for axis in range(4):
        one = x.narrow(axis, 0, 1)
        if torch.equal(x, one.expand_as(x)):
            x = one
    if cells.lowest is None or cells.additive:
        kept = x.clone(memory_format=torch.contiguous_format)
    else:
        kept = torch.empty(x.shape, dtype=torch.bool, device=x.device)
        for i0, i1 in cells.blocks():
            torch.eq(x[:, :, i0:i1], 0, out=kept[:, :, i0:i1])
    rule = Rule(bias=kept) if cells.additive else Rule(mask=kept)
    if self_attention and cells.T == cells.S and not looked.keys.all():
        real = torch.from_numpy(looked.keys).to(x.device)
        rule = _expand(replace(rule, key_mask=real, query_mask=real), B)
    return Reduced(rule, kept.numel() * kept.element_size())
