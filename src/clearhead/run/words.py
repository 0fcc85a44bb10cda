"""The text of tokens: what each of them says, which delimit, and where a word stands among them.

Tokenizers know words by marks of their own: a space before a word (" cat", "Ġcat", "▁cat"), or "##"
on what goes on with one ("##ing"). A word is found whichever it is, and through several tokens.
"""

import itertools
import re
import string
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SPACES = ("Ġ", "▁")  # what stands for a space in the tokens of some tokenizers


def pieces_of(tokenizer: Any, tokens: Iterable[int]) -> dict[int, str]:
    """The text of each of these tokens, for labels and for finding words.

    A tokenizer has decode(tokens) -> text; those of the transformers library and our own are asked
    for more. None has no texts.
    """
    different = sorted(set(tokens))
    if tokenizer is None:
        return {}
    if hasattr(tokenizer, "pieces"):
        return dict(zip(different, tokenizer.pieces(different), strict=True))
    return {token: _piece(tokenizer, token) for token in different}


def _piece(tokenizer: Any, token: int) -> str:
    text = str(tokenizer.decode([token]))
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        name = str(tokenizer.convert_ids_to_tokens(token))
        if "\ufffd" in text or not text:
            return name
        if name.startswith(SPACES) and not text.startswith(" "):  # decode drops the first space
            return f" {text}"
    return text


def delimiters_of(
    tokens: Tensor, pieces: Mapping[int, str], special: Collection[int] = ()
) -> Tensor:
    """Which of some tokens are punctuation, line ends or special, a bool of the same shape."""
    found = [
        token in special or _delimits(pieces.get(token, "")) for token in tokens.flatten().tolist()
    ]
    return torch.tensor(found, dtype=torch.bool).view(tokens.shape)


def _delimits(piece: str) -> bool:
    bare = piece.strip(f" {''.join(SPACES)}")
    return "\n" in piece or (bare != "" and all(c in string.punctuation for c in bare))


def spans_of(word: str, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """Every place of a word, or of several, among the tokens of a text: spans of tokens.

    Upper and lower case are alike, and spaces around punctuation may be left out. A word is no
    part of a longer one.
    """
    texts = [re.sub("|".join(SPACES), " ", piece) for piece in pieces]
    if not any(text.startswith(" ") for text in texts):  # words without a mark of their own
        spaced = [text[2:] if text.startswith("##") else f" {text}" for text in texts]
        glued = not any(text.startswith("##") for text in texts)  # one word, or characters
        return _matches(word, spaced) or (_matches(word, texts) if glued else [])
    return _matches(word, texts)


def _matches(word: str, texts: Sequence[str]) -> list[tuple[int, int]]:
    ends = list(itertools.accumulate(map(len, texts)))
    found: list[tuple[int, int]] = []
    for match in re.finditer(_pattern(word), "".join(texts), re.IGNORECASE):
        first, last = bisect_right(ends, match.start()), bisect_left(ends, match.end())
        if found and first < found[-1][1]:  # two in one token
            first = found.pop()[0]
        found.append((first, last + 1))
    return found


def _pattern(word: str) -> str:
    """A word, or several, as a regular expression. Raises ValueError where there is none."""
    parts = re.findall(r"\w+|[^\w\s]", word)
    if not parts:
        raise ValueError(f"{word!r} is no word: it has no visible character")
    found, at = re.escape(parts[0]), word.index(parts[0]) + len(parts[0])
    for before, part in itertools.pairwise(parts):
        gap = word.index(part, at) > at
        words = re.match(r"\w", before) and re.match(r"\w", part)
        found += (r"\s+" if gap and words else r"\s*") + re.escape(part)
        at = word.index(part, at) + len(part)
    begin = r"(?<!\w)" if re.match(r"\w", parts[0]) else ""
    return f"{begin}{found}" + (r"(?!\w)" if re.match(r"\w", parts[-1]) else "")
