"""A benchmark for people: a table for each length, a picture of time and memory over lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clearhead.views.page import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PLUM,
    SKY,
    Room,
    end_labels,
    house_style,
    page,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

BUSY = 2.5  # how far a median is from the least of its rounds where something else was running

# Who is drawn, by the beginning of the name in a record, and under which short name.
_CURVES = (
    ("native, all", "native, all diagnostics", BLUE),
    ("native, stat", "native, statistics only", GREEN),
    ("tiled, all", "tiled, all diagnostics", SKY),
    ("SDPA twice", "SDPA twice", PLUM),
    ("dense", "dense", ORANGE),
    ("Flex", "FlexAttention", MUTED),
    ("SDPA", "SDPA", INK),
)


def machine_line(machine: Record) -> list[str]:
    """The conditions in two lines."""
    on = f", {machine['gpu']}" if machine["gpu"] else ""
    load = "" if machine["load"] is None else f", load {machine['load']:.1f} before we began"
    kernel = machine["kernel"] or "not built"
    return [
        f"{chip_name(machine)}{on}: {machine['cores']} cores, {_threads(machine)}{load}",
        f"native kernel {kernel}; torch {machine['torch']} ({machine['capability']}), "
        f"Python {machine['python']}, {machine['system']}",
    ]


def chip_name(machine: Record) -> str:
    """AMD EPYC (family 25, model 17): the name of a virtual machine's chip is often cut off."""
    numbers = [f"{x} {machine[x]}" for x in ("family", "model") if machine[x] is not None]
    return f"{machine['cpu']} ({', '.join(numbers)})" if numbers else str(machine["cpu"])


def _threads(machine: Record) -> str:
    return "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"


def bench_table(run: Record, settings: Record, gemm_size: int) -> list[str]:
    """One length as a table: times in ms, memory in MB (of 1,000,000 bytes)."""
    seen = "causal" if settings["causal"] else "no mask"
    rates = [x for x in run["rates"] if x["skipped"] is None]
    shown = ", ".join(f"{x['flops_per_second'] / 1e9:,.0f} {x['name']}" for x in rates)
    lines = [
        "",
        f"=== T = {run['tokens']:,}, H = {settings['heads']}, D = {settings['d_head']}, "
        f"{settings['dtype']}, {seen} ===",
        f"  GFLOP/s: {shown}",
        f"  products of {gemm_size:,} x {gemm_size:,}; of best: the share of "
        f"{run['best_flops_per_second'] / 1e9:,.0f} GFLOP/s; one map of all heads would take "
        f"{run['map_bytes'] / 1e6:,.1f} MB",
        *(f"  {x['name']} left out: {x['skipped']}" for x in run["rates"] if x not in rates),
    ]
    group = None
    for row in run["contenders"]:
        if row["group"] != group:
            group = row["group"]
            lines.append(
                f"  {group:<29}  median ms     min ms     x SDPA  of best   extra MB  returned MB"
            )
        if row["skipped"] is not None:
            lines.append(f"    {row['name']:<27}  skipped: {row['skipped']}")
            continue
        lines.append(
            f"    {row['name']:<27}{row['median'] * 1e3:>11,.2f}{row['min'] * 1e3:>11,.2f}"
            f"{row['ratio']:>10,.2f}x{row['share']:>8.0%}{row['extra_bytes'] / 1e6:>12,.2f}"
            f"{row['returned_bytes'] / 1e6:>12,.2f}"
        )
    measured = [row for row in run["contenders"] if row["skipped"] is None]
    if any(row["name"].startswith("native, all") for row in measured):
        lines.append(
            "  native's diagnostics have the top key among them; tiled finds it when asked."
        )
    apart = [row["median"] / row["min"] for row in measured]
    if max(apart) > BUSY:
        lines.append(
            f"  The machine was busy: a median is {max(apart):.0f} times its least. Close other "
            "programs, or take --threads 1."
        )
    return lines


