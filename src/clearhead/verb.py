"""What verbs of the command line have in common: their record, a person's mistakes, their files."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LONGEST_TEXT = 1 << 26  # bytes of a text file: far more than a dense build can take
LONGEST_CORPUS = 1 << 32  # bytes to train on


class Mistake(Exception):
    """Something the person at the keyboard can put right; told in one line, exit status 2."""


@contextmanager
def mistakes() -> Iterator[None]:
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


def directory(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name of a directory is empty")
    return Path(text)


def read_text(arguments: argparse.Namespace) -> str | None:
    """The person's own words, or None for the sentence in the box."""
    if arguments.file is None:
        text: str | None = arguments.text
        # Bytes of the command line that are not UTF-8 arrive as lone surrogates; spell them out.
        return None if text is None else text.encode("utf-8", "backslashreplace").decode()
    return read_file(arguments.file, LONGEST_TEXT)


def reading_arguments(parser: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """What a model is to read, and where. The group returned is that of ways to say what."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--text", metavar="TEXT", help="what the model is to read")
    what.add_argument("--file", metavar="PATH", help="the same from a UTF-8 file (- for a pipe)")
    what.add_argument("--ids", metavar="PATH", help="token numbers, for models without a tokenizer")
    parser.add_argument(
        "--tokens", type=int, metavar="N", help="read no more than N tokens of a text"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), cuda, ...")
    parser.add_argument("--dtype", metavar="TYPE", help="default: the checkpoint's own")
    return what


def words(arguments: argparse.Namespace) -> str | None:
    """What is to be read, or its token numbers: once, as a pipe can be. None: a text of ours."""
    name = arguments.file if arguments.ids is None else arguments.ids
    return arguments.text if name is None else read_file(name, LONGEST_CORPUS)


def read_file(name: str, longest: int) -> str:
    """A UTF-8 file, "-" for standard input."""
    with open(0 if name == "-" else name, "rb") as file:
        content = file.read(longest + 1)
    if len(content) > longest:
        raise Mistake(f"{name} is longer than {longest} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Mistake(
            f"{name} is not UTF-8: byte 0x{content[error.start]:02x} at offset "
            f"{error.start}. Save it as UTF-8 (iconv -t UTF-8 does it)"
        ) from error
