"""Text as tokens: a byte-level BPE, so that any UTF-8 comes back as it was.

The pieces are learned by the `tokenizers` library, whose file format (tokenizer.json) this is.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

BYTES = 256  # the smallest vocabulary: every byte is a token
LONGEST = 32  # characters of a token
PIECE = 1000  # characters of text that are learned from at once


class Tokenizer:
    """A byte-level BPE. Every text has tokens, and they spell exactly that text."""

    def __init__(self, inner: "tokenizers.Tokenizer") -> None:
        self._inner = inner

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn the pieces that occur most. A short text yields fewer than vocab_size of them."""
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers

        if vocab_size < BYTES:
            raise ValueError(f"vocab_size must be at least {BYTES}, the bytes; got {vocab_size}")
        inner = tokenizers.Tokenizer(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), max_token_length=LONGEST,
        )  # fmt: skip
        # The time of a word grows with the square of its length, and a text may be one word.
        pieces = (text[i : i + PIECE] for text in texts for i in range(0, len(text), PIECE))
        inner.train_from_iterator(pieces, trainer)
        return cls(inner)

    @property
    def vocab_size(self) -> int:
        return int(self._inner.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The tokens of a text."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens; a character cut in two comes out as the replacement character."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=False))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Each token as text of its own, for labels; bytes of a character cut in two as \\xe6."""
        texts = [self.decode([token]) for token in tokens]
        return [
            self._bytes(token).decode("utf-8", "backslashreplace") if "\ufffd" in text else text
            for token, text in zip(tokens, texts, strict=True)
        ]

    def _bytes(self, token: int) -> bytes:
        """What a token spells: its name has a visible character for each byte, as in GPT-2."""
        shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [byte for byte in range(256) if byte not in shown]
        names = {chr(byte): byte for byte in shown}
        names |= {chr(256 + n): byte for n, byte in enumerate(hidden)}
        return bytes(names[letter] for letter in self._inner.id_to_token(token) or "")

    def to_json(self) -> str:
        return str(self._inner.to_str(pretty=False))

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Raises ValueError for what is no tokenizer.json."""
        import tokenizers

        try:
            return cls(tokenizers.Tokenizer.from_str(text))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"this is no tokenizer.json: {error}") from error
