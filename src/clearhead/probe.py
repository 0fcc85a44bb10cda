"""What the heads of a model do with repeated random tokens: who looks at the token before, who at
those that came after the same token earlier.

    random block:  A B C D  A B C D  ...      an induction head at the second B looks at the first C

Random tokens mean nothing, so whatever weight lies there is the mechanism's and not the language's.

Source: Olsson et al., "In-context Learning and Induction Heads" (2022, arXiv:2209.11895).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.gpt import TinyGPT
from clearhead.map import AttentionMap

PERIOD, REPEATS, TEXTS = 25, 4, 4  # a perfect induction head scores 3/4


@dataclass(frozen=True)
class HeadProbe:
    """Scores of one head: mean weights over all queries, and its normalized entropy, all in 0..1.

    induction   on the keys that followed the query's token in earlier repeats, all of them
                together; at most 1 - 1/REPEATS, since the first block has nothing to look back to
    previous    on the key before the query's own
    entropy     normalized by the log of the number of keys seen
    """

    layer: int
    head: int
    induction: float
    previous: float
    entropy: float

    @property
    def name(self) -> str:
        return f"{self.layer}.{self.head}"


def repeated_tokens(
    vocab_size: int, period: int = PERIOD, repeats: int = REPEATS, texts: int = TEXTS, seed: int = 0
) -> Tensor:
    """Random blocks of `period` tokens, each repeated: (texts, period * repeats)."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(vocab_size, (texts, period), generator=stream).repeat(1, repeats)


@torch.no_grad()
def probe_heads(model: TinyGPT, seed: int = 0) -> list[HeadProbe]:
    """Every head of a model on repeated random tokens, layer by layer.

    A context shorter than PERIOD * REPEATS gets a shorter period. Raises ValueError where not even
    a period of one token fits.
    """
    period = min(PERIOD, model.config.context // REPEATS)
    if period < 1:
        raise ValueError(
            f"a context of {model.config.context} tokens is too short to repeat anything "
            f"{REPEATS} times"
        )
    device = next(model.parameters()).device
    tokens = repeated_tokens(model.config.vocab_size, period, seed=seed).to(device)
    training = model.training
    model.eval()
    try:
        layers = model(tokens, need="map").layers
    finally:
        model.train(training)
    found = []
    for n, layer in enumerate(layers):
        seen, figures = layer.map, layer.attended
        assert isinstance(seen, AttentionMap)
        assert figures is not None
        earlier = [  # the first of each is on key 0, which follows nothing
            seen.on_lag(k * period - 1)[..., k * period :].sum(dim=(0, 2))
            for k in range(1, REPEATS)
        ]
        columns = (
            torch.stack(earlier).sum(dim=0) / tokens.numel(),
            seen.on_lag(1).mean(dim=(0, 2)),
            figures.normalized_entropy[..., 1:].mean(dim=(0, 2)),  # the first query sees one key
        )
        for head, scores in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            found.append(HeadProbe(n, head, *scores))
    return found
