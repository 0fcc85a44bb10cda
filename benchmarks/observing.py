"""What observing costs: a model of GPT-2-small's size with random weights, with and without it.

    python benchmarks/observing.py [--tokens 1024] [--layers 12] [--rounds 7] [--rows N]
                                   [--once | --replace]

Time is the ratio of two forward passes that follow each other, and its median over the rounds.
Memory is the most that torch had given out at once, exact to the byte; with `--once`, for lengths
that take long, a single pass is observed and the memory of the whole process shown. With
`--replace` the engine's output is put in place of the original's; the passes that prove it are
timed apart.
"""

import argparse
import copy
import resource
import statistics
import time

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from clearhead import observe
from clearhead.bench import memory_of


def build(layers: int, tokens: int) -> tuple[GPT2LMHeadModel, torch.Tensor]:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_positions=tokens)).eval()
    return model, torch.randint(model.config.vocab_size, (1, tokens))


@torch.no_grad()
def read(model: GPT2LMHeadModel, ids: torch.Tensor, observed: bool, rows: int | None) -> Tensor:
    if not observed:
        return model(ids, use_cache=False).logits
    with observe(model, rows=rows) as run:
        out = model(ids, use_cache=False).logits
    assert all(check.ok for _, check in run.checks), run.checked_line()
    return out


@torch.no_grad()
def replaced(model: GPT2LMHeadModel, ids: torch.Tensor, rounds: int) -> None:
    """Passes of a model whose attention is replaced, each after one of a copy that nobody sees."""
    plain, ratios = copy.deepcopy(model), list[float]()
    with observe(model, replace=True) as run:
        for n in range(rounds + 2):
            took = []
            for one in (plain, model):
                began = time.perf_counter()
                one(ids, use_cache=False)
                took.append(time.perf_counter() - began)
            ratios.append(took[1] / took[0])
            print(f"  plain {took[0]:.3f} s, {'proved' if n < 2 else 'replaced'} {took[1]:.3f} s")
    print(*run.notes, sep="\n")
    print(f"ratio {statistics.median(ratios[2:]):.2f}, while proving {max(ratios[:2]):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--replace", action="store_true")
    arguments = parser.parse_args()
    model, ids = build(arguments.layers, arguments.tokens)
    print(f"{arguments.layers} layers, {arguments.tokens:,} tokens")
    if arguments.once:
        began = time.perf_counter()
        read(model, ids, True, arguments.rows)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"observed in {time.perf_counter() - began:.1f} s, {peak:,.0f} MB in all")
        return
    if arguments.replace:
        replaced(model, ids, arguments.rounds)
        return
    assert torch.equal(read(model, ids, False, None), read(model, ids, True, None))
    most = [memory_of(lambda w=what: {"out": read(model, ids, w, arguments.rows)})[0]
            for what in (False, True)]  # fmt: skip
    print(f"memory: {most[0] / 1e6:,.1f} MB, and {(most[1] - most[0]) / 1e6:,.1f} more observed")
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
