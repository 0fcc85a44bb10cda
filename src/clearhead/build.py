"""Every number of one build: scratch.py, used once, from the words to the entropies.

demo.py tells what comes out of here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from clearhead.scratch import (
    attention_entropy,
    causal_mask,
    init_projections,
    make_input_embeddings,
    multi_head_attention,
    single_head_attention,
)

_MOST_BYTES = 1 << 29  # of one copy of the weights; some six are alive at once


@dataclass(frozen=True)
class Settings:
    """What a build starts from. `toy` is whether the tokens are the sentence in the box."""

    tokens: Sequence[str]
    d_model: int = 32
    n_heads: int = 4
    seed: int = 0
    toy: bool = True


@dataclass(frozen=True)
class Heads:
    """Many heads on one text: weights (H, T, T), and each row's entropy (H, T) in nats."""

    weights: Tensor
    entropy: Tensor

    @classmethod
    def of(cls, weights: Tensor) -> "Heads":
        return cls(weights, attention_entropy(weights))

    @property
    def mean_entropy(self) -> list[float]:
        return [float(mean) for mean in self.entropy.mean(dim=-1)]

    def shares(self, head: int) -> list[float | None]:
        """Each row's entropy over its ceiling log(i); None for the first, where that is 0."""
        rows = enumerate(self.entropy[head].tolist(), start=1)
        return [row / math.log(i) if i > 1 else None for i, row in rows]

    @property
    def mean_max_prob(self) -> list[float]:
        return [float(mean) for mean in self.weights.amax(dim=-1).mean(dim=-1)]


@dataclass(frozen=True)
class Build:
    """Every number of one run, in the order it came about."""

    settings: Settings
    same_rows: int  # leading rows in which W_Q repeats x / sqrt(d_model)
    mask: Tensor  # (T, T)
    single_out: Tensor  # (T, d_model)
    single_weights: Tensor  # (T, T)
    multi_out: Tensor  # (T, d_model)
    scaled: Heads
    unscaled: Heads

    @property
    def T(self) -> int:
        return len(self.settings.tokens)

    @property
    def ceiling(self) -> list[float]:
        """The most entropy that each row can have: log(i), i the keys it sees, itself included."""
        return [math.log(i) for i in range(1, self.T + 1)]

    @property
    def mean_ceiling(self) -> float:
        return sum(self.ceiling) / self.T  # ln(T!) / T


def check(settings: Settings) -> None:
    """Raise ValueError for settings that cannot be built, before anything is computed."""
    T, d_model, n_heads = len(settings.tokens), settings.d_model, settings.n_heads
    if T == 0:
        raise ValueError("the text is empty: one word at least is needed")
    if n_heads < 1 or d_model < 1 or d_model % n_heads:
        init_projections(d_model, n_heads)  # raises, and says it better than could be said here
    if not -(2**63) <= settings.seed < 2**64:
        raise ValueError(f"the seed must be a 64-bit integer; got {settings.seed}")
    if n_heads * T * T * 4 > _MOST_BYTES:
        most = math.isqrt(_MOST_BYTES // 4 // n_heads)
        raise ValueError(
            f"{T} tokens with {n_heads} heads make {n_heads} x {T} x {T} weights, and this build "
            f"keeps them all: with {n_heads} heads it takes at most {most} tokens"
        )
    if 4 * d_model**2 * 4 > _MOST_BYTES:
        raise ValueError(
            f"d_model={d_model} makes four projections of {d_model} x {d_model} numbers; this "
            f"build takes at most d_model={math.isqrt(_MOST_BYTES // 16)}"
        )


def build(settings: Settings) -> Build:
    """From the settings to every number: the whole of scratch.py, used once."""
    check(settings)
    T, d_model, n_heads = len(settings.tokens), settings.d_model, settings.n_heads
    x = make_input_embeddings(T, d_model, settings.seed)  # (T, d_model)
    W_Q, W_K, W_V, W_O = init_projections(d_model, n_heads, settings.seed)  # (d_model, d_model)
    mask = causal_mask(T)  # (T, T)
    single_out, single_weights = single_head_attention(x, W_Q, W_K, W_V, mask)
    multi_out, weights = multi_head_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask)
    _, undivided = multi_head_attention(x, W_Q, W_K, W_V, W_O, n_heads, mask, scale=False)
    return Build(
        settings=settings,
        same_rows=_same_rows(x / math.sqrt(d_model), W_Q),
        mask=mask,
        single_out=single_out,
        single_weights=single_weights,
        multi_out=multi_out,
        scaled=Heads.of(weights),
        unscaled=Heads.of(undivided),
    )


def _same_rows(a: Tensor, b: Tensor) -> int:
    """The number of leading rows in which a and b are equal, bit for bit."""
    n = min(len(a), len(b))
    equal = (a[:n] == b[:n]).all(dim=1)
    return int(equal.int().cumprod(dim=0).sum())
