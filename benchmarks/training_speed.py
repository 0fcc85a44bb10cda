"""How fast a TinyGPT trains on the engine, beside the same model on PyTorch's fused attention.

    python benchmarks/training_speed.py [--batch 16 --context 256 --n-layers 4 --d-model 192 ...]

Steps of both are taken in turns, from the same weights on the same rows; shown is the median of the
ratios of neighbors.
"""

import argparse
import statistics
import time
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import nn
from clearhead.rule import Rule
from clearhead.train import Settings, Training


def fused(q: Tensor, k: Tensor, v: Tensor, rule: Rule, dropout: float = 0.0) -> Tensor:
    """What TinyGPT asks of the engine, asked of PyTorch."""
    assert rule.causal
    return scaled_dot_product_attention(
        q, k, v, is_causal=True, dropout_p=dropout, enable_gqa=q.shape[1] != k.shape[1]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("batch", "context", "n_layers", "d_model", "n_heads"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=int, default=getattr(Settings, name)
        )
    parser.add_argument("--rounds", type=int, default=11)
    options = vars(parser.parse_args())
    rounds = options.pop("rounds")
    settings = Settings(repeats=1.0, vocab_size=1024, **options)
    ours, theirs = (Training.begin(settings, None) for _ in range(2))
    times: dict[str, list[float]] = {"engine": [], "SDPA": []}
    for _ in range(rounds + 1):
        began = time.perf_counter()
        ours._one_step()
        between = time.perf_counter()
        with mock.patch.object(nn, "output", fused):
            theirs._one_step()
        times["engine"].append(between - began)
        times["SDPA"].append(time.perf_counter() - between)
    pairs = list(zip(*(seconds[1:] for seconds in times.values()), strict=True))  # after warming up
    drift = max(
        float((a - b).detach().abs().max())
        for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True)
    )
    tokens = settings.batch * settings.context
    print(f"{settings}\n{torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, seconds in times.items():
        median = statistics.median(seconds[1:])
        print(f"  {name:<8}{median * 1e3:>9.1f} ms a step{tokens / median:>10,.0f} tokens/s")
    ratio = statistics.median(b / a for a, b in pairs)
    print(f"  speed of the engine: {ratio:.2f} of SDPA's; weights differ by at most {drift:.1e}")


if __name__ == "__main__":
    main()
