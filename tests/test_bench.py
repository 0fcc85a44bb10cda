"""The benchmark: who takes part, that all compute the same thing, and what is written down.

No time is asserted: on a shared machine that would test the neighbors.
"""

import io
import json
import statistics
import sys
import time

import pytest
import torch

from clearhead import bench
from clearhead.views import plots
from clearhead.views.bench_figure import bench_figure, bench_table
from clearhead.views.terminal import Terminal

FORWARD = [
    "SDPA", "dense, as in scratch", "SDPA twice: lse - E[s]", "FlexAttention, compiled",
    "ours, output only", "ours, all diagnostics", "ours, statistics only",
    "ours, + received", "ours, + top key",
]  # fmt: skip
BACKWARD = ["SDPA", "ours, output only", "ours, entropy in the loss"]
SMALL = bench.Settings(tokens=(32, 64), heads=2, d_head=16, repeats=2, backward=True)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    for name, value in {"TURN": 0.0, "GEMM_SIZE": 64}.items():
        monkeypatch.setattr(bench, name, value)


def home_of(name):
    """The module in which a function of bench looks its constants up."""
    return sys.modules[getattr(bench, name).__module__]


def run(settings, output_dir=None, as_json=False):
    out = io.StringIO()
    bench.run(settings, output_dir, Terminal(out, io.StringIO()), as_json)
    return out.getvalue()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bench")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "TURN", 0.0)
        patch.setattr(bench, "GEMM_SIZE", 64)
        said = run(SMALL, directory)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (directory / "bench.json").read_text("ascii")
    return said, json.loads(text, parse_constant=refuse), directory


def test_the_record_has_every_contender_at_every_length(written):
    _, document, _ = written
    assert [run["tokens"] for run in document["runs"]] == [32, 64]
    assert document["settings"] | {"tokens": (32, 64)} == vars(SMALL)
    assert {"cpu", "cores", "threads", "torch", "capability"} <= set(document["machine"])
    for run in document["runs"]:
        names = {g: [r["name"] for r in run["contenders"] if r["group"] == g] for g in
                 ("forward", "forward + backward")}  # fmt: skip
        assert names == {"forward": FORWARD, "forward + backward": BACKWARD}
        T = run["tokens"]
        assert run["visible_pairs"] == T * (T + 1) // 2
        assert run["map_bytes"] == 2 * T * T * 4


def test_figures_follow_from_the_times(written):
    _, document, _ = written
    for run in document["runs"]:
        rows = run["contenders"]
        base = {group: next(r for r in rows if r["group"] == group) for group in
                ("forward", "forward + backward")}  # fmt: skip
        for row in rows:
            if row["skipped"] is not None:
                assert set(row) == {"name", "group", "skipped"}
                continue
            seconds, its = row["seconds"], row["baseline_seconds"]
            assert len(seconds) == len(its) == SMALL.repeats and min(seconds + its) > 0
            assert (its == seconds) == (row in base.values())
            assert row["median"] == statistics.median(seconds)
            assert row["min"] == min(seconds)
            ratios = [a / b for a, b in zip(seconds, its, strict=True)]
            assert row["ratio"] == pytest.approx(statistics.median(ratios))
            matmuls = {"ours, statistics only": 1}.get(row["name"], 2)
            matmuls = 7 if row["group"] != "forward" else matmuls
            work = matmuls * 2 * run["visible_pairs"] * SMALL.d_head * SMALL.heads
            share = work / row["median"] / run["gemm_flops_per_second"]
            assert row["gemm_share"] == pytest.approx(share)
        assert base["forward"]["ratio"] == base["forward + backward"]["ratio"] == 1


