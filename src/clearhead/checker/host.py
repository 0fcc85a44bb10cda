"""Where somebody's file is loaded and called: a process that may hang, die or flood its output.

`hosting.py` starts it and speaks with it in frames (`wire.py`):

    {"do": "load", "target": ..}     None
    {"do": "list"}                   (About, ...) of what the file itself defines
    {"do": "look", "name": ..}       About, before anything is built
    {"do": "take", "name": .., "keywords": {..}}     About
    {"do": "call", "request": Request}     Reply

Each answer may be a Failure instead, or {"mistake": words} where the caller asked for nonsense.
"""

import difflib
import faulthandler
import functools
import importlib
import importlib.util
import inspect
import os
import queue
import random
import re
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from clearhead.checker.about import written_as
from clearhead.checker.calls import About, Failure, Reply, about, failure_of, perform, stand_in
from clearhead.checker.surroundings import captured, hear_warnings
from clearhead.checker.wire import Garbage, TooLong, pack, receive, unpack

FACTORY = re.compile(r"_*(make|build|get|create)(_|[A-Z]|$)")


class Problem(Exception):
    """Why a target cannot be had."""


class Host:
    """A target: its file, and what was taken from it."""

    def __init__(self, said: int) -> None:
        self.said = said  # the descriptor on which is heard what is printed
        self.module: ModuleType = ModuleType("nothing")
        self.file = self.wanted = ""
        self.target: Any = None

    def do(self, command: dict[str, Any]) -> Any:
        """What a command asks for, or the Failure that came of it."""
        todo = command.pop("do")
        if todo == "call":
            try:
                return perform(self.target, command["request"], self.said, self.file)
            except ValueError as error:
                return {"mistake": str(error)}
            except KeyboardInterrupt as error:  # nobody's hands: the code's own
                return Reply(failure=failure_of(error, self.file))
        with captured(self.said):
            try:
                seed()
                todos: dict[str, Callable[..., Any]]
                todos = {
                    "load": self.load, "list": self.list, "look": self.look, "take": self.take
                }  # fmt: skip
                return todos[todo](**command)
            except Problem as problem:
                return Failure("loading", str(problem))
            except BaseException as error:
                return failure_of(error, self.file, "loading")

    def load(self, target: str) -> None:
        """Import the file or module of file.py, file.py:name, package.module or a name in that."""
        place, self.wanted = split(target)
        if not place.endswith(".py") and not os.path.exists(place):
            sys.path.insert(0, os.getcwd())
            spec = importlib.util.find_spec(place) if place.strip(".") == place != "" else None
            if spec is None:
                raise Problem(f"there is no module {place!r}, and no file of that name")
            self.file = os.path.realpath(spec.origin or "")
            self.module = importlib.import_module(place)
            return
        path = os.path.abspath(place)
        if os.path.isdir(path):
            raise Problem(f"{place} is a folder; name a file in it, as {place}/attention.py")
        if not os.path.exists(path):
            raise Problem(f"there is no file {place}{near_files(path)}")
        self.file = os.path.realpath(path)
        sys.path.insert(0, os.path.dirname(path))
        sys.argv[:] = [path]
        stem = os.path.splitext(os.path.basename(path))[0]
        name = f"checked_{stem}" if stem in sys.modules else stem
        loader = importlib.machinery.SourceFileLoader(name, path)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        self.module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loader.exec_module(self.module)

    def list(self) -> tuple[About, ...]:
        """The functions and nn.Module classes that the file itself defines, in order."""
        found = [about(value, name) for name, value in self.defined().items()]
        return tuple(sorted(found, key=lambda each: each.first_line))

    def defined(self) -> dict[str, Any]:
        """By their names, each thing once."""
        found: dict[int, tuple[str, Any]] = {}
        for name, value in vars(self.module).items():
            if self.defines(value):
                found.setdefault(id(value), (name, value))
        return dict(found.values())

    def defines(self, value: Any) -> bool:
        written = written_as(value)
        if inspect.isclass(value):
            wanted = issubclass(value, nn.Module)
        else:
            wanted = callable(value) and inspect.isfunction(written)
        return wanted and getattr(written, "__module__", None) == self.module.__name__

    def look(self, name: str) -> About:
        """What a name stands for, before anything is built."""
        name, value = self.find(name)
        return about(value, name)

    def find(self, name: str) -> tuple[str, Any]:
        """The value of a name, of the name in the target, or of the only one that is there."""
        known = [*self.defined()]
        name = name or self.wanted or (known[0] if len(known) == 1 else "")
        if not name:
            raise Problem(f"name what is meant: {self.place()} has {', '.join(known) or 'nothing'}")
        try:
            value: Any = self.module
            for part in name.split("."):
                value = getattr(value, part)
        except AttributeError:
            close = difflib.get_close_matches(name, known) or known
            words = f"it has {', '.join(close)}" if close else "it defines no function or module"
            raise Problem(f"{self.place()} has no {name!r}; {words}") from None
        if not callable(value):
            raise Problem(f"{name} in {self.place()} is a {type(value).__name__}, nothing to call")
        return name, value

    def take(self, name: str, keywords: dict[str, Any]) -> About:
        """Find a name, build it where it is a class or makes a module, and keep it for calls."""
        value: Any
        name, value = self.find(name)
        made = {key: stand_in(each) for key, each in keywords.items()}
        if inspect.isclass(value):
            value = value(**made)
            if not callable(value) and callable(getattr(value, "forward", None)):
                value = value.forward
        elif is_factory(value, made):
            built = value(**made)
            if isinstance(built, nn.Module):
                value = built
        elif made:
            raise Problem(f"{name} is a function: it is not built with {', '.join(made)}")
        if not callable(value):
            raise Problem(f"a {type(value).__name__} cannot be called: it has no forward")
        self.target = value.eval() if isinstance(value, nn.Module) else value
        return about(self.target, name)

    def place(self) -> str:
        return os.path.basename(self.file) or self.module.__name__


