"""The model in the box: what its card promises, and the demo that shows what training changed."""

import gzip
import json
import math
import re
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text
from programs import ROOT
from torch.nn import functional as F

from clearhead import learned
from clearhead.cli import main
from clearhead.gpt import BOX, TinyGPT
from clearhead.probe import probe_heads
from clearhead.recipe import TINY_EN
from clearhead.views import plots

FOLDER = BOX / "tiny-en"
DATA = Path(__file__).parent / "data"
HELD = (DATA / "held_speech.txt").read_text("utf-8")  # from the text that was held back
WORDS = set((DATA / "english.txt").read_text("utf-8").split())


@pytest.fixture(scope="module")
def model() -> TinyGPT:
    return TinyGPT.load("tiny-en")


@pytest.fixture(scope="module")
def card() -> str:
    return (FOLDER / "README.md").read_text("utf-8")


# The model ----------------------------------------------------------------------------------------


@pytest.mark.quick
def test_its_heads_do_what_the_card_says(model, card):
    heads = probe_heads(model)
    assert max(head.induction for head in heads) >= 0.65
    assert max(head.previous for head in heads) >= 0.6
    rows = dict(re.findall(r"^\| (\d\.\d) \| (.*) \|$", card, re.M))
    assert len(rows) >= 2
    for head in heads:
        if max(head.induction, head.previous) >= 0.2:
            said = [float(x) for x in rows.pop(head.name).split(" | ")]
            assert said == pytest.approx([head.induction, head.previous, head.entropy], abs=0.006)
    assert not rows


def test_the_card_is_its_template_filled_in(card):
    """As scripts/model.py does it, with what the recipe says."""
    template = (ROOT / "scripts" / "tiny-en.md").read_text("utf-8")
    names = set()

    def group(match: re.Match) -> str:
        again = match[1] in names
        names.add(match[1])
        return f"(?P={match[1]})" if again else f"(?P<{match[1]}>.+?)"

    pattern = re.sub(r"\\{(\w+)\\}", group, re.escape(template))
    said = re.fullmatch(pattern, card, re.DOTALL).groupdict()
    assert said["steps"] == f"{TINY_EN.steps:,}"
    assert said["rows"] == str(TINY_EN.batch * TINY_EN.accumulate)
    assert said["rate"] == f"{TINY_EN.learning_rate:g}"
    shares = [f"{TINY_EN.repeats_at(step):.0%}" for step in (0, TINY_EN.steps - 1)]
    assert [said["first_share"], said["last_share"]] == shares
    n_tokens = TINY_EN.steps * TINY_EN.batch * TINY_EN.accumulate * TINY_EN.context
    assert said["tokens"] == f"{n_tokens / 1e6:.0f} million"
    for name in ("context", "warmup"):
        assert said[name] == str(getattr(TINY_EN, name))
    assert said["longest"] == str(TINY_EN.longest_block)


def test_it_fits_into_four_megabytes(model, card):
    size = (FOLDER / "model.safetensors").stat().st_size
    assert size <= 4_000_000
    assert f"{size / 1e6:.2f} MB" in card
    assert f"{model.n_parameters:,} parameters" in card
    assert {path.name for path in FOLDER.iterdir()} == {
        "README.md", "config.json", "model.safetensors", "tokenizer.json",
    }  # fmt: skip


def test_it_reads_english_better_than_counting_and_gzip(model, card):
    tokens = torch.tensor(model.tokenizer.encode(HELD))
    n, context = len(tokens), model.config.context
    nats = 0.0
    with torch.no_grad():
        for start in range(0, n - 1, context):  # each token but the first once
            piece = tokens[start : start + context + 1]
            logits = model(piece[:-1]).logits
            nats += float(F.cross_entropy(logits, piece[1:], reduction="sum"))
    n_bytes = len(HELD.encode())
    bits = nats / math.log(2) / n_bytes
    said = {name: float(x) for name, x in re.findall(r"^\| (.+) \| (\d\.\d{3}) \|$", card, re.M)}
    whole, counted, zipped = said.values()
    assert 0.85 * whole < bits < 1.15 * whole  # one speech of the thirteen
    share = torch.bincount(tokens).double() / n
    unigram = float(-share[tokens].log2().sum()) / n_bytes  # of this very speech, in its favor
    squeezed = 8 * len(gzip.compress(HELD.encode(), 9)) / n_bytes
    assert bits < 0.8 * unigram
    assert bits < 0.8 * squeezed
    assert whole < zipped < counted


