"""Other people's code in a process of its own, which may hang, die or print without end.

    with Hosted("attention.py:attend") as subject:
        subject.call(Request((q, k, v)))     a Reply, whatever happens in there

The process is killed with all that it started when a limit is over, and the next call gets a fresh
one. It ends when this one does. What it sends is read as records (`wire.py`) and never run.
"""

import os
import re
from dataclasses import replace
from typing import Any

from clearhead.checker.calls import About, Failure, Reply, Request, source_line
from clearhead.checker.host import split
from clearhead.checker.process import Ended, Process
from clearhead.checker.wire import pack

START = 120.0  # seconds that importing torch may take, from a cold disk for example
FRESH = 3  # processes that are started after the first one
FRAME = re.compile(r'^  File "(.*)", line (\d+) in ', re.MULTILINE)


class NotLoaded(ValueError):
    """A target that cannot be had. `failure` says why, and in which line."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        where = f" (line {failure.line}: {failure.source})" if failure.line else ""
        super().__init__(failure.message + where)


class Hosted:
    """A target that is loaded and called in a process of its own.

    target  file.py:name, file.py, package.module:name
    limit   seconds for loading it, beyond importing torch, and for each call
    """

    def __init__(self, target: str, limit: float = 10.0) -> None:
        if not limit > 0:
            raise ValueError(f"limit must be more than 0 seconds, and is {limit}")
        self.target, self.limit = target, limit
        self._process: Process | None = None
        self._taken: tuple[str, dict[str, Any]] | None = None
        self._about: About | None = None
        self._unloadable: Failure | None = None
        self._last: Failure | None = None
        self._ended = 0

    def __enter__(self) -> "Hosted":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def about(self) -> About:
        """What was taken, or the name in the target. NotLoaded: there is no such thing."""
        return self._about or self.take()

    def list(self) -> tuple[About, ...]:
        """Functions and nn.Module classes that the file itself defines, in order. NotLoaded."""
        found: tuple[About, ...] = self._prepare({"do": "list"}, tuple[About, ...])
        return found

    def look(self, name: str = "") -> About:
        """What a name stands for, before anything is built. NotLoaded: there is no such thing."""
        found: About = self._prepare({"do": "look", "name": name}, About)
        return found

    def take(self, name: str = "", keywords: dict[str, Any] | None = None) -> About:
        """Choose what is called: `name`, or the name in the target, or the only one that is there.

        A class, or a function that says that it makes a module, is called with the keywords (values
        as in a Request) and gives what is called then. NotLoaded: there is no such thing, or it
        cannot be built.
        """
        taken = (name, keywords or {})
        command = {"do": "take", "name": taken[0], "keywords": taken[1]}
        self._about = self._prepare(command, About)
        self._taken = taken
        return self._about

    def call(self, request: Request) -> Reply:
        """Make a call. What hangs or dies is a Failure, and the next call has a fresh process.

        ValueError: the request's parameters do not fit. NotLoaded: nothing can be called.
        """
        if self._about is None:
            self.take()
        if self._process is not None and self._process.popen.poll() is not None:
            self._ended, self._last = self._ended + 1, Failure("died", "ended between two calls")
            self.close()
        if self._process is None and self._taken is not None:
            try:
                self.take(*self._taken)
            except NotLoaded as error:
                return Reply(failure=error.failure)
        command = {"do": "call", "request": request}
        try:
            answer, printed = self._ask(command, Reply | dict[str, str], self.limit)
        except Ended as end:
            self._last = Failure("hung" if end.hung else "died", str(end), *self._where(end.trace))
            return Reply(printed=end.printed, failure=self._last)
        if isinstance(answer, dict):
            raise ValueError(answer.get("mistake"))
        reply: Reply = replace(answer, printed=printed)
        return reply

    def close(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _prepare(self, command: dict[str, Any], hint: Any) -> Any:
        """The answer to a command that comes before calls. NotLoaded: there is none."""
        if self._unloadable is not None:
            raise NotLoaded(self._unloadable)
        if self._process is None:
            self._start()
        try:
            answer, _ = self._ask(command, hint | Failure, self.limit)
        except Ended as end:
            self._last = self._not_loaded(end)
            raise NotLoaded(self._last) from None
        if isinstance(answer, Failure):
            raise NotLoaded(answer)
        return answer

    def _start(self) -> None:
        """A process in which the target is loaded."""
        if self._ended > FRESH and self._last is not None:
            words = f"not asked again after {self._ended} processes; the last: {self._last.message}"
            raise NotLoaded(replace(self._last, message=words))
        failure: Failure | None
        try:
            self._process = Process(self.limit)
            self._ask(None, str, START)
            command = {"do": "load", "target": self.target}
            failure, _ = self._ask(command, Failure | None, self.limit)
        except Ended as end:
            failure = self._not_loaded(end)
        if failure is not None:
            self.close()
            self._unloadable = failure
            raise NotLoaded(failure)

    def _ask(self, command: Any, hint: Any, limit: float) -> tuple[Any, str]:
        assert self._process is not None
        data = b"" if command is None else pack(command)
        try:
            return self._process.ask(data, hint, limit)
        except BaseException as error:
            self._ended += isinstance(error, Ended)
            self.close()
            raise

    def _not_loaded(self, end: Ended) -> Failure:
        said = end.printed.strip().splitlines()
        last = f"; it said last: {said[-1][:200]}" if said and not end.hung else ""
        return Failure("loading", f"{end} while it was loaded{last}", *self._where(end.trace))

    def _where(self, trace: str) -> tuple[int | None, str]:
        """The innermost line of the person's own file in what a dying process left."""
        for file, line in FRAME.findall(trace):
            if own := self._own(file):
                return int(line), source_line(own, int(line))
        return None, ""

    def _own(self, file: str) -> str | None:
        """The path behind a file name in a trace, None where that is not the person's own file."""
        place, _ = split(self.target)
        known = [os.path.abspath(place), os.path.realpath(place)]
        known += [self._about.file] if self._about is not None else []
        for path in known:
            written = path.encode("ascii", "backslashreplace").decode()
            if written == file or (file.endswith("...") and written.startswith(file[:-3])):
                return path
        ends = [os.path.join("", *place.split("."), "__init__.py")]
        ends.append(os.path.join("", *place.split(".")) + ".py")
        inside = any(file.endswith(os.sep + end) for end in ends)
        return file if inside and not place.endswith(".py") else None
