"""The verb check: its arguments, and what of it is printed and written."""

import argparse
import ast
import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clearhead.files import check_place, json_text, make_directory, write_files
from clearhead.verb import Mistake, Verb, mistakes

if TYPE_CHECKING:
    from clearhead.checker.diagnosis import Diagnosis
    from clearhead.checker.told import Told
    from clearhead.views.terminal import Terminal

    Named = tuple[str, list[Diagnosis]]  # a file, and what was found in it

LIMIT, FOLDER_LIMIT = 10.0, 5.0  # seconds of a call; of many files, each gets less


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="*", metavar="TARGET",
        help="file.py, file.py:name, package.module:name; a folder or several files: a row each",
    )  # fmt: skip
    parser.add_argument("--against", metavar="TARGET", help="a second one: where do they differ?")
    parser.add_argument(
        "--mask", metavar="FILE", help="instead, say what a mask in a .pt file does"
    )
    told = parser.add_argument_group("what it should do, where its arguments do not say it")
    told.add_argument("--kind", metavar="KIND", help="sdp, teach, module, entropy, rotary or mask")
    told.add_argument("--layout", metavar="AXES", help="BHTD, BTHD, HTD, BTD, TD; of x: BTM, TM")
    told.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=None,
        help="whether no query may see later keys",
    )  # fmt: skip
    told.add_argument(
        "--mask-means", dest="means", metavar="WHAT",
        help="attend (True may look), hide (True may not) or additive",
    )  # fmt: skip
    told.add_argument("--align", metavar="END", help="bottom-right or top-left, with more keys")
    told.add_argument("--window", type=int, metavar="W", help="keys, the query's own included")
    told.add_argument("--softcap", type=float, metavar="C", help="the cap of scores")
    told.add_argument("--scale", type=float, metavar="X", help="instead of 1/sqrt(d_head)")
    told.add_argument("--alibi", action="store_true", help="the usual slopes")
    told.add_argument("--rotary", metavar="PAIRS", help="halves or interleaved")
    told.add_argument("--rotary-base", type=float, default=10000.0, metavar="X")
    told.add_argument("--heads", type=int, metavar="N", help="where its settings do not say it")
    told.add_argument("--kv-heads", type=int, metavar="N", help="key heads, likewise")
    told.add_argument(
        "--set", dest="values", action="append", default=[], metavar="NAME=VALUE",
        help="for a parameter whose name says nothing",
    )  # fmt: skip
    told.add_argument("--strict", action="store_true", help="cautions count as mistakes")
    parser.add_argument(
        "--limit", type=float, metavar="S", help="seconds for each call (default 10)"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print everything as JSON")
    shown.add_argument("--csv", action="store_true", help="print a row a file as CSV")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures")
    parser.add_argument("--verbose", action="store_true", help="all that was tried, too")


def _check(arguments: argparse.Namespace) -> int:
    if arguments.html is not None:
        check_place(arguments.html.parent)
    if arguments.limit is not None and not arguments.limit > 0:
        raise Mistake(f"--limit must be more than 0 seconds; got {arguments.limit:g}")
    if arguments.mask is not None:
        return _mask(arguments)
    if not arguments.target:
        raise Mistake("say what to check: file.py:name, a folder, or --mask FILE")
    if arguments.against is not None:
        return _against(arguments)
    paths = _files(arguments.target)
    return _one(arguments) if paths is None else _many(arguments, paths)


def _told(arguments: argparse.Namespace) -> "Told":
    from clearhead.checker.checks import told_of

    with mistakes():
        return told_of(**_said(arguments))


def _said(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the person said, as `check` takes it."""
    names = ("kind", "layout", "causal", "align", "window", "softcap", "scale", "alibi", "rotary",
             "rotary_base", "heads", "kv_heads", "strict")  # fmt: skip
    values = dict(_value(text) for text in arguments.values)
    return {name: getattr(arguments, name) for name in names} | {
        "mask": arguments.means, "values": values,
    }  # fmt: skip


def _value(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise Mistake(f"--set takes NAME=VALUE, as in --set n_groups=2; got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value  # a word


def _files(targets: list[str]) -> list[Path] | None:
    """Files to look over, a row each; None where one target is meant by itself."""
    found: list[Path] = []
    several = len(targets) > 1
    for target in targets:
        if os.path.isdir(target):
            inside = sorted(Path(target).rglob("*.py"))
            found += [p for p in inside if not any(part.startswith(".") for part in p.parts[1:])]
            several = True
        elif any(sign in target for sign in "*?[") and not os.path.exists(target):
            matched = sorted(glob.glob(target, recursive=True))
            if not matched:
                raise Mistake(f"no file is called {target}")
            found += [Path(each) for each in matched if each.endswith(".py")]
            several = True
        elif target.endswith(("/", os.sep)) or (several and not os.path.exists(target)):
            raise Mistake(f"there is no file or folder {target}")
        else:
            found.append(Path(target))
    if several and not found:
        raise Mistake(f"there is no Python file in {', '.join(targets)}")
    return found if several else None


def _one(arguments: argparse.Namespace) -> int:
    from clearhead.checker.checks import check_file
    from clearhead.views.terminal import Terminal

    target = arguments.target[0]
    found = check_file(target, _told(arguments), arguments.limit or LIMIT)
    if len(found) == 1:
        _show(arguments, found[0], _file_of(target))
    else:
        _show_rows(arguments, [(Path(_file_of(target)), found)], Terminal(), several=True)
    return _status(found)


def _many(arguments: argparse.Namespace, paths: list[Path]) -> int:
    from clearhead.checker.checks import check_files
    from clearhead.views.terminal import Terminal

    told, terminal = _told(arguments), Terminal()
    workers = max(1, min(os.cpu_count() or 1, 8, len(paths)))
    rows = list(terminal.progress(
        check_files(paths, told, arguments.limit or FOLDER_LIMIT, workers), "checking", len(paths)
    ))  # fmt: skip
    _show_rows(arguments, rows, terminal, several=False)
    return _status(each for _, found in rows for each in found)


def _against(arguments: argparse.Namespace) -> int:
    from clearhead.checker.checks import check_against
    from clearhead.checker.hosting import NotLoaded
    from clearhead.views import peers
    from clearhead.views.terminal import Terminal

    if len(arguments.target) > 1 or arguments.csv or arguments.html:
        raise Mistake("--against compares two, and prints: TARGET --against TARGET [--json]")
    try:
        with mistakes():
            found = check_against(
                arguments.target[0], arguments.against, arguments.limit or LIMIT, **_said(arguments)
            )
    except NotLoaded as error:
        raise Mistake(str(error)) from error
    shown = [json_text(found.to_dict())] if arguments.json else peers.lines(found)
    Terminal().lines(shown)
    return found.status


def _mask(arguments: argparse.Namespace) -> int:
    from clearhead.checker.given_mask import diagnose_mask
    from clearhead.checker.stored import read_mask

    if arguments.target or arguments.against:
        raise Mistake("--mask looks at a mask alone: leave the target out")
    with mistakes():
        tensor = read_mask(arguments.mask)
        found = diagnose_mask(tensor, _told(arguments))
    _show(arguments, found, "")
    return found.status


# What is shown ----------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace, found: "Diagnosis", file: str) -> None:
    from clearhead.views import diagnosis as views
    from clearhead.views.terminal import Terminal

    terminal = Terminal()
    if arguments.json:
        terminal.line(json_text(found.to_dict()))
    elif arguments.csv:
        sys.stdout.write(views.csv_text([views.row([found], file)]))
    else:
        terminal.lines(views.lines(found, file, all=arguments.verbose))
    _page(arguments, [(file, [found])], terminal)


def _show_rows(
    arguments: argparse.Namespace, rows: list[tuple[Path, list["Diagnosis"]]],
    terminal: "Terminal", several: bool,
) -> None:  # fmt: skip
    """A folder: a row a file. A file with several functions: each in full, one after the other."""
    from clearhead.views import diagnosis as views

    named = [(str(path), found) for path, found in rows]
    if arguments.json:
        records = [{"file": file, "found": [d.to_dict() for d in found]} for file, found in named]
        terminal.line(json_text(records))
    elif arguments.csv:
        sys.stdout.write(views.csv_text([views.row(found, file) for file, found in named]))
    elif several:
        for file, found in named:
            for index, each in enumerate(found):
                terminal.lines([""] * bool(index))
                terminal.lines(views.lines(each, file, all=arguments.verbose))
    else:
        records = [views.row(found, file) for file, found in _shortened(named)]
        terminal.lines(views.table(records, terminal.width))
    _page(arguments, named, terminal)


def _shortened(named: list["Named"]) -> list["Named"]:
    """With the files' paths from the folder in which all of them are."""
    if len(named) < 2:
        return named
    common = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file, _ in named])
    return [(os.path.relpath(file, common), found) for file, found in named]


def _page(arguments: argparse.Namespace, named: list["Named"], terminal: "Terminal") -> None:
    if arguments.html is None:
        return
    from clearhead.views import diagnosis_page

    each = [(file, one) for file, found in _shortened(named) for one in found]
    if len(each) == 1:
        text = diagnosis_page.page(each[0][1], each[0][0])
    else:
        text = diagnosis_page.folder_page([one for _, one in each], [file for file, _ in each])
    content = text.encode("utf-8", "backslashreplace")
    make_directory(arguments.html.parent)
    write_files(arguments.html.parent, {arguments.html.name: content})
    if not (arguments.json or arguments.csv):
        terminal.line(f"written: {arguments.html}")


def _file_of(target: str) -> str:
    from clearhead.checker.host import split

    return split(target)[0]


def _status(found: Iterable["Diagnosis"]) -> int:
    """0 all right, 1 one is wrong, 2 none is and one could not be tried."""
    statuses = {each.status for each in found}
    return 1 if 1 in statuses else max(statuses, default=2)


CHECK = Verb(
    "check", "Check", "say whether somebody's attention is right, and name what is wrong",
    "clearhead check examples/broken_attention.py:attention", _arguments, _check,
)  # fmt: skip
