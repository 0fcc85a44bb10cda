"""A run as one HTML file: offline, without a script, for the screen, the phone and the printer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clearhead.files import make_directory, write_files
from clearhead.views.glance import overview
from clearhead.views.heads import (
    CAVEAT,
    READS,
    SOURCES,
    UNNAMED,
    how_many_tokens,
    in_order,
    measured_on,
    named,
    number,
    proof,
    rows,
    share,
    sizes,
    standouts,
    texts_of,
    token_texts,
)  # fmt: skip
from clearhead.views.inline import (
    HIDDEN,
    axes_of,
    escaped_text,
    heatmap,
    histogram,
    palette_indices,
    pooled_map,
    pooling,
    scale_bar,
)  # fmt: skip
from clearhead.views.labels import readable
from clearhead.views.looks import section
from clearhead.views.style import cells, document, style_sheet

if TYPE_CHECKING:
    from clearhead.run import Run
    from clearhead.run.looks import Looks

Row = Mapping[str, Any]
TOKENS = 160  # of the text on the page; of a longer one both ends
KEEP = "clearhead inspect MODEL --keep qk --save RUN"

COLUMNS = {
    "head": ("head", "layer.head, both counted from 0"),
    "role": ("does", "what the head reads, named only where the evidence is clear"),
    "role_mass": ("there", "mean weight on the tokens that the name means, over the rows that have "
                  "any: an induction head is measured where its token came before"),
    "role_uniform": ("equal", "what equal attention would put there: the weight to beat"),
    "role_text": ("text", "the same weight in this text, beside what was measured elsewhere"),
    "normalized_entropy": ("entropy", "how widely a row spreads its weight: 0 is one token, 1 all "
                           "tokens alike"),
    "entropy": ("nats", "the same, not divided by its largest value, in nats"),
    "max_prob": ("top", "mean of each row's largest weight"),
    "first_key": ("first", "mean weight on the first token, over rows that see another too"),
    "first_key_uniform": ("equal", "what equal attention would put on the first token"),
    "previous": ("before", "mean weight on the token just before"),
    "self_mass": ("self", "mean weight on the row's own token"),
    "distance": ("distance", "how many tokens away the weight lies, on average"),
    "sink_mass": ("sink", "weight of a learned sink, which no token gets"),
    "max_score": ("max score", "the largest score before the softmax; huge ones warn of collapse"),
    "rows": ("rows", "how many rows were counted"),
    "module": ("module", "the module of the model that made the call"),
}  # fmt: skip


def write_report(run: Run, path: str | Path, looks: Looks | None = None) -> None:
    """Write the report of a run to `path`, whole or not at all. Raises OSError."""
    target = Path(path)
    text = report_html(run, looks)
    make_directory(target.parent)
    write_files(target.parent, {target.name: text.encode("utf-8")})


def report_html(run: Run, looks: Looks | None = None) -> str:
    """The report as the text of one HTML file, with what `run.between` found, if that is given.

    The same run gives the same text.
    """
    found = rows(run)
    body = [
        *_head(run, found), *_short(run, found),
        *(() if looks is None else section(run, looks)), *overview(found), *_shown(run, found),
        *_entropies(run, found), *_meaning(), *_every(found, measured_on(run)), *_notes(run),
    ]  # fmt: skip
    title = f"Attention heads of {escaped_text(run.model)}"
    return document(title, body, style_sheet())


# The parts of the page ----------------------------------------------------------------------------


def _head(run: Run, found: Sequence[Row]) -> list[str]:
    facts = ", ".join(part for part in (sizes(found), how_many_tokens(run)) if part)
    texts = token_texts(run)
    lines = [
        "<header>", f"<h1>Attention heads of {escaped_text(run.model)}</h1>",
        f"<p class=proof>{escaped_text(proof(run))}</p>", f"<p class=facts>{facts}</p>",
    ]  # fmt: skip
    if texts:
        both = list(enumerate(texts))
        left = both if len(both) <= TOKENS else both[: TOKENS - 20]
        shown = [_token(i, text) for i, text in left]
        if len(both) > TOKENS:
            gap = f"<span class=gap>… {len(both) - TOKENS:,} more …</span>"
            shown += [gap, *(_token(i, text) for i, text in both[-20:])]
        count, unit = texts_of(run)
        if count > 1:
            shown.append(f"<span class=gap>… the first of {count:,} {unit}</span>")
        lines.append(f"<p class=tokens aria-label='the tokens of the text'>{''.join(shown)}</p>")
    return [*lines, "</header>"]


def _token(i: int, text: str) -> str:
    return (
        f'<span title="{i}: {escaped_text(repr(text))}">{escaped_text(readable(text, 24))}</span>'
    )


def _short(run: Run, found: Sequence[Row]) -> list[str]:
    """Two sentences on what this is, and what was found in one."""
    counts: dict[str, int] = {}
    for row in in_order(found):
        if named(row):
            counts[row["role"]] = counts.get(row["role"], 0) + 1
    roles = ", ".join(f"{escaped_text(role)} ({n})" for role, n in counts.items())
    clear = sum(counts.values())
    said = f"Of {len(found)} heads, {clear} do{'es' * (clear == 1)} something that has a name"
    where = f", in {SOURCES[source]}" if (source := measured_on(run)) in SOURCES else ""
    return [
        "<section aria-labelledby=short><h2 id=short>In short</h2>",
        "<p>For every token, each head decides which tokens to read and how much of each: its "
        "weights, which sum to 1. Entropy says how they are spread: near 0, one token gets nearly "
        "all of the weight; near 1, all tokens get the same.</p>",
        f"<p>{said}{where}{': ' + roles if roles else ''}.</p>",
        f"<p class=caveat>{CAVEAT}</p></section>",
    ]


def _shown(run: Run, found: Sequence[Row]) -> list[str]:
    """The heads that stand out, each with its map where q and k were kept."""
    cards, hatched = [], False
    for n, row in enumerate(standouts(found)):
        picture, said, hidden = _picture(run, row, f"h{n}")
        hatched = hatched or hidden
        cards.append(_card(row, picture, said, measured_on(run)))
    why = "of these heads no queries and keys were kept"
    if run.keep != "qk":
        why = "this run kept statistics, and not the queries and keys"
    lines = ["<section aria-labelledby=out><h2 id=out>Heads that stand out</h2>"]
    if any("<svg" in card for card in cards):
        lines.append(
            "<p>Each row is a token that reads (a query), each column a token that is read (a key)."
            " The color is the square root of the weight, which shows small ones."
            f"{' Hatched: hidden from that row, nobody can read there.' * hatched}</p>{scale_bar()}"
        )
    else:
        lines.append(
            f"<p class=missing>There are no maps here: {why}. <code>{KEEP}</code> keeps what a map "
            "is computed from.</p>"
        )
    return [*lines, "<div class=cards>", *cards, "</div></section>"]


def _picture(run: Run, row: Row, uid: str) -> tuple[str, str, bool]:
    """A head's heatmap, how it was pooled and whether any of it is hidden; without a map why."""
    if run.keep != "qk":
        return "", "", False
    try:
        seen = run.map(row["head"])
        pooled = pooled_map(seen)
    except ValueError as error:
        return "", str(error), False
    T, S = seen.shape[-2:]
    queries, keys = axes_of(run, row["head"], seen)
    name = f"Head {row['head']}: weights of {T:,} queries on {S:,} keys"
    hidden = bool((palette_indices(pooled) == HIDDEN).any())
    return heatmap(pooled, queries, keys, name, uid), pooling(seen, pooled), hidden


