"""Runs beside each other: as a table on a terminal, as a record for --json, as a CSV file."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clearhead.views.heads import _line, csv_of, number, share
from clearhead.views.labels import columns, folded, readable
from clearhead.views.terminal import curve

if TYPE_CHECKING:
    from clearhead.comparing import Comparison, HeadChange

# Metrics that are no shares of 1, and with how many decimals they are shown.
SIZES = {"entropy": 2, "distance": 1, "max_score": 1}
STILL = 1e-4  # of 1, or of a mean where it is larger: what another machine's rounding may change
NAMED = 4  # heads named in a sentence
WORDS = ("collapsed", "narrowed", "fell", "exploded", "widened", "rose")
CLEAR = 1.0  # effect: the means are as far apart as the rows of the two runs are
COLLAPSED, EXPLODED = 0.15, 0.85  # normalized entropy: nearly all on one key, nearly even


# Records ------------------------------------------------------------------------------------------


def record(comparison: Comparison) -> dict[str, Any]:
    """All of it as one record of strict JSON; the lists of a head are in the order of `names`."""
    return {
        "metric": comparison.metric,
        "names": list(comparison.names),
        "checked": list(comparison.checked),
        "notes": list(comparison.notes),
        "missing": [
            {"head": head, "module": module, "in": list(names)}
            for head, module, names in comparison.missing
        ],
        "left_first": [row.head for row in comparison.first],
        "heads": comparison.to_rows(),
    }


def csv_text(comparison: Comparison) -> str:
    """A line a head, as CSV.

    What there is of each run has a column for each, such as "mean step-400".
    """
    lines = []
    for row in comparison.to_rows():
        line = {name: value for name, value in row.items() if not isinstance(value, list)}
        for what in ("rows", "mean", "spread", "effects", "role"):
            pairs = zip(comparison.names, row[what], strict=True)
            line |= {f"{what} {name}": value for name, value in pairs}
        lines.append(line)
    return csv_of(list(lines[0]), lines)


# The table ----------------------------------------------------------------------------------------


def table(
    comparison: Comparison, top: int = 10, sort: str = "effect", width: int | None = None
) -> list[str]:
    """The `top` heads of a comparison as lines of at most `width` columns (80 unless given, 72 at
    least): what is compared, how it was verified, the table, who left first, and a legend.

    Raises ValueError for a `sort` that is no column (Comparison.sorted) and for a top below 1.
    """
    if top < 1:
        raise ValueError(f"top is {top}: it must be 1 or more")
    order, width = comparison.sorted(sort), 80 if width is None else max(72, width)
    shown = order[:top]
    heads = ["head", "role", "first", "last", "moved", "effect", "share"]
    grid = [heads, *(_cells(row, comparison.metric) for row in shown)]
    two = len(comparison.names) == 2
    left = ["left" if two else "left at", *(_left(row, two) for row in shown)]
    wide = [max(map(columns, column)) for column in zip(*grid, strict=True)]
    # What is free goes to the roles and the names of runs, and what they leave to the bars.
    free = width - sum(wide) + wide[1] - 2 * len(wide)
    needed = min(20, max(map(columns, left)))
    bars = ["means", *_bars(comparison.metric, shown)]
    taken = max(map(columns, bars)) + 2
    trend = len(comparison.names) > 2 and free - taken >= min(wide[1], 24) + needed
    if trend:
        grid = [[*cells, bar] for cells, bar in zip(grid, bars, strict=True)]
        wide.append(taken - 2)
        free -= taken
    wide[1] = min(wide[1], max(8, free - needed))
    room = free - wide[1]
    count, kind = len(comparison.rows), comparison.metric.replace("_", " ")
    what = f"compared  {kind} of {count:,} head{'s' * (count != 1)}: "
    lines = [
        what + " -> ".join(_names(comparison.names, width - len(what))),
        *folded(f"checked   {comparison.verified}", width),
        *(line for note in _notes(comparison) for line in folded(f"note: {note}", width)),
        "",
    ]
    for cells, where in zip(grid, left, strict=True):
        lines.append(f"{_line(cells, wide)}  {_tail(where, room)}")
    if len(order) > top:
        lines.append(f"{len(order) - top:,} more: --top {len(order)}")
    said = [line for text in _who_left(comparison) for line in folded(text, width)]
    return [*lines, "", *said, "", *_legend(comparison, trend, width)]


def _cells(row: HeadChange, metric: str) -> list[str]:
    return [
        row.head, readable(_role(row) or "-", 34), _figure(row.means[0], metric),
        _figure(row.means[-1], metric), _signed(row.moved, metric), _signed(row.effect, "effect"),
        share(row.share),
    ]  # fmt: skip


def _role(row: HeadChange) -> str:
    """What the first run calls it, and the last, where that is something else."""
    ends = [role for role in (row.roles[0], row.roles[-1]) if role is not None]
    return " -> ".join(dict.fromkeys(ends))


def _figure(x: float | None, metric: str) -> str:
    if x is None or metric not in SIZES:
        return share(x)
    return f"{x:.2f}" if SIZES[metric] == 2 else number(x)


def _signed(x: float | None, metric: str) -> str:
    """With its sign, unless it rounds to nothing."""
    size = None if x is None else abs(x)
    text = number(size) if metric == "effect" else _figure(size, metric)
    nothing = x is None or not text.strip(".0")
    return text if nothing else ("-" if x is not None and x < 0 else "+") + text


def _left(row: HeadChange, two: bool) -> str:
    if row.left is None:
        return "-"
    return str(row.side) if two else f"{row.left}, {row.side}"


def _bars(metric: str, rows: Sequence[HeadChange]) -> list[str]:
    """The means of each head as bars, between 0 and 1 or the least and the largest of all."""
    means = [mean for row in rows for mean in row.means if mean is not None]
    low, high = (min(0.0, *means), max(0.0, *means) or 1.0) if metric in SIZES else (0.0, 1.0)
    return [
        curve([None if mean is None else (mean - low) / (high - low) for mean in row.means], 10)
        for row in rows
    ]


# Words --------------------------------------------------------------------------------------------


def _names(names: Sequence[str], room: int) -> list[str]:
    """The runs in order, or the first and the last of many, to be joined by arrows."""
    whole = [_tail(name, room) for name in names]
    if sum(columns(name) + 4 for name in whole) - 4 <= room:
        return whole
    between = [f"{len(names) - 2} more"] * (len(names) > 2)
    each = (room - 4 - sum(len(more) + 4 for more in between)) // 2
    return [_tail(names[0], each), *between, _tail(names[-1], each)]


def _tail(text: str, room: int) -> str:
    """The text in visible characters; of a long one its end, where names of checkpoints differ."""
    text = readable(text, 12 * len(text) + 16)
    if columns(text) <= room:
        return text
    text = text[-4 * room :]  # a letter with its marks is at most four characters
    while columns(text) >= room:
        text = text[1:]
    return "…" + text


def _notes(comparison: Comparison) -> list[str]:
    notes = list(comparison.notes)
    if comparison.missing:
        some = [
            f"{head} ({module}) not in {', '.join(names)}"
            for head, module, names in comparison.missing
        ]
        more = f" and {len(some) - NAMED:,} more" if len(some) > NAMED else ""
        notes.append(f"heads that only some runs have: {'; '.join(some[:NAMED])}{more}")
    return notes


def _who_left(comparison: Comparison) -> list[str]:
    """Who left their range clearly, in words: of a course who was first, of two runs who did.

    A move is clear where it is as large as the rows of both runs lie apart.
    """
    gone: dict[str, list[HeadChange]] = {}
    for row in comparison.first:
        if abs(row.effects[row.left_at or 0] or 0.0) >= CLEAR:
            gone.setdefault(_word(row, comparison.metric), []).append(row)
    if gone:
        say = _of_two if len(comparison.names) == 2 else _of_a_course
        order = sorted(gone, key=lambda word: (gone[word][0].left_at or 0, WORDS.index(word)))
        return [say(word, gone[word], comparison) for word in order]
    most, still = _largest_move(comparison)
    if still:
        return [
            "nothing moved: " + (f"no mean by more than {most:.1g}" if most else "no mean at all")
        ]
    if comparison.first:
        return ["no head left its range clearly: none moved as far as the rows of both runs lie "
                "apart (an effect of 1)"]  # fmt: skip
    return ["no head left its range"]


def _word(row: HeadChange, metric: str) -> str:
    """What became of a head that left its range, by the mean that is farthest out from then on."""
    above = row.side == "above"
    if metric not in ("entropy", "normalized_entropy"):
        return "rose" if above else "fell"
    farthest = row.means[_farthest(row)] or 0.0
    if metric == "normalized_entropy" and not COLLAPSED < farthest < EXPLODED:
        return "exploded" if above else "collapsed"
    return "widened" if above else "narrowed"


def _farthest(row: HeadChange) -> int:
    """The number of the run whose mean is farthest out, from the one on in which it left."""
    sign = 1 if row.side == "above" else -1
    later = [(sign * mean, -n) for n, mean in enumerate(row.means)
             if mean is not None and n >= (row.left_at or 0)]  # fmt: skip
    return -max(later)[1]


def _of_a_course(word: str, gone: Sequence[HeadChange], comparison: Comparison) -> str:
    best, *others = [row for row in gone if row.left_at == gone[0].left_at]
    at, end = best.left_at or 0, _farthest(best)
    name = comparison.metric.replace("_", " ")
    first, left, last = (_figure(best.means[n], comparison.metric) for n in (0, at, end))
    then = f", then {last} at {_tail(comparison.names[end], 40)}" if last != left else ""
    text = (
        f"{word} first: head {best.head} at {_tail(best.left or '', 40)} ({name} {first} -> {left}"
        f"{then})"
    )
    if others:
        more = [row.head for row in others[:NAMED]]
        more += [f"{len(others) - NAMED:,} more"] * (len(others) > NAMED)
        text += f", and there too: {', '.join(more)}"
    return text


def _of_two(word: str, gone: Sequence[HeadChange], comparison: Comparison) -> str:
    """Between two runs nobody is first."""
    metric = comparison.metric
    each = [
        f"{row.head} ({_figure(row.means[0], metric)} -> {_figure(row.means[-1], metric)})"
        for row in gone[:NAMED]
    ]
    each += [f"{len(gone) - NAMED:,} more"] * (len(gone) > NAMED)
    heads = f"head{'s' * (len(gone) != 1)}"
    return f"{word} in {_tail(comparison.names[-1], 40)}: {heads} {', '.join(each)}"


def _largest_move(comparison: Comparison) -> tuple[float, bool]:
    """How far a mean is from the first run's at most, and whether that is rounding alone."""
    moves = [
        (abs(mean - row.means[0]), max(1.0, abs(row.means[0])))
        for row in comparison.rows
        for mean in row.means
        if mean is not None and row.means[0] is not None
    ]
    return max((d for d, _ in moves), default=0.0), all(d <= STILL * size for d, size in moves)


def _legend(comparison: Comparison, trend: bool, width: int) -> list[str]:
    said = [
        "first, last: the mean over a head's rows, in the first run and in the last.",
        "effect: moved / spread, the standard deviation of a head's own rows (both runs alike, at "
        "least .01). It says how large a change is, not how certain: rows of one text are no "
        "independent samples.",
        "share: of the rows, how many at least changed their bin of the histogram.",
        "left: the last run's mean is more than a spread from the first run's."
        if len(comparison.names) == 2
        else "left at: the first run whose mean is more than a spread from the first run's.",
    ]
    said += ["means: of each run, in order, as bars."] * trend
    return [line for text in said for line in textwrap.wrap(text, width)]
