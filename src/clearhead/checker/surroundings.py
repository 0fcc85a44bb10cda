"""What a call could disturb around it: kept while it runs, and put back."""

import io
import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import numpy as np
import torch
from torch import Tensor

PRINTED = 2_000  # characters that are kept of what a call prints


class Printed(io.RawIOBase):
    """Keeps the beginning of what is written, passes that on to a descriptor, drops the rest."""

    def __init__(self, fd: int | None = None) -> None:
        self.kept, self.fd = bytearray(), fd

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        """Somebody may hold on to it, in a log for example."""

    def fileno(self) -> int:
        if self.fd is None:
            raise io.UnsupportedOperation("fileno")
        return self.fd

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        new = bytes(memoryview(data)[: max(0, 4 * PRINTED - len(self.kept))])
        self.kept += new
        if self.fd is not None and new:
            os.write(self.fd, new)
        return size

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")[:PRINTED]

    def stream(self) -> io.TextIOWrapper:
        """What stands in for sys.stdout and sys.stderr."""
        raw: Any = self
        return io.TextIOWrapper(raw, "utf-8", "replace", write_through=True)


@contextmanager
def captured(fd: int | None = None) -> Iterator[Printed]:
    """Hear what is printed, and let `fd` have the beginning of it."""
    printed = Printed(fd)
    with redirect_stdout(printed.stream()), redirect_stderr(printed.stream()):
        yield printed


@contextmanager
def as_it_was() -> Iterator[None]:
    """Put torch's settings, the global random states, the working directory and the environment
    back; a warning is never an error."""
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    threads, gradients = torch.get_num_threads(), torch.is_grad_enabled()
    states, environment = random_states(), dict(os.environ)
    directory = working_directory()
    try:
        with warnings.catch_warnings():
            hear_warnings()
            yield
    finally:
        if directory is not None and os.path.isdir(directory):
            os.chdir(directory)
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])


def stir() -> None:
    """Random states that nobody has by chance: whoever sets a seed is then seen to do so."""
    torch.manual_seed(732_918_405)
    np.random.seed(732_918_405)  # noqa: NPY002
    random.seed(732_918_405)


def hear_warnings() -> None:
    """Each of them once, but for those that Python keeps from everybody but developers."""
    warnings.simplefilter("default")
    for kind in (DeprecationWarning, PendingDeprecationWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def working_directory() -> str | None:
    """None where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return None


def random_states() -> tuple[Tensor, Any, Any]:
    """The global random states of torch, numpy and random."""
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def same_states(one: tuple[Tensor, Any, Any], two: tuple[Tensor, Any, Any]) -> bool:
    numpy = all(np.array_equal(a, b) for a, b in zip(one[1], two[1], strict=True))
    return torch.equal(one[0], two[0]) and numpy and one[2] == two[2]
