"""What is trained and how, and two ways that are known to work.

induction   random tokens that repeat, no text: two heads form in about a minute
tiny-en     the model in the box (scripts/model.py)
"""

import math
from dataclasses import dataclass

from clearhead.probe import REPEATS

LEAST_RATE = 0.1  # of the learning rate, at the end


@dataclass(frozen=True)
class Settings:
    """What is trained and how.

    `repeats` is the share of rows that are repeated random tokens. Over the steps it goes in a
    straight line to `last_repeats`, which is the same unless given: heads that copy form early, and
    need less of it to stay. `longest_block` is the most tokens after which they repeat.
    """

    steps: int = 2000
    batch: int = 16
    accumulate: int = 1
    learning_rate: float = 1.5e-3
    warmup: int = 100
    repeats: float = 0.0
    last_repeats: float | None = None
    longest_block: int = 64
    held: float = 0.05
    vocab_size: int = 1024
    context: int = 256
    n_layers: int = 4
    d_model: int = 192
    n_heads: int = 6
    rotary_base: float = 10000.0
    dropout: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate", "longest_block"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.vocab_size < 2:
            raise ValueError(f"vocab_size must be at least 2; got {self.vocab_size}")
        if self.context < REPEATS:
            raise ValueError(
                f"context must be at least {REPEATS}, for its heads to be measured; got "
                f"{self.context}"
            )
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed must be from 0 to 2^63 - 1; got {self.seed}")
        for name in ("repeats", "last_repeats"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} must be in 0..1, a share of the rows; got {share}")
        if not 0 < self.held < 1:
            raise ValueError(f"held must be between 0 and 1; got {self.held}")
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate must be above 0; got {self.learning_rate}")
        if self.warmup < 0:
            raise ValueError(f"warmup must be at least 0; got {self.warmup}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0: up a line, then down a cosine to a tenth."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        falling = 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * (LEAST_RATE + (1 - LEAST_RATE) * falling)

    def repeats_at(self, step: int) -> float:
        """The share of rows of a step, from 0, that are repeated random tokens."""
        last = self.repeats if self.last_repeats is None else self.last_repeats
        return self.repeats + (last - self.repeats) * step / max(1, self.steps - 1)


# What comes next can be known by looking back, and in no other way.
INDUCTION = Settings(
    steps=1500, batch=32, learning_rate=3e-3, warmup=50, repeats=1.0, vocab_size=64, context=96,
    n_layers=2, d_model=64, n_heads=4,
)  # fmt: skip

TINY_EN = Settings(
    steps=7000, batch=24, context=192, repeats=0.5, last_repeats=0.2,
    n_layers=3, d_model=192, n_heads=6,
)  # fmt: skip