def test_it_writes_english_words(model):
    start = torch.tensor(model.tokenizer.encode("\n")).expand(8, -1)
    texts = model.generate(start, 120, temperature=0.8, top_p=0.95, seed=0)
    written = " ".join(model.tokenizer.decode(text.tolist()) for text in texts)
    words = re.findall(r"[a-z]+", written.lower())[:-1]
    assert len(words) > 300
    assert sum(word in WORDS for word in words) / len(words) > 0.9
    noise = torch.randint(model.config.vocab_size, (960,), generator=torch.Generator())
    words = re.findall(r"[a-z]+", model.tokenizer.decode(noise.tolist()).lower())
    assert sum(word in WORDS for word in words) / len(words) < 0.6  # the measure can fail


def test_a_folder_of_that_name_comes_first(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert TinyGPT.load("tiny-en").config == model.config
    (tmp_path / "tiny-en").mkdir()
    with pytest.raises(FileNotFoundError):
        TinyGPT.load("tiny-en")
    assert learned.compare("and still the demo shows that of the box").sizes.startswith("3 layers")
    with pytest.raises(FileNotFoundError, match=r"no such folder, .* in the box \(tiny-en\)"):
        TinyGPT.load("tiny-fr")


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        (
            "config.json",
            lambda x: x.replace(b'"n_layers": 3', b'"n_layers": 10000000'),
            "far too few",
        ),
        (
            "config.json",
            lambda x: x.replace(b'"d_model": 192', b'"d_model": 1000000000'),
            "far too few",
        ),
        ("model.safetensors", lambda x: x[:-9000] + b"\x00\x7e" * 4500, "is not finite"),
        ("tokenizer.json", lambda x: x[:99], "tokenizer.json: this is no tokenizer.json"),
        ("tokenizer.json", lambda x: b"\xff" + x, "tokenizer.json: .*utf-8"),
    ],
)
def test_a_damaged_folder_is_refused_in_words(file, damage, words, tmp_path):
    for path in FOLDER.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / file).read_bytes()
    assert damage(content) != content
    (tmp_path / file).write_bytes(damage(content))
    with pytest.raises(ValueError, match=words):
        TinyGPT.load(tmp_path)


# The demo -----------------------------------------------------------------------------------------