def split(target: str) -> tuple[str, str]:
    """Where a target is and what it is called there, "" where it does not say."""
    place, colon, name = target.rpartition(":")
    if colon and place and all(part.isidentifier() for part in name.split(".")):
        return place, name
    return target, ""


def near_files(path: str) -> str:
    folder, name = os.path.split(path)
    if not os.path.isdir(folder):
        return f": there is no folder {folder}"
    files = [each for each in os.listdir(folder) if each.endswith(".py")]
    close = difflib.get_close_matches(name, files)
    return f"; near it: {', '.join(close)}" if close else ""


def is_factory(function: Any, keywords: dict[str, Any]) -> bool:
    """Whether a function says that it makes a module, and needs no more than it is given."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return False
    for name, one in signature.parameters.items():
        var = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if one.default is one.empty and not var and name not in keywords:
            return False
    made = signature.return_annotation
    if isinstance(made, str):
        made = getattr(function, "__globals__", {}).get(made, made)
    says = isinstance(made, str) and made.endswith("Module")
    says = says or (inspect.isclass(made) and issubclass(made, nn.Module))
    return says or FACTORY.match(getattr(function, "__name__", "")) is not None


def seed() -> None:
    """The same weights each time, so that a fresh process answers as the one before it."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


def listen(frames: int, commands: "queue.Queue[Any]") -> None:
    """Hand on what is asked. Where nobody can ask any more, end, whatever goes on here."""
    with suppress(Garbage, OSError):
        while (frame := receive(functools.partial(os.read, frames))) is not None:
            commands.put(unpack(frame))
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(0)


def main(frames: tuple[int, int], mark: bytes, limit: float) -> None:
    """Answer commands until the pipe ends. What takes longer than the limit ends the process."""
    coming, going = frames
    said, me = os.dup(2), os.getpid()
    faulthandler.enable(said)
    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    hear_warnings()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, it is not the caller who is to die
    commands: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=listen, args=(coming, commands), daemon=True).start()
    host = Host(said)
    answer: Any = "ready"
    while True:
        frame = packed(answer)
        os.write(said, mark)
        write(going, frame)
        command = commands.get()
        faulthandler.dump_traceback_later(limit, file=said, exit=True)
        answer = host.do(command)
        if os.getpid() != me:  # a fork of somebody's that came back here
            os._exit(0)
        faulthandler.cancel_dump_traceback_later()


def packed(answer: Any) -> bytes:
    try:
        return pack(answer)
    except (TooLong, TypeError) as error:
        failure = Failure("returned", f"returned what cannot be handed over: {error}")
        return pack(Reply(failure=failure) if isinstance(answer, Reply) else failure)


def write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left[: 2**20]) :]
