"""Forward passes and the sequences that they belong to: where a call's queries and keys stand.

A model that writes with a cache is called once a token. Those calls are one sequence, and a call's
queries stand behind those of the calls before it.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clearhead.capture.inputs import AttentionInputs

SEQUENCES = 8  # whose rows are kept without being asked for; further ones go into the statistics

Site = tuple[str, int]  # a module and which of its calls in a pass


@dataclass
class Pass:
    """One call of the whole model, from outside."""

    number: int
    tokens: Tensor | None
    sequence: int | None = None
    first_row: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def site(self, module: str) -> Site:
        """The place of this module's next call."""
        index = self.counts.get(module, 0)
        self.counts[module] = index + 1
        return module, index


@dataclass
class Sequences:
    """The sequences so far, and where the latest call of each place ended."""

    count: int = 0
    ends: dict[Site, tuple[int, int, int]] = field(default_factory=dict)  # B, rows, sequence

    def place(self, inputs: AttentionInputs, current: Pass, site: Site) -> tuple[int, int]:
        """Where in its sequence a call's first query and first key stand.

        A pass goes on with a sequence if its first call has more keys than queries and as many
        batch elements as the call before it in the same place.
        """
        B, T, S = inputs.q.shape[0], inputs.q.shape[2], inputs.k.shape[2]
        offset = inputs.rule.offset
        if isinstance(offset, Tensor):
            offset = int(offset.min()) if len(offset) else 0
        ahead = S - T if offset is None else offset
        if current.sequence is None:
            before = self.ends.get(site)
            if before is not None and before[0] == B and T < S and not inputs.cross:
                current.sequence, current.first_row = before[2], before[1]
            else:
                current.sequence, self.count = self.count, self.count + 1
                current.first_row = max(ahead, 0) if T < S and not inputs.cross else 0
        if inputs.cross:
            return current.first_row, 0
        self.ends[site] = (B, current.first_row + T, current.sequence)
        return current.first_row, max(current.first_row - ahead, 0)


def take_tokens(current: Pass, known: MutableMapping[int, Tensor]) -> None:
    """Add a pass's tokens, once, to those of its sequence."""
    new, sequence = current.tokens, current.sequence
    current.tokens = None
    if new is None or sequence is None or sequence >= SEQUENCES:
        return
    before = known.get(sequence)
    if before is None:
        known[sequence] = new
    elif before.shape[0] == new.shape[0]:
        known[sequence] = torch.cat([before[:, : current.first_row], new], dim=1)


def tokens_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The token ids (B, T) that a model was called with, on the CPU; None where it is unclear."""
    for given in (kwargs.get("input_ids"), *args[:1]):
        if (
            isinstance(given, Tensor)
            and given.dtype in (torch.int64, torch.int32)
            and given.ndim in (1, 2)
        ):
            return given.detach().cpu().long().reshape(-1, given.shape[-1])
    return None
