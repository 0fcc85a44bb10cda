"""The verb that shows a run in the browser: view. Arguments alone, as in verbs.py."""

import argparse
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from clearhead.verb import Mistake, Verb, directory, mistakes

if TYPE_CHECKING:
    from clearhead.run import Run
    from clearhead.viewer.tabs import Progress, Tab

KEEP = "clearhead inspect {} --keep qk --save RUN"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="*", type=directory, metavar="RUN",
        help="folders of runs; nothing: the model in the box, and heads made by hand over 32,768 "
        "tokens",
    )  # fmt: skip
    parser.add_argument("--port", type=int, metavar="N", help="default: the first free from 8000")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="NAME",
        help="the address to listen at (default 127.0.0.1: this computer alone)",
    )  # fmt: skip
    parser.add_argument(
        "--no-open", dest="open", action="store_false", help="do not open the browser"
    )


def _view(arguments: argparse.Namespace) -> int:
    if arguments.port is not None and not 1 <= arguments.port < 1 << 16:
        raise Mistake(f"--port must be from 1 to 65535; got {arguments.port}")
    if not arguments.host:
        raise Mistake("--host is empty: 127.0.0.1 is this computer")
    try:
        from clearhead.viewer import server
    except ModuleNotFoundError as error:
        raise Mistake(_lacks(error)) from error
    from clearhead.views.terminal import Terminal

    terminal = Terminal()
    with mistakes():
        tabs = _tabs(arguments.runs) if arguments.runs else _boxed()
    try:
        listening = server.listen(arguments.port, arguments.host)
    except OSError as error:
        raise Mistake(_no_port(arguments.host, arguments.port, error)) from error
    interrupted = False
    with _until_told() as told, server.Server(tabs, listening, arguments.host) as running:
        if arguments.host not in ("127.0.0.1", "localhost", "::1"):
            Terminal(sys.stderr).line(
                f"note: at {arguments.host} others can reach this server too, and read the runs"
            )
        terminal.line(f"{running.address}  (Ctrl-C ends it)")
        if arguments.open:
            opening = threading.Thread(  # a browser in the terminal would keep us until it ends
                target=webbrowser.open, args=(running.address,), daemon=True
            )
            opening.start()
        try:
            told.wait()
        except KeyboardInterrupt:
            interrupted = True
    if running.busy:  # threads inside torch abort a Python that ends around them
        if interrupted:
            Terminal(sys.stderr).line("clearhead view: interrupted")
        os._exit(130 if interrupted else 0)
    if interrupted:
        raise KeyboardInterrupt
    return 0


def _lacks(error: ModuleNotFoundError) -> str:
    """What is not installed, and the command that brings all of it."""
    from clearhead.doctor import VIEW, with_extra

    name, _, _ = (error.name or "").partition(".")
    return (
        f"{name} is not installed, which the extra [{VIEW}] of clearhead brings: {with_extra(VIEW)}"
    )


def _no_port(host: str, port: int | None, error: OSError) -> str:
    from clearhead.viewer.server import free_port

    if port is None:
        return f"cannot listen at {host}: {error.strerror or error}"
    free = free_port(port, host)
    offer = "" if free is None else f"; --port {free} is free"
    return f"port {port} at {host} cannot be had ({error.strerror or error}){offer}"


@contextmanager
def _until_told() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, for an end in good order; Ctrl-C interrupts, as everywhere."""
    told = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        told.set()

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def _tabs(folders: list[Path]) -> "list[Tab]":
    """The runs of some folders."""
    from clearhead.comparing import short_names
    from clearhead.run import load
    from clearhead.viewer.server import ids_of
    from clearhead.viewer.tabs import Tab

    runs = [load(folder) for folder in folders]
    names = short_names([str(folder) for folder in folders])
    return [
        Tab.of(id, name, run, KEEP.format("MODEL"))
        for id, name, run in zip(ids_of(names), names, runs, strict=True)
    ]


def _boxed() -> "list[Tab]":
    """The model in the box on a text of ours, and the heads of the textbook: both take a moment."""
    from clearhead.viewer.tabs import Tab
    from clearhead.viewer.textbook import textbook

    def tiny(progress: "Progress") -> "Run":
        from clearhead import inspection, subject

        found = subject.find(None)
        windows = found.windows(inspection.TEXT)[:1]
        return inspection.examine(found, windows, inspection.Asked(keep="qk"))

    return [
        Tab("tiny-en", "tiny-en", tiny, KEEP.format("")),
        Tab("textbook", "textbook", lambda progress: textbook(progress=progress), ""),
    ]


VIEW = Verb("view", "Look", "walk through the maps of a run in the browser, down to one weight",
            "clearhead view runs/a --no-open", _arguments, _view)  # fmt: skip
