"""Training a TinyGPT: the loop, what it measures on the way, and how it goes on after a stop.

Each step is a function of the seed, the step and the weights before it. A training that was stopped
at any moment therefore goes on to the very losses that it would have had.
"""

import hashlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clearhead import checkpoint
from clearhead.corpus import Corpus, batch, windows
from clearhead.files import alone, make_directory, write_files
from clearhead.gpt import GPTConfig, TinyGPT
from clearhead.probe import probe_heads
from clearhead.recipe import Settings
from clearhead.tokens import Tokenizer

LOOKS = 30  # moments at which the heads are probed
LOG_EVERY = 10  # steps between two lines about the loss
KEEP_EVERY = 30.0  # seconds between two checkpoints, at most
HELD_WINDOWS = 32  # windows of the held-back text that are measured
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.95), 0.1, 1.0


Record = dict[str, Any]


@dataclass(eq=False)
class Training:
    """A training under way: a model, its AdamW, what it learns from, and how far it has come."""

    settings: Settings
    model: TinyGPT
    corpus: Corpus
    text_hash: str | None = None
    source: str | None = None  # where the text came from
    step: int = 0
    seconds: float = 0.0
    sums: dict[str, list[float]] = field(default_factory=dict)  # losses since the last line
    whole: bool = True  # whether no step is half done, nor done and its records not on the disk
    optimizer: torch.optim.AdamW = field(init=False)

    def __post_init__(self) -> None:
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": WEIGHT_DECAY},
             {"params": rest, "weight_decay": 0.0}],
            lr=self.settings.learning_rate, betas=BETAS, fused=True,
        )  # fmt: skip

    @classmethod
    def begin(cls, settings: Settings, text: str | None, source: str | None = None) -> "Training":
        """A new training. Without a text every row is random tokens that repeat.

        Raises ValueError for a text that is too short for the context.
        """
        tokenizer = None
        if text is None:
            corpus = Corpus.nothing(settings.vocab_size)
        else:
            learned = text[: round(len(text) * (1 - settings.held))]  # not what is held back
            tokenizer = Tokenizer.train(learned.splitlines(keepends=True), settings.vocab_size)
            corpus = Corpus.of(text, tokenizer, settings.context, settings.held)
        new = cls._fresh(settings, corpus, tokenizer, _hash(text))
        new.source = source
        return new

    @classmethod
    def resume(cls, folder: Path, text: str | None) -> "Training":
        """The training whose checkpoint lies in `folder`, on the text that it began with.

        Raises OSError or ValueError for what is no checkpoint, and for another text.
        """
        path = folder / checkpoint.CHECKPOINT
        said = checkpoint.read_said(path)
        if said["text"] != _hash(text):
            raise ValueError("the text is not the one that this training began with")
        try:
            settings = Settings(**said["settings"])
        except TypeError as error:
            raise ValueError(f"{path} is of another clearhead: {error}") from error
        tokenizer = None
        if text is None:
            corpus = Corpus.nothing(settings.vocab_size)
        else:
            tokenizer = Tokenizer.from_json(said["tokenizer"])
            corpus = Corpus.of(text, tokenizer, settings.context, settings.held)
        new = cls._fresh(settings, corpus, tokenizer, said["text"])
        for name in ("step", "seconds", "sums", "source"):
            setattr(new, name, said[name])
        checkpoint.unpack(path, new.model, new.optimizer, new.step)
        return new

    @classmethod
    def _fresh(
        cls, settings: Settings, corpus: Corpus, tokenizer: Tokenizer | None, text_hash: str | None
    ) -> "Training":
        config = GPTConfig(
            corpus.vocab_size, settings.context, settings.n_layers, settings.d_model,
            settings.n_heads, rotary_base=settings.rotary_base, dropout=settings.dropout,
        )  # fmt: skip
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            model = TinyGPT(config, tokenizer)
        return cls(settings, model, corpus, text_hash)

    # The loop -------------------------------------------------------------------------------------

    def steps(self, stop: threading.Event | None = None) -> Iterator[list[Record]]:
        """Train to the end, or until `stop` is set; yields the records of each step that has any.

        {"kind": "loss", "step", "loss", "repeat_loss", "rate", "gradient", "seconds", "tokens"}
        {"kind": "look", "step", "held_loss", "bits_per_byte", "entropy", "heads"}

        Losses are means since the last line, in nats a token; None where there is no such row.
        """
        s = self.settings
        look_every = -(-s.steps // LOOKS)
        began = time.monotonic() - self.seconds
        if self.step == 0:
            yield [self._look()]
        while self.step < s.steps and not (stop and stop.is_set()):
            self.whole = False
            gradient = self._one_step()
            self.step += 1
            self.seconds = time.monotonic() - began
            last = self.step == s.steps
            records = []
            if self.step % LOG_EVERY == 0 or last:
                records.append(self._line(gradient))
            if self.step % look_every == 0 or last:
                records.append(self._look())
            if records:
                yield records
            self.whole = True

    def _one_step(self) -> float:
        s = self.settings
        rate = s.rate_at(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        share = s.repeats_at(self.step) if len(self.corpus.train) else 1.0
        repeated = round(share * s.batch)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.random.fork_rng(enabled=s.dropout > 0):
            if s.dropout > 0:
                torch.manual_seed((s.seed * 1_000_003 + self.step) % (1 << 63))
            for part in range(s.accumulate):
                rows = batch(
                    self.corpus, self.step * s.accumulate + part, s.batch, repeated, s.context,
                    s.seed, s.longest_block,
                )  # fmt: skip
                losses = row_losses(self.model, rows)
                (losses.mean() / s.accumulate).backward()
                self._add("repeat_loss", losses[:repeated])
                self._add("loss", losses[repeated:])
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self._check(float(norm), "gradient")
        self.optimizer.step()
        return float(norm)

    def _check(self, value: float, what: str) -> None:
        if not math.isfinite(value):
            raise ArithmeticError(
                f"the {what} is no longer finite at step {self.step + 1}: begin anew, in another "
                f"place, with a learning rate below {self.settings.learning_rate:g}"
            )

    def _add(self, name: str, losses: Tensor) -> None:
        if len(losses):
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += float(losses.detach().sum())
            total[1] += len(losses)

    def _line(self, gradient: float) -> Record:
        means = {name: total / count for name, (total, count) in self.sums.items()}
        self.sums = {}
        s = self.settings
        return {
            "kind": "loss", "step": self.step,
            "loss": means.get("loss"), "repeat_loss": means.get("repeat_loss"),
            "rate": s.rate_at(self.step - 1), "gradient": gradient, "seconds": self.seconds,
            "tokens": self.step * s.batch * s.accumulate * s.context,
        }  # fmt: skip

    def _look(self) -> Record:
        """What the model can do and what its heads do, now."""
        held, bits = None, None
        if len(self.corpus.held):
            held = self.held_loss(HELD_WINDOWS)
            self._check(held, "loss")
            bits = held / math.log(2) / self.corpus.bytes_per_token
        heads = probe_heads(self.model)
        self._check(sum(head.entropy for head in heads), "attention of the heads")
        layers = [
            [head.entropy for head in heads if head.layer == n]
            for n in range(self.settings.n_layers)
        ]
        return {
            "kind": "look", "step": self.step, "held_loss": held, "bits_per_byte": bits,
            "entropy": [sum(layer) / len(layer) for layer in layers],
            "heads": [asdict(head) for head in heads],
        }  # fmt: skip

    def held_loss(self, most: int) -> float:
        """Cross-entropy of the text that was held back, in nats a token, over `most` windows."""
        return mean_loss(self.model.eval(), self.corpus.held, most)

    # On the disk ----------------------------------------------------------------------------------

    def keep(self, folder: Path) -> None:
        """Write the checkpoint, and the model as a folder that TinyGPT.load reads."""
        tokenizer = self.model.tokenizer
        said = {
            "settings": asdict(self.settings), "step": self.step, "seconds": self.seconds,
            "sums": self.sums, "text": self.text_hash,
            "source": self.source,
            "tokenizer": None if tokenizer is None else tokenizer.to_json(),
        }  # fmt: skip
        packed = checkpoint.pack(self.model, self.optimizer, said)
        write_files(folder, {**self.model.as_files(), checkpoint.CHECKPOINT: packed})


def run(training: Training, folder: Path) -> Iterator[Record]:
    """Train to the end in `folder`, handing on each record once it is on the disk.

    A checkpoint is written at the beginning, every half minute, at the end, and when the loop is
    left by whatever stops it. Ctrl-C is heard between two steps, so that no half step is kept; it
    raises KeyboardInterrupt when the checkpoint is written. Raises OSError where the disk refuses.
    """
    make_directory(folder)
    lines = folder / checkpoint.METRICS
    busy = "another training writes there; wait for it or choose another --output-dir"
    with alone(folder / checkpoint.LOCK, busy), checkpoint.heard_later() as stop:
        for part in folder.glob(".*.part"):  # of a save that was killed
            part.unlink(missing_ok=True)
        checkpoint.rewind(lines, training.step if training.step else -1)
        training.keep(folder)
        kept_step, kept_at = training.step, time.monotonic()
        try:
            for records in training.steps(stop):
                checkpoint.append_lines(lines, records)
                training.whole = True
                yield from records
                if time.monotonic() - kept_at > KEEP_EVERY:
                    training.keep(folder)
                    kept_step, kept_at = training.step, time.monotonic()
        finally:
            if training.whole and training.step != kept_step:
                training.keep(folder)
        if stop.is_set():
            raise KeyboardInterrupt


def row_losses(model: TinyGPT, rows: Tensor) -> Tensor:
    """Mean cross-entropy of each row of (B, T + 1) tokens, in nats a token: (B,)."""
    logits = model(rows[:, :-1]).logits
    losses = F.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    return losses.mean(dim=1)


@torch.no_grad()
def mean_loss(model: TinyGPT, tokens: Tensor, most: int) -> float:
    """Cross-entropy of up to `most` windows of some tokens (L,), in nats a token."""
    rows = windows(tokens, model.config.context, most)
    return float(torch.cat([row_losses(model, part) for part in rows.split(8)]).mean())


def _hash(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
