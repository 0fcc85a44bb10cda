"""What training changed: the heads of the model in the box beside the same heads before it.

    words -> tokens -> the trained model and the one that it began as -> two maps a head

The one that it began as has the same sizes and the first weights of some seed. Both read the same
tokens; every number comes out of the engine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.engine import Attended
from clearhead.files import json_text, make_directory, write_files
from clearhead.gpt import BOX, IN_THE_BOX, TinyGPT
from clearhead.map import AttentionMap
from clearhead.probe import PERIOD, REPEATS, probe_heads
from clearhead.stats import HeadStats
from clearhead.views import plots
from clearhead.views.heads import CAVEAT, share
from clearhead.views.labels import readable
from clearhead.views.terminal import Terminal, curve

SENTENCE = "Kubla Khan, Kubla Khan, where is Kubla Khan?"
PICTURE, NUMBERS = "trained_heads.png", "trained.json"
PAIRS = 4  # heads in the picture
FIGURES = {
    "previous": "on the token before", "here": "induction", "random": "induction on random tokens",
}  # fmt: skip
PERFECT = 1 - 1 / REPEATS  # of induction on random tokens, the first time having nothing to read


@dataclass(frozen=True)
class HeadFigures:
    """One head on one text.

    entropy   mean over the rows, in nats; rows has that of each
    previous  mean weight on the token before
    here      mean weight on what followed the same token earlier, over the rows whose token has
              occurred before; None where none has
    random    the same in random tokens that repeat, over all rows (induction, in probe.py)
    """

    entropy: float
    previous: float
    here: float | None
    random: float
    rows: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Heads:
    """All heads of a model on one text, layer by layer: figures, and maps (n, T, T)."""

    names: tuple[str, ...]
    figures: tuple[HeadFigures, ...]
    maps: Tensor


@dataclass(frozen=True, eq=False)
class Change:
    """The same heads twice: as they began, and trained."""

    tokens: tuple[str, ...]
    sizes: str
    seed: int
    untrained: Heads
    trained: Heads

    @property
    def ceiling(self) -> float:
        """The most that a mean entropy can be: row i sees i keys, ln(T!) / T."""
        return math.lgamma(len(self.tokens) + 1) / len(self.tokens)


def compare(text: str | None, seed: int = 0) -> Change:
    """The model in the box and how it began, with the first weights of `seed`, on one text.

    Raises ValueError for a text that is too short or too long.
    """
    folder = BOX / IN_THE_BOX  # by its path: a folder of that name here is another model
    model = TinyGPT.load(folder)
    if model.tokenizer is None:
        raise ValueError(f"{folder} has lost its tokenizer.json: install clearhead again")
    tokens = model.tokenizer.encode(SENTENCE if text is None else text)
    if not 2 <= len(tokens) <= model.config.context:
        raise ValueError(
            f"the text is {len(tokens)} of the model's tokens long; it takes 2 to "
            f"{model.config.context}"
        )
    if not 0 <= seed < 1 << 63:
        raise ValueError(f"seed must be from 0 to 2^63 - 1; got {seed}")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        untrained = TinyGPT(model.config)
    config = model.config
    return Change(
        tokens=tuple(model.tokenizer.pieces(tokens)),
        sizes=f"{config.n_layers} layers of {config.n_heads} heads, "
        f"{model.n_parameters:,} parameters",
        seed=seed,
        untrained=heads_of(untrained, tokens),
        trained=heads_of(model, tokens),
    )


@torch.no_grad()
def heads_of(model: TinyGPT, tokens: Sequence[int]) -> Heads:
    """What the heads of a model do with some tokens."""
    probes, figures, maps = probe_heads(model), list[HeadFigures](), []
    text = torch.tensor(tokens)
    followed = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    followed[:, 1:] = (text[:, None] == text).tril(-1)[:, :-1]  # the key after an equal one
    again = followed.any(dim=-1)
    for layer in model.eval()(text[None], need="map").layers:
        seen, attended = layer.map, layer.attended
        assert isinstance(seen, AttentionMap)
        assert isinstance(attended, Attended)
        stats = HeadStats.of(attended, seen)
        means = {name: moments.mean.tolist() for name, moments in stats.metrics.items()}
        maps.append(seen.dense()[0])
        copied = (maps[-1] * followed).sum(dim=-1)[:, again].mean(dim=-1).tolist()
        for head in range(stats.n_heads):
            figures.append(HeadFigures(
                entropy=means["entropy"][head], previous=means["previous"][head],
                here=copied[head] if again.any() else None,
                random=probes[len(figures)].induction,
                rows=tuple(attended.entropy[0, head].tolist()),
            ))  # fmt: skip
    return Heads(tuple(probe.name for probe in probes), tuple(figures), torch.cat(maps))


# Telling ------------------------------------------------------------------------------------------


def table(change: Change) -> list[str]:
    """Every head in a line: before | after."""
    lines = [
        f"{IN_THE_BOX}: {change.sizes}",
        f"{len(change.tokens)} tokens: {_pieces(change.tokens)}",
        f"ceiling of a mean entropy: ln(T!)/T = {change.ceiling:.3f} nats",
        "",
        "=== The same heads before and after training ===",
        "        mean entropy (of ceiling)   token before   induction      on random      each row",
        "  head  untrained     trained       untr. trained  untr. trained  untr. trained  trained",
    ]
    for name, was, now in _pairs(change):
        entropies = (f"{x.entropy:.3f} ({x.entropy / change.ceiling:4.0%})" for x in (was, now))
        weights = "  ".join(
            f"{share(getattr(was, key)):>4}   {share(getattr(now, key)):>4}  " for key in FIGURES
        )
        shares = [row / math.log(i) if i > 1 else None for i, row in enumerate(now.rows, start=1)]
        lines.append(f"  {name:>4}  {'  '.join(entropies)}    {weights} {curve(shares)}")
    return [
        *lines,
        "",
        "token before: mean weight there. induction: on what followed the same token earlier,",
        f"where it occurred before; on random: over all rows of {PERIOD} random tokens that come",
        f"{REPEATS} times: perfect is {PERFECT:.2f}, as the first time has nothing to look back to",
        "(inspect leaves its rows out: perfect is 1), equal attention 0.02. each row:",
        "entropy along the text, full height being the ceiling. A head is layer.head, from 0.",
        CAVEAT,
    ]


def _pieces(tokens: Sequence[str], most: int = 84) -> str:
    """The tokens with bars between them; of a long text both ends."""
    line = "|".join(readable(token, 20) for token in tokens)
    return line if len(line) <= most else f"{line[: most - 25]} ... {line[-20:]}"


def _pairs(change: Change) -> list[tuple[str, HeadFigures, HeadFigures]]:
    heads = zip(change.trained.names, change.untrained.figures, change.trained.figures, strict=True)
    return list(heads)


def shown_heads(change: Change) -> dict[int, str]:
    """The heads of the picture and what each is shown for: the most of something, the most changed.

    How much a head has changed is half the sum of what its weights differ by, over a mean row.
    """
    shown: dict[int, str] = {}
    figures = change.trained.figures
    for key, what in FIGURES.items():
        if getattr(figures[0], key) is None:
            continue
        best = max(range(len(figures)), key=lambda n: getattr(figures[n], key))
        what = f"{what}: {share(getattr(figures[best], key))}"
        shown.setdefault(best, what)
    moved = (change.trained.maps - change.untrained.maps).abs().sum(dim=-1).mean(dim=-1) / 2
    for n in moved.argsort(descending=True, stable=True).tolist():
        if len(shown) < min(PAIRS, len(figures)):
            shown.setdefault(n, f"changed: {float(moved[n]):.0%} of its weight moved")
    return shown


def picture(change: Change) -> bytes:
    """Pairs of heatmaps as a PNG file: a head as it began, and the same head trained."""
    shown = shown_heads(change)
    maps, titles = [], []
    for n, what in shown.items():
        maps += [change.untrained.maps[n], change.trained.maps[n]]
        was, now = (heads.figures[n].entropy for heads in (change.untrained, change.trained))
        name = change.trained.names[n]
        titles += [
            f"head {name}, untrained\nentropy {was:.2f} nats",
            f"head {name}, trained: {now:.2f} nats\n{what}",
        ]
    T = len(change.tokens)
    figure = plots.heatmap_grid(
        torch.stack(maps).numpy(), change.tokens,
        f"What training changed: heads of {IN_THE_BOX} before, and beside it after",
        visible=torch.ones(T, T).tril().bool().numpy(), titles=titles,
    )  # fmt: skip
    return plots.png_bytes(figure)


def results(change: Change) -> dict[str, object]:
    """Every number of a head, at full precision."""
    return {
        "clearhead": __version__, "torch": torch.__version__, "model": IN_THE_BOX,
        "sizes": change.sizes,
        "tokens": list(change.tokens), "seed": change.seed, "entropy_unit": "nats",
        "ceiling": change.ceiling,
        "heads": [
            {"name": name, "untrained": vars(was), "trained": vars(now)}
            for name, was, now in _pairs(change)
        ],
    }  # fmt: skip


def run(change: Change, output_dir: Path, terminal: Terminal, as_json: bool = False) -> None:
    """Print and write: a picture and the numbers in `output_dir`, or neither.

    Raises OSError for a disk that refuses.
    """
    make_directory(output_dir)
    numbers = json_text(results(change))
    with terminal.warnings_as_notes():
        drawn = picture(change)
    write_files(output_dir, {PICTURE: drawn, NUMBERS: (numbers + "\n").encode()})
    written = f"{PICTURE} and {NUMBERS} written to {output_dir.resolve()}"
    terminal.lines([numbers] if as_json else [*table(change), "", written])
