"""All heads at a glance: one cell a head, layers down and heads across, colored by entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clearhead.run.calls import head_place
from clearhead.views.heads import named, share
from clearhead.views.inline import escaped_text
from clearhead.views.labels import readable
from clearhead.views.style import cells

Row = Mapping[str, Any]


def overview(found: Sequence[Row]) -> list[str]:
    """The layer x head map, a table whose cells are colored by entropy."""
    layers: dict[int, dict[int, Row]] = {}
    for row in found:
        layer, head = head_place(row["head"])
        layers.setdefault(layer, {})[head] = row
    widest = max((max(heads) + 1 for heads in layers.values()), default=0)
    small = widest > 12
    lines = [
        "<section aria-labelledby=map><h2 id=map>All heads at a glance</h2>",
        "<p class=lead>One cell a head: its entropy, from <span class='key e0'>0</span> all weight "
        "on one token to <span class='key e10'>1</span> the same on every token"
        + (
            ". Underlined: what it does is clear.</p>"
            if small
            else ", and what it does, where that is clear.</p>"
        ),
        "<div class=scroll role=region aria-labelledby=map tabindex=0>",
        f"<table class='map{' small' * small}'><caption>Entropy of each head, 0 to 1</caption>",
        "<thead><tr><th scope=col>layer</th>",
        *(f"<th scope=col><span class=hush>head </span>{h}</th>" for h in range(widest)),
        "</tr></thead><tbody>",
    ]
    for layer, heads in sorted(layers.items()):
        lines.append(f"<tr><th scope=row><span class=hush>layer </span>{layer}</th>")
        lines += [_cell(heads.get(h), small) for h in range(widest)]
        lines.append("</tr>")
    return [*lines, "</tbody></table></div></section>"]


def _cell(row: Row | None, small: bool) -> str:
    if row is None:
        return "<td></td>"
    entropy, role = row["normalized_entropy"], row["role"] or "-"
    title = f"{row['head']} {role}, entropy {share(entropy)}, {row['module']}"
    word = f"<small>{escaped_text(readable(role, 16))}</small>" if named(row) else "<small></small>"
    mark = " named" * named(row)
    return (
        f'<td class="{cells(entropy)}{mark}" title="{escaped_text(title)}">{share(entropy)}'
        f"{'' if small else word}</td>"
    )
