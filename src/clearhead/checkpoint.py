"""A training on the disk: one file that is whole or the one before, and lines that only grow.

checkpoint.safetensors  weights, the optimizer's moments and, in its header, all that was said
metrics.jsonl           one line a measurement: strict JSON
"""

import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.files import write_files

CHECKPOINT, METRICS, LOCK = "checkpoint.safetensors", "metrics.jsonl", ".lock"


@contextmanager
def heard_later(every: bool = False) -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets, instead of breaking off in the middle of something.

    The second one is what it always is, unless `every` one is to be heard so. Outside of the main
    thread nothing changes.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def give_back() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def press(*_: object) -> None:
        pressed.set()
        if not every:
            give_back()

    for number in before:
        signal.signal(number, press)
    try:
        yield pressed
    finally:
        give_back()


def pack(model: nn.Module, optimizer: torch.optim.Optimizer, said: Mapping[str, Any]) -> bytes:
    """A checkpoint as a file: model.*, m.* and v.* (AdamW's moments) of each parameter."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    for name, weight in model.named_parameters():
        tensors[f"model.{name}"] = weight.detach()
        state = optimizer.state.get(weight, {})
        if state:
            tensors[f"m.{name}"] = state["exp_avg"]
            tensors[f"v.{name}"] = state["exp_avg_sq"]
    return save(tensors, {"training": json.dumps(said, allow_nan=False)})


def read_said(path: Path) -> dict[str, Any]:
    """What a checkpoint says of its training. Raises ValueError for a file that is none."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            said = json.loads((file.metadata() or {})["training"])
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise ValueError(f"{path} is no checkpoint of a training: {error}") from error
    if not isinstance(said, dict) or "step" not in said:
        raise ValueError(f"{path} is no checkpoint of a training")
    return said


def unpack(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Put a checkpoint's weights and moments back into a model and its AdamW."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file, torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(file.get_tensor(f"model.{name}"))
                if step:
                    optimizer.state[weight] = {
                        "step": torch.tensor(float(step)),
                        "exp_avg": file.get_tensor(f"m.{name}").clone(),
                        "exp_avg_sq": file.get_tensor(f"v.{name}").clone(),
                    }
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit this model: {error}") from error


def append_lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Add records, one line each, and see that they are on the disk."""
    with open(path, "a", encoding="ascii") as file:
        file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of lines, up to one that is none: the last, if it was cut off."""
    records = []
    if path.exists():
        for line in path.read_text("ascii", "replace").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict) or "step" not in record:
                break
            records.append(record)
    return records


def rewind(path: Path, step: int) -> None:
    """Leave only the records up to `step`."""
    kept = [record for record in read_lines(path) if record["step"] <= step]
    text = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
    write_files(path.parent, {path.name: text.encode("ascii")})
