"""A training as somebody watches it: a line, a screen that changes, and a picture at the end.

All three read the records that train.py hands out and metrics.jsonl keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clearhead.views.page import (
    BLUE,
    GREEN,
    MUTED,
    ORANGE,
    PLUM,
    Room,
    end_labels,
    house_style,
    page,
)
from clearhead.views.terminal import curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
FAINT_LINE = "#b9c3ca"
SCORES = (("induction", BLUE), ("previous", ORANGE))
TITLES = {
    "induction": "looks at what followed this token earlier",
    "previous": "looks at the token before",
}


def training_line(records: Sequence[Record], steps: int) -> str:
    """Where a training stands, in one line."""
    loss, look = _latest(records, "loss"), _latest(records, "look")
    parts = [f"step {_step(records):>6,}/{steps:,}", *_losses(loss, look)]
    if speed := _speed(records, steps):
        parts.append(speed)
    if look:
        parts.append("entropy " + " ".join(f"{h:.2f}" for h in look["entropy"]))
        parts += [f"{name} {_best(look, name)}" for name, _ in SCORES]
    return "  ".join(parts)


def training_screen(records: Sequence[Record], steps: int, width: int = 80) -> list[str]:
    """The same as a screen: losses with their course, and every layer with its heads."""
    loss, look = _latest(records, "loss"), _latest(records, "look")
    step, room = _step(records), max(8, min(40, width - 40))
    done = int(room * step / max(1, steps))
    lines = [
        f"step {step:,} of {steps:,}  {'█' * done}{'·' * (room - done)}",
        _speed(records, steps),
        "  ".join(_losses(loss, look)),
    ]
    for name, label in (("loss", "loss on the text"), ("repeat_loss", "loss on repeats")):
        course = [r[name] for r in records if r["kind"] == "loss" and r[name] is not None]
        if len(course) > 1:
            top = max(course)
            lines.append(f"{label:<17} {curve([x / top for x in course], room)}  {course[-1]:.3f}")
    if look:
        lines += [
            "",
            "layer  entropy 0..1                each head's entropy, induction, previous",
        ]
        for n, mean in enumerate(look["entropy"]):
            heads = [head for head in look["heads"] if head["layer"] == n]
            bars = "  ".join(
                curve([head[key] for head in heads], len(heads))
                for key in ("entropy", "induction", "previous")
            )
            full = round(20 * mean)
            lines.append(f"{n:>5}  {'█' * full}{'·' * (20 - full)} {mean:.2f}  {bars}")
        lines.append("best   " + "   ".join(f"{name} {_best(look, name)}" for name, _ in SCORES))
    return lines


def _latest(records: Sequence[Record], kind: str) -> Record | None:
    return next((r for r in reversed(records) if r["kind"] == kind), None)


def _step(records: Sequence[Record]) -> int:
    return int(records[-1]["step"]) if records else 0


def _losses(loss: Record | None, look: Record | None) -> list[str]:
    said = []
    if loss and loss["loss"] is not None:
        said.append(f"loss {loss['loss']:.3f}")
    if loss and loss["repeat_loss"] is not None:
        said.append(f"repeats {loss['repeat_loss']:.3f}")
    if look and look["held_loss"] is not None:
        said.append(f"held back {look['held_loss']:.3f} ({look['bits_per_byte']:.3f} bits/byte)")
    return said


def _speed(records: Sequence[Record], steps: int) -> str:
    """Tokens a second and the time left, from the last lines about the loss."""
    lines = [r for r in records if r["kind"] == "loss"][-6:]
    if len(lines) < 2 or lines[-1]["seconds"] <= lines[0]["seconds"]:
        return ""
    took = lines[-1]["seconds"] - lines[0]["seconds"]
    rate = (lines[-1]["tokens"] - lines[0]["tokens"]) / took
    left = (steps - lines[-1]["step"]) * took / max(1, lines[-1]["step"] - lines[0]["step"])
    return f"{rate:,.0f} tokens/s  {duration(left)} left"


def duration(seconds: float) -> str:
    """3 s, 4:05 min or 1:02:30 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02} h"


