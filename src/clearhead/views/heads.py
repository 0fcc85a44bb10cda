"""The heads of a run as a table: on a terminal, as records for --json, as a CSV file.

What stands out comes first: heads whose role is clear, then those with the least entropy.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clearhead.run.calls import COLUMNS as FIELDS
from clearhead.run.calls import Call, head_place, those
from clearhead.views.labels import columns, readable

if TYPE_CHECKING:
    from clearhead.run import Run

Row = Mapping[str, Any]

# What the columns of the table are called, where that differs from the record.
SHOWN = {
    "does": "role", "there": "role_mass", "probe": "role_mass", "text": "role_text",
    "entropy": "normalized_entropy", "first": "first_key", "dist": "distance",
    "max": "max_score", "sink": "sink_mass", "self": "self_mass", "nats": "entropy",
}  # fmt: skip
WORDS = ("module", "role", "role_source")

# What a head with this role reads, to be put after "reads".
READS = {
    "previous token": "the token just before its own",
    "self": "its own token",
    "first token": "the first token of the text",
    "local window": "a few tokens around its own",
    "same token": "other places where its own token stands",
    "induction": "what followed its own token earlier, B after A B ... A",
    "delimiter": "punctuation, line ends and special tokens",
    "broad": "nearly all tokens alike",
    "positional": "always the same distance away, +1 being the next token",
}
UNNAMED = {
    "unclear": "reads nothing in particular, as far as could be seen",
    "untested": "not known: the text has too few rows that could show it",
}
# Where the roles were named from, other than the text itself.
SOURCES = {
    "probe": "random tokens that repeat",
    "sample": "a longer text of ours, since this one is short",
}
CAVEAT = "Attention shows where a head reads, not why the model answers."
BAR = 5
NOTES = 3  # that the table shows
FLOOR = 0.01  # of an equal share, so that a rare token does not win by its rarity alone


# Records ------------------------------------------------------------------------------------------


def rows(run: Run) -> list[dict[str, Any]]:
    """Every head as a record of strict JSON, None for what does not apply, layer by layer."""
    return [{name: _plain(getattr(head, name)) for name in FIELDS} for head in run.heads()]


def csv_text(run: Run) -> str:
    """The records as CSV."""
    return csv_of(FIELDS, rows(run))


def csv_of(fields: Sequence[str], records: Iterable[Row]) -> str:
    """Records as CSV with a header, an empty cell for None; always valid UTF-8."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any) -> str | int | float | None:
    """A number or a word that JSON has."""
    if value is None or isinstance(value, str | int):
        return value
    number = float(value)
    return number if math.isfinite(number) else None


def named(row: Row) -> bool:
    """Whether a head's role is clear."""
    return row["role"] is not None and row["role"] not in UNNAMED


def in_order(found: Sequence[Row], sort: str | None = None) -> list[Row]:
    """The records sorted: what stands out first, or by a column.

    By default named roles come first, by their mass over what equal attention would put there,
    then the others by their entropy from the least. `sort` is a column of the table or of the
    records, the largest first and words from a to z; "-" before it turns that round. None comes
    last either way, and equals keep the order of the model. Raises ValueError for no such column.
    """
    if sort is None:
        return sorted(found, key=_prominence)
    name, turned = sort.removeprefix("-"), sort.startswith("-")
    key = SHOWN.get(name, name)
    if key not in FIELDS:
        known = list(dict.fromkeys((*SHOWN, *FIELDS)))
        raise ValueError(f"there is no column {name!r} to sort by; {those(known, name)}")
    there = [row for row in found if row[key] is not None]
    upward = key in (*WORDS, "head", "layer", "index")
    if key == "head":  # 3.10 comes after 3.9
        there.sort(key=lambda row: head_place(row["head"]), reverse=turned)
    else:
        there.sort(key=lambda row: row[key], reverse=turned == upward)
    return there + [row for row in found if row[key] is None]


def standouts(found: Sequence[Row], most: int = 12) -> list[Row]:
    """Up to `most` heads to look at: the clearest of each role, then the next in order."""
    order = in_order(found)
    first: dict[str, Row] = {}
    for row in order:
        if named(row):
            first.setdefault(row["role"], row)
    chosen = list(first.values())
    chosen += [row for row in order if row not in chosen and row["role"] != "broad"]
    return in_order(chosen[:most])


def _prominence(row: Row) -> tuple[int, float]:
    mass, equal, entropy = row["role_mass"], row["role_uniform"], row["normalized_entropy"]
    if named(row) and mass is not None and row["role"] != "broad":
        return 0, -mass / max(equal or 0.0, FLOOR)
    return 1 if named(row) else 2, math.inf if entropy is None else entropy


