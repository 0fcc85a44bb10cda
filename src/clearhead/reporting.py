"""The verb report: a run as one page. Arguments alone, as in verbs.py."""

import argparse
from pathlib import Path

from clearhead.verb import Mistake, Verb, directory, mistakes
from clearhead.viewing import KEEP


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=directory, metavar="RUN", help="a folder with a run")
    parser.add_argument("file", type=directory, metavar="FILE.html", help="the page to write")
    parser.add_argument(
        "--interactive", action="store_true",
        help="the page of `clearhead view`, which works from disk without a server",
    )  # fmt: skip
    parser.add_argument(
        "--max-mb", type=int, metavar="N",
        help="of an interactive page (default 64): one that would be larger has pooled maps",
    )  # fmt: skip


def _report(arguments: argparse.Namespace) -> int:
    from clearhead.run import load
    from clearhead.viewer import offline
    from clearhead.views.terminal import Terminal

    file: Path = arguments.file
    if arguments.max_mb is not None and not arguments.interactive:
        raise Mistake("--max-mb is for --interactive pages; others are small")
    if arguments.max_mb is not None and arguments.max_mb < 1:
        raise Mistake(f"--max-mb must be 1 or more; got {arguments.max_mb}")
    if file.is_dir():
        raise Mistake(f"{file} is a folder; name the page to write, such as {file / 'run.html'}")
    terminal = Terminal()
    with mistakes():
        run = load(arguments.run)
        if not arguments.interactive:
            run.report(file)
            terminal.line(f"written: {file}")
            return 0
        most = offline.MOST if arguments.max_mb is None else arguments.max_mb << 20
        command = f"clearhead view {arguments.run}"
        if not any(call.has_map for call in run.calls):
            command = KEEP.format("MODEL")
        page = offline.make_page(run, arguments.run.resolve().name, command, most)
    terminal.line(f"{file}: {page.said()}")
    offline.write_page(page, file)
    terminal.line(f"written: {file}")
    return 0


REPORT = Verb(
    "report", "Look", "write a run as one page: a report, or all of it to walk through",
    "clearhead report runs/a --interactive a.html", _arguments, _report,
)  # fmt: skip
