"""What a model is trained on: windows of a text, and random tokens that repeat.

The batch of a step is a function of the seed and of the step alone, so a training that is resumed
sees what it would have seen.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.tokens import Tokenizer

PIECE = 1 << 16  # characters that are encoded at once
SHORTEST = 8  # tokens of a block that repeats


@dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens to learn from and tokens held back; int64, one row. Empty ones where all repeats."""

    train: Tensor
    held: Tensor
    vocab_size: int
    bytes_per_token: float  # of the tokens held back

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, context: int, held: float) -> "Corpus":
        """The last `held` of the text, in 0..1, is held back. Raises ValueError if too short."""
        tokens = torch.tensor(encode(text, tokenizer), dtype=torch.int64)
        cut = len(tokens) - max(int(held * len(tokens)), context + 1)
        if cut < context + 1:
            raise ValueError(
                f"the text is {len(tokens)} tokens long; a context of {context} needs at least "
                f"{2 * (context + 1)}, half of them to measure with: give a longer text or a "
                "shorter context"
            )
        n_bytes = len(tokenizer.decode(tokens[cut:].tolist()).encode("utf-8", "replace"))
        return cls(tokens[:cut], tokens[cut:], tokenizer.vocab_size, n_bytes / (len(tokens) - cut))

    @classmethod
    def nothing(cls, vocab_size: int) -> "Corpus":
        """No text: every row of a batch is random tokens that repeat."""
        none = torch.empty(0, dtype=torch.int64)
        return cls(none, none, vocab_size, 1.0)


def encode(text: str, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a long text, cut at line ends so that it need not be encoded in one piece."""
    tokens: list[int] = []
    piece: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= PIECE:
            tokens += tokenizer.encode("".join(piece))
            piece, size = [], 0
    return tokens + tokenizer.encode("".join(piece))


def batch(
    corpus: Corpus, step: int, rows: int, repeated: int, context: int, seed: int, longest: int
) -> Tensor:
    """(rows, context + 1) tokens of one step; the first `repeated` rows are blocks that repeat."""
    stream = torch.Generator().manual_seed((seed * 1_000_003 + step) % (1 << 63))
    made = torch.empty(rows, context + 1, dtype=torch.int64)
    for row in range(repeated):
        made[row] = repeating(corpus.vocab_size, context + 1, longest, stream)
    if repeated < rows:
        starts = torch.randint(len(corpus.train) - context, (rows - repeated, 1), generator=stream)
        made[repeated:] = corpus.train[starts + torch.arange(context + 1)]
    return made


def repeating(vocab_size: int, length: int, longest: int, stream: torch.Generator) -> Tensor:
    """A block of random tokens, SHORTEST to `longest` of them, over and over.

    No more than fit twice; exactly `longest` where that is less than SHORTEST.
    """
    most = max(1, min(longest, length // 2))
    size = int(torch.randint(min(SHORTEST, most), most + 1, (), generator=stream))
    block = torch.randint(vocab_size, (size,), generator=stream)
    return block.repeat(-(-length // size))[:length]


def windows(tokens: Tensor, context: int, most: int) -> Tensor:
    """Up to `most` windows of context + 1 tokens, spread evenly: (n, context + 1)."""
    n = max(1, min(most, (len(tokens) - 1) // context))
    starts = torch.linspace(0, len(tokens) - context - 1, n).long()
    return tokens[starts[:, None] + torch.arange(context + 1)]