def _best(look: Record, name: str) -> str:
    head = max(look["heads"], key=lambda head: head[name])
    return f"{head[name]:.2f} (head {head['layer']}.{head['head']})"


# The picture --------------------------------------------------------------------------------------


@house_style()
def training_figure(records: Sequence[Record], title: str = "A training, and its heads") -> Figure:
    """Losses, every head's two scores and the entropy of each layer over the steps.

    Raises ValueError without two looks at the heads: there is nothing to draw.
    """
    looks = [r for r in records if r["kind"] == "look"]
    if len(looks) < 2:
        raise ValueError(f"a course needs two looks at the heads or more; got {len(looks)}")
    notes = [
        ("", "heads are measured on random tokens that repeat, where language means nothing: "
             "1 would be all weight"),
        ("", "induction counts what followed the token in all earlier repeats: at most 0.75 "
             "(dashed), since the first block has nothing to look back to"),
        ("", "entropy: mean over a layer's heads, 0 = one key, 1 = all keys alike"),
    ]  # fmt: skip
    figure, axes = page(title, notes, Room(4, 2, (560, 330), 70, 60, 170, (250, 74), 44))
    last = max(r["step"] for r in records)
    _draw_losses(axes[0], records)
    _draw_entropy(axes[1], looks)
    for ax, (name, color) in zip(axes[2:], SCORES, strict=True):
        _draw_scores(ax, looks, name, color)
    for ax in axes:
        ax.set_xlim(0, last)
        ax.spines[["top", "right"]].set_visible(False)
        ax.xaxis.set_major_formatter("{x:,.0f}")
    for ax in axes[2:]:
        ax.set_xlabel("step")
    return figure


def _draw_losses(ax: Axes, records: Sequence[Record]) -> None:
    ends = []
    for kind, key, name, color in (
        ("loss", "loss", "text", MUTED), ("loss", "repeat_loss", "repeats", BLUE),
        ("look", "held_loss", "held back", GREEN),
    ):  # fmt: skip
        points = [(r["step"], r[key]) for r in records if r["kind"] == kind and r[key] is not None]
        if points:
            x, y = zip(*points, strict=True)
            ax.plot(x, y, color=color, linewidth=1.4)
            ends.append((y[-1], f"{name} {y[-1]:.2f}", color))
    ax.set_title("1  loss, nats a token")
    ax.set_ylim(bottom=0)
    end_labels(ax, max(r["step"] for r in records), ends)


def _draw_entropy(ax: Axes, looks: Sequence[Record]) -> None:
    x, ends = [r["step"] for r in looks], []
    colors = (BLUE, ORANGE, GREEN, PLUM)
    for n in range(len(looks[0]["entropy"])):
        y = [r["entropy"][n] for r in looks]
        ax.plot(x, y, color=colors[n % 4], linewidth=1.4)
        ends.append((y[-1], f"layer {n} {y[-1]:.2f}", colors[n % 4]))
    ax.set_title("2  entropy of each layer")
    ax.set_ylim(0, 1.02)
    end_labels(ax, x[-1], ends)


def _draw_scores(ax: Axes, looks: Sequence[Record], name: str, color: str) -> None:
    """Every head thin, the best of the last look in color and by name."""
    x = [r["step"] for r in looks]
    heads = list(zip(*(r["heads"] for r in looks), strict=True))
    best = max(range(len(heads)), key=lambda n: heads[n][-1][name])
    for n, head in enumerate(heads):
        y = [moment[name] for moment in head]
        ax.plot(x, y, color=color if n == best else FAINT_LINE, linewidth=2 if n == best else 0.8,
                zorder=3 if n == best else 2)  # fmt: skip
    end = heads[best][-1]
    ax.set_title(f"{3 + [s for s, _ in SCORES].index(name)}  {name}: {TITLES[name]}")
    ax.set_ylim(0, 1.02)
    if name == "induction":
        ax.axhline(0.75, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    label = f"head {end['layer']}.{end['head']} {end[name]:.2f}"
    end_labels(ax, x[-1], [(end[name], label, color)])
