"""Training: it learns, it goes on after any stop to the very same losses, and it tells mistakes."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from programs import ROOT, run

from clearhead import checkpoint, training
from clearhead.cli import main
from clearhead.corpus import Corpus, batch, encode, repeating, windows
from clearhead.gpt import TinyGPT
from clearhead.recipe import Settings
from clearhead.tokens import Tokenizer
from clearhead.train import LOG_EVERY, Training
from clearhead.train import run as train_run
from clearhead.views.terminal import Terminal
from clearhead.views.training import (
    duration,
    training_figure,
    training_line,
    training_screen,
)

TEXT = "".join(f"The {a} {b} the {c}.\n" for a in ("cat", "dog", "old man") for b in (
    "saw", "likes", "follows") for c in ("mat", "moon", "river", "cat")) * 30  # fmt: skip
SMALL = Settings(
    steps=40, batch=4, vocab_size=280, context=32, n_layers=2, d_model=32, n_heads=2, warmup=5,
    learning_rate=3e-3, repeats=0.25,
)  # fmt: skip


def lines(folder: Path) -> list[dict]:
    """The records of a training without what a clock said."""
    records = checkpoint.read_lines(folder / checkpoint.METRICS)
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def whole(settings: Settings, folder: Path, text: str | None = TEXT) -> list[dict]:
    list(train_run(Training.begin(settings, text), folder))
    return lines(folder)


# It learns ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    whole(replace(SMALL, steps=150), folder)
    return folder


def test_losses_fall_and_the_model_loads_and_writes(trained):
    records = lines(trained)
    losses = [r["loss"] for r in records if r["kind"] == "loss"]
    assert losses[0] > 4 > 2 > losses[-1]
    looks = [r for r in records if r["kind"] == "look"]
    assert looks[0]["step"] == 0
    assert looks[-1]["step"] == 150
    assert looks[-1]["held_loss"] < 0.5 * looks[0]["held_loss"]
    assert 25 <= len(looks) <= 35
    assert len(looks[-1]["heads"]) == 4
    model = TinyGPT.load(trained)
    start = torch.tensor(model.tokenizer.encode("The cat"))
    written = model.tokenizer.decode(model.generate(start, 12, temperature=0).tolist())
    assert written.startswith("The cat ")
    assert set(written.split()) <= set(TEXT.split()) | {written.split()[-1]}


def test_every_line_is_strict_json(trained):
    for line in (trained / checkpoint.METRICS).read_text("ascii").splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_bits_a_byte_are_those_of_the_text_held_back(trained):
    training = Training.resume(trained, TEXT)
    loss = training.held_loss(10**6)
    n_bytes = len(training.model.tokenizer.decode(training.corpus.held.tolist()).encode())
    want = loss / 0.6931471805599453 * len(training.corpus.held) / n_bytes
    look = [r for r in lines(trained) if r["kind"] == "look"][-1]
    assert look["bits_per_byte"] == pytest.approx(want, rel=0.1)  # of 32 windows only


def test_the_rate_goes_up_a_line_and_down_a_cosine():
    training = Training.begin(replace(SMALL, steps=100, warmup=10), None)
    rates = [training.settings.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(3e-4)
    assert rates[9] == pytest.approx(3e-3) == max(rates)
    assert rates[55] == pytest.approx(3e-3 * 0.55, rel=1e-6)
    assert 3e-4 < rates[99] < 3.1e-4
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_batches_in_pieces_give_the_gradient_of_the_whole():
    rows = batch(Corpus.nothing(64), 0, 6, 6, 16, seed=0, longest=64)
    model = Training.begin(replace(SMALL, vocab_size=64, context=16), None).model
    model.loss(rows).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for part in rows.split(2):
        (model.loss(part) / 3).backward()
    for got, p in zip(want, model.parameters(), strict=True):
        torch.testing.assert_close(p.grad, got, atol=1e-6, rtol=1e-4)


def test_norms_are_not_decayed():
    training = Training.begin(SMALL, None)
    for group in training.optimizer.param_groups:
        assert {p.ndim > 1 for p in group["params"]} == {group["weight_decay"] > 0}


# What it learns from ------------------------------------------------------------------------------


def test_a_batch_is_a_function_of_seed_and_step():
    tokenizer = Tokenizer.train([TEXT], 300)
    corpus = Corpus.of(TEXT, tokenizer, 32, 0.1)
    first = batch(corpus, 7, 6, 2, 32, seed=1, longest=64)
    assert first.shape == (6, 33)
    assert torch.equal(first, batch(corpus, 7, 6, 2, 32, seed=1, longest=64))
    assert not torch.equal(first, batch(corpus, 8, 6, 2, 32, seed=1, longest=64))
    assert not torch.equal(first, batch(corpus, 7, 6, 2, 32, seed=2, longest=64))
    text = corpus.train.unfold(0, 33, 1)
    for row in first[2:]:
        assert (text == row).all(dim=1).any()


@pytest.mark.parametrize(("longest", "most"), [(64, 48), (24, 24), (8, 8), (5, 5)])
def test_blocks_repeat_to_the_end(longest, most):
    periods = set()
    for seed in range(50):
        row = repeating(1000, 97, longest, torch.Generator().manual_seed(seed))
        periods.add(next(n for n in range(1, 97) if torch.equal(row[n:], row[:-n])))
    assert min(8, most) <= min(periods)
    assert max(periods) <= most
    assert len(periods) > (most - 8) / 3
    assert repeating(5, 2, longest, torch.Generator()).shape == (2,)


def test_the_share_of_repeats_goes_in_a_straight_line():
    settings = replace(SMALL, steps=11, batch=10, repeats=0.6, last_repeats=0.1)
    assert [settings.repeats_at(step) for step in (0, 5, 10)] == pytest.approx([0.6, 0.35, 0.1])
    same = replace(settings, last_repeats=None)
    assert [same.repeats_at(step) for step in (0, 10)] == [0.6, 0.6]
    training = Training.begin(settings, TEXT)
    counted = {}
    for step in (0, 5, 10):
        training.step, training.sums = step, {}
        training._one_step()
        counted[step] = training.sums["repeat_loss"][1], training.sums["loss"][1]
    assert counted == {0: (6, 4), 5: (4, 6), 10: (1, 9)}  # rows


def test_what_is_held_back_is_not_learned_from():
    tokenizer = Tokenizer.train([TEXT], 300)
    corpus = Corpus.of(TEXT, tokenizer, 32, 0.1)
    tokens = encode(TEXT, tokenizer)
    assert torch.cat([corpus.train, corpus.held]).tolist() == tokens
    assert len(corpus.held) == int(0.1 * len(tokens))
    spread = windows(corpus.held, 32, 4)
    assert spread.shape == (4, 33)
    assert spread[0].tolist() == corpus.held[:33].tolist()
    assert spread[-1].tolist() == corpus.held[-33:].tolist()
    assert windows(corpus.held[:33], 32, 4).shape == (1, 33)


def test_a_long_text_encoded_in_pieces_is_the_same_text():
    tokenizer = Tokenizer.train([TEXT], 300)
    text = ("x y  z\r\n" * 3000 + "\n\n  é🙂\t") * 8
    assert tokenizer.decode(encode(text, tokenizer)) == text


# It goes on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"dropout": 0.2, "accumulate": 2}], ids=["plain", "drop"])
@pytest.mark.parametrize(
    "stop", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 20, 39)), 15]
)
def test_stopped_and_resumed_is_uninterrupted_to_the_bit(tmp_path, stop, options):
    settings = replace(SMALL, **options)
    want = whole(settings, tmp_path / "whole")
    folder = tmp_path / "parts"
    begun = Training.begin(settings, TEXT)
    steps = train_run(begun, folder)
    for record in steps:
        if record["step"] >= stop:
            break
    steps.close()
    again = Training.resume(folder, TEXT)
    assert again.step == begun.step >= stop
    list(train_run(again, folder))
    assert lines(folder) == want
    weights = (tmp_path / part / "model.safetensors" for part in ("whole", "parts"))
    assert len({path.read_bytes() for path in weights}) == 1


def test_a_finished_training_has_nothing_to_do(tmp_path):
    want = whole(replace(SMALL, steps=11), tmp_path)
    assert list(train_run(Training.resume(tmp_path, TEXT), tmp_path)) == []
    assert lines(tmp_path) == want


def test_another_text_is_noticed(tmp_path):
    whole(replace(SMALL, steps=1), tmp_path)
    with pytest.raises(ValueError, match="not the one that this training began with"):
        Training.resume(tmp_path, TEXT + "more")


def test_no_global_random_number_is_drawn(tmp_path):
    before = torch.get_rng_state()
    whole(replace(SMALL, steps=2, dropout=0.1), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "clearhead", "train", "--out", str(folder), *more]


def options_of(settings: Settings) -> list[str]:
    default = vars(Settings())
    return [
        word
        for name, value in vars(settings).items()
        if value != default[name]
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


def started(arguments: list[str], folder: Path) -> subprocess.Popen:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        arguments, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    path = folder / "out" / checkpoint.METRICS
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and any(r["step"] >= 20 for r in checkpoint.read_lines(path)):
            return process
        time.sleep(0.02)
    process.kill()
    pytest.fail(f"it did not get to step 20: {process.communicate()}")


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


LONG = replace(SMALL, steps=120)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> list[dict]:
    """The losses of LONG in a process with as many threads as those that are stopped."""
    folder = tmp_path_factory.mktemp("whole")
    code = (
        "import sys, test_train as t; from pathlib import Path\n"
        "t.whole(t.LONG, Path(sys.argv[1]))\n"
    )
    run([sys.executable, "-c", code, folder], cwd=ROOT / "tests", OMP_NUM_THREADS="1")
    return lines(folder)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGINT, id="interrupted", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, id="ended", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_process_that_was_stopped_goes_on_to_the_same_losses(tmp_path, text, how, uninterrupted):
    folder = tmp_path / "out"
    process = started(command(folder, "--text", str(text), *options_of(LONG)), tmp_path)
    process.send_signal(how)
    said, complained = process.communicate(timeout=60)
    assert TinyGPT.load(folder).n_parameters > 0  # the last good one
    if how != signal.SIGKILL:
        assert process.returncode == 130
        assert "kept in" in said
        assert complained.strip() == "clearhead train: interrupted"
        assert checkpoint.read_said(folder / checkpoint.CHECKPOINT)["step"] >= 20
    out = run(command(folder, "--resume"), cwd=tmp_path, OMP_NUM_THREADS="1").stdout
    assert "going on at step" in out or how == signal.SIGKILL
    assert lines(folder) == uninterrupted


@pytest.mark.slow
def test_a_second_training_in_the_same_place_is_refused(tmp_path, text):
    folder = tmp_path / "out"
    endless = options_of(replace(LONG, steps=100_000))
    process = started(command(folder, "--text", str(text), *endless), tmp_path)
    try:
        again = run(command(folder, "--resume"), cwd=tmp_path, status=2)
        assert "another training writes there; wait for it" in again.stderr
    finally:
        process.kill()
        process.communicate()


# The verb -----------------------------------------------------------------------------------------


def said(capsys, *arguments: str, status: int = 0) -> str:
    assert main(["train", *arguments]) == status
    got = capsys.readouterr()
    assert "Traceback" not in got.err
    return got.err if status else got.out


def test_the_verb_trains_draws_and_writes(tmp_path, text, capsys):
    out = said(
        capsys, "--text", str(text), "--out", str(tmp_path / "o"),
        *options_of(replace(SMALL, steps=31)),
    )  # fmt: skip
    assert "step     31/31" in out
    assert "bits/byte" in out
    assert "It writes: " in out
    assert sorted(p.name for p in (tmp_path / "o").iterdir()) == [
        ".lock", "checkpoint.safetensors", "config.json", "metrics.jsonl", "model.safetensors",
        "tokenizer.json", "training.png",
    ]  # fmt: skip


def test_the_recipe_needs_no_text(tmp_path, capsys):
    out = said(capsys, "--recipe", "induction", "--out", str(tmp_path / "o"), "--steps", "3")
    assert "repeats" in out
    assert "bits/byte" not in out
    assert not (tmp_path / "o" / "tokenizer.json").exists()
    assert "going on" in said(capsys, "--out", str(tmp_path / "o"), "--resume")


def test_its_folder_is_named_as_everywhere_and_as_it_was(tmp_path, capsys):
    recipe = ["--recipe", "induction", "--steps", "1"]
    said(capsys, *recipe, "--output-dir", str(tmp_path / "a"))
    again = said(capsys, *recipe, "--out", str(tmp_path / "a"), status=2)
    assert "another --output-dir leaves it alone" in again
    changed = said(capsys, "--resume", "--seed", "9", "--output-dir", str(tmp_path / "a"), status=2)
    assert "--resume takes --output-dir and --text alone" in changed


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(tmp_path, text, capsys):
    out = said(
        capsys, "--text", str(text), "--out", str(tmp_path / "o"), "--dry-run", *options_of(SMALL)
    )
    for word in ("parameters", "tokens", "time", "memory", "nothing was written"):
        assert word in out
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"", [], "the text is 0 tokens long; a context of 256 needs at least 514"),
        (b"short", [], "give a longer text or a shorter context"),
        (b"caf\xe9 " * 9, [], "is not UTF-8: byte 0xe9 at offset 3"),
        (b"x " * 999, ["--n-heads", "5"], "d_model 192 cannot be split over 5 heads"),
        (b"x " * 999, ["--steps", "0"], "steps must be at least 1; got 0"),
        (b"x " * 999, ["--repeats", "2"], "repeats must be in 0..1"),
        (b"x " * 999, ["--last-repeats", "-1"], "last_repeats must be in 0..1"),
        (b"x " * 999, ["--longest-block", "0"], "longest_block must be at least 1"),
        (b"x " * 999, ["--vocab-size", "100"], "vocab_size must be at least 256"),
        (b"x " * 999, ["--learning-rate", "nan"], "learning_rate must be above 0; got nan"),
        (b"x " * 999, ["--dropout", "1"], "dropout must be at least 0 and below 1"),
        (b"x " * 999, ["--context", "3"], "context must be at least 4"),
        (b"x " * 999, ["--rotary-base", "nan"], "rotary_base must be above 0 and finite; got nan"),
        (b"x " * 999, ["--seed", "-1"], "seed must be from 0 to 2^63 - 1; got -1"),
        (b"x " * 999, ["--resume"], "there is no training to resume in"),
        (b"x " * 999, ["--recipe", "induction"], "not allowed with argument"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, content, arguments, words):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    err = said(capsys, "--text", str(path), "--out", str(tmp_path / "o"), *arguments, status=2)
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "o" / checkpoint.CHECKPOINT).exists()


def test_other_mistakes(tmp_path, text, capsys):
    assert "--text FILE, or --recipe" in said(capsys, status=2)
    assert "No such file" in said(capsys, "--text", str(tmp_path / "nowhere"), status=2)
    folder = str(tmp_path / "o")
    said(capsys, "--recipe", "induction", "--steps", "1", "--out", folder)
    again = said(capsys, "--recipe", "induction", "--steps", "1", "--out", folder, status=2)
    assert "holds a training at step 1: --resume goes on with it" in again
    changed = said(capsys, "--resume", "--steps", "9", "--out", folder, status=2)
    assert "--steps cannot change on the way" in changed
    (tmp_path / "o" / checkpoint.CHECKPOINT).write_bytes(b"nonsense")
    assert "is no checkpoint" in said(capsys, "--resume", "--out", folder, status=2)


def test_a_gradient_that_is_not_finite_stops_before_it_does_harm(tmp_path):
    begun = Training.begin(replace(SMALL, steps=90, learning_rate=1e38, warmup=0), None)
    with pytest.raises(ArithmeticError, match="no longer finite at step 2: begin anew"):
        list(train_run(begun, tmp_path))
    assert checkpoint.read_said(tmp_path / checkpoint.CHECKPOINT)["step"] == 0
    assert all(weight.isfinite().all() for weight in TinyGPT.load(tmp_path).parameters())


@pytest.mark.parametrize(
    "where", ["in the step", pytest.param("before its records", marks=pytest.mark.slow)]
)
def test_what_breaks_off_in_the_middle_of_a_step_keeps_none_of_it(tmp_path, monkeypatch, where):
    want = whole(SMALL, tmp_path / "whole")
    begun, folder = Training.begin(SMALL, TEXT), tmp_path / "parts"
    if where == "in the step":
        step = begun.optimizer.step

        def broken(*_: object) -> None:
            step()
            if begun.step == 19:  # the weights are those of step 20 and nothing else is
                raise KeyboardInterrupt

        monkeypatch.setattr(begun.optimizer, "step", broken)
    else:
        append = checkpoint.append_lines

        def full(path: Path, records: list) -> None:
            if records[0]["step"] >= 20:
                raise OSError(28, "No space left on device")
            append(path, records)

        monkeypatch.setattr(checkpoint, "append_lines", full)
    with pytest.raises((KeyboardInterrupt, OSError)):
        list(train_run(begun, folder))
    monkeypatch.undo()
    list(train_run(Training.resume(folder, TEXT), folder))
    assert lines(folder) == want


def test_what_a_killed_save_left_behind_is_cleared_away(tmp_path):
    (tmp_path / ".model.safetensors.1-ab.part").write_bytes(b"half")
    whole(replace(SMALL, steps=1), tmp_path)
    assert not list(tmp_path.glob(".*.part"))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "lines.jsonl"
    checkpoint.append_lines(path, [{"step": 1}, {"step": 2}, {"step": 3}])
    path.write_text(path.read_text() + '{"step": 4, "lo')
    assert [r["step"] for r in checkpoint.read_lines(path)] == [1, 2, 3]
    checkpoint.rewind(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


# What is seen -------------------------------------------------------------------------------------


def test_the_line_the_screen_and_the_picture(trained):
    records = checkpoint.read_lines(trained / checkpoint.METRICS)
    line = training_line(records, 150)
    for word in ("step    150/150", "held back", "bits/byte", "tokens/s", "entropy", "induction"):
        assert word in line
    screen = training_screen(records, 150, 80)
    assert max(map(len, screen)) <= 100
    assert any(row.startswith("    1  ") for row in screen)
    assert training_screen([], 10)[0].startswith("step 0 of 10")
    figure = training_figure(records)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles[0] == "1  loss, nats a token"
    assert [len(ax.lines) for ax in figure.axes] == [
        3,
        2,
        5,
        4,
    ]  # the dashed line of a perfect head
    with pytest.raises(ValueError, match="two looks at the heads or more; got 0"):
        training_figure([])


def test_somebody_who_watches_sees_a_screen(tmp_path):
    class Watched(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    out = Watched()
    training.train(
        Training.begin(replace(SMALL, steps=LOG_EVERY), None), tmp_path, Terminal(out, Watched())
    )
    assert "layer  entropy" in out.getvalue()


def test_time_in_words():
    assert [duration(s) for s in (0.4, 59, 61, 3599, 3661)] == [
        "0 s", "59 s", "1:01 min", "59:59 min", "1:01:01 h",
    ]  # fmt: skip
