"""What a Run offers the page: heads, texts, rows, columns, cells and links, as arrays and records.

Letters: B batch, T queries (rows that were kept), S keys, L tokens of a sequence.
"""

import re
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clearhead.engine import Attended
from clearhead.map import AttentionMap
from clearhead.run import Run
from clearhead.run.calls import FIGURES, Call, head_place
from clearhead.viewer.pyramid import base_level, top_level
from clearhead.viewer.words import MARKS, rule_words
from clearhead.views import heads

MAPS = 32  # heads that are held open
CELLS = 4096  # that one request may ask for
TOKENS = 8192
FOUND = 10_000  # places of a search
LONGEST = 200  # characters to search for

Floats = NDArray[np.float32]


class Refused(Exception):
    """What cannot be answered, in one line, with the status of HTTP that says so."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Where:
    """One sequence of a run, and one of its batch elements."""

    seq: int
    batch: int


class Opened:
    """The map of one head, (1, 1, T, S), and where its rows stand, (T,).

    `whole` is for whoever makes maps of it for threads of their own; `map` is this thread's own.
    """

    def __init__(self, whole: AttentionMap, positions: Tensor) -> None:
        self.whole, self.positions = whole, positions
        self._own = threading.local()

    @property
    def map(self) -> AttentionMap:
        found: AttentionMap | None = getattr(self._own, "map", None)
        if found is None:
            found = self._own.map = self.whole.head(0, 0)
        return found


class Atlas:
    """One Run as the page asks for it. Any thread may ask; each has maps of its own.

    `command` is what would keep q and k where the run has none.
    """

    def __init__(self, run: Run, command: str) -> None:
        self.run, self.command = run, command
        self._lock = threading.RLock()
        self._opened: OrderedDict[tuple[str, Where], Opened] = OrderedDict()
        self._calls: dict[int, list[Call]] = {}
        for call in run.calls:
            self._calls.setdefault(call.sequence, []).append(call)
        self._heads = {row["head"]: row for row in heads.rows(run)}
        self._mapped = {f"{c.layer}.{h}" for c in run.calls if c.has_map for h in c.kept_heads}

    # The whole run ------------------------------------------------------------------------------

    def about(self) -> dict[str, Any]:
        run = self.run
        tokens = sum(ids.numel() for ids in run.tokens.values())
        layers = {row["layer"] for row in self._heads.values()}
        return {
            "model": run.model, "tokens": tokens, "layers": len(layers),
            "heads": len(self._heads), "checked": run.checked_line(),
            "keep": "qk" if any(call.has_map for call in run.calls) else "stats",
            "notes": list(run.notes), "versions": dict(run.versions),
            "sequences": self.sequences(), "command": self.command, "first": self.first(),
        }  # fmt: skip

    def first(self) -> str | None:
        """The head that stands out most, of those that have a map if any has."""
        rows = heads.in_order(list(self._heads.values()))
        mapped = [row["head"] for row in rows if row["head"] in self._mapped]
        return next(iter([*mapped, *(row["head"] for row in rows)]), None)

    def sequences(self) -> list[dict[str, int]]:
        """Those of which calls were kept: how many batch elements and tokens each has."""
        found = []
        for seq, calls in sorted(self._calls.items()):
            ids = self.run.tokens.get(seq)
            length = max(c.key_start + c.shape[4] for c in calls) if ids is None else ids.shape[1]
            found.append({"seq": seq, "batches": calls[0].shape[0], "T": int(length)})
        return found

    def grid(self) -> dict[str, Any]:
        """Every head as a record, and which of them have a map in some sequence."""
        rows = [{**row, "hasMap": head in self._mapped} for head, row in self._heads.items()]
        for row in rows:
            said = self.run.roles.get(row["head"], {})
            row |= {"does": heads.does(row, said), "lag": said.get("lag")}
        return {"heads": rows}

    def where(self, seq: int | None, batch: int | None) -> Where:
        """A sequence, the first by default, and one of its batch elements. Raises Refused."""
        if not self._calls and seq is None:
            seq = min(self.run.tokens, default=0)
        seq = min(self._calls) if seq is None else seq
        if seq not in self._calls:
            if seq in self.run.tokens:
                n_batches = len(self.run.tokens[seq])
            else:
                known = _several(sorted(self._calls)) or "none"
                raise Refused(404, f"there is no sequence {seq} in this run; there are {known}")
        else:
            n_batches = self._calls[seq][0].shape[0]
        batch = 0 if batch is None else batch
        if not 0 <= batch < n_batches:
            raise Refused(404, f"there is no batch element {batch}; there are 0 to {n_batches - 1}")
        return Where(seq, batch)

    # Texts --------------------------------------------------------------------------------------

    def texts(self, where: Where) -> list[str]:
        """The text of each token of a sequence; none where the tokens are not known.

        What UTF-8 cannot carry, lone surrogates, is spelled out.
        """
        texts = heads.token_texts(self.run, where.seq, where.batch)
        return [text.encode("utf-8", "backslashreplace").decode("utf-8") for text in texts]

    def tokens(self, where: Where, first: int, stop: int | None) -> dict[str, Any]:
        texts = self.texts(where)
        stop = min(first + 4096, len(texts)) if stop is None else stop
        if stop - first > TOKENS:
            raise Refused(413, f"at most {TOKENS} tokens a request; got {stop - first}")
        if first > stop or first > len(texts):
            raise Refused(400, f"from {first} to {stop} is no span of the {len(texts)} tokens")
        some = texts[first:stop]
        return {"from": first, "to": first + len(some), "total": len(texts), "texts": some}

    def search(self, where: Where, wanted: str) -> dict[str, Any]:
        """The tokens in which a piece of the running text begins; capitals count if it has any."""
        if not 1 <= len(wanted) <= LONGEST:
            raise Refused(400, f"q must have 1 to {LONGEST} characters; got {len(wanted)}")
        pieces = [text.translate(MARKS) for text in self.texts(where)]
        starts = [0, *accumulate(map(len, pieces))]
        flags = 0 if wanted != wanted.lower() else re.IGNORECASE
        found = re.finditer(f"(?={re.escape(wanted)})", "".join(pieces), flags)
        places = [place for place, _ in groupby(bisect_right(starts, m.start()) - 1 for m in found)]
        return {"positions": places[:FOUND], "total": len(places)}

    # One head -----------------------------------------------------------------------------------

    def head(self, name: str, where: Where) -> dict[str, Any]:
        """What the page has to know of a head before it draws it. Raises Refused."""
        calls = self._calls_of(name, where)
        mapped = self.has_map(name, where)
        if mapped:
            opened = self.open(name, where)
            T, S = opened.map.shape[-2:]
            positions = opened.positions
        else:
            last = calls[-1]
            positions = torch.cat([_positions(call) for call in calls])
            T, S = len(positions), last.key_start + last.shape[4]
        queries, keys = heads.texts_fit(
            self._calls[where.seq], head_place(name)[0], len(self.texts(where)), S,
            positions.tolist(),
        )  # fmt: skip
        plain = bool((positions == torch.arange(T)).all())
        return {
            "head": name, "T": T, "S": S, "zmax": top_level(T, S), "base": base_level(T, S),
            "cross": calls[0].cross, "queryTexts": queries, "keyTexts": keys,
            "rowAt": None if plain else positions.tolist(), "hasMap": mapped,
            "rule": rule_words(calls[0].rule),
            "seq": where.seq, "batch": where.batch, "command": None if mapped else self.command,
            **self._heads.get(name, {}),
        }  # fmt: skip

    def has_map(self, name: str, where: Where) -> bool:
        _, h = head_place(name)
        return all(c.has_map and h in c.kept_heads for c in self._calls_of(name, where))

    def open(self, name: str, where: Where) -> Opened:
        """The map of a head. Raises Refused where there is none."""
        with self._lock:
            if (found := self._opened.get((name, where))) is not None:
                self._opened.move_to_end((name, where))
                return found
            if not self.has_map(name, where):
                raise Refused(409, f"head {name} has no map here: q and k were not kept; this "
                              f"keeps them: {self.command}")  # fmt: skip
            whole = self.run.map(name, sequence=where.seq)
            positions = self.run.positions(name, sequence=where.seq)
            opened = Opened(whole.head(where.batch, 0), positions)
            self._opened[name, where] = opened
            while len(self._opened) > MAPS:
                self._opened.popitem(last=False)
            return opened

    def figures(self, name: str, where: Where) -> Floats:
        """entropy, normalized entropy, largest weight and number of visible keys: (4, T)."""
        _, h = head_place(name)
        parts = []
        for call in self._calls_of(name, where):
            found = {n: call.tensors[n][where.batch, h] for n in FIGURES}
            seen = Attended(None, **found, rule=call.rule, n_keys=call.shape[4], impl=call.impl)
            rows = seen.entropy, seen.normalized_entropy, seen.max_prob, seen.visible
            parts.append(torch.stack([row.to(torch.float32) for row in rows]))
        return torch.cat(parts, dim=1).numpy()

    def row(self, name: str, i: int, where: Where) -> Floats:
        """The weights of one query, (S,); NaN where a key is hidden."""
        return self._line(name, where, "row", i, lambda x: x[0, 0, i])

    def column(self, name: str, j: int, where: Where) -> Floats:
        """Every query's weight on one key, (T,); NaN where it may not see it."""
        return self._line(name, where, "key", j, lambda x: x[0, 0, :, j])

    def _line(
        self, name: str, where: Where, what: str, at: int, pick: Callable[[Any], Tensor]
    ) -> Floats:
        opened = self.open(name, where)
        size = opened.map.shape[2 if what == "row" else 3]
        if at >= size:
            raise Refused(404, f"there is no {what} {at}; there are {size:,}, counted from 0")
        hidden, weights = pick(opened.map.scores) == -torch.inf, pick(opened.map)
        return weights.masked_fill(hidden, torch.nan).to(torch.float32).numpy()

    def cells(self, name: str, span: tuple[int, int, int, int], where: Where) -> Floats:
        """Weights and scores of a rectangle i0, i1, j0, j1: (2, rows, columns)."""
        i0, i1, j0, j1 = span
        opened = self.open(name, where)
        T, S = opened.map.shape[-2:]
        if not (i0 < i1 <= T and j0 < j1 <= S):
            raise Refused(400, f"rows {i0} to {i1} and columns {j0} to {j1} are no rectangle of a "
                          f"map of {T:,} x {S:,}")  # fmt: skip
        if (i1 - i0) * (j1 - j0) > CELLS:
            n = (i1 - i0) * (j1 - j0)
            raise Refused(413, f"at most {CELLS:,} cells a request; got {n:,}")
        here = 0, 0, slice(i0, i1), slice(j0, j1)
        both = torch.stack([opened.map[here], opened.map.scores[here]])
        return both.to(torch.float32).numpy()

    def link(
        self, i: int, j: int, where: Where, step: Callable[[float], None]
    ) -> list[dict[str, Any]]:
        """The heads by the weight with which the query at position i looks at key j."""
        mine = [name for name in self._heads if self._links(name, where)]
        if not mine:
            raise Refused(409, f"no head has a map here: q and k were not kept; this keeps them: "
                          f"{self.command}")  # fmt: skip
        found = []
        for n, name in enumerate(mine):
            step(n / len(mine))
            opened = self.open(name, where)
            at = (opened.positions == i).nonzero()[:, 0].tolist()
            if not at or j >= opened.map.shape[-1]:
                continue
            scores, weight = opened.map.scores[0, 0, at[0]], opened.map[0, 0, at[0], j]
            visible = int((scores > -torch.inf).sum())
            if scores[j] > -torch.inf:
                found.append({
                    "head": name, "weight": float(weight), "score": float(scores[j]),
                    "rank": 1 + int((scores > scores[j]).sum()), "uniform": 1 / visible,
                    "visible": visible, "role": self._heads[name]["role"],
                })  # fmt: skip
        if not found:
            raise Refused(404, f"no head lets the query at {i} see key {j}")
        return sorted(found, key=lambda one: -one["weight"])

    def _links(self, name: str, where: Where) -> bool:
        layer, h = head_place(name)
        calls = [c for c in self._calls.get(where.seq, ()) if c.layer == layer and not c.cross]
        return bool(calls) and all(c.has_map and h in c.kept_heads for c in calls)

    def _calls_of(self, name: str, where: Where) -> list[Call]:
        """The calls of a head's layer in a sequence, by their rows. Raises Refused."""
        layer, _ = head_place(name)
        if name not in self._heads:
            raise Refused(404, f"there is no head {name}; there are {_several(list(self._heads))}")
        found = [call for call in self._calls.get(where.seq, ()) if call.layer == layer]
        if not found:
            raise Refused(409, f"of head {name} in sequence {where.seq} statistics alone were kept;"
                          f" this keeps maps: {self.command}")  # fmt: skip
        return sorted(found, key=lambda call: call.first_row)


# Names --------------------------------------------------------------------------------------------


def _positions(call: Call) -> Tensor:
    rows = torch.arange(call.shape[3]) if call.rows is None else call.rows
    return rows + call.first_row


def _several(names: list[Any]) -> str:
    return ", ".join(map(str, names[:6])) + (", ..." if len(names) > 6 else "")
