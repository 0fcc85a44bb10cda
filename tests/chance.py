"""Random cases: how many of them, and random tensors."""

import torch
from hypothesis import HealthCheck, Phase, settings

LONGER = 1.0  # a long run has so many times the cases, and others each time


def some(n: int) -> settings:
    """n random cases: small ones as they come, so no time is spent on shrinking them."""
    return settings(
        max_examples=max(1, int(n * LONGER)), deadline=None, derandomize=LONGER <= 1, database=None,
        phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of any dtype the same numbers, rounded."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=stream, dtype=torch.float64).to(dtype)