def _card(row: Row, picture: str, said: str, source: str) -> str:
    """One head that stands out."""
    role = row["role"] or "-"
    title = f"{escaped_text(row['head'])} <span>{escaped_text(role)}</span>"
    reads = READS.get(role)
    unnamed = UNNAMED.get(role, "reads nothing that has a name")
    sentence = f"Reads {reads}" if reads else f"{unnamed[0].upper()}{unnamed[1:]}"
    if row["role_mass"] is not None and reads and role != "broad":
        where = f", in the {source}" if source in SOURCES else ""
        sentence += f"{where}: {share(row['role_mass'])} of its weight"
        if row["role_uniform"] is not None:
            sentence += f", where equal attention would put {share(row['role_uniform'])}"
        if where and row["role_text"] is not None:
            sentence += f"; in this text {share(row['role_text'])}"
    first = f"{share(row['first_key'])} <small>equal {share(row['first_key_uniform'])}</small>"
    facts = [
        ("entropy", share(row["normalized_entropy"])), ("top", share(row["max_prob"])),
        ("first", first),
        ("before", share(row["previous"])), ("self", share(row["self_mass"])),
        ("distance", number(row["distance"])), ("max score", number(row["max_score"])),
    ]  # fmt: skip
    if row["sink_mass"]:
        facts.append(("sink", share(row["sink_mass"])))
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    note = f"<p class=pooled>{escaped_text(said)}</p>" if said else ""
    return (
        f"<article><h3>{title}</h3><p class=does>{escaped_text(sentence)}.</p>{picture}{note}"
        f"<dl class=facts>{items}</dl></article>"
    )


