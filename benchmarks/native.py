"""The native kernel beside PyTorch's fused attention, over every axis that its speed depends on.

    python benchmarks/native.py [--longest 131072] [--minutes 7.5] [--output-dir benchmarks]

From the middle (8 heads of 64, causal, float32, every thread) one thing is changed at a time: the
number of tokens, doubled from 128 up, with 8 heads and with one; and, at 1,024 and 4,096 tokens,
heads, head size, mask, dtype and threads. All is measured as `clearhead bench` does it, in turns
with SDPA, every diagnostic on. Prints a table, and writes native.json, with every single time, and
native.png. The longest come last: one that would not end within so many minutes is left out.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clearhead import __version__, bench
from clearhead.chip import machine
from clearhead.contenders import Settings, check
from clearhead.engine import native
from clearhead.files import json_text, make_directory, write_files
from clearhead.rule import Rule
from clearhead.views import plots
from clearhead.views.bench_figure import chip_name, machine_line
from clearhead.views.page import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PLUM,
    Room,
    end_labels,
    house_style,
    page,
)  # fmt: skip

Record = Mapping[str, Any]

ALL, OFF, RECEIVED = "native, all diagnostics", "native, output only", "native, + received"
ENTROPY = "native, entropy in the loss"
MAIN = {"linewidth": 2.6, "markersize": 5}
MOST_OF_EIGHT = 8192  # tokens with eight heads
BESIDE = (1024, 4096)  # tokens at which everything else is changed
CHANGES: dict[str, dict[str, Any]] = {
    "1 head": {"heads": 1}, "32 heads": {"heads": 32}, "heads of 32": {"d_head": 32},
    "heads of 128": {"d_head": 128}, "no mask": {"causal": False},
    "bfloat16": {"dtype": "bfloat16"}, "1 thread": {"threads": 1},
    "1 head, 1 thread": {"heads": 1, "threads": 1},
}  # fmt: skip


def rounds(tokens: int) -> int:
    return 9 if tokens <= 2048 else 5 if tokens <= 4096 else 3 if tokens <= 32_768 else 1


def grid(longest: int, threads: int) -> Iterator[Settings]:
    """What is measured, in no order."""
    lengths = [128 << n for n in range(11) if 128 << n <= longest]
    middle = Settings(tokens=(), threads=threads, backward=True, only=(ALL, OFF, RECEIVED, ENTROPY))
    for T in (T for T in lengths if T <= MOST_OF_EIGHT):
        yield replace(middle, tokens=(T,), repeats=rounds(T))
    plain = replace(middle, backward=False, only=(ALL, OFF))
    changes = [c for c in CHANGES.values() if c != {"heads": 1} and c.get("threads") != threads]
    for T in (T for T in BESIDE if longest >= T):
        for change in changes:
            yield replace(plain, tokens=(T,), repeats=rounds(T), **change)
    for T in lengths:
        yield replace(plain, tokens=(T,), repeats=rounds(T), heads=1, only=(ALL,))


def work(point: Settings) -> float:
    """How long it will take, in a unit of its own."""
    (T,) = point.tokens
    turns = 2 * len(point.only) * (4 if point.backward else 1)
    return point.heads * point.d_head * T**2 * turns * (point.repeats + 1) / (point.threads or 1)


def measured(points: Iterable[Settings], minutes: float) -> Iterator[Record]:
    """A record of each, the shortest first, as it comes, with its settings; of one that would take
    too long, `left_out`, the seconds that it would have taken.
    """
    began, pace = time.perf_counter(), 0.0
    for point in sorted(points, key=work):
        (T,) = point.tokens
        start = time.perf_counter()
        guess = pace * work(point)
        if start - began + guess > 60 * minutes:
            yield asdict(point) | {"tokens": T, "left_out": guess}
            continue
        check(point)
        torch.set_num_threads(point.threads or 1)
        record = bench.measure(point, T, lambda turns, *_: turns)
        pace = (time.perf_counter() - start) / work(point)
        yield asdict(point) | record | {"tokens": T}


def row(record: Record, name: str, group: str = "forward") -> Record | None:
    named = (x for x in record["contenders"] if (x["name"], x["group"]) == (name, group))
    return next(named, None)


def over(record: Record, name: str, base: str) -> float | None:
    """The median over the rounds of the time of one of ours over another's."""
    a, b = row(record, name), row(record, base)
    if a is None or b is None:
        return None
    return statistics.median(x / y for x, y in zip(a["seconds"], b["seconds"], strict=True))


def ratio(record: Record, name: str, group: str = "forward") -> float | None:
    found = row(record, name, group)
    return None if found is None else float(found["ratio"])


def share(record: Record, name: str) -> float | None:
    found = row(record, name)
    return None if found is None else float(found["share"])


