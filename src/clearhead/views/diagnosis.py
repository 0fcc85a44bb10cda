"""A diagnosis in words: what is wrong, what it does, where to look, how to mend it, and the proof.

As lines for a terminal of 80 columns; for a folder as a table of a line each, or as CSV.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clearhead.views.beside import Part, head_of, part_of, sized
from clearhead.views.heads import csv_of
from clearhead.views.labels import columns, readable
from clearhead.views.wording import (
    LEGEND,
    STATES,
    counted,
    place,
    proof,
    sentence,
    sureness,
    tail,
    titled,
    verdict,
    wrapped,
)  # fmt: skip

if TYPE_CHECKING:
    from clearhead.checker.diagnosis import Convention, Diagnosis, Example, Found

WIDTH = 80
LABEL = 13  # columns of the words in front of what is said of a mistake
WHOLE, NAMED = 3, 5  # mistakes of which everything is said; of which the first sentence is
LONG = 1_000  # characters of a cell of CSV
LOOK = 3  # lines of source of each
FIELDS = ("file", "name", "kind", "verdict", "mistakes", "cautions", "seconds", "trouble")


def lines(diagnosis: Diagnosis, file: str | None = None, all: bool = False) -> list[str]:
    """The report, in lines of at most 80 columns; headings are `=== ... ===`.

    `file` stands before the numbers of lines. With `all` each probe is listed, with what was said
    where it was refused, and no mistake is shortened.
    """
    d = diagnosis
    said = [*wrapped(verdict(d), WIDTH)]
    if d.verdict == "untried":
        said += ["", *_trouble(d, file)]
    for n, found in enumerate(d.mistakes[: None if all else NAMED]):
        whole = all or n < WHOLE
        said += ["", *(_mistake if whole else _shortly)(found, n, len(d.mistakes), file)]
    if not all and len(d.mistakes) > NAMED:
        rest = ", ".join(found.name for found in d.mistakes[NAMED:])
        said += ["", *wrapped(f"And {len(d.mistakes) - NAMED} more: {rest}.", WIDTH)]
    if d.unexplained:
        said += ["", "=== Not explained ===", *_unexplained(d)]
    if d.example is not None:
        said += ["", "=== The smallest input that shows it ===", *example_lines(d.example)]
    if d.cautions or d.remarks:
        said += ["", "=== Notes ===", *_notes(d, file)]
    if d.conventions:
        said += ["", "=== How it does things ===", *_conventions(d.conventions)]
    if all or any(t.outcome != "right" for t in d.tried):
        said += ["", *wrapped(proof(d), WIDTH), *(_tried(d) if all else ())]
    return _tidy(said)


def _tidy(said: Sequence[str]) -> list[str]:
    """No spaces at the end of a line, and no two empty lines in a row."""
    tidy: list[str] = []
    for line in map(str.rstrip, said):
        if line or (tidy and tidy[-1]):
            tidy.append(line)
    return tidy[:-1] if tidy and not tidy[-1] else tidy


# The parts of the report ------------------------------------------------------------------------


def _mistake(found: Found, n: int, of: int, file: str | None) -> Iterator[str]:
    yield _heading(found, n, of)
    yield from wrapped(titled(found), WIDTH)
    yield from _said("what it does", found.does and sentence(found.does))
    yield from _said("how sure", sureness(found))
    if found.also:
        yield from _said("the same as", "; ".join(found.also))
    yield from _code("where to look", found.look[:LOOK], file)
    yield from _said("how to mend", found.mend)


def _shortly(found: Found, n: int, of: int, file: str | None) -> Iterator[str]:
    yield _heading(found, n, of)
    yield from wrapped(titled(found), WIDTH)
    yield from _said("how to mend", found.mend)


def _heading(found: Found, n: int, of: int) -> str:
    which = f"Mistake {n + 1} of {of}" if of > 1 else "The mistake"
    return f"=== {which} [{readable(found.name, 40)}] ==="


def _said(label: str, text: str) -> Iterator[str]:
    for i, line in enumerate(wrapped(text, WIDTH - LABEL - 2) if text else ()):
        yield f"{'' if i else label:<{LABEL}}  {line}"


def _code(label: str, look: Sequence[tuple[int, str]], file: str | None) -> Iterator[str]:
    """Lines of source beside their places, or below the first; of a long one the beginning."""
    room = WIDTH - LABEL - 2
    places = [tail(place(file, number), room) for number, _ in look]
    texts = [readable(text.strip(), 4 * WIDTH) for _, text in look]
    wide = max(map(columns, places), default=0)
    if all(wide + 2 + columns(text) <= room for text in texts):
        for at, text in zip(places, texts, strict=True):
            yield f"{label:<{LABEL}}  {at}{' ' * (wide - columns(at))}  {text}"
            label = ""
        return
    yield f"{label:<{LABEL}}  {places[0]}"
    for (number, _), text in zip(look, texts, strict=True):
        yield f"  {number:>4}  {readable(text, WIDTH - 8 - max(0, len(str(number)) - 4))}"


def _trouble(d: Diagnosis, file: str | None) -> Iterator[str]:
    yield from wrapped(sentence(d.trouble or "nobody said why"), WIDTH)
    if d.trouble_at is not None:
        yield from _code("where", [d.trouble_at], file)


def _unexplained(d: Diagnosis) -> Iterator[str]:
    yield from wrapped(sentence(d.unexplained), WIDTH)
    if d.nearest:
        yield "Nearest to it comes:"
        for each in d.nearest:
            yield from _item(each)
    if d.example is not None:
        yield from wrapped("Compute the example below by hand, step by step: the first number "
                           "that differs is where to look.", WIDTH)  # fmt: skip


def _item(text: str) -> Iterator[str]:
    for i, line in enumerate(wrapped(text, WIDTH - 2)):
        yield ("  " if i else "- ") + line


def _notes(d: Diagnosis, file: str | None) -> Iterator[str]:
    for found in d.cautions:
        at = f" ({place(file, found.look[0][0])})" if found.look else ""
        title = titled(found).rstrip(".")
        yield from _item(f"{title} [{found.name}]{at}. {sentence(found.does)}")
        if found.mend:
            yield from ("  " + line for line in wrapped(f"To mend it: {found.mend}", WIDTH - 2))
    for remark in d.remarks:
        yield from _item(sentence(remark))


def _conventions(found: Sequence[Convention]) -> Iterator[str]:
    wide = min(24, max(columns(readable(c.name, 24)) for c in found))
    room = WIDTH - wide - 2
    for c in found:
        word = STATES.get(c.state, c.state)
        value = f"{c.value} [{word}]" if word else c.value
        name = readable(c.name, 24)
        for i, line in enumerate(wrapped(value, room) or [""]):
            first = name + " " * (wide - columns(name)) if not i else " " * wide
            yield f"{first}  {line}"
    for state in dict.fromkeys(c.state for c in found):
        if state in LEGEND:
            yield LEGEND[state]


def _tried(d: Diagnosis) -> Iterator[str]:
    for t in d.tried:
        off = "" if t.off is None else f", off by {t.off:.1g}" if t.outcome == "wrong" else ""
        note = f": {t.note}" if t.note else ""
        yield from _item(f"{t.outcome}{off}: {t.name}{f' ({t.why})' if t.why else ''}{note}")


# The example ------------------------------------------------------------------------------------


def example_lines(example: Example) -> Iterator[str]:
    yield from wrapped(sentence(example.words), WIDTH)
    if example.call:
        yield from wrapped(f"Called as {readable(example.call, 300)}", WIDTH)
    worst = part_of(example.got, example.want)
    blocks = [_input(name, each, head_of(each, worst)) for name, each in example.inputs]
    yield from ("  " + line for line in _side_by_side(blocks, WIDTH - 2))
    yield from _compared("The output", example.got, example.want, example.sides)
    got, want = example.got_weights, example.want_weights
    if got is not None and want is not None and got.shape == want.shape:
        part = part_of(got, want)
        if bool(part.differs.any()):
            yield from _compared("The weights behind it", got, want, example.sides)
    elif want is not None:
        yield from _side_by_side([_input("the right weights", want)], WIDTH)


def _input(name: str, array: Tensor, head: tuple[int, ...] = ()) -> list[str]:
    """An input as a small matrix under its name; whole where that fits."""
    title = f"{readable(name, 24)} ({sized(array.shape)})"
    if array.ndim == 3 and array.shape[0] > 1 and array.shape[1] == 1 and array.numel() <= 64:
        title, array = f"{title}, a row a head", array[:, 0]
    for most in (24, 16, 8, 4, 2, 1):
        part = part_of(array, most=(8, most), head=head)
        grid = part.texts(part.got)
        wide = max((columns(text) for row in grid for text in row), default=1)
        if (wide + 1) * len(part.columns) <= WIDTH - 6:
            break
    title += f": {part.cut}" if part.cut else ""
    return [title, *("".join(f" {text:>{wide}}" for text in row) for row in grid)]


def _side_by_side(blocks: Sequence[list[str]], width: int) -> Iterator[str]:
    """Blocks of lines beside each other, as many as fit."""
    left = list(blocks)
    while left:
        taken, used = [left.pop(0)], max(map(columns, blocks[len(blocks) - len(left) - 1]))
        while left and used + 4 + max(map(columns, left[0])) <= width:
            used += 4 + max(map(columns, left[0]))
            taken.append(left.pop(0))
        wide = [max(map(columns, block)) for block in taken]
        for n in range(max(map(len, taken))):
            cells = [block[n] if n < len(block) else "" for block in taken]
            yield "    ".join(
                cell + " " * (w - columns(cell)) for cell, w in zip(cells, wide, strict=True)
            ).rstrip()
        yield ""


def _compared(what: str, got: Tensor, want: Tensor, sides: tuple[str, str]) -> Iterator[str]:
    """Got and want side by side, or one under the other where they are wide; * marks a row."""
    a, b = (readable(side, 24) for side in sides)
    if got.shape != want.shape:
        whose, due = ("", "should have") if (a, b) == ("got", "want") else (f" of {a}", f"of {b}")
        yield f"{what}{whose} has the shape ({sized(got.shape)}), and {due} ({sized(want.shape)}):"
        yield from _side_by_side([_input(a, got), _input(b, want)], WIDTH)
        return
    for most in range(8, 0, -1):
        part = part_of(got, want, (8, most))
        assert part.want is not None
        left, right = part.texts(part.got), part.texts(part.want)
        wide = max((columns(text) for row in left + right for text in row), default=1)
        if (wide + 1) * len(part.columns) <= WIDTH - 14:
            break
    cut = f", {part.cut}" if part.cut else ""
    marked = " (* marks the rows that differ)" if len(part.rows) > 1 else ""
    yield from wrapped(f"{what}{cut}{marked}:", WIDTH)
    broad = (wide + 1) * len(part.columns)
    show = _beside if 2 * max(broad, 5) + 12 <= WIDTH else _under
    yield from show(part, left, right, wide, (a, b))
    yield ""


def _beside(part: Part, got: Sequence[Sequence[str]], want: Sequence[Sequence[str]], wide: int,
            sides: tuple[str, str]) -> Iterator[str]:  # fmt: skip
    one, other = sides
    broad = max((wide + 1) * len(part.columns), columns(one) + 1)
    yield f"  {'':4} {one}{' ' * (broad - columns(one) - 1)}     {other}"
    for n, marked, a, b in _rows(part, got, want):
        left, right = ("".join(f" {text:>{wide}}" for text in row) for row in (a, b))
        yield f"{marked} {n:>4}{left:<{broad}}    {right}"


def _under(part: Part, got: Sequence[Sequence[str]], want: Sequence[Sequence[str]], wide: int,
           sides: tuple[str, str]) -> Iterator[str]:  # fmt: skip
    long = max(4, *map(columns, sides))
    for n, marked, a, b in _rows(part, got, want):
        pairs = [(sides[0], a), (sides[1], b)] if marked == "*" else [("both", a)]
        for i, (word, row) in enumerate(pairs):
            lead = (
                f"{' ' if i else marked} {'' if i else n:>4} {word}{' ' * (long - columns(word))}"
            )
            yield lead + "".join(f" {text:>{wide}}" for text in row)


def _rows(part: Part, got: Sequence[Sequence[str]], want: Sequence[Sequence[str]]
          ) -> Iterator[tuple[int, str, Sequence[str], Sequence[str]]]:  # fmt: skip
    marks = ["*" if any(row) else " " for row in part.differs.tolist()]
    yield from zip(part.rows, marks, got, want, strict=True)


# A folder ---------------------------------------------------------------------------------------


def row(found: Diagnosis | Sequence[Diagnosis], file: str = "") -> dict[str, Any]:
    """One record of a table of many: `FIELDS`, the names of mistakes joined by spaces.

    Of several in one file the worst verdict counts, and each mistake says whose it is.
    """
    each = list(found) if isinstance(found, Sequence) else [found]
    verdicts = [d.verdict for d in each]
    return {
        "file": file,
        "name": " ".join(d.target for d in each),
        "kind": " ".join(dict.fromkeys(d.kind for d in each if d.kind)),
        "verdict": next((v for v in ("wrong", "untried") if v in verdicts), "right"),
        "mistakes": _joined(each, "mistakes"),
        "cautions": _joined(each, "cautions"),
        "seconds": round(sum(d.seconds for d in each), 2),
        "trouble": " ".join(
            f"{d.target}: " * (len(each) > 1) + (d.trouble or d.unexplained)
            for d in each
            if d.trouble or d.unexplained
        ),
    }


def _joined(each: Sequence[Diagnosis], what: str) -> str:
    names = []
    for d in each:
        own = [found.name for found in getattr(d, what)]
        own = own or ["?"] * (what == "mistakes" and bool(d.unexplained))
        names += [name if len(each) == 1 else f"{d.target}:{name}" for name in own]
    return " ".join(names)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The records as CSV; what somebody's code says in `trouble` steers no terminal."""
    return csv_of(FIELDS, [{**r, "trouble": _seen(r["trouble"])} for r in rows])


def _seen(text: str) -> str:
    return "\n".join(readable(line, LONG) if line else "" for line in text.split("\n"))


def table(rows: Sequence[Mapping[str, Any]], width: int = WIDTH) -> list[str]:
    """A line each, and how many are right, wrong and untried."""
    heads = ["file", "verdict"]
    grid = [[tail(str(r["file"]), 28), str(r["verdict"])] for r in rows]
    wide = [max(map(columns, column)) for column in zip(heads, *grid, strict=True)]
    said = []
    for cells, r in zip([heads, *grid], [None, *rows], strict=True):
        left = "  ".join(c + " " * (w - columns(c)) for c, w in zip(cells, wide, strict=True))
        what = "mistakes" if r is None else str(r["mistakes"] or r["trouble"] or "-")
        said.append(f"{left}  {readable(what, max(width, WIDTH) - columns(left) - 2)}")
    counts = [f"{sum(r['verdict'] == v for r in rows)} {v}" for v in ("right", "wrong", "untried")]
    return [*said, "", f"{counted(len(rows), 'file')}: {', '.join(counts)}."]
