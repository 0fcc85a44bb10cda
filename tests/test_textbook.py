"""The textbook run: its weights are what its own words say, without its q and k."""

import math
import os
import random
import stat
from pathlib import Path

import pytest
import torch

from clearhead import load
from clearhead.run import Call
from clearhead.viewer import textbook as book
from clearhead.viewer.textbook import HEADS, textbook


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(folder):
    return textbook(3000, folder=folder)


def words(seed, n, apart):
    """The words again, from the description alone."""
    stream, found = random.Random(seed), []
    while len(found) < n:
        word = stream.getrandbits(64)
        if all(bin(word ^ other).count("1") >= apart for other in found):
            found.append(word)
    return found


def scores_of(words, one, n):
    """Half of the product of word `one` with the first n: 32 - hamming."""
    return [32 - bin(words[one] ^ other).count("1") for other in words[:n]]


def by_hand(head, ids, i):
    """The weights of row i, in plain Python."""
    if head == "previous token":
        found = words("positions", i + 2, 0)
        scores = scores_of(found, i, i + 2)[1:]
    elif head == "first token":
        scores = [15.0] + [0.0] * i
    elif head in ("same token", "induction"):
        known = sorted(set(ids))
        each = dict(zip(known, words("tokens", len(known), 20), strict=True))
        if head == "same token":
            scores = scores_of([each[t] for t in ids], i, i + 1)
        else:
            short = [each[t] & ((1 << 63) - 1) for t in ids]  # the last sign is the resting place's
            scores = [24.0] + [x - 0.5 for x in scores_of(short, i, i)]
    elif head == "local window":
        # the mean of cosines of 32 quantiles of the right half of a normal distribution
        halves = [(m + 0.5) / 32 for m in range(32)]
        inverse = torch.erfinv(torch.tensor(halves, dtype=torch.float64)).tolist()
        roots = [math.sqrt(2) * x / 20 for x in inverse]
        scores = [24 * sum(math.cos(w * (i - j)) for w in roots) / 32 for j in range(i + 1)]
    else:
        scores = [0.0] * (i + 1)
    largest = max(scores)
    weights = [math.exp(s - largest) for s in scores]
    total = sum(weights)
    return torch.tensor([w / total for w in weights], dtype=torch.float64)


@pytest.mark.parametrize("head", HEADS)
def test_weights_are_what_a_hand_computes(run, head):
    ids = run.tokens[0][0].tolist()
    name = f"0.{HEADS.index(head)}"
    for i in (0, 1, 2, 5, 411, 699):
        expected = by_hand(head, ids, i)
        known = book.known_weights(head, torch.tensor(ids), i)
        assert torch.allclose(known, expected, rtol=1e-9, atol=1e-15)
        found = run.map(name)[0, 0, i]
        assert (found[: i + 1].double() - expected).abs().max() < 1e-5
        assert found[i + 1 :].abs().max() == 0


def test_what_each_head_does(run):
    ids = run.tokens[0][0]
    maps = {head: run.map(f"0.{h}") for h, head in enumerate(HEADS)}
    assert maps["previous token"].on_lag(1)[0, 0, 1:].min() >= 0.999
    assert maps["first token"].on_key(0)[0, 0].min() >= 0.99
    for i in (100, 1500, 2999):
        same = ids[: i + 1] == ids[i]
        row = maps["same token"][0, 0, i, : i + 1]
        assert torch.allclose(row[same], 1 / same.sum().float(), atol=1e-3)
        after = torch.cat([torch.tensor([False]), same[:i]])
        row = maps["induction"][0, 0, i, : i + 1]
        if after.any():
            assert torch.allclose(row[after], 1 / after.sum().float(), atol=2e-3)
        near = maps["local window"][0, 0, i]
        assert near[i - 8 : i + 1].sum() > 0.9 and near[i] > near[i - 4] > near[i - 12]
        assert torch.allclose(maps["broad"][0, 0, i, : i + 1], torch.tensor(1 / (i + 1)))
    first = next(i for i in range(50, 3000) if ids[i] not in ids[:i])
    assert maps["induction"][0, 0, first, 0] > 0.95  # nothing to find: it rests


def test_it_is_an_ordinary_run_with_roles_by_evidence(run):
    assert [run.roles[f"0.{h}"]["role"] for h in range(6)] == list(HEADS)
    assert run.checked_line().startswith("1 call replayed, worst output difference ")
    ((_, check),) = run.checks
    assert check.ok and check.rows == 6 * 64
    assert any("No model" in note for note in run.notes)
    (call,) = run.calls
    mass = run.map("0.3")._mass((0, 3000), (0, 3000))  # rows sum to 1 by the lse that is kept
    assert (mass - 1).abs().max() < 1e-5
    text = "".join(run.pieces[t] for t in run.tokens[0][0].tolist())
    assert text.startswith("Fellow-Citizens of the Senate and House of Representatives")
    records = {record.head: record for record in run.heads()}
    assert records["0.0"].previous > 0.999 and records["0.5"].normalized_entropy > 0.999
    assert call.tensors["lse"].shape == (1, 6, 3000)


