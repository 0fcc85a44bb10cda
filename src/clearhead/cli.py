"""The command line: `clearhead VERB`, and `python build.py`, which is its verb demo."""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import NoReturn

from clearhead import __version__
from clearhead.verb import Mistake, Verb
from clearhead.verbs import VERBS


class _Parser(argparse.ArgumentParser):
    """argparse with mistakes told in one line."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> int:
    """Run one verb and return the exit status.

    0 done, 1 done and found wanting, 2 a mistake (told in one line on standard error), 130
    interrupted. `program` is the name to speak under where it is not `clearhead VERB`: build.py.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = program or "clearhead"
    for stream in ("stdout", "stderr"):  # closed by the caller: what is said goes nowhere
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 (for as long as we run)
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(_overview())
            return 0
        if arguments[0] in ("-V", "--version"):
            print(f"clearhead {__version__}")
            return 0
        verb = _find_verb(arguments[0])
        name = program or f"clearhead {verb.name}"
        status = verb.run(_parser(verb, name).parse_args(arguments[1:]))
        sys.stdout.flush()
        return status
    except Mistake as mistake:
        return _complain(f"{name}: {mistake}", 2)
    except BrokenPipeError:
        from clearhead.views.terminal import silence

        silence(sys.stdout)
        return 0
    except ImportError as error:
        return _complain(f"{name}: {error}. `clearhead doctor` says what to install", 2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename is not None else ""
        return _complain(f"{name}: {place}{error.strerror or error}", 2)
    except KeyboardInterrupt:
        return _complain(f"{name}: interrupted", 130)


def _complain(message: str, status: int) -> int:
    line = " ".join(message.split())  # one line, whatever was in it
    encoding = sys.stderr.encoding or "ascii"
    with suppress(OSError):
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
    return status


def _find_verb(name: str) -> Verb:
    for verb in VERBS:
        if verb.name == name:
            return verb
    near = get_close_matches(name, [verb.name for verb in VERBS], n=1)
    hint = f"did you mean {near[0]}?" if near else f"verbs: {', '.join(v.name for v in VERBS)}"
    raise Mistake(f"there is no verb {name!r}; {hint} (see clearhead --help)")


def _parser(verb: Verb, name: str) -> _Parser:
    example = verb.example if name.startswith("clearhead") else verb.example.replace(
        f"clearhead {verb.name}", f"python {name}"
    )  # fmt: skip
    parser = _Parser(
        prog=name,
        description=f"{verb.summary[0].upper()}{verb.summary[1:]}.",
        epilog=f"Example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verb.arguments(parser)
    return parser


def _overview() -> str:
    lines = ["clearhead: attention from scratch that you can read, check and see.", ""]
    lines += ["usage: clearhead VERB [options]     clearhead VERB --help"]
    for group in dict.fromkeys(verb.group for verb in VERBS):
        lines += ["", f"{group}:"]
        lines += [f"  {verb.name:<9} {verb.summary}" for verb in VERBS if verb.group == group]
    return "\n".join([*lines, "", f"Begin with: {VERBS[0].example}"])
