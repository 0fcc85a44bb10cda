"""The tensors in what somebody's function answers, whatever it puts them in."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Unusable(Exception):
    """An answer that holds no tensor, or a push that does not fit it."""


def shape_of(answer: Any) -> str:
    if isinstance(answer, Tensor):
        return "tensor"
    if isinstance(answer, np.ndarray):
        return "array"
    if isinstance(answer, (bool, int, float, np.generic)):
        return "float"
    if dataclasses.is_dataclass(answer) or not isinstance(answer, (tuple, list, dict)):
        return type(answer).__name__
    return next(kind.__name__ for kind in (tuple, list, dict) if isinstance(answer, kind))


def tensors_in(answer: Any) -> list[Tensor]:
    """The tensors of an answer, in order; what lies between them and is none is left out."""
    found = list(walk(answer))
    if not found:
        kind = "None" if answer is None else f"a {type(answer).__name__}"
        inside = " with no tensor in it" if isinstance(answer, (tuple, list, dict)) else ""
        raise Unusable(f"returned {kind}{inside}")
    return found


def walk(answer: Any) -> Iterator[Tensor]:
    if isinstance(answer, Tensor):
        yield answer
    elif isinstance(answer, (np.ndarray, np.generic)):
        if np.asarray(answer).dtype.kind in "biufc":
            yield torch.from_numpy(np.array(answer, order="C"))
    elif isinstance(answer, (bool, int, float)):
        yield torch.tensor(answer, dtype=torch.float64 if isinstance(answer, float) else None)
    elif isinstance(answer, (tuple, list)):
        if isinstance(answer, list) and (table := table_of(answer)) is not None:
            yield table
        else:
            for each in answer:
                yield from walk(each)
    elif isinstance(answer, dict):
        for each in answer.values():
            yield from walk(each)
    elif dataclasses.is_dataclass(answer):
        for part in dataclasses.fields(answer):
            yield from walk(getattr(answer, part.name))


def table_of(rows: list[Any]) -> Tensor | None:
    """Lists of lists of numbers as one tensor, None where they are something else."""
    flat = rows
    while any(isinstance(each, list) for each in flat):
        if not all(isinstance(each, list) and len(each) == len(flat[0]) for each in flat):
            return None
        flat = [each for row in flat for each in row]
    if not flat or not all(isinstance(each, (bool, int, float)) for each in flat):
        return None
    return torch.from_numpy(np.array(rows))


def kept(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Copies of an answer's tensors, or Unusable."""
    try:
        return tuple(settled(each) for each in tensors)
    except (RuntimeError, NotImplementedError) as error:
        words = str(error).splitlines()[0]
        raise Unusable(f"returned a tensor that cannot be read: {words}") from None


def settled(tensor: Tensor) -> Tensor:
    """A plain dense copy on the CPU, with no history."""
    plain = tensor.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return plain.cpu().as_subclass(Tensor).clone().resolve_conj().resolve_neg()
