"""A corpus read text by text: what adds up is what one observation would have seen, whoever reads
it, however often it was stopped.
"""

import doctest
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from programs import CLEARHEAD, ROOT, KilledAtStep, run

from clearhead import files, inspection, survey
from clearhead.capture import observer
from clearhead.comparing import compare
from clearhead.gpt import GPTConfig, TinyGPT
from clearhead.inspection import Asked
from clearhead.run import Run, load, writer
from clearhead.subject import Subject, find
from clearhead.survey import job as ranks
from clearhead.survey import progress, texts
from clearhead.survey import survey as read_corpus
from clearhead.survey.progress import Progress
from clearhead.survey.texts import Text, Texts

ASKED = Asked(probe=False)
SENTENCE = "the cat sat on a mat and saw one old man who rang the bell of his house at night"
WORDS = SENTENCE.split(" ")
FORKS = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture(autouse=True)
def one_thread():
    """As in a process of a job: bits depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def subject():
    """A small model with the tokenizer of that in the box; it reads 24 tokens at once."""
    torch.manual_seed(0)
    tokenizer = find(None).tokenizer
    sizes = GPTConfig(tokenizer.vocab_size, context=192, n_layers=2, d_model=128, n_heads=4)
    return Subject(TinyGPT(sizes, tokenizer).eval(), "small", tokenizer, 24, tokenizer.vocab_size)


def some_texts(n: int, longest: int = 60) -> list[str]:
    chance = random.Random(n)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, longest))) for _ in range(n)]


def folder_of(path: Path, contents: dict[str, str | bytes]) -> Path:
    for name, content in contents.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        (path / name).write_bytes(data)
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    found = {f"{n:02}.txt": text for n, text in enumerate(some_texts(7, 24))}
    return folder_of(tmp_path / "corpus", {**found, "03.txt": "", "05.txt": b"\xff\xfe\x00"})


def tensors(found: Run) -> dict[str, torch.Tensor]:
    return {f"{n}.{k}": x for n, s in found.stats.items() for k, x in s.to_tensors().items()}


def same(one: Run, other: Run) -> None:
    """Every bit of both."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    assert not [name for name in a if not torch.equal(a[name], b[name])]
    for name in ("model", "sites", "n_calls", "roles", "notes", "checked", "versions"):
        assert getattr(one, name) == getattr(other, name), name


def whole(subject, corpus: Path, folder: Path, asked: Asked = ASKED, **more) -> Run:
    found = read_corpus(subject, corpus, asked, folder, **more)
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert [name.split("-")[0] for name in left] == ["data", "run.json"]
    same(found, load(folder))
    return found


@contextmanager
def at_reading(subject, n: int, what):
    """Something happens when the model is given its n-th window of the corpus, from 1."""
    read, seen = type(subject).read, []

    def counted(self, tokens):
        seen.append(tokens.numel())
        if len(seen) == n + 1:  # the first is for a glance at the model
            what()
        read(self, tokens)

    type(subject).read = counted
    try:
        yield seen
    finally:
        type(subject).read = read


def press(number: int = signal.SIGINT):
    return lambda: os.kill(os.getpid(), number)


# It is one observation ----------------------------------------------------------------------------


def test_it_is_one_observation_of_all_windows(subject, corpus, tmp_path):
    every = [path.read_text() for n, path in enumerate(sorted(corpus.iterdir())) if n not in (3, 5)]
    windows = [window for text in every for window in subject.windows(text)]
    assert len(windows) > len(every)
    seen = inspection.glance(subject, windows[0])
    for asked in (ASKED, Asked()):
        one = inspection.examine(subject, windows, asked, seen)
        found = read_corpus(subject, corpus, asked, tmp_path / f"run-{asked.probe}")
        a, b = tensors(one), tensors(found)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert found.roles == one.roles
        assert (found.sites, found.n_calls, found.model) == (one.sites, one.n_calls, one.model)
        assert sum(check.calls for _, check in found.checks) == found.n_calls
        assert all(check.ok for _, check in found.checks)
    n_tokens = sum(map(len, windows))
    assert found.notes == [
        f"a corpus, corpus: 5 texts, {n_tokens} tokens in {len(windows)} windows",
        "2 of its 7 texts were left out: 03.txt (no token); 05.txt (not UTF-8)",
    ]