def test_the_demo_shows_every_head_before_and_after(tmp_path, capsys):
    assert main(["demo", "--trained", "--output-dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert max(map(len, said.out.splitlines()[:-1])) <= 100
    found = json.loads((tmp_path / "trained.json").read_text("utf-8"))
    assert (tmp_path / "trained_heads.png").read_bytes().startswith(b"\x89PNG")
    heads = {head["name"]: head for head in found["heads"]}
    for name, head in heads.items():
        (row,) = re.findall(rf"^ +{re.escape(name)}  (.*)$", said.out, re.M)
        for when in ("untrained", "trained"):
            assert f"{head[when]['entropy']:.3f}" in row
            for key in ("previous", "here", "random"):
                assert f"{head[when][key]:.2f}".removeprefix("0") in row
    assert max(head["trained"]["random"] for head in heads.values()) >= 0.65
    assert max(head["trained"]["here"] for head in heads.values()) > 0.4
    assert (
        max(head["untrained"][key] for head in heads.values() for key in ("here", "random")) < 0.2
    )


def test_what_is_shown_is_what_the_models_do():
    text = "It is what it is, and it is what it was."
    change = learned.compare(text, seed=3)
    model = TinyGPT.load("tiny-en")
    tokens = model.tokenizer.encode(text)
    assert "".join(change.tokens) == text
    torch.manual_seed(3)
    for heads, by_hand in ((change.trained, model), (change.untrained, TinyGPT(model.config))):
        with torch.no_grad():
            layers = by_hand.eval()(torch.tensor([tokens]), need="map").layers
        weights = torch.cat([layer.map.dense()[0] for layer in layers])
        assert torch.equal(heads.maps, weights)
        for n, figures in enumerate(heads.figures):
            p = weights[n].double()
            entropy = -(p * p.clamp(min=1e-300).log()).sum(dim=-1)
            assert figures.entropy == pytest.approx(float(entropy.mean()), abs=1e-5)
            before = p.diagonal(-1).mean()
            assert figures.previous == pytest.approx(float(before), abs=1e-6)
            followed = [
                sum(float(p[i, j + 1]) for j in range(i) if tokens[j] == tokens[i])
                for i in range(len(tokens)) if tokens[i] in tokens[:i]
            ]  # fmt: skip
            assert len(followed) >= 5
            assert figures.here == pytest.approx(sum(followed) / len(followed), abs=1e-6)
    assert {figures.here for figures in learned.compare("no word twice").trained.figures} == {None}


@pytest.mark.parametrize("text", [None, "a\n"])  # two tokens: the token before is the first
def test_the_titles_of_the_picture_fit_their_panels(text, monkeypatch):
    figures = []
    original = plots.heatmap_grid
    monkeypatch.setattr(
        plots, "heatmap_grid", lambda *a, **k: figures.append(original(*a, **k)) or figures[-1]
    )
    change = learned.compare(text)
    learned.picture(change)
    axes = [ax for ax in figures[0].axes if ax.images]
    pairs = list(zip(axes[::2], axes[1::2], strict=True))
    names = [before.get_title("left").split()[1].strip(",") for before, _ in pairs]
    assert len(set(names)) == len(names) == learned.PAIRS
    for name, (before, after) in zip(names, pairs, strict=True):
        heads = dict(zip(change.trained.names, range(99), strict=False))
        was, now = (x.figures[heads[name]] for x in (change.untrained, change.trained))
        assert f"{was.entropy:.2f} nats" in before.get_title("left")
        assert f"head {name}, trained: " in after.get_title("left")
        assert len(after.get_title("left").split("\n")[1].split()) >= 2, "what it is shown for"
        assert f"{now.entropy:.2f} nats" in after.get_title("left")
    drawn = [
        next(t for t in ax.findobj(Text) if t.get_text() == ax.get_title("left")) for ax in axes
    ]
    left, right = ([getattr(t.get_window_extent(), x) for t in drawn] for x in ("x0", "x1"))
    for n in range(len(axes) - 1):
        if left[n + 1] > left[n]:  # in one row
            assert right[n] < left[n + 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--text", ""], "the text is 0 of the model's tokens long; it takes 2 to"),
        (["--text", "word " * 999], "of the model's tokens long; it takes 2 to"),
        (["--n-heads", "2"], "leave out --d-model and --n-heads"),
        (["--full"], "not allowed with argument"),
        (["--seed", "-1"], "seed must be from 0"),
    ],
)
def test_what_the_demo_refuses(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--trained", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err and len(said.err.splitlines()) == 1
    assert not said.out and not list(tmp_path.iterdir())


def test_any_text_can_be_shown(tmp_path):
    text = "\U0001f408 $x$ <b>&amp;</b>\n\t\x00 ünïcödé"
    change = learned.compare(text)
    assert learned.picture(change).startswith(b"\x89PNG")
    assert json.dumps(learned.results(change), allow_nan=False)
    assert all(line.isprintable() for line in learned.table(change))