FIGURES = {  # of a record, by their headings
    "all": lambda r: ratio(r, ALL),
    "off": lambda r: ratio(r, OFF),
    "received": lambda r: ratio(r, RECEIVED),
    "backward": lambda r: ratio(r, ENTROPY, "forward + backward"),
    "all/off": lambda r: over(r, ALL, OFF),
    "rec./all": lambda r: over(r, RECEIVED, ALL),
}
HEADING = (
    f"{'tokens':>8} {'heads':>5} {'D':>4} {'dtype':<9}{'mask':<8}{'thr.':>4}{'SDPA ms':>11}"
    + "".join(f"{name:>9}" for name in FIGURES)
)  # fmt: skip


def line(record: Record) -> str:
    """The conditions; SDPA's time; what ours take in SDPA's; what the diagnostics add to ours."""
    base = row(record, "SDPA")
    assert base is not None
    found = [figure(record) for figure in FIGURES.values()]
    return (
        f"{record['tokens']:>8,} {record['heads']:>5} {record['d_head']:>4} {record['dtype']:<9}"
        f"{'causal' if record['causal'] else 'none':<8}{record['threads']:>4}"
        f"{base['median'] * 1e3:>11,.2f}"
        + "".join(f"{'-':>9}" if x is None else f"{x:>9.2f}" for x in found)
    )


def _left_out(record: Record) -> str:
    return (f"{record['tokens']:>8,} {record['heads']:>5} {record['d_head']:>4} left out: about "
            f"{record['left_out']:,.0f} s more")  # fmt: skip


def of_middle(records: Sequence[Record], threads: int, **change: Any) -> list[Record]:
    """The records of the middle with one change, the shortest first."""
    wanted = asdict(Settings(tokens=(), threads=threads)) | change
    keys = ("heads", "d_head", "dtype", "causal", "threads")
    found = [r for r in records if all(r[key] == wanted[key] for key in keys)]
    return sorted(found, key=lambda r: int(r["tokens"]))


def speedup(records: Sequence[Record], threads: int) -> list[str]:
    """How much faster one head is on all threads than on one, here and there."""
    found = []
    for one in of_middle(records, 1, heads=1):
        for many in of_middle(records, threads, heads=1):
            if threads > 1 and many["tokens"] == one["tokens"]:
                times = [(row(one, n), row(many, n)) for n in (ALL, "SDPA")]
                ours, theirs = (a["median"] / b["median"] for a, b in times if a and b)
                found.append(
                    f"one head of {one['tokens']:,} tokens on {threads} threads: {ours:.2f} times "
                    f"as fast as on one; SDPA {theirs:.2f} times"
                )
    return found


# The picture --------------------------------------------------------------------------------------


@house_style()
def figure(document: Record) -> Figure:
    """Four panels: the ratio to SDPA over tokens, and beside the middle; shares; what is added."""
    records, threads = document["points"], document["machine"]["threads"]
    notes = [
        ("", "8 heads of 64, causal, float32, every thread, except where it says otherwise; "
             "medians of 9 rounds, of fewer above 2,048 tokens; "
             f"{chip_name(document['machine'])}, {threads} threads, torch "
             f"{document['machine']['torch']}"),
        ("", "1 and 2: the time of a call over that of PyTorch's scaled_dot_product_attention, in "
             "turns with it. Dotted, and | in 2: what a call would take whose two products ran at "
             "the best rate that was measured here"),
    ]  # fmt: skip
    top, axes = page(
        "The native kernel with every diagnostic, beside PyTorch's fused attention",
        notes, Room(4, 2, (640, 400), 110, 60, 230, (240, 110), 44),
    )  # fmt: skip
    eight, one = of_middle(records, threads), of_middle(records, threads, heads=1)
    _ratios(axes[0], eight, one)
    _beside(axes[1], records, threads)
    _shares(axes[2], eight, one)
    _added(axes[3], eight)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return top


def _curve(
    ax: Axes, records: Sequence[Record], figure: Any, color: str, name: str = "", **look: Any
) -> list[tuple[float, str, str]]:  # fmt: skip
    """Draws a figure over the tokens; where the curve ends, with its name, if there is one."""
    points = [(r["tokens"], y) for r in records if (y := figure(r)) is not None]
    if not points:
        return []
    x, y = zip(*points, strict=True)
    look = {"linewidth": 1.5, "marker": "o", "markersize": 3.5} | look
    ax.plot(x, y, color=color, label=name or None, **look)
    return [(y[-1], name, color)]


def _legend(ax: Axes, where: str) -> None:
    ax.legend(loc=where, frameon=False, fontsize=8, labelspacing=0.3, handlelength=1.6)


def _tokens(ax: Axes, records: Sequence[Record]) -> None:
    from matplotlib.ticker import NullLocator

    lengths = sorted({r["tokens"] for r in records})
    ax.set_xscale("log")
    ax.xaxis.set_minor_locator(NullLocator())
    shown = lengths[::-1][:: 2 if len(lengths) > 6 else 1]
    ax.set_xticks(shown, [f"{T:,}" for T in shown])
    ax.set(xlim=(lengths[0] / 1.2, lengths[-1] * 1.2), xlabel="tokens")


