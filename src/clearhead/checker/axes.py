"""Reading an answer by the sizes of its axes, which differ in every problem that is asked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations

from torch import Tensor

from clearhead.checker.problem import Problem


class Unanswerable(Exception):
    """This manner has no way to ask that, or to read what came."""


@dataclass(frozen=True, eq=False)
class Answer:
    """out (B, H, T, Dv) or (B, T, O), and weights (B, H, T, S), (B, T, S) or None; float64."""

    out: Tensor
    weights: Tensor | None = None


def letters(problem: Problem) -> dict[str, int]:
    """The size of each axis by its letter: O is the output's width, W that of all heads merged."""
    B, T, S = problem.sizes
    sizes = {"B": B, "T": T, "S": S, "H": problem.H}
    if problem.x is not None:
        assert problem.W is not None
        W = problem.W
        wide = W.v.shape[1] // problem.G * problem.H if W.o is None else W.o.shape[1]
        return {**sizes, "O": wide}
    assert problem.v is not None
    return {**sizes, "V": problem.v.shape[-1], "W": problem.H * problem.v.shape[-1]}


def named(axes: str, sizes: Mapping[str, int]) -> str:
    return "(" + ", ".join(f"{letter} = {sizes[letter]}" for letter in axes) + ")"


def orders(tensor: Tensor, axes: str, sizes: Mapping[str, int]) -> Iterable[str]:
    """Orders of these axes that the tensor can have; axes of size 1 may be missing."""
    have = tuple(tensor.shape)
    must = [letter for letter in axes if sizes[letter] != 1]
    free = [letter for letter in axes if sizes[letter] == 1]
    for letters in (axes, *(("".join(must),) if free else ())):
        for order in permutations(letters):
            text = "".join(order)
            if "T" in text and "S" in text and text.index("T") > text.index("S"):
                continue  # of two axes alike the first is that of the queries
            if tuple(sizes[letter] for letter in order) == have:
                yield text
    if axes == "BHTV" and sizes["H"] > 1:
        for text in ("BTW", "TW"):
            if tuple(sizes[letter] for letter in text) == have and (sizes["B"] == 1 or "B" in text):
                yield text


def ours(tensor: Tensor, order: str, axes: str, sizes: Mapping[str, int]) -> Tensor:
    if tensor.is_complex():
        raise Unanswerable("the answer is of complex numbers")
    if tuple(tensor.shape) != tuple(sizes[letter] for letter in order):
        raise Unanswerable(
            f"the answer is {list(tensor.shape)} where {named(order, sizes)} was due"
        )
    if "W" in order:
        T, H = sizes["T"], sizes["H"]
        return tensor.double().reshape(sizes["B"], T, H, -1).transpose(1, 2)
    for letter in axes:
        if letter not in order:
            tensor, order = tensor[None], letter + order
    return tensor.permute([order.index(letter) for letter in axes]).double()