def test_what_is_returned_is_counted_apart(written):
    _, document, _ = written
    rows = {(r["group"], r["name"]): r for r in document["runs"][1]["contenders"]}
    out, row = 2 * 64 * 16 * 4, 2 * 64 * 4  # bytes of the output, and of one figure a row
    returned = {name: rows["forward", name]["returned_bytes"] for name in FORWARD[4:]}
    assert returned == {
        "ours, output only": out,
        "ours, all diagnostics": out + 7 * row,
        "ours, statistics only": 7 * row,
        "ours, + received": out + 8 * row,
        "ours, + top key": out + 7 * row + 2 * row,
    }
    assert rows["forward", "SDPA"]["returned_bytes"] == out
    assert rows["forward + backward", "SDPA"]["returned_bytes"] == 4 * out
    # The dense way holds several maps of all heads at once; out and entropy are what it returns.
    assert (
        rows["forward", "dense, as in scratch"]["extra_bytes"]
        > 2 * document["runs"][1]["map_bytes"]
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_all_compute_the_same_thing(causal, dtype):
    settings = bench.Settings(tokens=(64,), heads=3, d_head=16, causal=causal, dtype=dtype)
    called = {c.name: c.call() for c in bench.contenders(settings, 64) if c.call is not None}
    assert list(called) == [name for name in FORWARD if name != "FlexAttention, compiled"]
    near = {"float32": 2e-6, "float64": 1e-12, "bfloat16": 2e-2}[dtype]
    for name, results in called.items():
        if name != "ours, statistics only":
            torch.testing.assert_close(results["out"], called["SDPA"]["out"], atol=near, rtol=near)
        if name not in ("SDPA", "ours, output only"):
            entropy = called["ours, all diagnostics"]["entropy"]
            assert results["entropy"].shape == (1, 3, 64)
            torch.testing.assert_close(
                results["entropy"].to(entropy.dtype), entropy, atol=5 * near, rtol=0
            )
    assert called["ours, + received"]["received"].sum().item() == pytest.approx(3 * 64, rel=1e-2)
    assert (called["ours, + top key"]["top_key"] >= 0).all()


def test_backward_gives_the_gradients_of_the_loss():
    settings = bench.Settings(tokens=(48,), heads=2, d_head=8, dtype="float64", backward=True)
    *_, sdpa, ours = bench.contenders(settings, 48)
    assert (sdpa.group, ours.group) == ("forward + backward", "forward + backward")
    plain, ours = sdpa.call(), ours.call()
    torch.testing.assert_close(ours["out"], plain["out"])
    torch.testing.assert_close(ours["d_v"], plain["d_v"])  # the entropy knows no values
    assert not torch.allclose(ours["d_q"], plain["d_q"]), "no entropy in the loss"
    assert not any(x.requires_grad for x in ours.values())


def test_it_is_the_same_draw_for_the_same_seed():
    def out(seed):
        settings = bench.Settings(tokens=(16,), heads=1, d_head=4, seed=seed)
        return bench.contenders(settings, 16)[0].call()["out"]

    assert torch.equal(out(3), out(3))
    assert not torch.equal(out(3), out(4))


def test_memory_sees_a_deliberate_allocation():
    def call():
        room = torch.ones(16 << 20)  # 64 MiB
        room += 1
        return {"total": room.sum()}

    extra, returned = bench.memory_of(call)
    assert extra == pytest.approx(64 << 20, abs=300_000)
    assert 0 < returned < 1000
    extra, returned = bench.memory_of(lambda: {"kept": torch.ones(16 << 20)})
    assert (extra, returned) == (0, 64 << 20)
    assert bench.memory_of(lambda: {"kept": (x := torch.ones(8)), "a view": x[:4]}) == (0, 32)


def test_memory_is_the_peak_and_not_the_sum():
    def call():
        for _ in range(3):
            torch.ones(1 << 20)  # 4 MiB, forgotten at once
        return {}

    assert bench.memory_of(call) == (4 << 20, 0)


def test_measuring_memory_says_nothing(capfd):
    bench.memory_of(lambda: {"": torch.ones(3)})
    assert capfd.readouterr() == ("", "")


def test_who_needs_too_much_is_skipped_and_says_so(monkeypatch):
    monkeypatch.setattr(home_of("contenders"), "MAP_LIMIT", 1000)
    settings = bench.Settings(tokens=(20_000,), heads=8, d_head=1)
    skipped = {c.name: c.skipped for c in bench.contenders(settings, 20_000) if c.call is None}
    assert skipped == {
        "dense, as in scratch": "would need 53.2 GB, the bound is 0.0 GB",
        "FlexAttention, compiled": "would need 0.4 GB, the bound is 0.0 GB",
    }


def test_flex_is_left_to_who_asks_and_may_fail(monkeypatch):
    def flex(settings):
        return next(c for c in bench.contenders(settings, 32) if c.name.startswith("Flex"))

    assert flex(SMALL).skipped == "--flex brings it in"

    def broken(*_, **__):
        raise RuntimeError("No working C++ compiler\nand a long story")

    monkeypatch.setattr(torch, "compile", broken)
    asked = bench.Settings(tokens=(32,), heads=2, d_head=16, flex=True)
    assert flex(asked).skipped == "No working C++ compiler"


def test_the_time_limit_rings_and_is_taken_away():
    module = home_of("contenders")
    with pytest.raises(TimeoutError, match=r"took more than 0\.05 s"), module._time_limit(0.05):
        time.sleep(5)
    with module._time_limit(0.05):
        pass
    time.sleep(0.1)


def test_a_rival_may_fail_and_ours_may_not(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("not today\nnor tomorrow")

    settings = bench.Settings(tokens=(16,), heads=1, d_head=4, repeats=1)
    module = home_of("contenders")
    with monkeypatch.context() as patch:
        patch.setattr(module.scratch, "_attend", broken)
        record = bench.measure(settings, 16, lambda items, *_: items)
    rows = {row["name"]: row for row in record["contenders"]}
    assert rows["dense, as in scratch"]["skipped"] == "not today"
    assert any("skipped: not today" in line for line in bench_table(record, vars(settings), 64))
    monkeypatch.setattr(module, "attention", broken)
    with pytest.raises(RuntimeError, match="not today"):
        bench.measure(settings, 16, lambda items, *_: items)


def test_contenders_take_turns(monkeypatch):
    order = []
    field = [bench.Contender(name, lambda name=name: order.append(name) or {}) for name in "ABC"]
    monkeypatch.setattr(bench, "contenders", lambda *_: field)
    settings = bench.Settings(tokens=(8,), repeats=3)
    bench.measure(settings, 8, lambda items, *_: items)
    once = ["A", "B", "C"]  # to warm up, and at last for the memory
    assert order == [*once, *["A", "A", "B", "A", "C"] * 3, *once]


def test_the_tables_hold_what_the_record_holds(written):
    said, document, directory = written
    assert document["machine"]["cpu"] in said
    for record in document["runs"]:
        table = bench_table(record, document["settings"], 64)
        assert "\n".join(table) in said
        lines = [line for line in table if line.startswith("    ")]
        for line, row in zip(lines, record["contenders"], strict=True):
            assert line.startswith(f"    {row['name']}  ")
            assert row["skipped"] or f" {row['median'] * 1e3:,.2f} " in line
            assert row["skipped"] or f" {row['ratio']:,.2f}x" in line
    assert said.endswith(f"bench.json and bench.png written to {directory}\n")
    assert all(len(line) <= 100 for line in said.splitlines()[2:-1])


def test_the_picture_names_its_curves(written):
    _, document, directory = written
    figure = bench_figure(document)
    texts = [[text.get_text() for text in ax.texts] for ax in figure.axes]
    names = {"SDPA", "SDPA twice", "dense", "ours, all diagnostics", "ours, statistics only"}
    assert set(texts[0]) == names
    assert set(texts[1]) == names | {"dashed: one T x T map of all heads"}
    assert plots.png_bytes(figure) == (directory / "bench.png").read_bytes()
    with pytest.raises(ValueError, match="two lengths"):
        bench_figure({**document, "runs": document["runs"][:1]})


def test_one_length_makes_no_picture_and_json_is_all_that_is_said(tmp_path):
    threads = torch.get_num_threads()
    settings = bench.Settings(tokens=(16,), heads=1, d_head=4, repeats=1, threads=1)
    said = run(settings, tmp_path, as_json=True)
    assert (tmp_path / "bench.json").read_text() == said
    assert json.loads(said)["machine"]["threads"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"tokens": ()}, r"tokens must be 1 or more; got \[\]"),
        ({"tokens": (64, 0)}, r"tokens must be 1 or more; got \[64, 0\]"),
        ({"heads": 0}, r"heads must be 1 or more; got \[0\]"),
        ({"d_head": -1}, r"d_head must be 1 or more; got \[-1\]"),
        ({"repeats": 0}, r"repeats must be 1 or more; got \[0\]"),
        ({"threads": -2}, r"threads must be 1 or more; got \[-2\]"),
        ({"threads": 0}, r"threads must be 1 or more; got \[0\]"),
        ({"dtype": "int8"}, "float32, bfloat16, float16, float64; got 'int8'"),
        ({"device": "abacus"}, "got 'abacus'"),
        (
            {"tokens": (10**12,)},
            "1000000000000 tokens, 8 heads of 64: q, k, v and out need 8,192,000",
        ),
    ],
)
def test_settings_that_cannot_be(wrong, words, tmp_path):
    settings = bench.Settings(**{"tokens": (64,), **wrong})
    with pytest.raises(ValueError, match=words) as caught:
        bench.run(settings, tmp_path / "none", Terminal(io.StringIO(), io.StringIO()))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "none").exists()
