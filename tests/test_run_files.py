"""Runs on the disk: whole or not there, read only where somebody looks, and never believed."""

import contextlib
import json
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import engine_laws
import pytest
import torch
from chance import randn, some
from hypothesis import given
from hypothesis import strategies as st
from programs import KilledAtStep
from test_run import BIAS, B, D, G, H, L, a_run, call_of, close, run_of

from clearhead import files
from clearhead.rule import Rule
from clearhead.run import Call, Run, RunWriter, load
from clearhead.run import format as runformat
from clearhead.run import writer as runwriter

# On the disk --------------------------------------------------------------------------------------


def same(a: Run, b: Run) -> None:
    for name in ("model", "sites", "n_calls", "pieces", "roles", "versions", "notes", "keep",
                 "read"):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name
    assert a.checked == b.checked
    assert a.checked_line() == b.checked_line()
    assert a.tokens.keys() == b.tokens.keys()
    assert all(torch.equal(a.tokens[n], b.tokens[n]) for n in a.tokens)
    assert a.heads() == b.heads()
    for layer, stats in a.stats.items():
        mine, theirs = stats.to_tensors(), b.stats[layer].to_tensors()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert len(a.calls) == len(b.calls)
    for x, y in zip(a.calls, b.calls, strict=True):
        same_call(x, y)


def same_call(a: Call, b: Call) -> None:
    for name in (
        "module", "index", "layer", "number", "entry", "shape", "Dv", "key_start", "first_row",
        "sequence", "heads", "dtype", "impl", "cross", "mask_bytes", "check", "held_from",
    ):  # fmt: skip
        assert getattr(a, name) == getattr(b, name), name
    assert a.rule.same_as(b.rule)
    assert (a.rows is None) == (b.rows is None)
    assert a.rows is None or torch.equal(a.rows, b.rows)
    assert a.tensors.keys() == b.tensors.keys()
    for name in a.tensors:
        x, y = a.tensors[name], b.tensors[name]
        assert x.dtype == y.dtype
        assert torch.equal(x, y), name


