"""The experiment behind 1/sqrt(d_head): what the softmax does when the scores are not divided.

Queries and keys with independent components of variance 1 are drawn for several head sizes. A
score q . k is then a sum of d_head products of variance 1, so its standard deviation is
sqrt(d_head): measured here, beside what such scores do to the softmax and to the gradient that
comes back through it, with the division and without.

Rows of the map are made a block at a time and forgotten, so memory grows with T and not with T².
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead.files import json_text, make_directory, write_files
from clearhead.scratch import attention_entropy
from clearhead.views import plots
from clearhead.views.terminal import Terminal

HEAD_SIZES = (16, 64, 256, 1024)
N_TOKENS = 1024  # fewer give noisy figures

_BLOCK = 1 << 22  # weights held at once: 16 MiB in float32
_MOST_INPUTS = 1 << 30  # numbers in q and k together: 4 GiB in float32
_MOST_TOKENS = 1 << 15  # a billion scores for each head size: minutes


@dataclass(frozen=True)
class SoftmaxStats:
    """What one softmax did, averaged over its rows.

    entropy   in nats, between 0 and log(number of keys)
    max_prob  the largest weight of a row
    gradient  the share of a push on the weights that arrives at the scores, in [0, 1): each weight
              is pushed by +1 or -1 at random, g = ±1, and sum_j |p_j (g_j - sum_k p_k g_k)| comes
              through. Close to 1 for weights spread over many keys, 0 for all on one: the sum of
              absolute values, because the Euclidean norm is as small for an even row (1/sqrt(n))
              as for a saturated one and would tell nothing.
    """

    entropy: float
    max_prob: float
    gradient: float


@dataclass(frozen=True)
class ScalingRow:
    """One head size: the standard deviation of q . k, and the softmax with and without scaling."""

    d_head: int
    score_std: float
    scaled: SoftmaxStats
    unscaled: SoftmaxStats


def measure_scaling(
    head_sizes: Sequence[int] = HEAD_SIZES, n_tokens: int = N_TOKENS, seed: int = 0
) -> Iterator[ScalingRow]:
    """Measure one row for each head size, each drawn from a random stream of its own.

    n_tokens queries see n_tokens keys each (full attention, no mask). The stream depends on seed
    and head size alone, so a size gives the same figures alone and in a sweep. Rows come one by
    one, as they are measured. Raises ValueError, before any work, for sizes that cannot be.
    """
    if not head_sizes or min(head_sizes) < 1:
        raise ValueError(f"d_head must be 1 or more; got {list(head_sizes)}")
    if n_tokens < 2:
        raise ValueError(f"tokens must be 2 or more, for there to be a choice; got {n_tokens}")
    if n_tokens > _MOST_TOKENS:
        raise ValueError(f"this experiment takes at most {_MOST_TOKENS} tokens; got {n_tokens}")
    if 2 * n_tokens * max(head_sizes) > _MOST_INPUTS:
        raise ValueError(
            f"{n_tokens} tokens with d_head {max(head_sizes)} make {2 * n_tokens * max(head_sizes)}"
            f" numbers in q and k; this experiment takes at most {_MOST_INPUTS}"
        )
    return (_measure_one(d_head, n_tokens, seed) for d_head in head_sizes)


def _measure_one(d_head: int, T: int, seed: int) -> ScalingRow:
    stream = torch.Generator().manual_seed((seed * 1_000_003 + d_head) % 2**63)
    q = torch.randn(T, d_head, generator=stream)  # (T, d_head), variance 1
    k = torch.randn(T, d_head, generator=stream)  # (T, d_head)

    total, total_of_squares = 0.0, 0.0
    sums = {"scaled": [0.0, 0.0, 0.0], "unscaled": [0.0, 0.0, 0.0]}
    for rows in torch.split(q, max(1, _BLOCK // T)):
        scores = rows @ k.T  # (rows, T)
        total += scores.sum(dtype=torch.float64).item()
        total_of_squares += scores.double().square().sum().item()
        push = torch.randint(0, 2, scores.shape, generator=stream, dtype=torch.float32) * 2 - 1
        for name, divisor in (("scaled", math.sqrt(d_head)), ("unscaled", 1.0)):
            for at, figure in enumerate(_row_sums(scores / divisor, push)):
                sums[name][at] += figure

    mean = total / T**2
    return ScalingRow(
        d_head=d_head,
        score_std=math.sqrt(total_of_squares / T**2 - mean**2),
        scaled=SoftmaxStats(*(figure / T for figure in sums["scaled"])),
        unscaled=SoftmaxStats(*(figure / T for figure in sums["unscaled"])),
    )


def _row_sums(scores: Tensor, push: Tensor) -> tuple[float, float, float]:
    """Entropy, largest weight and gradient of each row, summed over the rows."""
    weights = torch.softmax(scores, dim=-1)  # (rows, T)
    pushed = (weights * push).sum(dim=-1, keepdim=True)  # (rows, 1)
    arrived = weights * (push - pushed)  # (rows, T), the softmax's Jacobian times the push
    return (
        attention_entropy(weights).sum().item(),
        weights.amax(dim=-1).sum().item(),
        arrived.abs().sum().item(),
    )


def scaling_table(rows: Sequence[ScalingRow], n_tokens: int) -> list[str]:
    """The rows as a table for people, with what it says."""
    lines = [
        f"=== Why sqrt(d_head): {n_tokens} random queries and keys, no mask ===",
        f"                 std of    entropy, max {math.log(n_tokens):.3f}   "
        "largest weight     gradient kept",
        "  d_head   sqrt     q·k    scaled  unscaled   scaled  unscaled   scaled  unscaled",
    ]
    for row in rows:
        pairs = zip(asdict(row.scaled).values(), asdict(row.unscaled).values(), strict=True)
        lines.append(
            f"  {row.d_head:>6}  {math.sqrt(row.d_head):>5.1f}  {row.score_std:>6.2f}  "
            + "  ".join(f"{scaled:>7.3f}  {unscaled:>8.3f}" for scaled, unscaled in pairs)
        )
    most = max(row.unscaled.max_prob for row in rows)
    least = min(row.unscaled.gradient for row in rows)
    return [
        *lines,
        "  q·k adds up d_head products of variance 1, so it grows as sqrt(d_head). Undivided, the",
        f"  larger the head, the more one key takes (here up to {most:.3f}) and the less gradient",
        f"  is kept, of a ±1 push on the weights (down to {least:.3f}); divided, all are alike.",
    ]


def scaling_results(rows: Sequence[ScalingRow], n_tokens: int, seed: int) -> dict[str, Any]:
    """The rows as what json.dumps takes, with everything that the table shows."""
    return {
        "tokens": n_tokens,
        "seed": seed,
        "max_entropy": math.log(n_tokens),
        "rows": [{"sqrt_d_head": math.sqrt(row.d_head), **asdict(row)} for row in rows],
    }


def run(
    head_sizes: Sequence[int],
    n_tokens: int,
    seed: int,
    output_dir: Path | None,
    terminal: Terminal,
    as_json: bool = False,
) -> None:
    """Measure, print and, with an output directory, draw scaling.png there.

    Raises ValueError for sizes that cannot be and OSError for a directory that cannot be written.
    """
    measuring = measure_scaling(head_sizes, n_tokens, seed)
    if output_dir is not None:
        make_directory(output_dir)
    rows = list(terminal.progress(measuring, "scaling experiment", len(head_sizes)))
    numbers = scaling_results(rows, n_tokens, seed)
    document = json_text(numbers)
    terminal.lines([document] if as_json else scaling_table(rows, n_tokens))
    if output_dir is not None:
        picture = plots.png_bytes(plots.scaling_figure(numbers["rows"], n_tokens))
        write_files(output_dir, {"scaling.png": picture, "scaling.json": f"{document}\n".encode()})
        if not as_json:
            terminal.line(f"scaling.png and scaling.json written to {output_dir.resolve()}")