# Words for a run ----------------------------------------------------------------------------------


def sizes(found: Sequence[Row]) -> str:
    """3 x 6 heads, or 20 heads in 3 layers where they differ."""
    counts: dict[int, int] = {}
    for row in found:
        counts[row["layer"]] = counts.get(row["layer"], 0) + 1
    if len(set(counts.values())) == 1:
        return f"{len(counts)} x {next(iter(counts.values()))} heads"
    return f"{len(found)} heads in {len(counts)} layers"


def token_texts(run: Run, sequence: int | None = None, batch: int = 0) -> list[str]:
    """The tokens of a text, by default the first of the first sequence; #id where none is known."""
    if not run.tokens:
        return []
    ids = run.tokens.get(min(run.tokens) if sequence is None else sequence)
    if ids is None:
        return []
    row = ids[batch : batch + 1].flatten() if ids.ndim > 1 else ids  # a batch may be of none
    return [run.pieces.get(n, f"#{n}") for n in row.tolist()]


def texts_fit(
    calls: Sequence[Call], layer: int, n_texts: int, S: int, positions: Sequence[int]
) -> tuple[bool, bool]:  # fmt: skip
    """Whether the tokens of a sequence are the queries, and the keys, of a layer's map of S keys.

    They are those that the model was called with: where it has an encoder, the encoder's, at which
    a decoder looks with queries of its own. The last token of a generation is never read: there may
    be one more than there are keys.
    """
    mine = [call for call in calls if call.layer == layer]
    encoder = any(call.cross for call in calls) and any(
        not call.cross and not call.rule.causal and call.shape[3] == n_texts for call in calls
    )
    if any(call.cross for call in mine):
        return False, encoder and n_texts == S
    decoder = encoder and all(call.rule.causal for call in mine)
    fit = 0 < S <= n_texts <= S + 1 and all(0 <= i < n_texts for i in positions) and not decoder
    return fit, fit


def how_many_tokens(run: Run) -> str:
    """14 tokens, or 120 tokens in 4 windows; nothing if that is not known."""
    if (total := n_tokens(run)) is None:
        return ""
    texts, unit = texts_of(run)
    count = f"{total:,} token{'s' * (total != 1)}"
    return count if texts == 1 and run.tokens else f"{count} in {texts:,} {unit}"


def n_tokens(run: Run) -> int | None:
    """How many tokens were read, None where that is not known."""
    if run.tokens:
        return sum(ids.numel() for ids in run.tokens.values())
    return run.read.get("tokens")


def texts_of(run: Run) -> tuple[int, str]:
    """How many texts of known tokens there are, and what to call them: a batch is of texts, and
    what was read one after the other are windows."""
    if not run.tokens and run.read:
        return run.read["texts"], "text" if run.read["texts"] == 1 else "texts"
    sizes = [ids.shape[0] if ids.ndim > 1 else 1 for ids in run.tokens.values()]
    return sum(sizes), "windows" if all(size == 1 for size in sizes) else "texts"


def proof(run: Run) -> str:
    """What was verified and how closely, in one line."""
    return "checked  " + str(run.checked_line()).removeprefix("checked").lstrip(": ")


def measured_on(run: Run) -> str:
    """What the roles were named from: "probe", "sample" (SOURCES) or "text"."""
    found = {str(role.get("source")) for role in run.roles.values()}
    return found.pop() if len(found) == 1 and found <= SOURCES.keys() else "text"


def share(x: float | None) -> str:
    """A number in 0..1 in three or four letters: .71, 1.00; - for None."""
    if x is None or not math.isfinite(x):
        return "-"
    return f"{x:.2f}".replace("0.", ".", 1)


def number(x: float | None) -> str:
    """A number of any size in at most seven letters: 5.1, 312, -2e+05; - for None."""
    if x is None or not math.isfinite(x):
        return "-"
    if abs(x) < 99.95:
        return f"{x:.1f}".replace("-0.0", "0.0")
    return f"{x:.0f}" if abs(x) < 99999.5 else f"{x:.0e}"


# The table ----------------------------------------------------------------------------------------


