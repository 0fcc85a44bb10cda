"""The verb train: from a text, or from nothing but repetition, to a small model and its course."""

import statistics
import sys
import time
from pathlib import Path

import torch

from clearhead import checkpoint
from clearhead.files import make_directory, write_files
from clearhead.recipe import Settings
from clearhead.train import Record, Training, run
from clearhead.views import plots
from clearhead.views.terminal import Terminal
from clearhead.views.training import duration, training_figure, training_line, training_screen

PICTURE = "training.png"
SAMPLE = 60  # tokens that the model writes at the end


def source_of(folder: Path) -> str | None:
    """The file that the training in `folder` learns from; None for a recipe without one.

    Raises ValueError where there is no training.
    """
    path = folder / checkpoint.CHECKPOINT
    if not path.exists():
        raise ValueError(f"there is no training to resume in {folder}")
    source: str | None = checkpoint.read_said(path)["source"]
    return source


def prepare(
    folder: Path, text: str | None, source: str | None, settings: Settings, resume: bool
) -> Training:
    """A new training, or the one whose checkpoint lies in `folder`.

    Raises ValueError where there is one already and nobody asked to go on, or none to go on with.
    """
    path = folder / checkpoint.CHECKPOINT
    if resume:
        source_of(folder)  # is there one?
        return Training.resume(folder, text)
    if path.exists() and (step := checkpoint.read_said(path)["step"]):  # at step 0 it is no loss
        raise ValueError(
            f"{folder} holds a training at step {step}: --resume goes on with it, another "
            "--output-dir leaves it alone"
        )
    return Training.begin(settings, text, source)


def plan(training: Training, terminal: Terminal) -> None:
    """What a training would take: sizes, and the time and memory of a few steps tried here."""
    s, model = training.settings, training.model
    times = []
    for _ in range(4):
        began = time.perf_counter()
        training._one_step()
        times.append(time.perf_counter() - began)
    each = statistics.median(times[1:])
    per_step = s.batch * s.accumulate * s.context
    seen = s.steps * per_step
    of_text = seen * (1 - (s.repeats_at(0) + s.repeats_at(s.steps - 1)) / 2)
    n_tokens = len(training.corpus.train)
    terminal.lines([
        f"parameters  {model.n_parameters:,} in {s.n_layers} layers of {s.n_heads} heads, "
        f"d_model {s.d_model}, vocabulary {model.config.vocab_size:,}",
        f"text        {n_tokens:,} tokens, {len(training.corpus.held):,} more held back"
        if n_tokens else "text        none: random tokens that repeat",
        f"tokens      {seen:,} in {s.steps:,} steps of {s.batch * s.accumulate} rows of {s.context}"
        + (f", {of_text / n_tokens:,.1f} times the text" if n_tokens else ""),
        f"time        about {duration(each * s.steps)} here, {each * 1e3:.0f} ms a step",
        f"memory      {_peak_memory() / 1e6:,.0f} MB at the peak of four steps",
        "nothing was written",
    ])  # fmt: skip


def _peak_memory() -> int:
    """Bytes of this process at its largest; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def train(training: Training, folder: Path, terminal: Terminal) -> None:
    """Train to the end with somebody watching; then the picture, and a sample of what it writes."""
    steps = training.settings.steps
    lines = folder / checkpoint.METRICS
    records: list[Record] = [
        record for record in checkpoint.read_lines(lines) if record["step"] <= training.step
    ] if training.step else []  # fmt: skip
    if training.step:
        terminal.line(f"going on at step {training.step:,} of {steps:,}")
    try:
        with terminal.screen() as show:
            for record in run(training, folder):
                records.append(record)
                if show is not None:
                    show(training_screen(records, steps, terminal.width))
                elif record["kind"] == "look":
                    terminal.line(training_line(records, steps))
    except KeyboardInterrupt:
        terminal.line(
            f"stopped at step {training.step:,}; kept in {folder.resolve()}, --resume goes on"
        )
        raise
    write_files(folder, {PICTURE: plots.png_bytes(training_figure(records))})
    terminal.line(f"The model, {checkpoint.METRICS} and {PICTURE} are in {folder.resolve()}")
    if training.model.tokenizer is not None:
        terminal.line(f"It writes: {sample(training)}")


def is_training(folder: Path) -> bool:
    """Whether a folder holds the lines of a training, under way or ended."""
    return (folder / checkpoint.METRICS).exists()


def draw(lines: Path, folder: Path) -> list[str]:
    """Draw the course of the training in `lines` into `folder`; what was written.

    Raises ValueError where nothing has been measured yet.
    """
    records = checkpoint.read_lines(lines / checkpoint.METRICS)
    if not any(record["kind"] == "look" for record in records):
        raise ValueError(f"nothing has been measured yet in {lines / checkpoint.METRICS}")
    make_directory(folder)
    write_files(folder, {PICTURE: plots.png_bytes(training_figure(records))})
    return [str(folder / PICTURE)]


def sample(training: Training) -> str:
    """Some text that the model writes after a line end."""
    model, tokenizer = training.model, training.model.tokenizer
    assert tokenizer is not None
    start = torch.tensor(tokenizer.encode("\n"))
    written = model.generate(start, SAMPLE, temperature=0.8, top_p=0.95, seed=0)
    return " ".join(tokenizer.decode(written.tolist()).split())