def data_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("data-*"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_saved_comes_back(tmp_path, dtype):
    found = a_run(dtype)
    found.save(tmp_path / "deep" / "run")
    back = load(tmp_path / "deep" / "run")
    same(found, back)
    assert torch.equal(found.map("1.2")[:], back.map("1.2")[:])
    assert found.between((3, 9), (0, 4)) == back.between((3, 9), (0, 4))
    assert repr(found) == repr(back)
    back.save(tmp_path / "again")
    same(found, load(tmp_path / "again"))
    text = (tmp_path / "again" / "run.json").read_text("ascii")
    assert json.loads(text)["calls"][0]["dtype"] == str(dtype).removeprefix("torch.")


@given(engine_laws.seeds)
@some(25)
def test_any_call_comes_back(tmp_path_factory, seed):
    case = engine_laws.Case(seed)
    _, h, t, _ = case.shape
    rows = torch.randperm(t, generator=case.stream)[: 1 + case.below(t)].sort().values
    heads = tuple(torch.randperm(h, generator=case.stream)[: 1 + case.below(h)].tolist())
    c = call_of(
        case.q, case.k, Rule(**case.rule), rows=rows if case.chance(0.5) else None,
        heads=heads if case.chance(0.5) else None, keep=case.chance(0.7), key_start=case.below(9),
        first_row=case.below(9), sequence=case.below(3), cross=case.chance(0.5),
        number=case.below(9), mask_bytes=case.below(99),
    )  # fmt: skip
    if "k" in c.tensors:
        n = case.below(c.shape[4] + 1)
        c = replace(c, held_from=n, tensors={**c.tensors, "k": c.tensors["k"][:, :, n:]})
    folder = tmp_path_factory.mktemp("run")
    with RunWriter(folder) as writer:
        there = writer.add(c)
        same_call(c, there)
        writer.finish(run_of([there]))
    same_call(c, load(folder).calls[0])
    shutil.rmtree(folder)


def test_a_changed_copy_of_a_stored_call_is_a_call(tmp_path):
    found = run_of(a_run().calls[:1])
    found.save(tmp_path)
    there = load(tmp_path).calls[0]
    other = replace(there, number=5)
    same_call(replace(found.calls[0], number=5), other)
    other = replace(there, tensors={**there.tensors, "q": 2 * there.tensors["q"]})
    assert not torch.equal(other.map().scores[0, 0], there.map().scores[0, 0])
    run_of([other]).save(tmp_path)
    same_call(other, load(tmp_path).calls[0])


def test_an_expanded_mask_is_stored_once(tmp_path):
    q, k = randn(1, 1, 300, 2), randn(1, 1, 300, 2, seed=1)
    mask = (randn(1, 1, 300, 300) > -1).expand(1, 64, 300, 300)
    c = call_of(q.expand(1, 64, 300, 2), k, Rule(mask=mask), keep=False)
    c = replace(c, tensors={})
    run_of([c]).save(tmp_path)
    (file,) = tmp_path.glob("data-*/call-*")
    assert file.stat().st_size < 2 * 300 * 300
    assert load(tmp_path).calls[0].rule.mask.shape == (1, 1, 300, 300)


def test_views_of_one_tensor_are_stored_apart(tmp_path):
    qk = randn(2, 1, 2, L, D)
    c = call_of(qk[0], qk[1], Rule())
    c = replace(c, tensors={**c.tensors, "lse_low": c.tensors["lse"]})
    run_of([c]).save(tmp_path)
    same_call(c, load(tmp_path).calls[0])


def test_the_umask_decides_who_may_read(tmp_path):
    before = os.umask(0o027)
    try:
        a_run().save(tmp_path / "run")
    finally:
        os.umask(before)
    for path in (tmp_path / "run").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


def test_opening_reads_run_json_only(tmp_path):
    found = a_run()
    found.save(tmp_path)
    (data,) = data_folders(tmp_path)
    data.rename(tmp_path / "elsewhere")
    back = load(tmp_path)
    assert back.checked_line() == found.checked_line()
    assert (len(back.calls), list(back.stats), list(back.tokens)) == (6, [0, 1, 2], [0, 1])
    assert "q" in back.calls[0].tensors
    assert repr(back.calls) == repr(found.calls)
    looks = (
        back.heads,
        lambda: back.map("0.0"),
        lambda: back.tokens[0],
        lambda: back.calls[0].rule,
    )
    for look in looks:
        with pytest.raises(FileNotFoundError, match=r"another run was saved there since.*/data-"):
            look()


def memory() -> int:
    """Bytes of our own; pages of files, which the system can take back, are not counted."""
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x]
    return int(line.split()[1]) * 1024


def test_memory_stays_flat(tmp_path):
    """60 calls of 5 MB: neither gathered while writing nor read where nobody looks."""
    T, n = 2048, 60
    q = torch.zeros(1, 8, T, 64)
    c = call_of(q[:, :, :1], q[:, :, :1], Rule())
    figures = {n: torch.zeros(1, 8, T) for n in ("lse", "lse_low")}
    k = torch.zeros(1, 2, T, 64)
    c = replace(c, shape=(1, 8, 2, T, T, 64), tensors={"q": q, "k": k, **figures})
    before = memory()
    with RunWriter(tmp_path) as writer:
        calls = [writer.add(replace(c, number=i, sequence=i)) for i in range(n)]
        writer.finish(run_of(calls))
    assert sum(p.stat().st_size for p in tmp_path.rglob("*")) > n * 5e6
    assert memory() - before < 24e6
    back = load(tmp_path)
    maps = [back.map("0.3", sequence=i) for i in range(n)]
    assert sum(float(m[0, 0, 5, :2].sum()) for m in maps) == 2 * n
    assert memory() - before < 48e6  # of 300 MB
    del maps


def test_opening_is_quick_whatever_the_size(tmp_path):
    c = replace(a_run().calls[0], tensors={}, rule=Rule(causal=True, window=9, scale=0.1))
    with RunWriter(tmp_path) as writer:
        for layer in range(24):
            for number in range(25):
                writer.add(replace(c, layer=layer, module=f"m.{layer}", number=number))
        run = run_of([replace(c, layer=n, module=f"m.{n}") for n in range(24)])
        writer.finish(run)
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        assert len(load(tmp_path).calls) == 600
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.1


# Whole, or not there ------------------------------------------------------------------------------


