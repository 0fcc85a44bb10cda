"""The texts of a corpus, one by one: files below a folder, or the lines of a JSONL file.

Nothing is held but one piece of one text (of JSONL: one line), whatever there is of them.
"""

import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from clearhead.capture.keeping import shown

LONG = 1 << 18  # characters: of a longer text, that many are in memory at a time
ENDING = ".txt"


@dataclass(frozen=True)
class Text:
    """One text: its number from 0, its name for people, and where it is.

    source  a file, or the text itself
    after   the byte at which the next one begins (of JSONL; 0 for files)
    """

    number: int
    name: str
    source: Path | str
    after: int = 0

    def flaw(self) -> str | None:
        """Why it cannot be read, or None. Raises OSError for a file that may not be."""
        if isinstance(self.source, str):
            return None
        if not stat.S_ISREG(os.stat(self.source).st_mode):  # a pipe would never end
            return "no regular file"
        try:
            with self._open() as file:
                while file.read(LONG):
                    pass
        except UnicodeDecodeError:
            return "not UTF-8"
        return None

    def pieces(self) -> Iterator[str]:
        """The text; one of more than LONG characters in several, cut where white space begins."""
        rest = ""
        with self._open() as file:
            while True:
                piece = rest + file.read(LONG - len(rest))
                if len(piece) < LONG:
                    break
                at = max(piece.rfind(" "), piece.rfind("\n"))
                at = at if at > 0 else len(piece)
                yield piece[:at]
                rest = piece[at:]
        if piece:
            yield piece

    def _open(self) -> TextIO:
        if isinstance(self.source, str):
            return io.StringIO(self.source, newline="")
        return open(self.source, encoding="utf-8-sig", newline="")


@dataclass(frozen=True)
class Texts:
    """A corpus: where it is, how many texts there are, and a digest of every name and byte.

    Of JSONL a text has the number of its line, from 0; empty lines are no texts.
    """

    path: Path
    count: int
    digest: str

    @classmethod
    def of(cls, path: Path) -> "Texts":
        """Look through a folder or a JSONL file, once.

        Raises OSError for what cannot be read, and ValueError where there is no text and for a line
        without one: better now than after a day.
        """
        kind = os.stat(path).st_mode
        if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
            raise ValueError(f"{path} is neither a folder of *{ENDING} files nor a JSONL file")
        digest = hashlib.sha256()
        count = 0
        if stat.S_ISDIR(kind):
            for file in _files(path):
                digest.update(os.fsencode(file.relative_to(path)) + b"\0")
                if stat.S_ISREG(os.stat(file).st_mode):
                    with open(file, "rb") as opened:
                        digest.update(hashlib.file_digest(opened, "sha256").digest())
                count += 1
        else:
            for number, line, _ in _lines(path, 0, 0):
                digest.update(line)
                _text_of(path, number, line)
                count += 1
        if not count:
            what = f"*{ENDING} file below it" if stat.S_ISDIR(kind) else "line in it"
            raise ValueError(f"there is no text in {path}: no {what}")
        return cls(path, count, digest.hexdigest())

    def after(self, number: int, offset: int, rank: int = 0, world: int = 1) -> Iterator[Text]:
        """Those from `number` on, at byte `offset`; of `world` processes those of `rank`.

        Raises ValueError for a line without a text, OSError.
        """
        if self.path.is_dir():
            for n, file in enumerate(_files(self.path)):
                if n >= number and n % world == rank:
                    yield Text(n, shown(str(file.relative_to(self.path))), file)
            return
        for n, line, end in _lines(self.path, number, offset):
            if n % world == rank:
                yield Text(n, f"line {n + 1}", _text_of(self.path, n, line), end)


def _files(folder: Path) -> Iterator[Path]:
    """Every *.txt below a folder, in the order of its bytes; links to folders are not followed."""
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        if path == folder or (path.is_dir() and not path.is_symlink()):
            inside = sorted(os.listdir(path), key=os.fsencode, reverse=True)
            waiting += [path / name for name in inside]
        elif path.name.endswith(ENDING) and not path.is_dir():
            yield path


def _lines(path: Path, number: int, offset: int) -> Iterator[tuple[int, bytes, int]]:
    """(number, line, byte after it) of every line that is not empty, from one on."""
    with open(path, "rb") as file:
        file.seek(offset)
        for n, line in enumerate(file, number):
            offset += len(line)
            if line.strip():
                yield n, line, offset


def _text_of(path: Path, number: int, line: bytes) -> str:
    try:
        said = json.loads(line.decode("utf-8-sig" if number == 0 else "utf-8"))
        text = said.get("text") if isinstance(said, dict) else None
        why = '"text" is no string' if isinstance(said, dict) and "text" in said else 'no "text"'
    except RecursionError:
        text, why = None, "it is nested too deeply"
    except UnicodeDecodeError:
        text, why = None, "it is not UTF-8"
    except ValueError as error:
        text, why = None, f"it is not JSON ({error})"
    if not isinstance(text, str):
        raise ValueError(
            f'{path}, line {number + 1}: {why}; each line of a JSONL file is {{"text": "..."}}'
        )
    return text