def test_jsonl_is_the_same_as_files(subject, tmp_path):
    every = some_texts(4)
    marked = {f"{n}.txt": "\ufeff" * (n % 2) + text for n, text in enumerate(every)}
    folder = folder_of(tmp_path / "a", marked)
    lines = [json.dumps({"id": n, "text": text}) for n, text in enumerate(every)]
    spaced = "\ufeff" + "\r\n\n".join(lines)
    (tmp_path / "a.jsonl").write_text(spaced, "utf-8", newline="")
    one = whole(subject, folder, tmp_path / "one")
    other = whole(subject, tmp_path / "a.jsonl", tmp_path / "other")
    assert one.notes[0].removeprefix("a corpus, a") == other.notes[0].removeprefix(
        "a corpus, a.jsonl"
    )
    a, b = tensors(one), tensors(other)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert one.roles == other.roles


def test_a_run_of_a_corpus_is_a_run_like_any_other(subject, corpus, tmp_path):
    found = whole(subject, corpus, tmp_path / "run")
    assert len(compare([("a", found), ("b", load(tmp_path / "run"))]).rows) == 8
    load(tmp_path / "run").report(tmp_path / "page.html")
    assert "5 texts" in (tmp_path / "page.html").read_text("utf-8")


def test_only_some_layers_and_only_the_first_tokens(subject, corpus, tmp_path):
    found = read_corpus(subject, corpus, Asked(probe=False, layers=[1]), tmp_path / "a", most=5)
    assert list(found.stats) == [1]
    assert found.stats[1].rows[0] == sum(
        min(5, len(subject._plain(path.read_text())))
        for n, path in enumerate(sorted(corpus.iterdir())) if n not in (3, 5)
    )  # fmt: skip
    with pytest.raises(ValueError, match="has no attention in the layers"):
        read_corpus(subject, corpus, Asked(probe=False, layers=[7]), tmp_path / "b")
    assert read_corpus(subject, corpus, ASKED, tmp_path / "b")  # nothing is in the way


# Stopped and started again ------------------------------------------------------------------------


