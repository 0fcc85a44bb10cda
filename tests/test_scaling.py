"""The scaling experiment: its figures, against theory and against the dense softmax."""

import itertools
import json
import math

import pytest
import torch
from programs import CLEARHEAD, run

from clearhead import scaling
from clearhead.cli import main
from clearhead.scaling import measure_scaling


@pytest.fixture(scope="module")
def sweep():
    return {row.d_head: row for row in measure_scaling()}


@pytest.mark.quick
def test_the_standard_deviation_of_a_score_is_sqrt_d(sweep):
    expected = {16: 4.01, 64: 7.99, 256: 16.0, 1024: 32.0}
    assert {d: row.score_std for d, row in sweep.items()} == pytest.approx(expected, rel=0.03)


@pytest.mark.quick
def test_the_two_entropies_at_64(sweep):
    assert sweep[64].unscaled.entropy == pytest.approx(0.91, abs=0.05)
    assert sweep[64].scaled.entropy == pytest.approx(6.43, abs=0.05)


def test_scaled_every_size_is_alike_and_unscaled_it_saturates(sweep):
    rows = list(sweep.values())
    for row in rows:
        # For scores of variance 1 the entropy is log(n) - 1/2, up to what chance adds.
        assert row.scaled.entropy == pytest.approx(math.log(1024) - 0.5, abs=0.03)
        assert row.scaled.gradient > 0.99
    for small, large in itertools.pairwise(rows):
        assert large.unscaled.entropy < small.unscaled.entropy
        assert large.unscaled.max_prob > small.unscaled.max_prob
        assert large.unscaled.gradient < small.unscaled.gradient
    assert rows[-1].unscaled.gradient < 0.15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_tell_the_same(seed):
    (row,) = measure_scaling([64], seed=seed)
    assert row.score_std == pytest.approx(8.0, rel=0.03)
    assert row.unscaled.entropy == pytest.approx(0.91, abs=0.05)
    assert row.scaled.entropy == pytest.approx(6.43, abs=0.05)


def test_a_size_gives_the_same_figures_alone_and_in_a_sweep(sweep):
    (alone,) = measure_scaling([256])
    assert alone == sweep[256]


def test_blocks_of_rows_make_no_difference(monkeypatch):
    whole = next(measure_scaling([16], n_tokens=97))
    monkeypatch.setattr(scaling, "_BLOCK", 97 * 10)
    blocks = next(measure_scaling([16], n_tokens=97))
    assert blocks.score_std == pytest.approx(whole.score_std, rel=1e-9)
    for name in ("scaled", "unscaled"):
        a, b = getattr(blocks, name), getattr(whole, name)
        assert a.entropy == pytest.approx(b.entropy, rel=1e-5)
        assert a.max_prob == pytest.approx(b.max_prob, rel=1e-5)
        assert a.gradient == pytest.approx(b.gradient, rel=0.05)  # the pushes are drawn in blocks


def test_gradient_kept_is_what_autograd_says():
    scores = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()
    push = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0]).repeat(5, 1)
    torch.softmax(scores, dim=-1).backward(push)
    kept = scaling._row_sums(scores.detach(), push)[2]
    assert kept == pytest.approx(scores.grad.abs().sum().item(), rel=1e-5)


def test_gradient_kept_at_its_ends():
    alternating = torch.tensor([1.0, -1.0]).repeat(1, 50)
    assert scaling._row_sums(torch.zeros(1, 100), alternating)[2] == pytest.approx(1.0)
    assert scaling._row_sums(100 * torch.eye(100)[:1], alternating)[2] == pytest.approx(0.0)


def test_the_verb_prints_what_it_measured(tmp_path, sweep):
    done = run([*CLEARHEAD, "scaling", "--d-head", "64", "16"], cwd=tmp_path)
    lines = [line.split() for line in done.stdout.splitlines()]
    for d_head in (64, 16):
        row = sweep[d_head]
        assert [
            str(d_head), f"{math.sqrt(d_head):.1f}", f"{row.score_std:.2f}",
            f"{row.scaled.entropy:.3f}", f"{row.unscaled.entropy:.3f}",
            f"{row.scaled.max_prob:.3f}", f"{row.unscaled.max_prob:.3f}",
            f"{row.scaled.gradient:.3f}", f"{row.unscaled.gradient:.3f}",
        ] in lines  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_as_json_and_with_a_picture(tmp_path, capsys):
    arguments = ["scaling", "--d-head", "8", "--tokens", "50", "--seed", "9"]
    assert main([*arguments, "--json", "--output-dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    document = json.loads(said)
    assert (document["tokens"], document["seed"]) == (50, 9)
    assert [row["d_head"] for row in document["rows"]] == [8]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "scaling.json",
        "scaling.png",
    ]
    assert (tmp_path / "out/scaling.json").read_text() == said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--d-head", "0"], "[0]"),
        (["--d-head", "64", "-1"], "[64, -1]"),
        (["--tokens", "1"], "got 1"),
        (["--tokens", "9999999"], "at most 32768 tokens; got 9999999"),
        (["--tokens", "30000", "--d-head", "99999"], "30000 tokens with d_head 99999"),
        (["--d-head"], "--d-head"),
    ],
)
def test_sizes_that_cannot_be(arguments, words, capsys):
    assert main(["scaling", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