def _entropies(run: Run, found: Sequence[Row]) -> list[str]:
    """For each layer, how the entropies of all its rows are distributed."""
    lines = [
        "<section aria-labelledby=dist><h2 id=dist>How widely the layers read</h2>",
        "<p class=lead>The entropy of every row of a layer's heads, from 0 at the left (all weight "
        "on one token) to 1 at the right (the same on each); the ticks are the heads' means.</p>",
        "<div class=hills>",
    ]
    for layer, stats in sorted(run.stats.items()):
        moments = stats.metrics.get("normalized_entropy")
        if moments is None or not int(moments.histogram.sum()):
            continue
        pairs = torch.as_tensor(moments.histogram).sum(dim=0).unflatten(0, (-1, 2)).sum(dim=1)
        marks = [
            (row["normalized_entropy"], f"{row['head']}: {share(row['normalized_entropy'])}")
            for row in found
            if row["layer"] == layer and row["normalized_entropy"] is not None
        ]
        means = ", ".join(said for _, said in marks)
        name = f"layer {layer}: entropies of {int(pairs.sum()):,} rows; means of heads {means}"
        shown = histogram(pairs.tolist(), marks, name)
        lines.append(f"<div><span>layer {layer}</span>{shown}</div>")
    ends = "<p class=ends><span>0 one token</span><span>1 all alike</span></p>"
    return [*lines, "</div>", ends, "</section>"]


def _every(found: Sequence[Row], source: str) -> list[str]:
    """Every head with every number, layer by layer."""
    where = f"; there and equal are those in {SOURCES[source]}" if source in SOURCES else ""
    names = [name for name in COLUMNS if name != "sink_mass" or any(r["sink_mass"] for r in found)]
    heads = "".join(
        f"<th scope=col class={'word' if name in ('head', 'role', 'module') else 'num'} "
        f'title="{escaped_text(COLUMNS[name][1])}">{COLUMNS[name][0]}</th>'
        for name in names
    )
    lines = [
        "<section aria-labelledby=every><h2 id=every>Every head</h2>",
        "<div class=scroll role=region aria-labelledby=every tabindex=0>",
        "<table class=all><caption>Means over the counted rows; max score is the largest"
        f"{where}</caption><thead><tr>{heads}</tr></thead><tbody>",
    ]
    for row in found:
        shown = "".join(_datum(name, row[name]) for name in names[1:])
        lines.append(f"<tr><th scope=row>{escaped_text(row['head'])}</th>{shown}</tr>")
    return [*lines, "</tbody></table></div></section>"]


def _datum(name: str, value: Any) -> str:
    """One cell of the table of every head."""
    if name in ("role", "module"):
        return f"<td class=word>{escaped_text('-' if value is None else value)}</td>"
    if name == "normalized_entropy":
        return f'<td class="num {cells(value)}">{share(value)}</td>'
    if name in ("distance", "max_score"):
        said = number(value)
    elif name in ("rows", "entropy") and value is not None:
        said = f"{value:,}" if name == "rows" else f"{value:.2f}"
    else:
        said = share(value)
    return f"<td class=num>{said}</td>"


def _meaning() -> list[str]:
    """Every column and every role in words."""
    lines = ["<section aria-labelledby=words><h2 id=words>What the words mean</h2>"]
    groups = (
        [(name, what) for name, what in dict(COLUMNS.values()).items() if name != "equal"],
        [(name, f"reads {what}") for name, what in READS.items()],
    )
    groups[0].insert(3, ("equal", "what equal attention would put in the same place"))
    groups[1].extend(UNNAMED.items())
    for title, group in zip(("Columns", "What a head does"), groups, strict=True):
        lines.append(f"<h3>{title}</h3><dl class=words>")
        lines += [f"<dt>{escaped_text(a)}</dt><dd>{escaped_text(b)}</dd>" for a, b in group]
        lines.append("</dl>")
    return [*lines, "</section>"]


def _notes(run: Run) -> list[str]:
    """Notes of the run and the versions of what ran."""
    lines = ["<section aria-labelledby=notes><h2 id=notes>Notes</h2>"]
    if run.notes:
        lines.append(f"<ul>{''.join(f'<li>{escaped_text(note)}</li>' for note in run.notes)}</ul>")
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    calls = f"{run.n_calls:,} call{'s' * (run.n_calls != 1)} of attention"
    lines.append(f"<p class=versions>{calls}; {escaped_text(versions)}</p>")
    return [*lines, "</section>"]
