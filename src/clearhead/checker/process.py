"""A process of its own, asked over a pipe and listened to: `Process`. It has a time limit."""

import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from clearhead.checker.surroundings import PRINTED
from clearhead.checker.wire import Garbage, receive, unpack

GRACE = 1.0  # seconds after the limit in which the process should have ended by itself
TAIL = 65_536  # bytes that are kept of the end of what is printed: where it died stands there
BOOT = """
import os, sys
frames = os.dup(0), os.dup(1)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.dup2(2, 1)
sys.path.insert(0, sys.argv[1])
from clearhead.checker.host import main
if sys.path.count(sys.argv[1]) > 1:
    sys.path.remove(sys.argv[1])
else:
    sys.path.append(sys.path.pop(0))
main(frames, sys.argv[2].encode(), float(sys.argv[3]))
"""
ENVIRONMENT = {
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
DUMP = re.compile(r"(Timeout \(\d+:\d\d:\d\d|Fatal Python error: )")


class Heard(threading.Thread):
    """What a process prints: the beginning of it since the last mark, and the very end."""

    def __init__(self, fd: int, mark: bytes) -> None:
        super().__init__(daemon=True)
        self.fd, self.mark = fd, mark
        self.head, self.tail = bytearray(), bytearray()
        self.parts: queue.Queue[bytes] = queue.Queue()
        self.start()

    def run(self) -> None:
        rest = b""
        with suppress(OSError):
            while chunk := os.read(self.fd, 65_536):
                *whole, rest = (rest + chunk).split(self.mark)
                for part in whole:
                    self.keep(part)
                    self.parts.put(bytes(self.head))
                    self.head.clear()
                    self.tail.clear()
                sure = max(0, len(rest) - len(self.mark) + 1)
                self.keep(rest[:sure])
                rest = rest[sure:]
        self.keep(rest)

    def keep(self, data: bytes) -> None:
        self.head += data[: max(0, 4 * PRINTED - len(self.head))]
        self.tail = (self.tail + data)[-TAIL:]

    def part(self) -> str:
        """What was printed before the mark that goes with an answer."""
        with suppress(queue.Empty):
            return self.parts.get(timeout=GRACE).decode("utf-8", "replace")[:PRINTED]
        return ""

    def last_words(self) -> tuple[str, str]:
        """What was printed since the last mark, and the traces that the dying process left."""
        self.join(GRACE)
        tail = bytes(self.tail).decode("utf-8", "replace")
        dumps = list(DUMP.finditer(tail))
        trace = tail[dumps[-1].start() :] if dumps else ""
        printed = bytes(self.head).decode("utf-8", "replace")
        return printed.removesuffix(trace)[:PRINTED] if trace else printed[:PRINTED], trace


class Ended(Exception):
    """The process is gone. hung: it had used up its time."""

    def __init__(self, words: str, hung: bool = False, printed: str = "", trace: str = "") -> None:
        super().__init__(words)
        self.hung, self.printed, self.trace = hung, printed, trace


class Process:
    """A running host, and the two pipes and the ear that go with it."""

    def __init__(self, limit: float) -> None:
        mark = secrets.token_hex(16)
        root = str(Path(__file__).resolve().parents[2])
        words = [sys.executable, "-P", "-c", BOOT, root, mark, repr(limit)]
        apart: dict[str, Any] = (
            {"start_new_session": True}
            if os.name == "posix"
            else {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        )
        pipe = subprocess.PIPE
        self.popen = subprocess.Popen(
            words,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            bufsize=0,
            env=os.environ | ENVIRONMENT,
            **apart,
        )
        assert self.popen.stdin and self.popen.stdout and self.popen.stderr
        self.killed = False
        self.heard = Heard(self.popen.stderr.fileno(), mark.encode())
        self.frames: queue.Queue[bytes | Garbage | None] = queue.Queue(maxsize=1)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.popen.stdout
        fd = self.popen.stdout.fileno()
        frame: bytes | Garbage | None = b""
        while isinstance(frame, bytes):
            try:
                frame = receive(lambda size: os.read(fd, size))
            except Garbage as garbage:
                frame = garbage
            except OSError:
                frame = None
            self.frames.put(frame)

    def ask(self, command: bytes, hint: Any, limit: float) -> tuple[Any, str]:
        """The answer to a command, and what was printed meanwhile. Ended: there is none."""
        began, early = time.monotonic(), not self.frames.empty()
        watch = threading.Timer(limit + GRACE, self.kill)
        watch.daemon = True
        watch.start()
        try:
            self._write(command)
            frame = self._next()
            if isinstance(frame, bytes) and early:
                frame = Garbage("nobody had asked")
            if isinstance(frame, bytes):
                return unpack(frame, hint), self.heard.part()
        except Garbage as garbage:
            frame = garbage
        finally:
            watch.cancel()
        hung = time.monotonic() - began >= limit
        words = f"sent what is no answer: {frame}" if frame else self._status()
        self.kill()
        printed, trace = self.heard.last_words()
        if hung:
            raise Ended(f"no answer after {limit:g} s", True, printed, trace)
        raise Ended(words, False, printed, trace)

    def _write(self, data: bytes) -> None:
        assert self.popen.stdin
        left = memoryview(data)
        with suppress(OSError):  # it is gone, as the next frame will say
            while left:
                left = left[self.popen.stdin.write(left[: 2**20]) or 0 :]

    def _next(self) -> bytes | Garbage | None:
        while True:  # in slices: elsewhere than on POSIX a wait cannot be broken off
            with suppress(queue.Empty):
                return self.frames.get(timeout=0.5)
            if self.popen.poll() is not None and self.frames.empty():
                return None  # it has ended, and what it started holds its pipe

    def _status(self) -> str:
        try:
            status = self.popen.wait(GRACE)
        except subprocess.TimeoutExpired:
            return "closed its pipes"
        if status >= 0:
            return f"ended with exit status {status if status < 256 else hex(status)}"
        with suppress(ValueError):
            name = signal.Signals(-status).name
            why = ": often because memory ran out" if name == "SIGKILL" else ""
            return f"ended with signal {-status} ({name}){why}"
        return f"ended with signal {-status}"

    def kill(self) -> None:
        """End the process and what it started."""
        if self.killed:
            return
        self.killed = True
        if os.name == "posix":
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.kill()

    def close(self) -> None:
        self.kill()
        self.popen.wait()
        if self.popen.stdin:
            self.popen.stdin.close()
        until = time.monotonic() + GRACE
        while self.reader.is_alive() and time.monotonic() < until:
            with suppress(queue.Empty):  # it may hold a frame that nobody took
                self.frames.get(timeout=0.01)
        for thread, pipe in ((self.reader, self.popen.stdout), (self.heard, self.popen.stderr)):
            thread.join(GRACE)
            if pipe and not thread.is_alive():  # else what it started elsewhere holds it open
                pipe.close()