@house_style()
def bench_figure(document: Record) -> Figure:
    """Time and extra memory of the forward pass over the number of tokens, both logarithmic.

    `document` is what bench.json holds, with two lengths or more. Who was left out at a length has
    no point there. Raises ValueError for fewer lengths.
    """
    runs = sorted(document["runs"], key=lambda run: run["tokens"])
    lengths = sorted({run["tokens"] for run in runs})
    if len(lengths) < 2:
        raise ValueError(f"curves need two lengths or more; got {lengths}")
    settings, machine = document["settings"], document["machine"]
    notes = [
        ("", f"H = {settings['heads']}, D = {settings['d_head']}, {settings['dtype']}, "
             f"{'causal' if settings['causal'] else 'no mask'}; medians of {settings['repeats']}; "
             f"{chip_name(machine)}, {_threads(machine)}, torch {machine['torch']}"),
        ("", "memory: the peak during the call beyond q, k, v and what it returns"),
    ]  # fmt: skip
    figure, axes = page(
        "Exact attention with every diagnostic: time and memory",
        notes, Room(2, 2, (560, 470), 70, 76, 190, (310, 0), 44),
    )  # fmt: skip
    for ax, key, title in zip(
        axes, ("median", "extra_bytes"), ("1  time of a call", "2  extra memory"), strict=True
    ):
        ax.set_title(title)
        ax.set(xscale="log", yscale="log", xlim=(lengths[0] / 1.15, lengths[-1] * 1.15))
        if ax is axes[1]:  # before the names are placed: it reaches higher than any curve
            maps = [run["map_bytes"] for run in runs]
            ax.plot([run["tokens"] for run in runs], maps, color=INK, linewidth=0.9,
                    linestyle=(0, (4, 3)), zorder=1)  # fmt: skip
        _curves(ax, runs, key)
        _ticks(ax, lengths, "s" if key == "median" else "B")
    axes[1].text(0.02, 0.97, "dashed: one T x T map of all heads", transform=axes[1].transAxes,
                 size=8, color=MUTED, va="top")  # fmt: skip
    return figure


def _curves(ax: Axes, runs: Sequence[Record], key: str) -> None:
    """The contenders that were measured, each named where its curve ends."""
    ends: dict[float, list[tuple[float, str, str]]] = {}
    for begin, name, color in _CURVES:
        points = []
        for run in runs:
            rows = [row for row in run["contenders"] if row["group"] == "forward"]
            row = next((row for row in reversed(rows) if row["name"].startswith(begin)), None)
            if begin == "SDPA":
                row = rows[0]
            if row is not None and row.get(key) is not None:
                # A logarithm has no zero: a call that takes nothing stands at a page of memory.
                points.append((run["tokens"], max(row[key], 4096 if key == "extra_bytes" else 0)))
        if points:
            x, y = zip(*points, strict=True)
            first = color == BLUE
            ax.plot(x, y, color=color, linewidth=2.6 if first else 1.3, marker="o",
                    markersize=5 if first else 3.5, zorder=3 if first else 2)  # fmt: skip
            ends.setdefault(x[-1], []).append((y[-1], name, color))
    ax.margins(y=0.12)
    ax.autoscale_view(scalex=False)
    for x_end, there in ends.items():
        end_labels(ax, x_end, there)
    ax.spines[["top", "right"]].set_visible(False)


def _ticks(ax: Axes, lengths: Sequence[int], unit: str) -> None:
    """The lengths that were measured, and powers of ten in words: 10 ms, 100 MB."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    step = -(-len(lengths) // 7)
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks(lengths[::-1][::step], [f"{T:,}" for T in lengths[::-1][::step]])
    ax.set_xlabel("tokens")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _in_words(value, unit)))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _in_words(value: float, unit: str) -> str:
    power = min(max(math.floor(math.log10(value) / 3 + 1e-9), -3), 3)
    return f"{value / 1000**power:,.3g} {('', 'k', 'M', 'G', 'n', 'µ', 'm')[power]}{unit}"
