"""From here to there: the heads that look from some tokens to others, most first.

As a table on a terminal, as records for --json, as CSV, and as a part of the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from clearhead.run.looks import Looks, Places, Spans
from clearhead.views.heads import CAVEAT, csv_of, proof, share, token_texts
from clearhead.views.inline import escaped_text
from clearhead.views.labels import folded, readable
from clearhead.views.style import LEVELS

if TYPE_CHECKING:
    from clearhead.run import Run

FIELDS = ("head", "mass", "uniform", "role")
SPANS = 6  # that are named in a line
TEXTS = 3  # whose spans are named
STRIPS = 4  # heads whose weights are shown over the text
ROWS = 64  # of which a strip is the mean, at most
AROUND = 24  # tokens to either side of a place that a strip of a long text shows
WHOLE = 160  # tokens that it shows all of


def rows(run: Run, looks: Looks) -> list[dict[str, Any]]:
    """A record a head of strict JSON, the largest mass first."""
    return [
        {"head": head, "mass": mass, "uniform": equal, "role": run.roles.get(head, {}).get("role")}
        for head, mass, equal in looks
    ]


def record(run: Run, looks: Looks) -> dict[str, Any]:
    """All of it as one record: spans are [start, stop] of tokens, by sequence (and batch)."""
    places = [
        {"sequence": at.sequence, "batch": at.batch or 0,
         "from": list(map(list, at.queries)), "to": list(map(list, at.keys))}
        for at in looks.places
    ]  # fmt: skip
    return {
        "from": looks.here, "to": looks.there, "places": places, "heads": rows(run, looks)
    }  # fmt: skip


def csv_text(run: Run, looks: Looks) -> str:
    """The records as CSV."""
    return csv_of(FIELDS, rows(run, looks))


def table(run: Run, looks: Looks, top: int = 8, width: int | None = None) -> list[str]:
    """The first `top` heads as lines of at most `width` columns (80 unless given, 60 at least).

    Raises ValueError for a top below 1.
    """
    if top < 1:
        raise ValueError(f"top is {top}: it must be 1 or more")
    width = 80 if width is None else max(60, width)
    said = [f"{readable(run.model, width // 2)}  {where(run, looks)}", proof(run)]
    lines = [line for text in said for line in folded(text, width)]
    lines += ["", "  head   mass  equal  does"]
    lines += [
        f"{row['head']:>6}  {share(row['mass']):>5}  {share(row['uniform']):>5}  "
        f"{readable(row['role'] or '-', width - 24)}"
        for row in rows(run, looks)[:top]
    ]
    if len(looks) > top:
        lines.append(f"{len(looks) - top:,} more: --top {len(looks)}")
    legend = ["mass: the part of a row's weight that lies there; equal: of equal attention."]
    texts, unit = _texts(run)
    if texts > 1:
        legend.append(
            f"{unit.capitalize()} and tokens count from 0; no head looks from one to another."
        )
    return [*lines, "", *(line for text in legend for line in folded(text, width)), CAVEAT]


def where(run: Run, looks: Looks, names: bool = True) -> str:
    """From 'it' (token 14) to 'cat' (2); and in which of several windows of a text."""
    first, (texts, unit) = looks.places[0], _texts(run)
    here, there = (f"{name!r} " if names else "" for name in called(run, looks))
    if len(looks.places) == 1:
        said = f"token {_shown(first.queries)}", _shown(first.keys)
        line = f"from {here}({said[0]}) to {there}({said[1]})"
        if not names:
            line = f"from {said[0]} to {said[1]}"
        return line + (f", in {_name(run, first)} of {texts:,}" if texts > 1 else "")
    named = "; ".join(
        f"{_name(run, at)}: {_shown(at.queries, 2)} to {_shown(at.keys, 2)}"
        for at in looks.places[:TEXTS]
    )
    more = "; ..." if len(looks.places) > TEXTS else ""
    line = f"in {len(looks.places):,} of {texts:,} {unit} ({named}{more})"
    return f"from {here}to {there[:-1]}, {line}" if names else line


def called(run: Run, looks: Looks) -> tuple[str, str]:
    """The two places as words: those that were asked for, or what stands at their positions."""
    at, found = looks.places[0], []
    texts = token_texts(run, at.sequence, at.batch or 0)
    for asked, spans in ((looks.here, at.queries), (looks.there, at.keys)):
        first, last = spans[0]
        told = asked.replace(":", "").isdecimal() and bool(texts)
        found.append(("".join(texts[first:last]).strip() if told else "") or asked)
    return readable(found[0], 40), readable(found[1], 40)


def _texts(run: Run) -> tuple[int, str]:
    """How many texts there are, or windows of one, and which of the two it is."""
    sizes = {call.sequence: call.shape[0] for call in run.calls}
    return sum(sizes.values()), "windows" if set(sizes.values()) == {1} else "texts"


def _name(run: Run, at: Places) -> str:
    """Window 3, or text 2 of a batch."""
    if _texts(run)[1] == "windows":
        return f"window {at.sequence}"
    several = len({call.sequence for call in run.calls}) > 1
    return f"text {at.batch or 0}" + (f" of batch {at.sequence}" if several else "")


def _shown(spans: Spans, most: int = SPANS) -> str:
    named = [str(a) if b == a + 1 else f"{a}:{b}" for a, b in spans]
    return ", ".join(named[:most]) + (", ..." if len(named) > most else "")


# On a page ----------------------------------------------------------------------------------------


def section(run: Run, looks: Looks, top: int = 12) -> list[str]:
    """The ranking, and for the first heads what they read from there, over the text itself."""
    here, there = map(escaped_text, called(run, looks))
    lines = [
        "<section aria-labelledby=looks>"
        f"<h2 id=looks>From “{here}” to “{there}”</h2>",
        "<p class=lead>How much of the weight of its rows each head lays there, "
        f"{escaped_text(where(run, looks, names=False))}. The mark is what equal attention would "
        "put there.</p>",
        "<div class=scroll role=region aria-labelledby=looks tabindex=0>"
        "<table class='all looks'><caption>The heads that look there most</caption><thead><tr>"
        "<th scope=col class=word>head</th><th scope=col class=num>mass</th>"
        "<th scope=col class=num>equal</th><th><span class=hush>mass as a bar</span></th>"
        "<th scope=col class=word>does</th></tr></thead><tbody>",
    ]  # fmt: skip
    for row in rows(run, looks)[:top]:
        does = escaped_text(row["role"] or "-")
        lines.append(
            f"<tr><th scope=row>{escaped_text(row['head'])}</th>"
            f"<td class=num>{share(row['mass'])}</td><td class=num>{share(row['uniform'])}</td>"
            f"<td>{_bar(row['mass'], row['uniform'])}</td>"
            f"<td class=word>{does}</td></tr>"
        )
    lines.append("</tbody></table></div>")
    if len(looks) > top:
        lines.append(f"<p class=muted>{len(looks) - top:,} more heads look there less.</p>")
    strips = [_strip(run, looks, head) for head, *_ in looks[:STRIPS]]
    if any(strips):
        lines.append(
            f"<p class=lead>What the first of them read{_in_the_first(run, looks)}: the bluer a "
            "token, the more weight it gets (by the square root of the weight). Underlined: the "
            "tokens that read; a mean over several.</p>"
        )
    return [*lines, *strips, "</section>"]


def _in_the_first(run: Run, looks: Looks) -> str:
    return f", in {_name(run, looks.places[0])}" if _texts(run)[0] > 1 else ""


def _bar(mass: float, equal: float) -> str:
    return (
        f'<svg class="bar" viewBox="0 0 200 12"><rect class="base" width="200" height="12"/>'
        f'<rect class="fill" width="{200 * mass:.1f}" height="12"/>'
        f'<rect class="mark" x="{200 * equal:.1f}" width="2" height="12"/></svg>'
    )


def _strip(run: Run, looks: Looks, head: str) -> str:
    """The text, each token shaded by what the rows of the first place lay on it."""
    at = looks.places[0]
    batch = at.batch or 0
    texts = token_texts(run, at.sequence, batch)
    seen = run.map(head, sequence=at.sequence)
    S, positions = seen.shape[-1], run.positions(head, sequence=at.sequence).tolist()
    if not S <= len(texts) <= S + 1:
        return ""
    asked = {i for a, b in at.queries for i in range(a, b)}
    mine = [n for n, position in enumerate(positions) if position in asked][:ROWS]
    if not mine:
        return ""
    weights = torch.stack([seen[batch, 0, n] for n in mine]).mean(dim=0)
    shown = []
    for i in _chosen(at, S):
        if i is None:
            shown.append("<span class=gap> … </span>")
            continue
        weight = float(weights[i])
        level = LEVELS - 1 - round((LEVELS - 1) * min(max(weight, 0.0), 1.0) ** 0.5)
        mark = " from" * (i in asked)
        title = f"{i}: {texts[i]!r} gets {share(weight)}"
        shown.append(
            f'<span class="e{level}{mark}" title="{escaped_text(title)}">'
            f"{escaped_text(readable(texts[i], 24))}</span>"
        )
    role = escaped_text(run.roles.get(head, {}).get("role") or "-")
    return (
        f"<h3>{escaped_text(head)} <span>{role}</span></h3>"
        f"<p class='tokens strip'>{''.join(shown)}</p>"
    )


def _chosen(at: Places, S: int) -> Iterator[int | None]:
    """Which tokens a strip shows, None for a gap: all of a short text, or those around."""
    spans: Sequence[tuple[int, int]] = (*at.queries[:SPANS], *at.keys[:SPANS])
    last = -1
    for i in range(S):
        if S <= WHOLE or any(a - AROUND <= i < b + AROUND for a, b in spans):
            if i > last + 1:
                yield None
            yield i
            last = i
    if last < S - 1:
        yield None
