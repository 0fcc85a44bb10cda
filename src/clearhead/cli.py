"""The command line: `clearhead VERB`, and `python build.py`, which is its verb demo.

Only arguments are handled here; each verb imports what it needs when it runs, so that help is
quick and `clearhead doctor` works where torch does not.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from clearhead import __version__

_LONGEST_TEXT = 1 << 26  # bytes of a text file: far more than a dense build can take


class Mistake(Exception):
    """Something the person at the keyboard can put right; told in one line, exit status 2."""


class _Parser(argparse.ArgumentParser):
    """argparse with mistakes told in one line."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message} (see {self.prog} --help)")


@contextmanager
def _mistakes() -> Iterator[None]:
    """What is refused at a door is a mistake; the same ValueError further in is a bug of ours."""
    try:
        yield
    except ValueError as error:
        raise Mistake(str(error)) from error


@dataclass(frozen=True)
class Verb:
    name: str
    group: str
    summary: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of a directory is empty")
    return Path(text)


# demo -----------------------------------------------------------------------------------------


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tiny", action="store_true", help="d_model 32, 4 heads (the default)")
    size.add_argument("--full", action="store_true", help="d_model 64, 8 heads")
    parser.add_argument("--d-model", type=int, metavar="N", help="numbers in an embedding")
    parser.add_argument("--n-heads", type=int, metavar="N", help="heads; must divide d_model")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", metavar="TEXT", help="your own words, split at white space")
    text.add_argument(
        "--file", metavar="PATH", help="the same from a UTF-8 file (- to read a pipe)"
    )
    parser.add_argument(
        "--output-dir", type=_directory, default=Path("outputs"), metavar="DIR",
        help="where the pictures, the log and results.json go (default: outputs)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print results.json, not the text")


def _demo(arguments: argparse.Namespace) -> int:
    text = _read_text(arguments)
    from clearhead import demo
    from clearhead.build import Settings, check
    from clearhead.views.terminal import Terminal

    d_model, n_heads = (64, 8) if arguments.full else (32, 4)
    settings = Settings(
        tokens=(demo.TOY_SENTENCE if text is None else text).split(),
        d_model=d_model if arguments.d_model is None else arguments.d_model,
        n_heads=n_heads if arguments.n_heads is None else arguments.n_heads,
        seed=arguments.seed,
        toy=text is None,
    )
    with _mistakes():
        check(settings)
    demo.run(settings, arguments.output_dir, Terminal(), as_json=arguments.json)
    return 0


def _read_text(arguments: argparse.Namespace) -> str | None:
    """The person's own words, or None for the sentence in the box."""
    if arguments.file is None:
        text: str | None = arguments.text
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates; spell them out.
        return None if text is None else text.encode("utf-8", "backslashreplace").decode()
    with open(0 if arguments.file == "-" else arguments.file, "rb") as file:
        content = file.read(_LONGEST_TEXT + 1)
    if len(content) > _LONGEST_TEXT:
        raise Mistake(f"{arguments.file} is longer than {_LONGEST_TEXT} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Mistake(
            f"{arguments.file} is not UTF-8: byte 0x{content[error.start]:02x} at offset "
            f"{error.start}. Save it as UTF-8 (iconv -t UTF-8 does it)"
        ) from error


# scaling --------------------------------------------------------------------------------------


def _scaling_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--d-head", type=int, nargs="+", metavar="N", help="head sizes (default 16 64 256 1024)"
    )
    parser.add_argument("--tokens", type=int, metavar="N", help="queries, and keys (default 1024)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    parser.add_argument(
        "--output-dir",
        type=_directory,
        metavar="DIR",
        help="also write scaling.png and .json there",
    )
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _scaling(arguments: argparse.Namespace) -> int:
    from clearhead import scaling
    from clearhead.views.terminal import Terminal

    sizes = arguments.d_head or scaling.HEAD_SIZES
    n_tokens = scaling.N_TOKENS if arguments.tokens is None else arguments.tokens
    with _mistakes():
        scaling.measure_scaling(sizes, n_tokens, arguments.seed)
    scaling.run(sizes, n_tokens, arguments.seed, arguments.output_dir, Terminal(), arguments.json)
    return 0


# bench ----------------------------------------------------------------------------------------


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[4096], metavar="N",
        help="lengths, one after the other (default 4096)",
    )  # fmt: skip
    parser.add_argument("--heads", type=int, default=8, metavar="N", help="heads (default 8)")
    parser.add_argument(
        "--d-head", type=int, default=64, metavar="N", help="head size (default 64)"
    )
    parser.add_argument(
        "--dtype", default="float32", metavar="TYPE",
        help="float32 (the default), bfloat16, float16 or float64",
    )  # fmt: skip
    parser.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=True,
        help="queries see no later keys (the default)",
    )  # fmt: skip
    parser.add_argument("--backward", action="store_true", help="forward + backward as well")
    parser.add_argument(
        "--flex", action=argparse.BooleanOptionalAction, default=True,
        help="compile FlexAttention too, where there is a C++ compiler (the default)",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="rounds (default 5)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: torch's own)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default) or cuda")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default 0)")
    parser.add_argument(
        "--output-dir", type=_directory, default=Path("outputs"), metavar="DIR",
        help="for bench.json and, of two lengths or more, bench.png (default: outputs)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")


def _bench(arguments: argparse.Namespace) -> int:
    from clearhead import bench
    from clearhead.contenders import Settings, check
    from clearhead.views.terminal import Terminal

    options = dict(vars(arguments))
    output_dir, as_json = options.pop("output_dir"), options.pop("json")
    settings = Settings(**options | {"tokens": tuple(arguments.tokens)})
    with _mistakes():
        check(settings)
    bench.run(settings, output_dir, Terminal(), as_json)
    return 0


# doctor ---------------------------------------------------------------------------------------


def _doctor_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def _doctor(arguments: argparse.Namespace) -> int:
    from clearhead import doctor
    from clearhead.views.terminal import Terminal

    return doctor.run(Terminal(), as_json=arguments.json)


# The door -------------------------------------------------------------------------------------

VERBS = (
    Verb("demo", "Learn", "build attention from first principles, with numbers and pictures",
         "clearhead demo --text 'to be or not to be' --n-heads 2", _demo_arguments, _demo),
    Verb("scaling", "Learn", "measure why scores are divided by sqrt(d_head)",
         "clearhead scaling --d-head 16 64 --tokens 512", _scaling_arguments, _scaling),
    Verb("bench", "Check", "time exact attention with every diagnostic beside its rivals",
         "clearhead bench --tokens 512 1024 --heads 2 --backward", _bench_arguments, _bench),
    Verb("doctor", "Check", "say what is installed, what is missing and how to get it",
         "clearhead doctor", _doctor_arguments, _doctor),
)  # fmt: skip


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
