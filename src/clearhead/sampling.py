"""How the next token is chosen from the scores of all: greedy, or drawn from the likeliest."""

import math

import torch
from torch import Tensor

from clearhead.rule import shape_of

# temperature, top_k, top_p, and where random numbers come from
How = tuple[float, int | None, float | None, torch.Generator | None]


def pick(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None,
    stream: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """One token for each row of (B, V) logits, (B, 1)."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    ordered = (ordered - ordered[:, :1]) / max(temperature, 1e-6)
    if top_k is not None:
        ordered[:, top_k:] = -math.inf
    p = ordered.softmax(dim=-1)
    if top_p is not None:  # a token is kept while those before it do not reach p
        late = p.cumsum(dim=-1) - p >= top_p
        p = p.masked_fill(late.index_fill(-1, late.new_zeros(1, dtype=torch.int64), False), 0.0)
    return order.gather(-1, torch.multinomial(p, 1, generator=stream))


def check_sampling(
    tokens: Tensor, n_new: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if tokens.ndim != 2 or not tokens.shape[1]:
        raise ValueError(f"the prompt must be (B, T) or (T,), T at least 1; got {shape_of(tokens)}")
    if n_new < 0:
        raise ValueError(f"n_new must be at least 0; got {n_new}")
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be at least 0 and finite; got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1; got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1; got {top_p}")