def test_the_check_finds_a_wrong_key(run):
    (call,) = run.calls
    ids = run.tokens[0][0]
    assert max(book._differences(call, ids, [2999])) < 1e-5
    k = call.tensors["k"].clone()
    k[0, 2, int((ids == ids[2999]).nonzero()[0])] *= -1
    broken = Call(**{
        **{f: getattr(call, f) for f in call.__dataclass_fields__},
        "tensors": {**dict(call.tensors), "k": k},
    })  # fmt: skip
    assert max(book._differences(broken, ids, [2999])) > 1e-3


def test_the_bundled_text_is_long_enough_and_then_repeats():
    ids, pieces = book.bundled_tokens(80_000)
    whole = "".join(pieces[t] for t in ids.tolist())
    text = (Path(book.__file__).parent / "textbook.txt").read_text("utf-8")
    assert whole.startswith(text + text[:1000])
    assert len(book.bundled_tokens(32_768)[0]) == 32_768 and len(text.encode()) < 110_000


def test_words_of_tokens_lie_apart_and_those_of_100_000_positions_tell_the_previous_one():
    signs = book._signs(book.token_words(1024))
    agree = signs @ signs.T
    assert agree.fill_diagonal_(-64).max() <= 64 - 2 * book.APART
    where = book._signs(book.position_words(100_001))
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, 100_000, (200,), generator=generator)
    scores = where[rows] @ where[1:].T / 2  # every key, the later ones too
    assert scores.softmax(dim=1).gather(1, rows[:, None] - 1).min() >= 0.95


@pytest.mark.slow
def test_every_row_of_100_000_looks_at_the_previous_token():
    where = book._signs(book.position_words(100_001))
    for i0 in range(0, 100_000, 1000):
        scores = where[i0 : i0 + 1000] @ where[1:].T / 2
        rows = torch.arange(max(i0, 1), i0 + 1000)
        mine = scores[rows - i0].softmax(dim=1).gather(1, rows[:, None] - 1)
        assert mine.min() >= 0.95


def test_it_is_kept_and_read_again_and_a_damaged_one_is_made_again(folder, run, monkeypatch):
    (place,) = folder.iterdir()
    assert place.name.startswith("textbook-") and place.name.endswith("-3000")
    assert load(place).model == "textbook"
    made = []
    make = book.make
    monkeypatch.setattr(book, "make", lambda *a: made.append(a[0]) or make(*a))
    assert textbook(3000, folder=folder).calls[0].folder == place.resolve()
    assert made == []
    (file,) = place.glob("data-*/call-000000.safetensors")
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
    file.write_bytes(content)
    again = textbook(3000, folder=folder)
    assert made == [3000] and again.roles == run.roles
    (place / "run.json").write_text("{", "utf-8")
    assert textbook(3000, folder=folder).checked_line() == run.checked_line()
    assert made == [3000, 3000] and [path.name for path in folder.iterdir()] == [place.name]
    assert not (place / "damaged").exists()


def test_two_at_once_share_what_the_faster_one_wrote(tmp_path, monkeypatch):
    first = textbook(200, folder=tmp_path)
    monkeypatch.setattr(book, "_kept", lambda folder, n, kept=book._kept: next(answers)(folder, n))
    answers = iter([lambda *_: None, lambda *_: first, lambda *_: first])  # it was not there yet
    assert textbook(200, folder=tmp_path) is first
    assert first.map("0.0")[0, 0, 5, 4] > 0.99  # still there
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_where_nothing_can_be_written_it_is_in_memory(tmp_path):
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert textbook(100, folder=tmp_path / "x").map("0.0")[0, 0, 5, 4] > 0.99


def test_where_a_file_is_in_the_way_it_is_in_memory(tmp_path, monkeypatch):
    (tmp_path / "clearhead").write_text("in the way", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert textbook(100).map("0.0")[0, 0, 5, 4] > 0.99
    assert (tmp_path / "clearhead").read_text("utf-8") == "in the way"


def test_progress_goes_from_0_to_1_and_may_cancel(tmp_path):
    seen = []
    textbook(2500, lambda done, what: seen.append((done, what)), tmp_path)
    done = [x for x, _ in seen]
    assert done == sorted(done) and (done[0], done[-1]) == (0.0, 1.0) and all(w for _, w in seen)

    def stop(done, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        textbook(2600, stop, tmp_path)
    assert not any("2600" in path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize("n", [0, -1, True, 2.5, 1 << 30])
def test_numbers_of_tokens_that_are_none(n):
    with pytest.raises(ValueError, match="n_tokens must be an integer from 1 to"):
        textbook(n)
    with pytest.raises(ValueError, match="no head of the textbook is called 'x'; there are"):
        book.known_weights("x", torch.zeros(3, dtype=torch.int64), 1)


@pytest.mark.parametrize("n", [1, 2, 17])
def test_few_tokens(n, tmp_path):
    run = textbook(n, folder=tmp_path)
    assert run.map("0.0").shape == (1, 1, n, n) and run.checks[0][1].ok
