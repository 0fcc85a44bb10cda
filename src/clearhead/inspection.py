"""The verb inspect: what each head of a model does, on a text and on a fixed probe.

    Subject -> windows -> observe -> Run -> table, records, pictures, a page, a folder

The probe is random tokens that repeat. Whatever a head does there it does by itself, and not
because the text was of that kind; roles are named from it where the model is causal and has a
vocabulary, and from the text otherwise.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.capture import AttentionInputs, observe
from clearhead.capture.keeping import by_layer
from clearhead.capture.passes import Site
from clearhead.files import json_text
from clearhead.map import AttentionMap
from clearhead.probe import PERIOD, REPEATS, repeated_tokens
from clearhead.roles import Evidence, gather, name_roles
from clearhead.run import Run
from clearhead.run.calls import Call
from clearhead.run.evidence import FIGURES, evidence_of
from clearhead.run.looks import Looks
from clearhead.subject import LONGEST, Subject, of_model
from clearhead.views import heads
from clearhead.views.looks import record

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
        figures = {name: call.tensors[name].to(q.device) for name in FIGURES}
        new = gather(
            amap, figures, None if tokens is None else tokens.to(q.device),
            None if marks is None else marks.to(q.device), cross=call.cross,
        )  # fmt: skip
        before = self.found.get(call.layer)
        self.found[call.layer] = new if before is None else before.merge(new)


def glance(subject: Subject, tokens: Sequence[int]) -> Glance:
    """Look at the first few tokens. Raises ValueError where nothing can be observed."""
    with observe(subject.model) as run:
        subject.try_reading(torch.tensor([tokens[:GLANCE]]))
    n_bytes = 0
    for call in run.calls:
        _, H, G, _, _, D = call.shape
        n_bytes += (H + G) * D * getattr(torch, call.dtype).itemsize
    heads = tuple(call.shape[1] for call in run.calls)
    return Glance(all(c.rule.causal or c.cross for c in run.calls), n_bytes, heads)


def examine(
    subject: Subject, windows: Sequence[Sequence[int]], asked: Asked, seen: Glance | None = None,
    progress: Iterable[Sequence[int]] | None = None,
) -> Run:  # fmt: skip
    """The run of a model over windows of tokens, with a role for each head.

    `seen` is the glance at them, of whoever has taken one already; `progress` the windows again,
    handed on one by one by whoever shows how far it is. Raises
    ValueError where nothing can be observed and for layers and heads that there are none of.
    """
    seen = seen or glance(subject, windows[0])
    better, source = beside(subject, asked, seen, sum(map(len, windows)))
    collector = Collector(subject)
    with observe(
        subject.model, keep=asked.keep, layers=asked.layers, heads=asked.heads, rows=asked.rows,
        out=asked.out, each=collector,
    ) as run:  # fmt: skip
        run.model = subject.name
        for n, window in enumerate(windows if progress is None else progress):
            collector.tokens = torch.tensor([window])
            subject.read(collector.tokens)
            run.tokens[n] = collector.tokens  # an observer keeps those of the first few alone
        run.pieces = subject.pieces([token for window in windows for token in window])
        set_roles(run, collector.found, better, source)
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


def set_roles(
    run: Run, found: Mapping[int, Evidence], better: Mapping[Site, Evidence], source: str
) -> None:
    """Give a run the roles of its heads, from the evidence of each layer and what is better."""
    for layer, evidence in found.items():
        heads = range(evidence.n_heads)
        run.roles |= _roles(layer, heads, evidence, better.get(run.sites[layer]), source)


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
    layer: int, heads: Sequence[int], evidence: Evidence | None, better: Evidence | None,
    source: str,
) -> dict[str, dict[str, str | float | None]]:  # fmt: skip
    """The role of these heads of a layer by their names, as a Run holds them.

    Named from the `better` evidence where there is some; text_mass is that role's in the text,
    whose evidence is of these heads, if there is any.
    """
    here = None if evidence is None else name_roles(evidence)
    named = here if better is None else [name_roles(better)[h] for h in heads]
    found: dict[str, dict[str, str | float | None]] = {}
    for n, (h, role) in enumerate(zip(heads, named or (), strict=True)):
        in_text = None if here is None else here[n].all.get(role.name)
        found[f"{layer}.{h}"] = {
            "role": role.name, "mass": role.mass, "uniform": role.uniform, "source": source,
            "lag": role.lag,
            "text_mass": in_text.mass if in_text is not None and in_text.tested else None,
        }  # fmt: skip
    return found


# In Python ----------------------------------------------------------------------------------------


def name_heads(
    run: Run, model: nn.Module | None = None, tokenizer: Any = None
) -> dict[str, dict[str, Any]]:
    """Say what each head of a run does, where that is clear: fills run.roles, and returns it.

        with observe(model, keep="qk") as run:
            model(tokens)
        name_heads(run, model)
        run.heads("role_mass", reverse=True)

    model      the one that was observed. Where it is causal and reads tokens, it reads random ones
               that repeat (of 17, 25 and 31 tokens, four times each), and heads are named from what
               they do there, as `clearhead inspect` does: "source" is "probe" then, and "text_mass"
               the same weight in the run's own texts. Without it, they are named from those alone
    tokenizer  tells punctuation and special tokens. The model's own, `model.tokenizer`, unless
               given. It labels the run besides, as run.label does: from then on run.between
               finds words in it

    What the texts show needs keep="qk"; of statistics alone a model names, and nothing else does.
    The model stays as it is, training or not. docs/roles.md has the roles and the evidence.

    Raises ValueError where there is nothing to name from, for another model than the run's, and
    for one that cannot read random tokens.
    """
    tokenizer = tokenizer or getattr(model, "tokenizer", None)
    if tokenizer is not None:
        run.label(tokenizer)
    here, left_out = evidence_of(run, set(getattr(tokenizer, "all_special_ids", ())))
    better, source = dict[Site, Evidence](), "text"
    if model is not None:
        n_tokens = sum(ids.numel() for ids in run.tokens.values()) if here else 0
        better, source = _better(run, model, tokenizer, n_tokens)
        if better and not any(site in better for site in run.sites):
            raise ValueError(
                f"this is another model than the run's: it has no {run.sites[0][0]!r}, and begins "
                f"with {next(iter(better))[0]!r}"
            )
    found: dict[str, dict[str, Any]] = {}
    for layer, stats in run.stats.items():
        more, mine = better.get(run.sites[layer]), here.get(layer)
        if more is not None and more.n_heads != stats.n_heads:
            raise ValueError(
                f"this is another model than the run's: {run.sites[layer][0]!r} has "
                f"{more.n_heads} heads, and had {stats.n_heads} in the run"
            )
        if more is None and mine is None:
            continue
        heads = range(stats.n_heads) if mine is None else mine.heads
        found |= _roles(layer, heads, None if mine is None else mine.evidence, more, source)
    if not found:
        raise ValueError(_nothing(run, model, left_out))
    run.notes += [
        note for why in left_out if (note := f"not in the evidence: {why}") not in run.notes
    ]
    run.roles |= found
    return run.roles


def _better(
    run: Run, model: nn.Module, tokenizer: Any, n_tokens: int
) -> tuple[dict[Site, Evidence], str]:
    """What a model does with other tokens than the run's, and what to call it."""
    subject, n_calls = of_model(model, run.model, tokenizer), run.n_calls
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        causal = False
        if subject.vocab_size:
            causal = glance(subject, [n % subject.vocab_size for n in range(GLANCE)]).causal
        found = beside(subject, Asked(), Glance(causal, 0, ()), n_tokens)
    except Exception as error:  # a model raises whatever it likes
        first = error.__cause__ or error
        raise ValueError(
            f"{subject.name} could not read tokens of ours ({type(first).__name__}: "
            f"{(str(first).splitlines() or [''])[0]}): name_heads(run) names from the run's own"
        ) from error
    finally:
        for part, training in modes.items():
            part.training = training
    if run.n_calls != n_calls:
        raise ValueError(
            "the run was still being observed, and has the probe in it now: observe again, and "
            "call name_heads after the `with`"
        )
    return found


def _nothing(run: Run, model: nn.Module | None, left_out: Sequence[str]) -> str:
    """Why no head could be named, and what to do."""
    if left_out:
        return f"no head can be named from this run: {left_out[0]}"
    if model is None:
        return (
            "this run keeps statistics, and heads are named from their weights: "
            'observe(model, keep="qk"), or hand the model over, name_heads(run, model)'
        )
    return (
        "this run keeps statistics, and its model is not causal or has no vocabulary that is "
        'known, so random tokens do not name its heads: observe(model, keep="qk")'
    )


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


def as_json(run: Run, looks: Looks | None = None) -> str:
    """The heads and what they were seen in, and who looks from here to there, as strict JSON."""
    said = {
        "model": run.model, "versions": run.versions, "calls": run.n_calls,
        "tokens": heads.n_tokens(run), "texts": heads.texts_of(run)[0],
        "checked": run.checked_line(), "notes": run.notes, "heads": heads.rows(run),
    }  # fmt: skip
    return json_text(said if looks is None else {**said, "looks": record(run, looks)})
