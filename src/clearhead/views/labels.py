"""Token text that can be printed, and the fonts that can draw it.

Tokens come from tokenizers and users, so they hold anything: line feeds, lone surrogates,
dollar signs, emoji. `readable` turns one into a short text of visible characters, for the
terminal and the pictures alike; the rest serves the pictures. matplotlib is imported only inside
the functions that need it.
"""

from __future__ import annotations

import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

DPI = 150  # of every picture
BASE_FAMILY = "DejaVu Sans"  # comes with matplotlib, so every machine draws the same picture
LINE = 1.25  # line height over font size; DejaVu needs 1.17
SMALLEST, LARGEST = 5.5, 8.5  # font sizes of tick labels, in points
MAX_TICKS = 60
MAX_MARKS = 3  # combining marks on one letter; more would run into the neighboring labels
# Fonts whose tables do not mean what Unicode means: TeX's own encodings, and the Last Resort
# font, which has a box for every character there is.
NOT_TEXT = ("cm", "Last Resort", "STIXNonUnicode", "STIXSize")


def is_mark(char: str) -> bool:
    """Whether this character is drawn on top of the one before it."""
    return unicodedata.category(char) in ("Mn", "Me")


def is_invisible(char: str) -> bool:
    """Whether a page shows nothing, or something misleading, in place of this character."""
    if char == " ":
        return False
    if unicodedata.category(char) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"):
        return True
    code = ord(char)
    return (
        0xFE00 <= code <= 0xFE0F  # variation selectors, and below their supplement
        or 0xE0100 <= code <= 0xE01EF
        or code in (0x034F, 0x115F, 0x1160, 0x2800, 0x3164, 0xFFA0)  # joiner, fillers, blanks
    )


def escaped(char: str) -> str:
    r"""The Python escape of one character: \n for a line feed, \u200b for a zero-width space."""
    return char.encode("unicode_escape").decode("ascii")


def columns(text: str) -> int:
    """Width of printable text in terminal columns: wide characters take 2, marks 0."""
    wide = sum(unicodedata.east_asian_width(c) in ("W", "F") for c in text)
    return len(text) + wide - sum(is_mark(c) for c in text)


def readable(text: str, limit: int = 16, undrawable: frozenset[str] = frozenset()) -> str:
    """One token as a single line of visible characters, at most `limit` terminal columns wide.

    Control, zero-width and other invisible characters and lone surrogates become Python escapes,
    a text of nothing or of spaces only is quoted, and what does not fit ends in an ellipsis; an
    escape is never cut in two. `$`, `_`, quotes and backslashes stay as they are. Characters in
    `undrawable` become code points such as U+1F408 (for a picture that has no font for them).
    Raises ValueError for a limit below 1.
    """
    if limit < 1:
        raise ValueError(f"limit is {limit}: a label needs at least 1 column")
    text = str(text) if str(text).strip(" ") else f'"{text}"'
    pieces: list[str] = []
    room = 0  # how many marks the last piece can still carry
    # A piece holds at most one letter and its marks, so these characters fill the limit.
    text = text[: (MAX_MARKS + 1) * (limit + 1)]
    for before, char in zip(" " + text, text, strict=False):
        if is_invisible(char):
            piece, room = escaped(char), 0
        elif char in undrawable:
            piece, room = " " * (before in undrawable) + f"U+{ord(char):04X}", 0
        elif not is_mark(char):
            piece, room = char, MAX_MARKS
        elif room:
            pieces[-1] += char
            room -= 1
            continue
        else:  # nothing left to sit on: the dotted circle is Unicode's seat for such marks
            piece, room = "\u25cc" + char, MAX_MARKS - 1
        pieces.append(piece)
    if columns("".join(pieces)) <= limit:
        return "".join(pieces)
    kept, used = [], 0
    for piece in pieces:
        used += columns(piece)
        if used >= limit:
            break
        kept.append(piece)
    return "".join(kept) + "\u2026"


