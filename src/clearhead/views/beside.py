"""Two arrays beside each other: the part that is shown, its digits, and where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MOST = 8  # rows and columns that are shown
SAME = 1e-5  # of the largest number: what float32 may lose
Figure = Callable[[complex], str]


@dataclass(frozen=True, eq=False)
class Part:
    """Rows and columns of a matrix, or of one head of several, and what is left out.

    of     the shape of the whole; head: the index of the matrix, () where there is only one
    got, want, differs   (rows, columns); want is None for an array by itself
    """

    of: tuple[int, ...]
    head: tuple[int, ...]
    rows: range
    columns: range
    got: Tensor
    want: Tensor | None
    differs: Tensor
    figure: Figure

    @property
    def cut(self) -> str:
        """What is shown of a larger array, in words; "" where all of it is."""
        said = [f"head {self.head[0]}" if len(self.head) == 1 else f"matrix {self.head}"]
        said = said if self.head and math.prod(self.of[:-2]) > 1 else []
        sides = zip(("row", "column"), (self.rows, self.columns), matrix_size(self.of), strict=True)
        for name, shown, size in sides:
            if 0 < len(shown) < size:
                last = f" to {shown[-1]}" if len(shown) > 1 else ""
                said.append(f"{name}{'s' * (len(shown) > 1)} {shown[0]}{last} of {size:,}")
        return ", ".join(said)

    def texts(self, which: Tensor) -> list[list[str]]:
        """`got` or `want` as figures."""
        return [[self.figure(x) for x in row] for row in which.tolist()]


def matrix_size(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of an array: a vector is one row."""
    rows, columns = (1, 1, *shape)[-2:]
    return rows, columns


def sized(shape: Sequence[int]) -> str:
    """2 x 3; a number by itself has no size."""
    return " x ".join(map(str, shape)) or "one number"


def part_of(
    got: Tensor,
    want: Tensor | None = None,
    most: tuple[int, int] = (MOST, MOST),
    head: tuple[int, ...] = (),
) -> Part:
    """At most `most` rows and columns, where the two differ most; of several heads the worst.

    An array by itself, or beside one of another shape, is shown from its beginning, and of its
    heads the one named.
    """
    of, got = tuple(got.shape), _numbers(got)
    want = None if want is None or tuple(want.shape) != of else _numbers(want)
    far = torch.zeros(got.shape, dtype=torch.float64) if want is None else distance(got, want)
    asked, head = head, ()
    if got.ndim > 2:
        if got.numel() and want is None:
            head = asked or (0,) * (got.ndim - 2)
        elif got.numel():
            worst = int(torch.nan_to_num(far.flatten(-2), posinf=1e300).amax(-1).argmax())
            head = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape[:-2]))
        else:
            head = (0,) * (got.ndim - 2)
            got = got.new_zeros(*(max(n, 1) for n in got.shape[:-2]), 0, 0)
            far, want = got.real, want if want is None else got
        got, far = got[head], far[head]
        want = None if want is None else want[head]
    got, far = got.reshape(matrix_size(got.shape)), far.reshape(matrix_size(got.shape))
    want = None if want is None else want.reshape(got.shape)
    rows, columns = (
        _window(torch.nan_to_num(far, posinf=_beyond(far)).sum(1 - side), most[side])
        for side in (0, 1)
    )
    place = slice(rows.start, rows.stop), slice(columns.start, columns.stop)
    shown = None if want is None else want[place]
    differs = far > _seen(far, got if want is None else want)
    return Part(of, head, rows, columns, got[place], shown, differs[place],
                figures(got[place], shown, differs[place]))  # fmt: skip


def head_of(array: Tensor, part: Part) -> tuple[int, ...]:
    """The head of an input that the head of an output reads: one of fewer where they are shared."""
    if array.ndim != 3 or len(part.head) != 1 or not part.of[0]:
        return ()
    return (part.head[0] * array.shape[0] // part.of[0],)


def distance(got: Tensor, want: Tensor) -> Tensor:
    """How far two arrays of numbers lie apart: 0 where both are NaN, infinite where one is."""
    got, want = _numbers(got), _numbers(want)
    alike = (got == want) | (got.isnan() & want.isnan())
    return (got - want).abs().nan_to_num(math.inf, math.inf).masked_fill(alike, 0.0)


def _numbers(array: Tensor) -> Tensor:
    array = array.detach().cpu()
    return array.to(torch.complex128 if array.is_complex() else torch.float64)


def _beyond(far: Tensor) -> float:
    """What stands for an infinite distance where distances are added up."""
    finite = far[far.isfinite()]
    return 1e3 * max(1.0, float(finite.max()) if finite.numel() else 0.0)


def _seen(far: Tensor, beside: Tensor) -> float:
    """The distance from which two numbers count as different."""
    finite = far[far.isfinite()]
    most = float(finite.max()) if finite.numel() else 0.0
    if bool(far.isinf().any()):  # the rest may be the rounding of float32
        sizes = beside.abs()
        sizes = sizes[sizes.isfinite()]
        return max(1e-3 * most, SAME * max(1.0, float(sizes.max()) if sizes.numel() else 0.0))
    return 1e-3 * most


def _window(far: Tensor, most: int) -> range:
    """The run of at most `most` places in which the distances sum to the most."""
    n = far.numel()
    if n <= most:
        return range(n)
    at = int(far.unfold(0, most, 1).sum(-1).argmax())
    return range(at, at + most)


# Figures ----------------------------------------------------------------------------------------


def figures(got: Tensor, want: Tensor | None, differs: Tensor) -> Figure:
    """Writes these numbers in as few digits as show each difference: three decimals or more."""
    pairs = [] if want is None else list(zip(got[differs].tolist(), want[differs].tolist(),
                                             strict=True))  # fmt: skip
    both = torch.cat([each.flatten() for each in (got, want) if each is not None])
    finite = both[both.isfinite()].abs()
    size = float(finite.max()) if finite.numel() else 0.0
    whole = not both.is_complex() and bool((both == both.round())[both.isfinite()].all())
    for figure in _ways(size, whole):
        told_apart = all(figure(a) != figure(b) for a, b in pairs)
        nothing = all(not figure(x).strip("+-0.ej") for x in both.tolist())
        if told_apart and not (nothing and size):
            return figure
    return _scientific(16)


def _ways(size: float, whole: bool) -> Iterator[Figure]:
    if size < 1e5:
        yield from map(_fixed, range(0 if whole else 3, 8))
    yield from map(_scientific, range(2, 17))


def _fixed(decimals: int) -> Figure:
    return lambda x: _written(x, f".{decimals}f")


def _scientific(decimals: int) -> Figure:
    return lambda x: _written(x, f".{decimals}e")


def _written(x: complex, form: str) -> str:
    if not isinstance(x, int | float):
        return f"{_written(x.real, form)}{_written(x.imag, '+' + form)}j"
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "inf" if x > 0 else "-inf"
    text = f"{x:{form}}"
    return text.lstrip("-") if not text.strip("+-0.e") else text
