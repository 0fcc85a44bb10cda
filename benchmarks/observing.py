"""What observing costs: a model of GPT-2-small's size with random weights, with and without it.

    python benchmarks/observing.py [--tokens 1024] [--layers 12] [--rounds 7] [--rows N] [--once]

Time is the ratio of two forward passes that follow each other, and its median over the rounds.
Memory is the largest that a process of its own ever had, less that of one that only reads. `--once`
observes a single time and compares nothing: for lengths that take long.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from clearhead import observe


def build(layers: int, tokens: int) -> tuple[GPT2LMHeadModel, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_positions=tokens)).eval()
    return model, torch.randint(model.config.vocab_size, (1, tokens))


@torch.no_grad()
def read(model: GPT2LMHeadModel, ids: torch.Tensor, observed: bool, rows: int | None):
    if not observed:
        return model(ids, use_cache=False).logits
    with observe(model, rows=rows) as run:
        out = model(ids, use_cache=False).logits
    assert all(check.ok for _, check in run.checks), run.checked_line()
    return out


def alone(arguments: argparse.Namespace, what: str) -> dict[str, float]:
    """Seconds of one pass and the largest memory in MB, in a process of its own."""
    command = [sys.executable, __file__, "--tokens", str(arguments.tokens), "--layers",
               str(arguments.layers), "--child", what]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--child", choices=["plain", "observed"])
    arguments = parser.parse_args()
    if arguments.child:
        model, ids = build(arguments.layers, arguments.tokens)
        began = time.perf_counter()
        read(model, ids, arguments.child == "observed", arguments.rows)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": time.perf_counter() - began, "megabytes": peak}))
        return
    plain, observed = (alone(arguments, what) for what in ("plain", "observed"))
    extra = observed["megabytes"] - plain["megabytes"]
    print(f"{arguments.layers} layers, {arguments.tokens:,} tokens: {observed['seconds']:.1f} s "
          f"observed, {extra:.0f} MB more than {plain['megabytes']:,.0f}")  # fmt: skip
    if arguments.once:
        return
    model, ids = build(arguments.layers, arguments.tokens)
    assert torch.equal(read(model, ids, False, None), read(model, ids, True, None))
    ratios = []
    for _ in range(arguments.rounds):
        seconds = []
        for what in (False, True):
            began = time.perf_counter()
            read(model, ids, what, arguments.rows)
            seconds.append(time.perf_counter() - began)
        ratios.append(seconds[1] / seconds[0])
    shown = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    print(f"observed over plain: {statistics.median(ratios):.2f}x ({shown})")


if __name__ == "__main__":
    main()