def test_left_without_finish_nothing_has_changed(tmp_path):
    a, b = a_run(), replace(a_run(), model="another")
    a.save(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def interrupted():
        with RunWriter(tmp_path) as writer:
            writer.add(b.calls[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(tmp_path.rglob("*")) == before
    same(a, load(tmp_path))
    b.save(tmp_path)
    same(b, load(tmp_path))
    assert len(data_folders(tmp_path)) == 1


def test_a_writer_that_has_finished_writes_no_more(tmp_path):
    one = run_of(a_run().calls[:1])
    with RunWriter(tmp_path) as writer:
        writer.finish(Run("m", []))
        for again in (lambda: writer.add(one.calls[0]), lambda: writer.finish(one)):
            with pytest.raises(ValueError, match="this writer has finished, or let go"):
                again()
    assert len(load(tmp_path).calls) == 0


def test_saved_over_itself_it_is_still_there(tmp_path):
    found = a_run()
    found.save(tmp_path)
    back = load(tmp_path)
    back.notes.append("another")
    back.save(tmp_path)
    found.notes.append("another")
    same(found, back)
    same(found, load(tmp_path))


@pytest.mark.parametrize("there", [True, False], ids=["a run before", "none before"])
def test_killed_at_any_moment_there_is_the_run_before_or_this_one(tmp_path, there):
    calls = a_run().calls
    a, b = run_of(calls[:1], notes=["a"]), run_of(calls[3:4], notes=["b"])
    steps, seen = 0, set()
    while True:
        folder = tmp_path / str(steps)
        if there:
            a.save(folder)
        child = os.fork()
        if child == 0:
            files.os = runwriter.os = KilledAtStep(steps, "chmod", "open", "close")
            b.save(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if there or (folder / "run.json").exists():
            back = load(folder)
            same(a if back.notes == ["a"] else b, back)
            seen.add(back.notes[0])
        else:
            seen.add("none")
        a.save(folder)  # what was left behind is in nobody's way, and is cleared away
        same(a, load(folder))
        names = (p.name for p in folder.iterdir() if not p.name.startswith(".probe"))
        assert sorted(names)[:-2] == [".run.lock"]
        assert len(data_folders(folder)) == 1
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        steps += 1
    assert steps > 12
    assert seen == ({"a", "b"} if there else {"none", "b"})


def test_a_writer_does_not_clear_away_what_another_is_writing(tmp_path):
    a, b = run_of(a_run().calls[:1], notes=["a"]), run_of(a_run().calls[1:2], notes=["b"])
    a.sites = b.sites = [("a", 0), ("b.c", 0)]
    with RunWriter(tmp_path) as slow:
        slow.add(a.calls[0])
        b.save(tmp_path)
        assert len(data_folders(tmp_path)) == 2
        same(b, load(tmp_path))
        slow.finish(a)
    same(a, load(tmp_path))
    assert len(data_folders(tmp_path)) == 1


def test_two_at_once_and_a_reader(tmp_path):
    runs = [run_of(a_run().calls[:2], notes=[name]) for name in "ab"]
    runs[0].save(tmp_path)
    children = []
    for one in runs:
        child = os.fork()
        if child == 0:
            for _ in range(15):
                one.save(tmp_path)
            os._exit(0)
        children.append(child)
    left, read = set(children), 0
    while left:
        back = load(tmp_path)
        with contextlib.suppress(FileNotFoundError):  # replaced since it was opened
            same(runs["ab".index(back.notes[0])], back)
            read += 1
        for child in list(left):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                assert status == 0
                left.remove(child)
    assert read
    assert len(data_folders(tmp_path)) == 1


def test_without_locks_the_run_before_is_cleared_away_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(runwriter, "hold", lambda lock, wait: False)
    found = run_of(a_run().calls[:1])
    with RunWriter(tmp_path) as slow:
        slow.add(found.calls[0])
        for _ in range(3):
            found.save(tmp_path)
        assert len(data_folders(tmp_path)) == 2
        slow.finish(found)
    same(found, load(tmp_path))
    assert len(data_folders(tmp_path)) == 1


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    found = run_of(a_run().calls[:1])
    (tmp_path / "data-2024").mkdir()
    mine = tmp_path / "data-0123456789abcdef"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    found.save(tmp_path)
    assert (mine / "notes.txt").read_text() == "mine"
    assert (tmp_path / "data-2024").is_dir()
    (tmp_path / "run.json").write_text('{"format": "another program"}')
    with pytest.raises(
        ValueError, match=r"is not the run\.json of a clearhead run; choose another"
    ):
        RunWriter(tmp_path)  # before anything is computed
    assert "another program" in (tmp_path / "run.json").read_text()


def test_a_full_disk_leaves_the_run_before(tmp_path):
    a, b = run_of(a_run().calls[:1], notes=["a"]), a_run()
    a.save(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # a call has more bytes
        try:
            b.save(tmp_path)
        except OSError as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        assert "it was not written (File too large)" in pipe.read()
    assert sorted(tmp_path.rglob("*")) == before
    same(a, load(tmp_path))


def test_a_disk_that_is_full_at_the_end_leaves_the_run_before(tmp_path, monkeypatch):
    a, b = run_of(a_run().calls[:1], notes=["a"]), a_run()
    a.save(tmp_path)
    before = sorted(tmp_path.rglob("*"))

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runwriter, "_on_the_disk", full)
    with pytest.raises(OSError, match="No space left"):
        b.save(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    same(a, load(tmp_path))


def test_a_call_that_cannot_be_is_not_written(tmp_path):
    c = a_run().calls[0]
    other = {
        "has tensors that no run keeps: values": {"values": randn(1)},
        r"q is float32 \(2, 4, 10, 3\); of this call it is float32": {
            "q": c.tensors["q"][:, :, 1:]
        },
        "entropy is int64": {"entropy": c.tensors["entropy"].long()},
    }
    with RunWriter(tmp_path) as writer:
        for match, tensors in other.items():
            with pytest.raises(ValueError, match=match):
                writer.add(replace(c, tensors={**c.tensors, **tensors}))
        writer.add(c)
        with pytest.raises(ValueError, match="forward pass 0 of layer 0 was added before"):
            writer.add(c)
        with pytest.raises(ValueError, match=r"layer 0 is called by \['a', 0\], but sites say"):
            writer.finish(Run("m", [("x", 0)]))
    assert not (tmp_path / "run.json").exists()


def test_what_was_read_of_a_corpus_need_not_be_said(tmp_path):
    found = a_run(read={"texts": 2, "windows": 3, "tokens": 40})
    found.save(tmp_path)
    assert load(tmp_path).read == found.read
    said = json.loads((tmp_path / "run.json").read_text())
    del said["read"]
    (tmp_path / "run.json").write_text(json.dumps(said))
    assert load(tmp_path).read == {}


# Files that somebody damaged, or made ------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    whole = a_run()
    rows = torch.tensor([1, 4])
    q, k = randn(B, H, L, D), randn(B, G, L, D)
    more = call_of(q, k, Rule(offset=torch.tensor([0, 1]), alibi=randn(H), bias=BIAS), rows=rows,
                   module="a", number=2, sequence=2)  # fmt: skip
    whole.calls = [*whole.calls, more]
    whole.save(folder)
    return folder


@pytest.fixture
def damaged(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def look_at_everything(folder: Path) -> None:
    back = load(folder)
    repr(back), back.heads(), back.checked_line(), dict(back.tokens), back.pieces
    for c in back.calls:
        repr(c), c.rule, c.rows, dict(c.tensors), c.map()[..., :3, :3]
    for sequence in range(3):
        back.between((0, 5), (0, 3), sequence)
    back.map("0.0", sequence=2)[:]


def test_everything_can_be_looked_at(saved):
    look_at_everything(saved)


def edit(*path, value):
    def change(said):
        for key in path[:-1]:
            said = said[key]
        if value is None:
            del said[path[-1]]
        else:
            said[path[-1]] = value

    return change


HOSTILE = {
    "another format": (edit("format", value="x"), r"is not the run\.json of a clearhead run"),
    "newer": (edit("version", value=2), "version 2; this clearhead reads 1; a newer clearhead"),
    "a version that is none": (edit("version", value=True), "version True"),
    "no data": (edit("data", value=None), "data is None"),
    "up and away": (edit("data", value="../elsewhere"), r"data is '\.\./elsewhere'"),
    "absolute": (edit("data", value="/etc"), "data is '/etc'"),
    "nested": (edit("data", value="data-0123456789abcdef/.."), "data is"),
    "a size below 0": (edit("calls", 0, "shape", 3, value=-1), r"calls\[0\].shape is"),
    "an absurd size": (edit("calls", 0, "shape", 3, value=1 << 50), r"calls\[0\].shape is"),
    "another size": (edit("calls", 0, "shape", 3, value=12), r"key_mask|q is|query_mask is"),
    "heads that do not divide": (edit("calls", 0, "shape", 2, value=3), r"calls\[0\].shape"),
    "no such layer": (edit("calls", 0, "layer", value=3), "layer is 3"),
    "a layer in words": (edit("calls", 0, "layer", value="0"), "layer"),
    "more keys than there are": (edit("calls", 0, "held_from", value=L + 1), "held_from is 12"),
    "keys of other calls": (edit("calls", 0, "held_from", value=1), "k is float32"),
    "no such dtype": (edit("calls", 0, "dtype", value="object"), r"calls\[0\].dtype is 'object'"),
    "another dtype": (edit("calls", 0, "dtype", value="float64"), "q is float32"),
    "twice": (edit("calls", 3, "number", value=0), r"calls\[3\], a second one of layer"),
    "a head twice": (edit("calls", 0, "heads", value=[1, 1]), r"calls\[0\].heads"),
    "no such head": (edit("calls", 0, "heads", value=[4]), r"calls\[0\].heads"),
    "other heads": (edit("calls", 0, "heads", value=[0, 1]), "q is"),
    "a tensor that is none": (edit("calls", 0, "tensors", 0, value="../x"), "tensors is"),
    "a tensor that is not there": (edit("calls", 0, "tensors", 0, value="rule.mask"), "rule.mask"),
    "another file size": (edit("calls", 0, "bytes", value=10), "bytes, not 10: damaged"),
    "a rule that is none": (edit("calls", 0, "rule", value={"window": 3}), "needs causal"),
    "a field that is none": (edit("calls", 0, "rule", value={"x": 1}), r"calls\[0\].rule"),
    "infinite": (edit("calls", 0, "rule", value={"scale": 10**400}), "rule.scale"),
    "a head too many": (edit("stats", "of", "0", value=5), "no figure of a layer"),
    "statistics of no layer": (edit("stats", "of", "9", value=5), "layer is 9"),
    "other tokens": (edit("tokens", "of", "0", value=[1, L]), "not the run's tokens"),
    "tokens of no number": (edit("tokens", "of", value={"00": [B, L]}), "tokens is"),
    "half of what was read": (edit("read", value={"tokens": 5}), "read is"),
    "a negative corpus": (edit("read", value={"texts": -1, "windows": 1, "tokens": 5}), "read is"),
    "roles of lists": (edit("roles", value=[1]), "roles is"),
    "more rows than queries": (edit("calls", 6, "rows", value=L + 1), r"calls\[6\].rows"),
    "keys from far away": (edit("calls", 6, "key_start", value=1 << 39), "keys were not kept"),
}


LATER = {  # what a tensor's file has to say, too
    "another size", "another dtype", "other heads", "another file size", "a head too many",
    "a tensor that is not there", "other tokens", "keys from far away", "keys of other calls",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_crafted_run_is_refused_in_one_line(damaged, name):
    change, match = HOSTILE[name]
    path = damaged / "run.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    with pytest.raises(ValueError, match=match) as caught:
        (look_at_everything if name in LATER else load)(damaged)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "NaN", "\xff", '{"format": NaN}', "[" * 100_000, "1" * 5000, "null", "\x00"],
)
def test_what_is_no_json_is_refused(damaged, text):
    (damaged / "run.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"run\.json is (no whole JSON|not the run)"):
        load(damaged)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is no run: there is no run\.json in it"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        load(tmp_path / "file")
    os.mkfifo(tmp_path / "run.json")  # nobody waits for what never comes
    with pytest.raises(ValueError, match="is no file"):
        load(tmp_path)


def test_links_out_of_the_folder_are_refused(damaged, tmp_path):
    (data,) = data_folders(damaged)
    file = data / "call-000000.safetensors"
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="symbolic link"):
        load(damaged).map("0.0")
    shutil.move(data, tmp_path / "data")
    data.symlink_to(tmp_path / "data", target_is_directory=True)
    with pytest.raises(ValueError, match="symbolic link"):
        load(damaged).heads()
    shutil.move(damaged / "run.json", tmp_path / "run.json")
    (damaged / "run.json").symlink_to(tmp_path / "run.json")
    with pytest.raises(ValueError, match="is no file, but a link"):
        load(damaged)


def rewrite(path: Path, change, damaged: Path) -> None:
    """Change the tensors of a file, and tell run.json its new size: whole, but not ours."""
    from safetensors.torch import load_file, save_file

    tensors = {name: x.clone() for name, x in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    text = (damaged / "run.json").read_text()
    said = json.loads(text)
    size = path.stat().st_size
    if path.name.startswith("call-"):
        said["calls"][int(path.stem[5:])]["bytes"] = size
    else:
        said[path.stem]["bytes"] = size
    (damaged / "run.json").write_text(json.dumps(said))


@pytest.mark.parametrize(
    ("file", "name", "value", "match"),
    [
        ("call-000000", "q", torch.zeros(B, H, L, D, dtype=torch.int8), "q is int8"),
        ("call-000000", "q", torch.zeros(B, H, L, D).to(torch.float8_e4m3fn), "q is float8"),
        ("call-000000", "lse", torch.zeros(0), r"lse is float32 \(0,\)"),
        ("call-000000", "rule.key_mask", torch.ones(B, L), "rule.key_mask is float32"),
        ("call-000006", "rule.alibi", torch.ones(2, 2, 2), "rule.alibi is"),
        ("call-000006", "rule.bias", torch.ones(3, L), "rule.bias is"),
        ("call-000006", "rows", torch.tensor([4, 1]), "ascending numbers of its 11 queries"),
        ("call-000006", "rows", torch.tensor([-1, 1]), "ascending"),
        ("call-000006", "rows", torch.tensor([1, 11]), "ascending"),
        ("stats", "0.entropy.histogram", torch.zeros(H, 3, dtype=torch.int64), "no figure"),
        ("stats", "0.rows", torch.zeros((), dtype=torch.int64), "no figure"),
        ("stats", "0.nonfinite_at", torch.zeros(2, 2, dtype=torch.int64), "no figure"),
        ("stats", "0.nonfinite_at", torch.zeros((), dtype=torch.int64), "no figure"),
        ("stats", "7.rows", torch.zeros(H, dtype=torch.int64), "no figure"),
        ("stats", "0.entropie.mean", torch.zeros(H, dtype=torch.float64), "entropie"),
        ("tokens", "0", torch.zeros(B, L), "not the run's tokens"),
    ],
)
def test_other_tensors_are_refused(damaged, file, name, value, match):
    (data,) = data_folders(damaged)
    rewrite(data / f"{file}.safetensors", lambda tensors: tensors.update({name: value}), damaged)
    with pytest.raises(ValueError, match=match) as caught:
        look_at_everything(damaged)
    assert str(data / file) in str(caught.value)


@given(st.data())
@some(60)
def test_damaged_bytes_raise_what_is_promised_or_nothing(saved, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    shutil.copytree(saved, folder)
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix)
    path = data.draw(st.sampled_from([folder / "run.json", *paths]))
    content = bytearray(path.read_bytes())
    limit = len(content) if path.suffix == ".json" else min(len(content), 900)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, min(limit, len(content)) - 1)))
        how = data.draw(st.sampled_from(["flip", "digit", "cut", "drop", "add"]))
        if how == "cut":
            del content[at:]
        elif how == "drop":
            del content[at : at + data.draw(st.integers(1, 9))]
        elif how == "add":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        elif content:
            content[at] = data.draw(st.integers(48, 57) if how == "digit" else st.integers(0, 255))
    path.write_bytes(content)
    said = ""
    try:
        look_at_everything(folder)
    except (ValueError, OSError) as error:
        said = str(error)
    assert "\n" not in said
    shutil.rmtree(folder.parent)


def test_the_page_says_what_the_files_say(tmp_path):
    """Its example reads a run with json and safetensors alone."""
    page = (Path(__file__).parent.parent / "docs" / "run-format.md").read_text("utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    a_run().save(tmp_path / "run")
    found = a_run().map("0.2", sequence=1)
    names = {"folder": tmp_path / "run"}
    exec(compile(code, "run-format.md", "exec"), names)
    close(names["weights"][:, 2:3], found[:].double(), found._q)
    for name in (*runformat._SAID, *runformat._CALL, *runformat._RULE_NUMBERS):
        assert f"`{name}`" in page, name
    for name in (*runformat.FIGURES, *runformat.KEPT, *runformat.RULE_TENSORS):
        assert f"`{name}`" in page, name