def test_stopped_at_any_moment_it_goes_on_to_the_very_same_run(subject, corpus, tmp_path):
    before = signal.getsignal(signal.SIGINT)  # in the background of a shell it is ignored
    uninterrupted = whole(subject, corpus, tmp_path / "whole")
    n_windows = uninterrupted.n_calls // 2
    for n in (1, n_windows // 2, n_windows):
        folder, said = tmp_path / str(n), []
        how = signal.SIGTERM if n % 2 else signal.SIGINT
        with at_reading(subject, n, press(how)) as seen, pytest.raises(KeyboardInterrupt):
            read_corpus(subject, corpus, ASKED, folder, say=said.append)
        assert len(seen) == n + 1
        assert said[-1].startswith("stopped after ")
        assert not (folder / "run.json").exists()
        with at_reading(subject, -1, None) as seen:
            found = whole(subject, corpus, folder, say=said.append)
        assert len(seen) == n_windows - n + 1, "none is read again, none is left out"
        assert "going on after" in said[1]
        same(uninterrupted, found)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_stopped_at_every_window_and_in_jsonl(subject, corpus, tmp_path):
    lines = "".join(json.dumps({"text": text}) + "\n\n" for text in some_texts(4, 24))
    (tmp_path / "a.jsonl").write_text(lines)
    some_rows = Asked(probe=False, rows=8)  # the same ones, whoever reads them
    for place, asked in ((corpus, some_rows), (tmp_path / "a.jsonl", ASKED)):
        uninterrupted = whole(subject, place, tmp_path / f"{place.name}-whole", asked)
        folder, times = tmp_path / f"{place.name}-run", 0
        while not (folder / "run.json").exists():
            try:
                with at_reading(subject, 1, press()):
                    found = read_corpus(subject, place, asked, folder)
            except KeyboardInterrupt:
                times += 1
        assert times == uninterrupted.n_calls // 2
        same(uninterrupted, found)


def test_what_could_not_be_observed_is_told_once(subject, corpus, tmp_path, monkeypatch):
    """With the reason of the first time, in whatever session that was."""
    look = observer.look

    def refusing(inputs, rows, seed):
        if seed.startswith("1."):
            raise ValueError(f"no call {seed}")
        return look(inputs, rows, seed)

    monkeypatch.setattr(observer, "look", refusing)
    uninterrupted = whole(subject, corpus, tmp_path / "whole")
    assert list(uninterrupted.stats) == [0]
    assert "blocks.1.attention was not observed: ValueError: no call 1.1" in uninterrupted.notes[2]
    with at_reading(subject, 3, press()), pytest.raises(KeyboardInterrupt):
        read_corpus(subject, corpus, ASKED, tmp_path / "run")
    same(uninterrupted, whole(subject, corpus, tmp_path / "run"))


@pytest.mark.parametrize(
    "every",
    [pytest.param(0.0, id="kept always"),
     pytest.param(1e9, id="never kept", marks=pytest.mark.slow)],
)  # fmt: skip
def test_an_error_in_the_middle_of_a_window_counts_nothing_twice(
    subject, corpus, tmp_path, monkeypatch, every
):
    monkeypatch.setattr(survey, "KEEP_EVERY", every)
    monkeypatch.setattr(survey, "KEEP_SHARE", 0)
    uninterrupted = whole(subject, corpus, tmp_path / "whole")
    gather = inspection.gather
    for n in (2, 6) if every else (1, 5, 6):
        calls = []

        def broken(*args, n=n, calls=calls, **more):
            calls.append(1)
            if len(calls) == n:
                raise RuntimeError("out of memory")
            return gather(*args, **more)

        with monkeypatch.context() as patch:
            patch.setattr(inspection, "gather", broken)
            with pytest.raises(RuntimeError, match="out of memory"):
                read_corpus(subject, corpus, ASKED, tmp_path / f"{n}")
        assert (tmp_path / f"{n}" / "corpus-0.safetensors").exists() == (every == 0 and n > 2)
        same(uninterrupted, whole(subject, corpus, tmp_path / f"{n}"))


@pytest.mark.slow
@FORKS
def test_killed_at_any_moment_it_goes_on_to_the_very_same_run(
    subject, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(survey, "KEEP_EVERY", 0.0)
    monkeypatch.setattr(survey, "KEEP_SHARE", 0)
    for name in ("00.txt", "05.txt", "06.txt"):
        (corpus / name).unlink()
    uninterrupted = whole(subject, corpus, tmp_path / "whole")
    steps, kept, status = 8, set(), 1  # those before come from looking whether it may write
    while status:
        folder = tmp_path / str(steps)
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            files.os = writer.os = KilledAtStep(steps, "open", "close", "link")
            read_corpus(subject, corpus, ASKED, folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        if (file := folder / "corpus-0.safetensors").exists():
            kept.add(progress.said_in(file.read_bytes(), "")["windows"])
        assert not kept or file.exists() or (folder / "run.json").exists(), "it was let go too soon"
        same(uninterrupted, whole(subject, corpus, folder))
        assert not [path for path in folder.iterdir() if path.name.startswith(".corpus-0.s")]
        steps += 7
    assert len(kept) > 2


def test_another_reading_is_refused(subject, corpus, tmp_path):
    folder = tmp_path / "run"
    with at_reading(subject, 3, press()), pytest.raises(KeyboardInterrupt):
        read_corpus(subject, corpus, ASKED, folder)
    (corpus / "notes.md").write_text("is no text")

    def refused(match, who=subject, asked=ASKED, **more):
        with pytest.raises(ValueError, match=match) as caught:
            read_corpus(who, corpus, asked, folder, **more)
        assert "\n" not in str(caught.value) and "corpus-0.safetensors" in str(caught.value)

    other = find(None)
    with torch.no_grad():
        other.model.blocks[1].attention.q_proj.weight.mul_(1.001)
    refused("progress of another model: go on", replace(other, context=24))
    refused("progress of another model: go on", replace(subject, context=25))
    refused("of other options .*rows None.*; now .*rows 8", asked=Asked(probe=False, rows=8))
    refused("of other options .*tokens None.*; now .*tokens 9", most=9)
    refused(r"layers None.*; now layers \['1'\]", asked=Asked(probe=False, layers=[1]))
    refused("probe False.*; now .*probe True", asked=Asked())
    text = (corpus / "06.txt").read_text()
    (corpus / "06.txt").write_text(text.swapcase())
    refused("progress of another corpus, or this one before it was changed")
    (corpus / "06.txt").write_text(text)
    (corpus / "06.txt").rename(corpus / "07.txt")
    refused("progress of another corpus")
    (corpus / "07.txt").rename(corpus / "06.txt")
    file = folder / "corpus-0.safetensors"
    (folder / "corpus-1.safetensors").write_bytes(
        file.read_bytes().replace(b'processes\\": \\"1', b'processes\\": \\"2')
    )
    with pytest.raises(ValueError, match=r"corpus-1.* another number of processes \(2; now 1\)"):
        read_corpus(subject, corpus, ASKED, folder)
    (folder / "corpus-1.safetensors").unlink()
    same(whole(subject, corpus, folder), whole(subject, corpus, tmp_path / "whole"))


def test_a_damaged_progress_is_told_and_not_believed(subject, corpus, tmp_path):
    folder = tmp_path / "run"
    with at_reading(subject, 4, press()), pytest.raises(KeyboardInterrupt):
        read_corpus(subject, corpus, ASKED, folder)
    file = folder / "corpus-0.safetensors"
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[-1000] ^= 1
    for bad in (b"", b"x" * 100, good[:40], good[: len(good) // 2], good[:-1], bytes(flipped),
                good.replace(b'n_calls\\": ', b'n_cells\\": '),
                good.replace(b'windows\\": 4', b'windows\\":-4'),
                good.replace(b'version\\": 1', b'version\\": 2'),
                good.replace(b'processes\\": ', b'processed\\": ')):  # fmt: skip
        assert bad != good
        file.write_bytes(bad)
        with pytest.raises(ValueError, match=r"corpus-0\.safetensors is no progress that can be"):
            read_corpus(subject, corpus, ASKED, folder)
    file.write_bytes(good)
    same(whole(subject, corpus, folder), whole(subject, corpus, tmp_path / "whole"))


def test_a_second_copy_at_once_is_refused(subject, corpus, tmp_path):
    folder = folder_of(tmp_path / "run", {".corpus-0.lock": ""})
    told = pytest.raises(OSError, match="another copy reads a corpus into it")
    with files.alone(folder / ".corpus-0.lock", ""), told:
        read_corpus(subject, corpus, ASKED, folder)
    assert read_corpus(subject, corpus, ASKED, tmp_path / "run")


def test_a_folder_of_something_else_is_refused_before_anything_is_read(subject, corpus, tmp_path):
    folder_of(tmp_path / "run", {"run.json": '{"format": "else"}'})
    told = pytest.raises(ValueError, match="choose another folder")
    with at_reading(subject, 0, lambda: pytest.fail("read")), told:
        read_corpus(subject, corpus, ASKED, tmp_path / "run")


def test_how_far_it_is_is_said_unless_somebody_watches(subject, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "SAY_EVERY", 0.0)
    said = []
    n_windows = whole(subject, corpus, tmp_path / "a", say=said.append).n_calls // 2
    how_far = [line for line in said if "tokens/s" in line]
    assert n_windows <= len(how_far) <= n_windows + 7  # after each window, and each text
    assert re.fullmatch(r"0 of 7 texts, 14 tokens, [\d,]+ tokens/s", how_far[0])
    assert how_far[-1].startswith("7 of 7 texts, ")
    said.clear()
    shown = []

    def watching(texts, label, count):
        shown.append((label, count))
        return texts

    with at_reading(subject, n_windows - 2, press()), pytest.raises(KeyboardInterrupt):
        read_corpus(subject, corpus, ASKED, tmp_path / "b", say=said.append, show=watching)
    n_read = int(re.fullmatch(r"stopped after (\d) of 7 texts, .*", said[0])[1])
    assert n_read > 2
    whole(subject, corpus, tmp_path / "b", say=said.append, show=watching)
    assert shown == [("reading", 7), ("reading", 7 - n_read)]
    assert not any("tokens/s" in line for line in said)


@pytest.mark.parametrize(("share", "written"), [(0, "always"), (1e9, "twice")])
def test_the_slower_the_disk_the_seldomer_it_is_written(
    subject, corpus, tmp_path, monkeypatch, share, written
):
    monkeypatch.setattr(survey, "KEEP_EVERY", 0.0)
    monkeypatch.setattr(survey, "KEEP_SHARE", share)
    keep, times = survey.kept.keep, []
    monkeypatch.setattr(survey.kept, "keep", lambda *what: times.append(1) or keep(*what))
    n_windows = whole(subject, corpus, tmp_path / "run").n_calls // 2
    assert len(times) > n_windows if written == "always" else len(times) == 2


@pytest.mark.parametrize("more", [{"keep": "qk"}, {"heads": ["0.1"]}, {"out": Path("calls")}])
def test_of_a_corpus_there_are_statistics_alone(subject, corpus, tmp_path, more):
    with pytest.raises(ValueError, match="statistics are kept, and nothing else: no maps"):
        read_corpus(subject, corpus, Asked(probe=False, **more), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Several processes --------------------------------------------------------------------------------


def job(world: int, work, said: Path) -> list[int]:
    """Run work(rank) in forked processes that are told of each other as torchrun does it.

    What a process complains of is in the file `said`-rank.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                torch.set_num_threads(1)
                os.environ |= {
                    "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                }  # fmt: skip
                work(rank)
                status = 0
            except KeyboardInterrupt:
                status = 130
            except (ConnectionError, ValueError) as error:
                Path(f"{said}-{rank}").write_text(str(error))
                status = 3
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def close(one: Run, other: Run) -> None:
    """The same numbers of rows, histograms and extremes; sums up to their rounding in float64."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    for name, x in a.items():
        if name.split(".")[-1] in ("mean", "m2"):
            torch.testing.assert_close(x, b[name], rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(x, b[name]), name
    for name in ("sites", "n_calls", "notes", "checked"):
        assert getattr(one, name) == getattr(other, name), name
    for head, role in one.roles.items():
        assert role["role"] == other.roles[head]["role"]


@FORKS
def test_processes_of_a_job_find_what_one_finds(subject, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "SILENCE", 20.0)
    one = whole(subject, corpus, tmp_path / "one")
    folder = tmp_path / "two"

    def work(rank):
        found = read_corpus(subject, corpus, ASKED, folder)
        assert (found is None) == (rank > 0)

    assert job(2, work, tmp_path / "said") == [0, 0]
    close(one, load(folder))
    assert not list(folder.glob("corpus-*"))

    few = folder_of(tmp_path / "few", {"a.txt": "the cat sat", "b.txt": ""})

    def idle(rank):  # one process more than texts, and one whose text has no token
        read_corpus(subject, few, ASKED, tmp_path / "idle")

    assert job(3, idle, tmp_path / "said") == [0, 0, 0]
    close(whole(subject, few, tmp_path / "few-run"), load(tmp_path / "idle"))


@pytest.mark.slow
@FORKS
def test_whoever_is_slow_but_works_is_waited_for(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "SILENCE", 4.0)
    monkeypatch.setattr(ranks, "SIGN", 0.1)
    long = {f"{n}.txt": SENTENCE * (1 + 6 * (n == 2)) for n in range(3)}
    corpus = folder_of(tmp_path / "corpus", long)
    read = type(subject).read

    def work(rank):
        def slow(self, tokens):
            time.sleep(1.2 * (rank == 2))
            read(self, tokens)

        type(subject).read = slow
        read_corpus(subject, corpus, ASKED, tmp_path / "run")

    began = time.monotonic()
    assert job(3, work, tmp_path / "said") == [0, 0, 0]
    assert time.monotonic() - began > 7


@pytest.mark.slow
@FORKS
def test_a_job_that_was_stopped_or_lost_a_process_goes_on(subject, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "SILENCE", 3.0)
    monkeypatch.setattr(ranks, "SIGN", 0.1)
    monkeypatch.setattr(survey, "KEEP_EVERY", 0.0)
    monkeypatch.setattr(survey, "KEEP_SHARE", 0)
    folder = tmp_path / "run"

    def losing(rank):
        with at_reading(subject, 2, press(signal.SIGKILL) if rank else (lambda: None)):
            read_corpus(subject, corpus, ASKED, folder)

    began = time.monotonic()
    assert job(2, losing, tmp_path / "said") == [3, -signal.SIGKILL]
    assert time.monotonic() - began < 30, "nobody waits for ever"
    assert "rank 1 gave no sign for 3 seconds" in (tmp_path / "said-0").read_text()

    def leaving(rank):
        with at_reading(subject, 1, press() if rank else (lambda: None)):
            read_corpus(subject, corpus, ASKED, tmp_path / "left")

    assert job(2, leaving, tmp_path / "said") == [3, 130]
    assert (tmp_path / "said-0").read_text() == "rank 1 was stopped"

    def twice(rank):  # Ctrl-C comes from the terminal and once more from torchrun
        def pressed():
            press()()
            press(signal.SIGTERM)()

        with at_reading(subject, 1, pressed):
            read_corpus(subject, corpus, ASKED, folder)

    assert set(job(2, twice, tmp_path / "said")) <= {130, 3}
    assert not (folder / "run.json").exists()
    with pytest.raises(ValueError, match=r"another number of processes \(2; now 1\)"):
        read_corpus(subject, corpus, ASKED, folder)

    def again(rank):
        read_corpus(subject, corpus, ASKED, folder)

    assert job(2, again, tmp_path / "said") == [0, 0]
    close(whole(subject, corpus, tmp_path / "whole"), load(folder))


@FORKS
def test_processes_with_different_models_are_told(subject, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ranks, "SILENCE", 10.0)

    def work(rank):
        read_corpus(replace(subject, context=24 + rank), corpus, ASKED, tmp_path / "run")

    assert set(job(2, work, tmp_path / "said")) == {3}
    assert "rank 1 has another model" in (tmp_path / "said-1").read_text()
    assert (tmp_path / "said-0").read_text() == "rank 1 failed"
    assert not (tmp_path / "run" / "run.json").exists()


def test_each_process_on_a_machine_has_a_device_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ranks.own_device("cuda") == "cuda"
    for local, device in enumerate(("cuda:0", "cuda:1", "cuda:0")):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        assert ranks.own_device("cuda") == device
        assert [ranks.own_device(name) for name in ("cpu", "cuda:1")] == ["cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert ranks.own_device("cuda") == "cuda"  # which is then refused by its name


def test_an_environment_that_makes_no_sense_is_told(subject, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "1")
    for rank in ("", "x", "2"):
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(ValueError, match=r"names no process of a job .*torchrun sets it"):
            read_corpus(subject, corpus, ASKED, tmp_path / "run")


def test_what_is_merged_knows_layers_by_their_sites():
    """Two that met the modules in another order."""
    from clearhead.stats import HeadStats

    def one(*names):
        found = Progress(Run("", [(name, 0) for name in names], len(names)))
        for layer, name in enumerate(names):
            stats = HeadStats.empty(2)
            found.run.stats[layer] = replace(stats, rows=torch.tensor([0, len(name)]))
        return found

    both = one("a", "bbb").merge(one("bbb", "cc", "a"))
    assert [name for name, _ in both.run.sites] == ["a", "bbb", "cc"]
    assert {n: int(s.rows[1]) for n, s in both.run.stats.items()} == {0: 2, 1: 6, 2: 2}
    assert both.run.n_calls == 5


def test_what_was_left_out_and_refused_is_merged():
    one, other = Progress(refused={"a": "first", "b": "x"}), Progress(refused={"a": "later"})
    for n in range(6):
        (one if n % 2 else other).leave_out(n, str(n))
    for both in (one.merge(other), other.merge(one)):
        assert both.left_out == 6
        assert both.named == [(n, str(n)) for n in range(progress.FEW)]
        assert both.refused.keys() == {"a", "b"}
    assert one.merge(other).refused["a"] == "first"


# Memory -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(subject, tmp_path, monkeypatch):
    sizes, held = [], []
    monkeypatch.setattr(survey, "KEEP_EVERY", 0.0)
    monkeypatch.setattr(survey, "KEEP_SHARE", 0)
    keep = survey.kept.keep

    def seen(folder, rank, data):
        sizes.append(len(data))
        keep(folder, rank, data)

    let_go = survey._let_go

    def weighed(found):
        let_go(found)
        held.append((len(found.calls), len(found.tokens), len(found.checked), len(found.pieces),
                     sum(x.nbytes for x in tensors(found).values())))  # fmt: skip

    monkeypatch.setattr(survey.kept, "keep", seen)
    monkeypatch.setattr(survey, "_let_go", weighed)
    short = {f"{n}.txt": text for n, text in enumerate(some_texts(50, 4))}
    corpus = folder_of(tmp_path / "c", short)
    corpus.joinpath("51.txt").write_bytes(b"\xff")
    for n in range(52, 70):
        corpus.joinpath(f"{n}.txt").touch()
    found = read_corpus(subject, corpus, ASKED, tmp_path / "run")
    assert len(held) == 50
    assert held[0][:4] == held[-1][:4] == (0, 0, 2, 0)
    assert len({size for *_, size in held}) == 1
    assert max(sizes) - min(sizes) < 600  # digits of numbers and a few names
    assert found.notes[1].count("(no token)") == 4  # the first few by name


def test_a_long_text_is_read_in_pieces(subject, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "LONG", 50)
    spaces = f"{'x' * 60} {'y' * 60}"
    for text in ("", "a", SENTENCE, "x" * 200, "\n" * 120, spaces, "é" * 50):
        file = folder_of(tmp_path, {"a.txt": text}) / "a.txt"
        for source in (file, text):
            found = list(Text(0, "a", source).pieces())
            assert "".join(found) == text
            assert all(0 < len(piece) <= 50 for piece in found)
            assert len(found) <= len(text) / 25 + 1
    pieces = list(Text(0, "a", " ".join(WORDS * 3)).pieces())
    assert all(piece.startswith(" ") for piece in pieces[1:]), "no word is cut"
    asked = []
    monkeypatch.setattr(type(subject), "_plain", lambda self, text: asked.append(len(text)) or [1])
    lines = [json.dumps({"text": "long " * 1000})]
    (tmp_path / "a.jsonl").write_text(lines[0])
    read_corpus(subject, tmp_path / "a.jsonl", ASKED, tmp_path / "run", most=3)
    ours = len(inspection.TEXT)
    assert max(n for n in asked if n != ours) <= 50
    assert len(asked) < 20, "of 5,000 characters only those that are wanted are looked at"


def test_a_line_of_50_megabytes(subject, tmp_path):
    with open(tmp_path / "a.jsonl", "w") as file:
        file.write('{"text": "the cat sat"}\n{"text": "')
        for _ in range(50):
            file.write("the cat sat on the mat, " * (1_000_000 // 24))
        file.write('"}\n')
    found = read_corpus(subject, tmp_path / "a.jsonl", ASKED, tmp_path / "run", most=100)
    assert found.notes[0].startswith("a corpus, a.jsonl: 2 texts, 1")


# What is no text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", 'no "text"'), ("[1]", 'no "text"'), ('{"text": 3}', '"text" is no string'),
        ("{", "it is not JSON"), ("nonsense", "it is not JSON"), ('{"text": "a"', "it is not JSON"),
        (b'{"text": "\xff"}', "it is not UTF-8"), ("[" * 100_000, "it is nested too deeply"),
        ('{"text": null}', '"text" is no string'), ("\ufeff{}", "it is not JSON"),
    ],
)  # fmt: skip
def test_a_line_without_a_text_is_told_by_its_number(subject, tmp_path, line, why):
    line = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "a"}')
    told = pytest.raises(ValueError, match=f"a.jsonl, line 3: {why}")
    with at_reading(subject, 0, lambda: pytest.fail("too early")), told as caught:
        read_corpus(subject, tmp_path / "a.jsonl", ASKED, tmp_path / "run")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_lone_surrogates_are_no_text_and_stop_nothing(subject, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "the \\ud800 cat"}\n{"text": "\\udfff"}\n')
    found = whole(subject, tmp_path / "a.jsonl", tmp_path / "run")
    assert found.notes[0].startswith("a corpus, a.jsonl: 2 texts")


def test_nothing_to_read_is_told(subject, tmp_path):
    empty = folder_of(tmp_path / "empty", {"a.md": "not this"})
    folder_of(tmp_path, {"a.jsonl": "\n \n", "none/a.txt": "", "none/b.txt": b"\xff"})
    for place, match in (
        (empty, r"no \*.txt file below it"), (tmp_path / "a.jsonl", "no line in it"),
        (tmp_path / "none", r"left out: a.txt \(no token\); b.txt \(not UTF-8\)"),
        (Path("/dev/null"), "neither a folder of"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=match):
            read_corpus(subject, place, ASKED, tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        read_corpus(subject, tmp_path / "absent", ASKED, tmp_path / "run")
    (empty / "gone.txt").symlink_to(tmp_path / "absent")
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        read_corpus(subject, empty, ASKED, tmp_path / "run")


def test_files_of_any_name_are_read_in_order(subject, tmp_path, capsys):
    names = ["-rf.txt", ".txt", "a b.txt", "a\nb.txt", "a/z.txt", "a.txt/b.txt", "é.txt",
             "$(x).txt", b"\xff\xfe.txt", "b" * 200 + ".txt", "\x1b[31m.txt", "c.TXT",
             "d.txt.gz"]  # fmt: skip
    corpus = tmp_path / "c"
    for n, name in enumerate(names):
        place = os.path.join(os.fsencode(corpus), os.fsencode(name))
        os.makedirs(os.path.dirname(place), exist_ok=True)
        Path(os.fsdecode(place)).write_text(WORDS[n] if n % 2 else "")
    os.mkfifo(corpus / "pipe.txt")
    (corpus / "loop").symlink_to(corpus)
    (corpus / "link.txt").symlink_to(corpus / "a b.txt")
    whole_corpus = Texts.of(corpus)
    found = list(whole_corpus.after(0, 0))
    assert whole_corpus.count == len(found) == 13
    assert [text.number for text in found] == list(range(13))
    assert [text.name for text in found][:4] == ["\\x1b[31m.txt", "$(x).txt", "-rf.txt", ".txt"]
    assert all(text.name.isprintable() for text in found)
    for rank in range(3):
        assert list(whole_corpus.after(0, 0, rank, 3)) == found[rank::3]
    assert list(whole_corpus.after(7, 0)) == found[7:]
    lines = tmp_path / "c.jsonl"
    lines.write_text("".join(f'{{"text": "{word}"}}\n' for word in WORDS))
    every = list(Texts.of(lines).after(0, 0))
    assert [text.source for text in every] == WORDS
    for rank in range(3):
        assert list(Texts.of(lines).after(4, every[3].after, rank, 3)) == [
            text for text in every if text.number >= 4 and text.number % 3 == rank
        ]
    done = whole(subject, corpus, tmp_path / "run")
    assert done.notes[1].endswith("; ...")  # the first few by name
    flaws = {text.name: why for text in found if (why := text.flaw())}
    assert flaws == {"pipe.txt": "no regular file"}
    done.report(tmp_path / "page.html")


# The verb -----------------------------------------------------------------------------------------


def test_the_verb(corpus, tmp_path, capsys):
    from clearhead.cli import main

    def said(*arguments, status=0):
        assert main(["inspect", *map(str, arguments)]) == status
        return capsys.readouterr()

    done = said("--corpus", corpus, "--save", tmp_path / "run", "--no-probe")
    assert "6 heads" in done.out and "written:" in done.out
    assert "a corpus, corpus: 5 texts" in done.err
    assert "replayed" in said(tmp_path / "run").out
    written = (tmp_path / "run" / "run.json").read_bytes()
    for more in (["--corpus", corpus], ["--text", "a b a b"], [tmp_path / "run"]):
        refused = said(*more, "--save", tmp_path / "run", status=2).err
        assert "run holds a run of tiny-en already: --overwrite replaces it" in refused
        assert (tmp_path / "run" / "run.json").read_bytes() == written
    save = ["--save", tmp_path / "run", "--overwrite"]
    rows = json.loads(said("--corpus", corpus, *save, "--json").out)
    assert (tmp_path / "run" / "run.json").read_bytes() != written
    assert len(rows["heads"]) == 18
    first = done.out.splitlines()[0]
    tokens = rows["heads"][0]["rows"]
    assert first == f"tiny-en  3 x 6 heads  {tokens:,} tokens in 5 texts"
    assert (rows["tokens"], rows["texts"]) == (tokens, 5)
    page = tmp_path / "page.html"
    said(tmp_path / "run", "--report", page)
    assert f"3 x 6 heads, {tokens:,} tokens in 5 texts" in page.read_text("utf-8")
    shutil.rmtree(tmp_path / "run")
    again = ["--corpus", corpus, "--save", tmp_path / "run", "--no-probe"]
    with at_reading(find(None), 1, press()):
        complained = said(*again, status=130).err.splitlines()
    assert complained[0].startswith("stopped after 0 of 7 texts, 14 tokens; kept in ")
    assert complained[1:] == ["clearhead inspect: interrupted"]
    assert said(*again).err.startswith("going on after 0 of 7 texts, 14 tokens")
    for arguments, match in (
        (["--corpus", corpus], "say which, --save RUN"),
        (["--corpus", corpus, "--text", "a"], "not allowed with"),
        (["--corpus", corpus, "--save", "x", "--keep", "qk"], "no maps are kept"),
        (["--corpus", corpus, "--save", "x", "--heads", "0.1"], "no maps are kept"),
        (["--corpus", corpus, "--save", "x", "--from", "a", "--to", "b"], "no maps are kept"),
        (["--corpus", tmp_path / "absent", "--save", tmp_path / "x"], "absent: No such file"),
        ([tmp_path / "run", "--corpus", corpus, "--save", "x"], "is a run: --corpus cannot"),
    ):
        complaint = said(*arguments, status=2).err
        assert match in complaint and complaint.count("\n") == 1


@pytest.mark.slow
def test_torchrun_speaks_once(corpus, tmp_path):
    line = [*CLEARHEAD[1:], "inspect", "--corpus", corpus, "--no-probe", "--save", "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run([*torchrun, *line], cwd=tmp_path, PYTHONWARNINGS=None, OMP_NUM_THREADS="1")
    assert done.stdout.count("tiny-en  3 x 6 heads") == 1
    assert load(tmp_path / "run").notes[0].startswith("a corpus, corpus: 5 texts")


def test_python_of_the_page_gives_what_it_shows(tmp_path, monkeypatch):
    folder_of(tmp_path / "texts", {"a.txt": SENTENCE, "b.txt": "The end."})
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "corpus.md"
    results = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert (results.failed, results.attempted) == (0, 5)
