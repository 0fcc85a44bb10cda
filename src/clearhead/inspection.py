"""The verb inspect: what each head of a model does, on a text and on a fixed probe.

    Subject -> windows -> observe -> Run -> table, records, pictures, a page, a folder

The probe is random tokens that repeat. Whatever a head does there it does by itself, and not
because the text was of that kind; roles are named from it where the model is causal and has a
vocabulary, and from the text otherwise.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from clearhead.capture import AttentionInputs, observe
from clearhead.capture.keeping import by_layer
from clearhead.capture.passes import Site
from clearhead.files import json_text
from clearhead.map import AttentionMap
from clearhead.probe import PERIOD, REPEATS, repeated_tokens
from clearhead.roles import Evidence, gather, name_roles
from clearhead.run import Run
from clearhead.run.calls import Call
from clearhead.subject import LONGEST, Subject
from clearhead.views import heads

SHORT = 64  # tokens: too few to tell by what a head does
PERIODS = (PERIOD, 17, 31)  # of several, so that a fixed distance does not pass for induction
GLANCE = 8  # tokens that are read first, to know what there is
MOST_KEPT = 1 << 29  # bytes of q and k that a report may hold in memory

TEXT = (
    "The old lighthouse keeper climbed the stairs every evening, lit the lamp, and wrote one line "
    "in the book. When the fog came in from the sea, the old lighthouse keeper rang the bell. "
    '"Who is out there?" he asked, and nobody answered; but every evening, at the same hour, he '
    "climbed the stairs, lit the lamp, and wrote one line in the book.\n"
)


@dataclass(frozen=True)
class Asked:
    """What of a model is to be looked at, and what is to be kept of it."""

    keep: str = "stats"
    layers: Collection[int | str] | None = None
    heads: Collection[str] | None = None
    rows: int | None = None
    probe: bool = True
    out: Path | None = None


@dataclass(frozen=True, eq=False)
class Glance:
    """What a few tokens tell of a model: whether it is causal, the bytes of q and k of a token, and
    the number of heads in each layer."""

    causal: bool
    bytes_per_token: int
    heads: tuple[int, ...]

    def check(self, layers: Collection[int] | None, heads: Collection[str] | None) -> None:
        """Raise ValueError for a layer or a head that there is none of."""
        for layer in layers or ():
            if not 0 <= layer < len(self.heads):
                raise ValueError(f"there are layers 0 to {len(self.heads) - 1}; got {layer}")
        for layer, numbers in (by_layer(heads) or {}).items():
            if not 0 <= layer < len(self.heads) or max(numbers) >= self.heads[layer]:
                most = max(self.heads)
                raise ValueError(
                    f"there is no head {layer}.{max(numbers)}: there are layers 0 to "
                    f"{len(self.heads) - 1} with heads 0 to {most - 1}"
                )


@dataclass(eq=False)
class Collector:
    """Gathers the evidence for roles of every call, layer by layer."""

    subject: Subject
    tokens: Tensor | None = None
    found: dict[int, Evidence] = field(default_factory=dict)

    def __call__(self, call: Call, inputs: AttentionInputs) -> None:
        if call.rows is not None:  # they are not neighbors
            return
        q, k = inputs.q.detach(), inputs.k.detach()
        amap = AttentionMap(q, k, inputs.rule, call.tensors["lse"])
        tokens = self.tokens
        if tokens is not None and (call.cross or tuple(tokens.shape) != (q.shape[0], k.shape[2])):
            tokens = None
        marks = None if tokens is None else self.subject.delimiters(tokens)
        figures = {name: call.tensors[name].to(q.device) for name in
                   ("entropy", "visible", "max_score", "sink_mass")}  # fmt: skip
        new = gather(
            amap, figures, None if tokens is None else tokens.to(q.device),
            None if marks is None else marks.to(q.device), cross=call.cross,
        )  # fmt: skip
        before = self.found.get(call.layer)
        self.found[call.layer] = new if before is None else before.merge(new)


def glance(subject: Subject, tokens: Sequence[int]) -> Glance:
    """Look at the first few tokens. Raises ValueError where nothing can be observed."""
    with observe(subject.model) as run:
        subject.read(torch.tensor([tokens[:GLANCE]]))
    n_bytes = 0
    for call in run.calls:
        _, H, G, _, _, D = call.shape
        n_bytes += (H + G) * D * getattr(torch, call.dtype).itemsize
    heads = tuple(call.shape[1] for call in run.calls)
    return Glance(all(c.rule.causal or c.cross for c in run.calls), n_bytes, heads)


def examine(
    subject: Subject, windows: Sequence[Sequence[int]], asked: Asked, seen: Glance,
    progress: Iterable[Sequence[int]] | None = None,
) -> Run:  # fmt: skip
    """The run of a model over windows of tokens, with a role for each head.

    `progress` is the windows again, handed on one by one by whoever shows how far it is. Raises
    ValueError where nothing can be observed and for layers and heads that there are none of.
    """
    better, source = beside(subject, asked, seen, sum(map(len, windows)))
    collector = Collector(subject)
    with observe(
        subject.model, keep=asked.keep, layers=asked.layers, heads=asked.heads, rows=asked.rows,
        out=asked.out, each=collector,
    ) as run:  # fmt: skip
        run.model = subject.name
        for window in windows if progress is None else progress:
            collector.tokens = torch.tensor([window])
            subject.read(collector.tokens)
        run.pieces = subject.pieces([token for window in windows for token in window])
        name_heads(run, collector.found, better, source)
    return run


def beside(
    subject: Subject, asked: Asked, seen: Glance, n_tokens: int
) -> tuple[dict[Site, Evidence], str]:
    """What to name roles from, other than the text, if anything, and what to call it."""
    if asked.probe and seen.causal and subject.vocab_size:
        return probe(subject), "probe"
    if asked.probe and n_tokens < SHORT and subject.tokenizer is not None:
        return elsewhere(subject, subject.windows(TEXT)), "sample"
    return {}, "text"


def name_heads(
    run: Run, found: Mapping[int, Evidence], better: Mapping[Site, Evidence], source: str
) -> None:
    """Give a run the roles of its heads, from the evidence of each layer and what is better."""
    for layer, evidence in found.items():
        run.roles |= _roles(layer, evidence, better.get(run.sites[layer]), source)


def probe(subject: Subject) -> dict[Site, Evidence]:
    """What every place in the model does with random tokens that repeat, after several lengths."""
    assert subject.vocab_size is not None
    room = (subject.context or LONGEST) // REPEATS
    return elsewhere(subject, [
        row.tolist()
        for seed, period in enumerate(sorted({min(period, room) for period in PERIODS if room}))
        for row in repeated_tokens(subject.vocab_size, period, texts=2, seed=seed)
    ])  # fmt: skip


def elsewhere(subject: Subject, windows: Sequence[Sequence[int]]) -> dict[Site, Evidence]:
    """What every place in the model does with other tokens than those that are looked at."""
    collector = Collector(subject)
    with observe(subject.model, each=collector) as run:
        for window in windows:
            collector.tokens = torch.tensor([window])
            subject.read(collector.tokens)
    return {run.sites[layer]: evidence for layer, evidence in collector.found.items()}


def _roles(
    layer: int, evidence: Evidence, better: Evidence | None, source: str
) -> dict[str, dict[str, str | float | None]]:
    """The role of every head of a layer by its name, as a Run holds them.

    Named from the `better` evidence where there is some; text_mass is that role's in the text.
    """
    here = name_roles(evidence)
    named = here if better is None else name_roles(better)
    found: dict[str, dict[str, str | float | None]] = {}
    for h, (role, same) in enumerate(zip(named, here, strict=True)):
        in_text = same.all.get(role.name)
        found[f"{layer}.{h}"] = {
            "role": role.name, "mass": role.mass, "uniform": role.uniform, "source": source,
            "lag": role.lag,
            "text_mass": in_text.mass if in_text is not None and in_text.tested else None,
        }  # fmt: skip
    return found


# From here to there -------------------------------------------------------------------------------


def places(run: Run, name: str) -> list[tuple[int, int]]:
    """Where something stands in the text: a position, "7", a span, "3:9", or every place of a word.

    Raises ValueError where it stands nowhere.
    """
    if not run.tokens:
        raise ValueError("this run holds statistics and no text: there is no place to look from")
    ids = run.tokens[0][0].tolist()
    if match := re.fullmatch(r"(\d+)(?::(\d+))?", name):
        first, last = int(match[1]), int(match[2] or int(match[1]) + 1)
        if not 0 <= first < last <= len(ids):
            raise ValueError(f"{name} is no place among the {len(ids)} tokens of the text")
        return [(first, last)]
    pieces = [run.pieces.get(token, "").replace("Ġ", " ").replace("▁", " ") for token in ids]
    if not any(piece.startswith(" ") for piece in pieces):  # words without a mark of their own
        pieces = [piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces]
    ends = list(itertools.accumulate(map(len, pieces)))
    found = []
    for match in re.finditer(rf"(?<!\w){re.escape(name.strip())}(?!\w)", "".join(pieces), re.I):
        first, last = bisect_right(ends, match.start()), bisect_left(ends, match.end())
        found.append((first, last + 1))
    if not found:
        raise ValueError(f"{name!r} is not in the text; a word of it, a position (7) or span (3:9)")
    return found


def ranking(run: Run, here: str, there: str, top: int) -> list[str]:
    """Which heads look from here to there, the most first, beside what equal attention would do."""
    queries, keys = places(run, here), places(run, there)
    rows = sum(last - first for first, last in queries)
    sums: dict[str, list[float]] = {}
    for span in queries:
        for target in keys:
            for head, *pair in run.between(span, target):
                total = sums.setdefault(head, [0.0, 0.0])
                for n, x in enumerate(pair):
                    total[n] += x * (span[1] - span[0]) / rows
    order = sorted(sums.items(), key=lambda item: -item[1][0])
    lines = [
        f"{run.model}  from {here!r} (token {_shown(queries)}) to {there!r} ({_shown(keys)})",
        heads.proof(run), "", "  head   mass  equal  does",
    ]  # fmt: skip
    lines += [
        f"{head:>6}  {heads.share(mass):>5}  {heads.share(equal):>5}  "
        f"{run.roles.get(head, {}).get('role') or '-'}"
        for head, (mass, equal) in order[:top]
    ]
    if len(order) > top:
        lines.append(f"{len(order) - top:,} more: --top {len(order)}")
    return [
        *lines, "", "mass: the part of a row's weight that lies there; equal: of equal attention.",
        heads.CAVEAT,
    ]  # fmt: skip


def _shown(spans: Sequence[tuple[int, int]]) -> str:
    named = [str(a) if b == a + 1 else f"{a}:{b}" for a, b in spans]
    return ", ".join(named[:6]) + (", ..." if len(named) > 6 else "")


# In and out ---------------------------------------------------------------------------------------


def numbers(text: str, vocab_size: int | None) -> list[int]:
    """Token numbers of a file, with spaces, commas or lines between them, or a JSON list.

    Raises ValueError for what is no number or no token.
    """
    words = re.split(r"[\s,]+", text.strip().strip("[]").strip())
    found = []
    for word in filter(None, words):
        if not word.isdecimal() or len(word) > 18:
            raise ValueError(f"{word[:40]!r} is no token number: whole numbers from 0 up are")
        found.append(int(word))
        if vocab_size is not None and found[-1] >= vocab_size:
            raise ValueError(f"token {word} is beyond the vocabulary of {vocab_size}")
    if not found:
        raise ValueError("there are no token numbers in the file")
    return found


def as_json(run: Run) -> str:
    """The heads and what they were seen in, as strict JSON."""
    return json_text({
        "model": run.model, "versions": run.versions, "calls": run.n_calls,
        "tokens": sum(ids.numel() for ids in run.tokens.values()),
        "checked": run.checked_line(), "notes": run.notes, "heads": heads.rows(run),
    })  # fmt: skip