def folded(text: str, width: int) -> list[str]:
    """A text as lines of at most `width` terminal columns of visible characters."""
    text = readable(text, 12 * len(text) + 16)
    lines = textwrap.wrap(text, width, subsequent_indent="  ") if text.isascii() else []
    if not lines:  # wide characters take two columns, which textwrap does not know
        lines = textwrap.wrap(text, width // 2, subsequent_indent="  ")
    return lines


def check_labels(tokens: Sequence[str], count: int, what: str) -> list[str]:
    """The tokens as a list of str; ValueError, with the likely cause, unless there are `count`."""
    if isinstance(tokens, str):
        cause = "tokens is one string: split it into a list, one string per token"
    elif abs(len(tokens) - count) <= 2:
        cause = (
            "likely cause: a start, end or padding token that only one of the two counts; "
            "pass the tokens exactly as the model received them"
        )
    else:
        cause = (
            "likely cause: the tokens of another text or of another tokenizer (words are not "
            "tokens); pass the tokens exactly as the model received them"
        )
    if isinstance(tokens, str) or len(tokens) != count:
        raise ValueError(f"tokens has {len(tokens)} labels but {what}: {cause}")
    return [str(token) for token in tokens]


def thinned(count: int, room: float, each: float = SMALLEST * LINE) -> tuple[int, float]:
    """Which of `count` labels along `room` points can be read: (every n-th, font size).

    The step is the smallest round one that leaves at most 60 labels, `each` points or more apart.
    """
    steps = [1, 2, 5] + [s * 10**e // 4 for e in range(1, 9) for s in (4, 8, 10, 20)]
    for step in steps:
        pitch = room * step / count
        if step >= count or (-(-count // step) <= MAX_TICKS and pitch >= each):
            break
    return step, min(LARGEST, max(SMALLEST, pitch / LINE))


def tick_names(
    tokens: Sequence[str], step: int, limit: int, undrawable: frozenset[str]
) -> list[str]:
    """Labels of every `step`-th token; with its index where tokens in between have none."""
    index = "{}: " if step > 1 else ""
    return [
        index.format(i) + readable(tokens[i], limit, undrawable)
        for i in range(0, len(tokens), step)
    ]


def text_width(texts: Iterable[str], size: float) -> float:
    """Width in pixels of the widest of these texts in matplotlib's current font."""
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.font_manager import FontProperties

    measure: Any = RendererAgg(1, 1, DPI).get_text_width_height_descent
    font = FontProperties(size=size)
    return max((float(measure(text, font, ismath=False)[0]) for text in texts), default=0.0)


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The text as up to four lines of at most `width` pixels, in matplotlib's current font."""
    letters = len(text) + 1
    lines = [text] if text else []
    while letters > 12 and text_width(lines, size) > width:
        letters = int(letters * 0.9)
        lines = textwrap.wrap(text, letters, max_lines=4, placeholder=" \u2026")
    return lines


def use_fonts(texts: Iterable[str]) -> frozenset[str]:
    """Take families that can draw these texts into matplotlib's current style.

    Returns the characters that no family can draw.
    """
    import matplotlib

    undrawable, families = font_families(texts)
    matplotlib.rcParams["font.family"] = families
    return undrawable


def font_families(texts: Iterable[str]) -> tuple[frozenset[str], list[str]]:
    """Fonts for these texts: (characters that no installed font can draw, families to use).

    The base family always comes first; others are looked for only when it lacks a character.
    Characters without a font are named in one warning, with what to install.
    """
    from matplotlib import font_manager

    wanted = {c for text in texts for c in text if c > "~" and not is_invisible(c)}
    base = font_manager.get_font(font_manager.findfont(BASE_FAMILY))
    missing = {c for c in wanted if not base.get_char_index(ord(c))}
    families = [BASE_FAMILY]
    for family, file in _other_families() if missing else ():
        if found := _drawn(family, file, missing):
            families.append(family)
            missing -= found
        if not missing:
            break
    if missing:
        _warn(sorted(missing))
    return frozenset(missing), families


def _other_families() -> list[tuple[str, str]]:
    """Installed families that may serve as a fallback, each with a file: sans-serif faces first."""
    from matplotlib import font_manager

    fonts = {e.name: e.fname for e in font_manager.fontManager.ttflist if e.style == "normal"}
    names = [n for n in fonts if not n.startswith((*NOT_TEXT, ".", BASE_FAMILY))]
    names.sort(key=lambda n: ("Sans" not in n, "Serif" in n or "Mono" in n, n))
    return [(name, fonts[name]) for name in names]


def _drawn(family: str, file: str, characters: set[str]) -> set[str]:
    """The characters for which matplotlib really gets ink when it is told to use this family."""
    from matplotlib import font_manager

    try:
        # One file of the family answers for most: asking findfont for each would be slow, since
        # it compares every installed font with the name.
        some = font_manager.get_font(file)
        found = {c for c in characters if some.get_char_index(ord(c))}
        if not found:
            return found
        font = font_manager.get_font(font_manager.findfont(family, fallback_to_default=False))
        # Bitmap color fonts (most emoji fonts) have the character, and refuse every size.
        font.set_size(12, 72)
        found = {c for c in found if font.get_char_index(ord(c))}
        return {c for c in found if is_mark(c) or font.load_char(ord(c)).width > 0}
    except (OSError, RuntimeError, ValueError):
        return set()


def _warn(missing: Sequence[str]) -> None:
    """One warning that names the characters without a font and what would help."""
    names = [f"U+{ord(c):04X} {unicodedata.name(c, '(no name)')}" for c in missing]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    cjk = any(unicodedata.name(c, "").startswith(("CJK", "HIRAGANA", "KATAKANA", "HANGUL"))
              for c in missing)  # fmt: skip
    emoji = any(ord(c) >= 0x1F000 and unicodedata.category(c) in ("So", "Sk") for c in missing)
    fonts = ["Noto Sans CJK or WenQuanYi Zen Hei"] * cjk + [
        "Symbola or monochrome Noto Emoji"
    ] * emoji
    warnings.warn(
        f"no installed font can draw {', '.join(names[:3])}{more}: shown as code points. Install a "
        f"font that has them ({'; '.join(fonts) or 'a Noto Sans of that script'}), then delete "
        "matplotlib's font cache",
        stacklevel=6,
    )