def table(
    run: Run, *, top: int = 8, sort: str | None = None, width: int | None = None
) -> list[str]:
    """The `top` heads that stand out as lines of at most `width` columns (80 unless given, 60 at
    least), with what was run, what was verified, and a legend.

    Raises ValueError for a `sort` that is no column (see in_order) and for a top below 1.
    """
    if top < 1:
        raise ValueError(f"top is {top}: it must be 1 or more")
    found = rows(run)
    order, width = in_order(found, sort), 80 if width is None else max(60, width)
    grid = [_cells(row, run.roles.get(row["head"], {})) for row in order[:top]]
    source = measured_on(run)
    there = source if source in SOURCES else "there"
    heads = ["head", "does", f"{there} (equal)", "entropy", "first (equal)", "dist", "max"]
    if source in SOURCES:
        heads.insert(3, "text")
        for row, cells in zip(order, grid, strict=False):
            cells.insert(3, "-" if row["role"] == "broad" else share(row["role_text"]))
    at = heads.index("entropy")
    wide = [max(map(columns, column)) for column in zip(heads, *grid, strict=True)]
    wide[1] = min(wide[1], 24)
    if sum(wide) + 2 * (len(wide) - 1) > width:  # there is no room for the bars
        grid = [[*cells[:at], cells[at].split()[-1], *cells[at + 1 :]] for cells in grid]
        wide[at] = len(heads[at])
    left = width - sum(wide) - 2 * (len(wide) - 1)
    wide[1] = max(8, wide[1] + min(left, 0))
    checked = readable(proof(run), 10 * width)  # all of it: it may say that something disagrees
    notes = [readable(f"note: {note}", 3 * width) for note in run.notes[:NOTES]]
    said = [line for text in (checked, *notes) for line in textwrap.wrap(text, width)]
    lines = [_first_line(run, found, width), *said, ""]
    lines += [_line(cells, wide) for cells in [heads, *grid]]
    if not found:
        lines.append("no heads: nothing was observed")
    if len(found) > top:
        lines.append(f"{len(found) - top:,} more: --top {len(found)}")
    return [*lines, "", *_legend(found, there, width), CAVEAT]


def _first_line(run: Run, found: Sequence[Row], width: int) -> str:
    model = readable(run.model, max(8, width // 2))
    line = "  ".join(part for part in (model, sizes(found), how_many_tokens(run)) if part)
    pieces = token_texts(run)
    if pieces and columns(line) < width - 12:
        line += ": "
        room = width - columns(line)
        text = "|".join(readable(piece, 20) for piece in pieces[:width])
        whole = len(pieces) <= width and columns(text) <= room
        line += text if whole else f"{readable(text, room - 5).removesuffix('…')} ..."
    return line


def does(row: Row, said: Mapping[str, Any]) -> str:
    """What a head does in a few words; "positional +1" reads the token after its own."""
    lag = said.get("lag")
    at = f" {-lag:+d}" if row["role"] == "positional" and isinstance(lag, int) else ""
    return f"{row['role'] or '-'}{at}"


def _cells(row: Row, said: Mapping[str, Any]) -> list[str]:
    entropy = row["normalized_entropy"]
    full = 0 if entropy is None else round(BAR * min(max(entropy, 0.0), 1.0))
    # What is broad names no keys that the weight could be on.
    there = (None, None) if row["role"] == "broad" else (row["role_mass"], row["role_uniform"])
    bar = " " * BAR if entropy is None else "█" * full + "·" * (BAR - full)
    return [
        str(row["head"]), readable(does(row, said), 24),
        _pair(*there), f"{bar} {share(entropy):>4}",
        _pair(row["first_key"], row["first_key_uniform"]), number(row["distance"]),
        number(row["max_score"]),
    ]  # fmt: skip


def _pair(mass: float | None, equal: float | None) -> str:
    if mass is None:
        return "-       "
    return f"{share(mass):>4} ({share(equal):>4})"


def _line(cells: Sequence[str], wide: Sequence[int]) -> str:
    """Words to the left, numbers to the right."""
    shown = []
    for n, (cell, room) in enumerate(zip(cells, wide, strict=True)):
        cell = readable(cell, room) if n == 1 else cell
        gap = " " * (room - columns(cell))
        shown.append(cell + gap if n < 2 else gap + cell)
    return "  ".join(shown).rstrip()


def _legend(found: Sequence[Row], there: str, width: int) -> list[str]:
    """Each column in a few words, and the roles that occur."""
    where = f", in {SOURCES[there]}" if there in SOURCES else ""
    said = [
        "head: layer.head, both from 0. does: what it reads, where that is clear.",
        f"{there}: mean weight on what it reads{where}, over the rows that have it to read; "
        "(equal): what equal attention puts there.",
        *(["text: the same in this text."] if there in SOURCES else []),
        "entropy: 0 = all weight on one token, 1 = the same on each.",
        "dist: how many tokens away the weight lies, on average.",
        "first: mean weight on the first token. max: the largest score before softmax.",
    ]
    roles = {row["role"] for row in found}
    said += [f"{name}: {what}." for name, what in UNNAMED.items() if name in roles]
    said += [f"{name}: reads {what}." for name, what in READS.items() if name in roles]
    said += ["-: too few rows to tell."]
    return [line for text in said for line in textwrap.wrap(text, width)]
