"""One input of attention, written down once for whoever is asked and for the steps that judge it.

Letters: B batch, H query heads, G key heads, T queries, S keys, D head size, M = d_model.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Turn:
    """Rotary positions: the pairs (n, n + D/2) of "halves" or (2n, 2n + 1) of "interleaved"."""

    pairing: str = "halves"
    base: float = 10000.0


@dataclass(frozen=True, eq=False)
class Projections:
    """Weights as x @ W: q (M, H D), k and v (M, G D), o (H D, M) or None; biases alike or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor | None = None
    biases: tuple[Tensor, ...] | None = None  # of q, k, v and, where there is one, o


@dataclass(frozen=True, eq=False)
class Problem:
    """What goes in, (B, H, T, D) in float64 or x (B, T, M) with projections, and what is asked.

    mask is True where a query may look, and broadcasts to (B, H, T, S). given says what the caller
    hands over (a mask, the flag `causal`); the rest is expected to be inside.
    """

    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    x: Tensor | None = None
    W: Projections | None = None
    H: int = 1
    G: int = 1
    causal: bool = False
    align: str = "end"  # where the last query stands if T != S: at the last key, or "start"
    mask: Tensor | None = None
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    slopes: Tensor | None = None
    bias: Tensor | None = None  # added to the scores
    sinks: Tensor | None = None
    turn: Turn | None = None
    open: bool = False  # the future must be seen

    @property
    def sizes(self) -> tuple[int, int, int]:
        """B, T and S."""
        if self.x is not None:
            return self.x.shape[0], self.x.shape[1], self.x.shape[1]
        assert self.q is not None and self.k is not None
        return self.q.shape[0], self.q.shape[2], self.k.shape[2]

    @property
    def width(self) -> int:
        """d_model: of x, or of all heads together."""
        if self.x is not None:
            return self.x.shape[-1]
        assert self.q is not None
        return self.H * self.q.shape[-1]

    @property
    def head_size(self) -> int:
        if self.W is not None:
            return self.W.q.shape[1] // self.H
        assert self.q is not None
        return self.q.shape[-1]

    def but(self, **changes: Any) -> "Problem":
        return replace(self, **changes)


def of_text(problem: Problem, b: int) -> Problem:
    """One element of the batch of a problem."""
    own = {name: getattr(problem, name) for name in ("q", "k", "v", "x", "mask")}
    cut = {name: x[b : b + 1] for name, x in own.items()
           if x is not None and (name != "mask" or (x.ndim == 4 and x.shape[0] > 1))}  # fmt: skip
    return problem.but(**cut)


def of_head(problem: Problem, h: int) -> Problem:
    """One query head of a problem of q, k and v, with the key head that it reads."""
    assert problem.q is not None and problem.k is not None and problem.v is not None
    g, mask = h // (problem.H // problem.G), problem.mask
    if mask is not None and mask.ndim == 4 and mask.shape[1] > 1:
        mask = mask[:, h : h + 1]
    return problem.but(q=problem.q[:, h : h + 1], k=problem.k[:, g : g + 1],
                       v=problem.v[:, g : g + 1], mask=mask, H=1, G=1)  # fmt: skip


def normal(*shape: int, seed: int, size: float = 1.0) -> Tensor:
    """Standard-normal numbers times `size`, float64, of a stream of their own.

    They are numbers of float32, so that nothing is lost where they are handed over as such.
    """
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float32) * size).double()


def heads(
    B: int = 2, H: int = 4, G: int | None = None, T: int = 5, S: int | None = None, D: int = 8,
    Dv: int | None = None, seed: int = 0, size: float = 1.0,
) -> Problem:  # fmt: skip
    """Random q, k and v; `size` is that of q, and so of the scores."""
    G, S, Dv = G or H, S or T, Dv or D
    return Problem(
        q=normal(B, H, T, D, seed=3 * seed + 1, size=size),
        k=normal(B, G, S, D, seed=3 * seed + 2),
        v=normal(B, G, S, Dv, seed=3 * seed + 3),
        H=H,
        G=G,
    )


def embeddings(
    B: int, T: int, M: int, H: int, G: int | None = None, D: int | None = None,
    Dv: int | None = None, output: bool = True, biases: bool = False, seed: int = 0,
    size: float = 1.0,
) -> Problem:  # fmt: skip
    """Random x and projections, whose queries, keys and values have a variance near 1."""
    G, D = G or H, D or M // H
    Dv = Dv or D
    widths = (H * D, G * D, G * Dv)
    at = 10 * seed + 11
    W = [normal(M, n, seed=at + i, size=M**-0.5) for i, n in enumerate(widths)]
    W[0] = W[0] * size
    shifts: tuple[Tensor, ...] | None = None
    if biases:
        tail = (M,) if output else ()
        shifts = tuple(normal(n, seed=at + 5 + i, size=0.3) for i, n in enumerate((*widths, *tail)))
    o = normal(H * Dv, M, seed=at + 4, size=(H * Dv) ** -0.5) if output else None
    return Problem(
        x=normal(B, T, M, seed=at + 3), W=Projections(W[0], W[1], W[2], o, shifts), H=H, G=G
    )
