"""The terminal: text that fits where it lands, and progress for whoever is watching.

Colors and bars appear on a terminal only, and only where rich is installed: without it, or in a
pipe, the same words come out plain.
"""

import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

Item = TypeVar("Item")

_BARS = "▁▂▃▄▅▆▇█"
_NOTHING = "·"
# What each of our own marks becomes where the encoding has no such character.
_ASCII = str.maketrans(
    {**dict(zip(_BARS, "_.-:=+*#", strict=True)), "·": ".", "√": "sqrt", "±": "+-", "…": "..."}
)


def curve(values: Sequence[float | None], width: int = 12) -> str:
    """Values in 0..1 as a line of bars, one a value, or one for the mean of each of `width` runs.

    None, where there is nothing to show, becomes a dot.
    """
    cells = min(len(values), width)
    edges = [len(values) * cell // cells for cell in range(cells + 1)]
    return "".join(_bar(values[a:b]) for a, b in itertools.pairwise(edges))


def _bar(values: Sequence[float | None]) -> str:
    seen = [value for value in values if value is not None]
    if not seen:
        return _NOTHING
    share = sum(seen) / len(seen)
    return _BARS[min(max(int(share * len(_BARS)), 0), len(_BARS) - 1)]


def token_list(tokens: Sequence[str], most: int = 40) -> str:
    """The tokens as Python writes a list of strings; of more than `most`, both ends.

    Of a token longer than 60 characters, the beginning.
    """
    tokens = [token if len(token) <= 60 else f"{token[:60]}..." for token in tokens]
    if len(tokens) <= most:
        return str(list(tokens))
    left, right = tokens[: most // 2], tokens[-3:]
    hidden = len(tokens) - len(left) - len(right)
    return f"{str(list(left))[:-1]}, ... {hidden} more ..., {str(list(right))[1:]}"


def matrix(values: "NDArray[np.floating]") -> list[str]:
    """A matrix as numpy prints it, to three decimals; above 1,000 numbers, its corners."""
    import numpy as np  # here, because the doctor must speak where numpy is missing

    with np.printoptions(threshold=1000, edgeitems=3, linewidth=75):
        return np.array2string(values, precision=3, suppress_small=True).splitlines()


class Terminal:
    """Standard output and standard error, as far as each can show things.

    Lines go to `out`, headings in color on a terminal; what its encoding cannot hold is spelled in
    ASCII. Progress goes to `err`, so that it never stands between the lines. A reader that leaves
    early stops the lines and not the work.
    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out = sys.stdout if out is None else out
        self.err = sys.stderr if err is None else err
        self._colored = _rich_console(self.out)
        self._watched = _rich_console(self.err)
        self._left = False

    @property
    def width(self) -> int:
        """Columns of the terminal; 80 where there is none."""
        return 80 if self._colored is None else self._colored.width

    def line(self, text: str = "") -> None:
        """Print one line, a heading where it says `=== ... ===`."""
        if self._left:
            return
        text = _spelled(text, self.out)
        try:
            if self._colored is not None and text.startswith("=== "):
                self._colored.print(text, style="bold cyan", markup=False, soft_wrap=True)
            else:
                print(text, file=self.out, flush=True)
        except BrokenPipeError:  # the reader, `head` for instance, has seen enough
            self._left = True
            silence(self.out)

    def lines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.line(text)

    @contextmanager
    def warnings_as_notes(self) -> Iterator[None]:
        """What a library warns of comes out on `err` in one line each, once, not as a listing."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for message in dict.fromkeys(str(warning.message) for warning in caught):
            print(f"note: {_spelled(message, self.err)}", file=self.err)

    def progress(self, items: Iterable[Item], label: str, total: int) -> Iterable[Item]:
        """Hand on `items` one by one, with a bar where somebody can watch it."""
        if self._watched is None:
            return items
        from rich.progress import track

        return track(items, label, total, console=self._watched, transient=True)

    @contextmanager
    def screen(self) -> Iterator[Callable[[Iterable[str]], None] | None]:
        """A function that shows lines in place of those before, or None where nobody can watch."""
        if self._colored is None:
            yield None
            return
        from rich.live import Live
        from rich.text import Text

        with Live(console=self._colored, auto_refresh=False, vertical_overflow="crop") as live:

            def show(lines: Iterable[str]) -> None:
                text = "\n".join(_spelled(line, self.out) for line in lines)
                live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

            yield show


def silence(stream: TextIO) -> None:
    """Send what is still to be flushed nowhere: its reader has left, and Python would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _spelled(text: str, stream: TextIO) -> str:
    """The text in characters that the stream's encoding has, and no controls of a terminal."""
    text = "".join(c if c == "\n" or c >= " " else ascii(c)[1:-1] for c in text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        _BARS.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _rich_console(stream: TextIO) -> "Console | None":
    """rich's view of a stream that is a terminal; None for a pipe, a file, or without rich."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False)