def _ratios(ax: Axes, eight: Sequence[Record], one: Sequence[Record]) -> None:
    ax.set_title("1  times SDPA's time")
    _tokens(ax, [*eight, *one])
    ax.axhline(1, color=INK, linewidth=0.9, zorder=1)
    _curve(ax, eight, FIGURES["received"], PLUM, "8 heads, + received")
    _curve(ax, eight, FIGURES["backward"], ORANGE, "8 heads, forward + backward")
    _curve(ax, one, FIGURES["all"], GREEN, "one head, all diagnostics")
    _curve(ax, eight, FIGURES["all"], BLUE, "8 heads, all diagnostics", **MAIN)
    for records, color in ((eight, BLUE), (one, GREEN)):
        _curve(ax, records, lambda r: share(r, "SDPA"), color, linestyle=":", marker="")
    ax.set_ylim(0, max(1.6, ax.get_ylim()[1]))
    _legend(ax, "upper right")


def _beside(ax: Axes, records: Sequence[Record], threads: int) -> None:
    ax.set_title("2  times SDPA's time, one thing changed")
    ax.axvline(1, color=INK, linewidth=0.9, zorder=1)
    names = ["the middle", *CHANGES]
    for at, change in enumerate([{}, *CHANGES.values()]):
        there = of_middle(records, **{"threads": threads} | change)
        seen = [(r, x) for r in there if r["tokens"] in BESIDE and (x := ratio(r, ALL)) is not None]
        if seen:
            ax.plot([x for _, x in seen], [at] * len(seen), color=FAINT, linewidth=1, zorder=1)
        for r, x in seen:
            face = BLUE if r["tokens"] == BESIDE[-1] else "white"
            ax.plot(x, at, "o", color=BLUE, markerfacecolor=face, markersize=5.5, zorder=3)
            least = BLUE if r["tokens"] == BESIDE[-1] else MUTED
            ax.plot(share(r, "SDPA"), at, "|", color=least, markersize=7, zorder=2)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_xlim(0, max(1.25, ax.get_xlim()[1]))
    ax.set_xlabel(
        f"open: {BESIDE[0]:,} tokens; full: {BESIDE[1]:,}; | at the best rate, blue: {BESIDE[1]:,}"
    )


def _shares(ax: Axes, eight: Sequence[Record], one: Sequence[Record]) -> None:
    from matplotlib.ticker import PercentFormatter

    ax.set_title("3  share of the best rate of this machine")
    _tokens(ax, [*eight, *one])
    _curve(ax, one, lambda r: share(r, ALL), GREEN, "one head, all diagnostics")
    _curve(ax, eight, lambda r: share(r, ALL), BLUE, "8 heads, all diagnostics", **MAIN)
    _curve(ax, eight, lambda r: share(r, "SDPA"), INK, "8 heads, SDPA")
    ax.set_ylim(0, max(1, ax.get_ylim()[1]))  # above 1: products made in another way, by AMX
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    _legend(ax, "lower right")


def _added(ax: Axes, eight: Sequence[Record]) -> None:
    ax.set_title("4  what is added to the kernel's own time")
    _tokens(ax, eight)
    ax.axhline(1, color=INK, linewidth=0.9, zorder=1)
    ends = _curve(ax, eight, FIGURES["rec./all"], PLUM, "received over all")
    ends += _curve(ax, eight, FIGURES["all/off"], BLUE, "all over output only", **MAIN)
    ax.set_ylim(0.8, max(2.0, ax.get_ylim()[1]))
    end_labels(ax, eight[-1]["tokens"], ends)


# ------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--longest", type=int, default=131_072)
    parser.add_argument("--minutes", type=float, default=7.5)
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent)
    options = parser.parse_args(arguments)
    if hindrance := native.hindrance([torch.ones(1, 1, 1, 1)], Rule()):
        raise SystemExit(f"the native kernel {hindrance}")
    make_directory(options.output_dir)
    threads = torch.get_num_threads()
    document: dict[str, Any] = {
        "clearhead": __version__, "machine": machine(), "gemm_size": bench.GEMM_SIZE,
        "points": [], "left_out": [],
    }  # fmt: skip
    print(*machine_line(document["machine"]), "", HEADING, sep="\n")
    try:
        for record in measured(grid(options.longest, threads), options.minutes):
            left_out = "left_out" in record
            document["left_out" if left_out else "points"].append(record)
            print(_left_out(record) if left_out else line(record), flush=True)
    finally:
        torch.set_num_threads(threads)
    print(*speedup(document["points"], threads), sep="\n")
    files = {"native.json": f"{json_text(document)}\n".encode()}
    if middle := of_middle(document["points"], threads):
        rates = [rate for rate in middle[-1]["rates"] if rate["skipped"] is None]
        print(*(f"{x['flops_per_second'] / 1e9:,.0f} GFLOP/s {x['name']}" for x in rates), sep=", ")
        files["native.png"] = plots.png_bytes(figure(document))
    write_files(options.output_dir, files)


if __name__ == "__main__":
    main()
