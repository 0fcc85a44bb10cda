"""What exact attention with every diagnostic costs, beside the ways of doing without it.

Every contender runs on the same random q, k and v, and once in every round, right after a turn of
its baseline (A B A C A D ...): a busy machine slows both alike. A ratio is that of two such turns;
the median over the rounds is shown. The baseline is PyTorch's own fused attention, which measures
nothing.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from clearhead import __version__
from clearhead.chip import GEMM_SIZE, machine, rates
from clearhead.contenders import (
    DTYPES,
    Contender,
    Settings,
    Tensors,
    check,
    contenders,
    first_line,
)
from clearhead.files import json_text, make_directory, write_files
from clearhead.views import plots
from clearhead.views.bench_figure import bench_figure, bench_table, machine_line
from clearhead.views.terminal import Terminal

TURN = 0.02  # seconds that a contender is timed for, if one call takes less

Watch = Callable[[Iterable[Any], str, int], Iterable[Any]]  # Terminal.progress


# Measuring ----------------------------------------------------------------------------------------


def measure(settings: Settings, n_tokens: int, watch: Watch) -> dict[str, Any]:
    """Everyone at one length: a record of times in seconds, memory in bytes, ratios and shares.

    Each is called once to warm up, then in every round after its baseline, at last for its memory.
    """
    field, speeds = contenders(settings, n_tokens), rates(settings)
    skipped = {one: one.skipped for one in (*speeds, *field) if one.call is None}
    base = {one.group: one for one in reversed(field)}
    times: dict[Contender, list[float]] = {one: [] for one in (*speeds, *field)}
    beside: dict[Contender, list[float]] = {one: [] for one in field}  # its baseline's turns
    memory: dict[Contender, tuple[int, int]] = {}
    rounds = settings.repeats + 2
    turns = [(turn, one) for turn in range(rounds) for one in (*speeds, *field)]
    for turn, one in watch(turns, f"T = {n_tokens:,}", len(turns)):
        if one.call is None or one in skipped:
            continue
        try:
            with torch.no_grad():
                if turn == 0:
                    one.call()
                elif turn < rounds - 1:
                    first = base.get(one.group, one)
                    if first is not one:
                        assert first.call is not None  # a baseline is never left out
                        beside[one].append(_timed(first.call, settings.device))
                    times[one].append(_timed(one.call, settings.device))
                elif one in beside:
                    memory[one] = memory_of(one.call, settings.device)
        except Exception as error:
            if not one.may_fail:
                raise
            skipped[one] = first_line(error)
    machines = [_rate(one, times[one], skipped.get(one)) for one in speeds]
    best = max(rate["flops_per_second"] for rate in machines if rate["skipped"] is None)
    pairs = n_tokens * (n_tokens + 1) // 2 if settings.causal else n_tokens**2
    flops = 2 * pairs * settings.d_head * settings.heads  # of one matrix product, visible part
    rows: list[dict[str, Any]] = []
    for one in field:
        rows.append({"name": one.name, "group": one.group, "skipped": skipped.get(one)})
        if one in skipped:
            continue
        its = times[one] if base[one.group] is one else beside[one]
        ratios = [mine / one_of_its for mine, one_of_its in zip(times[one], its, strict=True)]
        median = statistics.median(times[one])
        rows[-1] |= {
            "seconds": times[one], "median": median, "min": min(times[one]),
            "baseline_seconds": its, "ratio": statistics.median(ratios),
            "share": one.matmuls * flops / median / best,
            "extra_bytes": memory[one][0], "returned_bytes": memory[one][1],
        }  # fmt: skip
    map_bytes = settings.heads * n_tokens**2 * DTYPES[settings.dtype].itemsize
    return {"tokens": n_tokens, "visible_pairs": pairs, "map_bytes": map_bytes,
            "rates": machines, "best_flops_per_second": best, "contenders": rows}  # fmt: skip


def _rate(one: Contender, seconds: list[float], skipped: str | None) -> dict[str, Any]:
    """Of the fastest round: what the machine can do, whoever else is running."""
    found: dict[str, Any] = {"name": one.name, "skipped": skipped}
    if skipped is not None:
        return found
    return found | {"seconds": seconds, "flops_per_second": one.work / min(seconds)}


def _timed(call: Callable[[], Tensors], device: str) -> float:
    """Seconds of one call: of a short one, the mean of as many as fill a turn."""
    start, count, took = time.perf_counter(), 0, 0.0
    while not count or took < TURN:
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        count, took = count + 1, time.perf_counter() - start
    return took / count


def memory_of(call: Callable[[], Tensors], device: str = "cpu") -> tuple[int, int]:
    """Bytes that a call holds at its peak beyond what it returns, and bytes that it returns.

    On the CPU, the running sum of what PyTorch's allocator gave out and took back during the call,
    as its profiler records it: exact to the byte, kernels' own tensors included, the same on a busy
    machine. Buffers that a matrix library keeps for itself, some MB and no more at any T, are not
    in it. The resident size of the process has them, and holes in the heap too, which come and go.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = call()
        peak = torch.cuda.max_memory_allocated() - before
    else:
        recorder = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        with _no_chatter(), recorder:
            # Memory alone: a record of every operation would take gigabytes itself at great T.
            torch._C._autograd._enable_record_function(False)
            try:
                results = call()
            finally:
                torch._C._autograd._enable_record_function(True)
        events: Any = recorder.profiler.kineto_results.events()  # type: ignore[union-attr]
        events = sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns())
        peak = max(accumulate((e.nbytes() for e in events), initial=0))
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in results.values()}
    returned = sum(storage.nbytes() for storage in storages.values())
    return max(0, peak - returned), returned


@contextmanager
def _no_chatter() -> Iterator[None]:
    """Away with what the profiler's C++ part has to say on standard error about itself."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# The verb -----------------------------------------------------------------------------------------


def run(
    settings: Settings, output_dir: Path | None, terminal: Terminal, as_json: bool = False
) -> None:
    """Measure, print and, with an output directory, write bench.json there.

    Several lengths make a picture too, bench.png. Raises ValueError for what `check` refuses and
    OSError for a directory that cannot be written.
    """
    check(settings)
    if output_dir is not None:
        make_directory(output_dir)
    threads = torch.get_num_threads()
    torch.set_num_threads(settings.threads or threads)
    try:
        document: dict[str, Any] = {
            "clearhead": __version__, "machine": machine(), "settings": asdict(settings),
            "gemm_size": GEMM_SIZE, "runs": [],
        }  # fmt: skip
        said = (lambda _: None) if as_json else terminal.lines
        said(machine_line(document["machine"]))
        for n_tokens in settings.tokens:
            document["runs"].append(measure(settings, n_tokens, terminal.progress))
            said(bench_table(document["runs"][-1], document["settings"], GEMM_SIZE))
    finally:
        torch.set_num_threads(threads)
    text = json_text(document)
    if as_json:
        terminal.line(text)
    if output_dir is not None:
        files = {"bench.json": f"{text}\n".encode()}
        if len(set(settings.tokens)) > 1:
            files["bench.png"] = plots.png_bytes(bench_figure(document))
        write_files(output_dir, files)
        said([f"{' and '.join(files)} written to {output_dir.resolve()}"])
