"""The example of a diagnosis on a page: its numbers as tables, its weights as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.views import squares
from clearhead.views.beside import Part, head_of, part_of, sized
from clearhead.views.wording import counted, safe, sentence

if TYPE_CHECKING:
    from clearhead.checker.diagnosis import Diagnosis, Example

SHOWN = (16, 24)  # rows and columns of a table of numbers


def example_parts(example: Example, uid: str, h: int) -> Iterator[str]:
    yield f"<p>{safe(sentence(example.words))}</p>"
    if example.call:
        yield f"<p>Called as <code>{safe(example.call, 400)}</code></p>"
    worst = part_of(example.got, example.want)
    yield f"<h{h}>What goes in</h{h}><div class=arrays>"
    for name, array in example.inputs:
        part = part_of(array, most=SHOWN, head=head_of(array, worst))
        yield _numbers(safe(name, 60), part, part.got)
    yield f"</div><h{h}>What comes out, and what should</h{h}><div class=arrays>"
    part = part_of(example.got, example.want, SHOWN)
    yield _numbers(safe(example.sides[0], 60), part, part.got)
    if part.want is None:
        part = part_of(example.want, most=SHOWN)
        yield _numbers(safe(example.sides[1], 60), part, part.got)
    else:
        yield _numbers(safe(example.sides[1], 60), part, part.want)
    yield "</div>"
    if bool(part.differs.any()):
        yield "<p class=muted>≠ marks the rows that differ, color the numbers.</p>"
    got, want = example.got_weights, example.want_weights
    if got is not None and want is not None and got.shape == want.shape and got.numel():
        yield f"<h{h}>The weights behind it</h{h}>"
        yield from _maps(got, want, uid)


def _numbers(name: str, part: Part, which: Tensor) -> str:
    """A matrix of numbers as a table."""
    cut = f": {part.cut}" if part.cut else ""
    rows = []
    for n, texts, marks in zip(part.rows, part.texts(which), part.differs.tolist(), strict=True):
        cells = "".join(
            f"<td class='num{' off' * mark}'>{text}</td>"
            for text, mark in zip(texts, marks, strict=True)
        )
        mark = f"≠ {n}" if any(marks) else f"{n}"
        rows.append(f"<tr><th scope=row>{mark}</th>{cells}</tr>")
    return (
        f'<div class="scroll array" role=region aria-label="{name}" tabindex=0><table>'
        f"<caption>{name} <span>({sized(part.of)}){cut}</span></caption>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _maps(got: Tensor, want: Tensor, uid: str) -> Iterator[str]:
    """The weights that came about, those that should, and the difference."""
    part = part_of(_real(got), _real(want), (squares.SIDE, squares.SIDE))
    assert part.want is not None
    off = part.got - part.want
    finite = off[off.isfinite()].abs()
    span = float(finite.max()) if finite.numel() else 0.0
    span = span or 1.0
    yield (
        "<p>Each row is a token that looks (a query), each column one that is looked at (a key). "
        f"The weights of a row should sum to 1.{f' Shown: {part.cut}.' if part.cut else ''}</p>"
    )
    odd, outside = (any(pair) for pair in zip(
        squares.strange(part.got), squares.strange(part.want), strict=True
    ))  # fmt: skip
    yield "<div class=legends>"
    yield squares.legend(f"{uid}l", odd=odd, outside=outside)
    yield squares.legend(f"{uid}m", span)
    yield "</div><div class=cards>"
    signed = [[f"+{x}" if v > 0 and x.strip("0.") else x for x, v in zip(xs, vs, strict=True)]
              for xs, vs in zip(part.texts(off), off.tolist(), strict=True)]  # fmt: skip
    three = (
        ("Got", part.got, part.texts(part.got), None),
        ("Want", part.want, part.texts(part.want), None),
        ("Got minus want", off, signed, span),
    )
    for n, (name, values, texts, of) in enumerate(three):
        said = f"{name}: weights of {counted(len(part.rows), 'query').replace('ys', 'ies')}"
        drawn = squares.squares(values, texts, part.rows, part.columns, said, f"{uid}w{n}", of)
        yield f"<figure><figcaption>{name}</figcaption>{drawn}</figure>"
    yield "</div>"


def _real(array: Tensor) -> Tensor:
    array = array.detach()
    return array.abs() if array.is_complex() else array


def picture_parts(d: Diagnosis, uid: str, h: int) -> Iterator[str]:
    """Maps by their names, each as squares."""
    yield f"<div class=legends>{squares.legend(f'{uid}q')}</div><div class=cards>"
    for n, (name, array) in enumerate(d.pictures.items()):
        part = part_of(_real(array), most=(squares.SIDE, squares.SIDE))
        drawn = squares.squares(part.got, part.texts(part.got), part.rows, part.columns,
                                str(name), f"{uid}p{n}", axes=("row", "column"))  # fmt: skip
        cut = f" <span class=muted>{part.cut}</span>" if part.cut else ""
        yield f"<figure><figcaption>{safe(name, 80)}{cut}</figcaption>{drawn}</figure>"
    yield "</div>"
