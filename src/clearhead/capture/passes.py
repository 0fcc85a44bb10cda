"""Forward passes and the sequences that they belong to: where a call's queries and keys stand.

A model that writes with a cache is called once a token. Those calls are one sequence, and a call's
queries stand behind those of the calls before it.
"""

import inspect
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.capture.inputs import AttentionInputs

# In names of arguments that are not the tokens themselves.
NO_TOKENS = ("mask", "pos", "label", "length", "type", "segment")
SEQUENCES = 8  # whose rows are kept without being asked for; further ones go into the statistics

Site = tuple[str, int]  # a module and which of its calls in a pass


@dataclass
class Pass:
    """One call of the whole model, from outside; or of its parts, one after the other.

    part  the first of them, where somebody calls parts: model.forward(...) does
    """

    number: int
    tokens: Tensor | None
    part: str = ""
    sequence: int | None = None
    first_row: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    heard: int = 0  # calls, of all modules

    def next_site(self, module: str) -> Site:
        """The place of this module's next call, which is yet to come."""
        return module, self.counts.get(module, 0)

    def site(self, module: str) -> Site:
        """The place of this module's next call."""
        module, index = self.next_site(module)
        self.counts[module] = index + 1
        self.heard += 1
        return module, index

    def goes_on_with(self, module: str) -> bool:
        """Whether a module that is called from outside is another part of this pass.

        The part that came first begins another one, once something has been heard.
        """
        return bool(module and self.part) and not (module == self.part and self.heard)


@dataclass(frozen=True, eq=False)
class End:
    """How far a sequence has come in one place: its rows, and the key of the last of them."""

    sequence: int
    rows: int
    key: Tensor  # (B, G, D)


@dataclass
class Sequences:
    """The sequences so far, and where each ended in every place, the latest last."""

    count: int = 0
    ends: dict[Site, list[End]] = field(default_factory=dict)

    def place(self, inputs: AttentionInputs, current: Pass, site: Site) -> tuple[int, int]:
        """Where in its sequence a call's first query and first key stand.

        A pass goes on with a sequence if the key before its first query is the last key of that
        sequence, to the bit: whatever cache holds it, growing, sliding or of a fixed size.
        """
        T, S = inputs.q.shape[2], inputs.k.shape[2]
        offset = inputs.rule.offset
        if isinstance(offset, Tensor):
            offset = int(offset.min()) if len(offset) else 0
        ahead = S - T if offset is None else offset
        ends = self.ends.setdefault(site, [])
        before = None
        if 0 < ahead <= S and not inputs.cross:
            key = inputs.k[:, :, ahead - 1]
            same = [e for e in ends if e.key.shape == key.shape and torch.equal(e.key, key)]
            before = same[-1] if same else None
        if current.sequence is None:
            if before is not None:
                current.sequence, current.first_row = before.sequence, before.rows
            else:
                current.sequence, self.count = self.count, self.count + 1
                current.first_row = max(ahead, 0) if T < S and inputs.rule.causal else 0
        if inputs.cross or not 0 <= ahead + T - 1 < S:
            return current.first_row, 0
        if before is not None:
            ends.remove(before)
        key = inputs.k[:, :, ahead + T - 1].detach().clone()
        ends.append(End(current.sequence, current.first_row + T, key))
        del ends[:-SEQUENCES]
        return current.first_row, max(current.first_row - ahead, 0)


def take_tokens(current: Pass, known: MutableMapping[int, Tensor], B: int, T: int) -> None:
    """Add a pass's tokens, once, to those of its sequence.

    A call with B elements of T queries tells whether they are tokens: then there are as many.
    """
    new, sequence = current.tokens, current.sequence
    if new is None or sequence is None or sequence >= SEQUENCES:
        return
    if new.shape != (B, T):
        new = new.T
    if new.shape != (B, T):
        return
    current.tokens = None
    before = known.get(sequence)
    if before is None:
        known[sequence] = new
    elif before.shape[0] == new.shape[0]:
        known[sequence] = torch.cat([before[:, : current.first_row], new], dim=1)


def tokens_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], part: bool
) -> Tensor | None:
    """The token ids (B, T) that a model was called with, on the CPU; None where it is unclear.

    They are `input_ids`, or the first argument, unless that has the name of something else: a
    mask, positions, labels, lengths, types. Of a mere part consecutive numbers are positions.
    """
    given = kwargs.get("input_ids")
    if given is None and args and _is_whole(args[0]) and not _names_another(module):
        given = args[0]
    if given is None or not _is_whole(given):
        return None
    tokens: Tensor = given.detach().cpu().long().reshape(-1, given.shape[-1])
    if part and tokens.shape[1] > 1 and bool((tokens.diff(dim=-1) == 1).all()):
        return None
    return tokens


def _is_whole(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.int64, torch.int32) and x.ndim in (1, 2)


def _names_another(module: nn.Module) -> bool:
    """Whether the first argument of a module is, by its name, something else than tokens."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return False
    return bool(names) and any(part in names[0].lower() for part in NO_TOKENS)
