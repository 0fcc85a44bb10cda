"""The benchmark: who takes part, that all compute the same thing, and what is written down.

No time is asserted: on a shared machine that would test the neighbors.
"""

import importlib.util
import io
import json
import platform
import statistics
import sys
import time
from pathlib import Path

import pytest
import torch

from clearhead import bench, chip
from clearhead.contenders import Settings
from clearhead.engine import native
from clearhead.views import plots
from clearhead.views.bench_figure import bench_figure, bench_table, machine_line
from clearhead.views.terminal import Terminal

FORWARD = [
    "SDPA", "dense, as in scratch", "SDPA twice: lse - E[s]", "FlexAttention, compiled",
    "native, output only", "native, all diagnostics", "native, statistics only",
    "native, + received",
    "tiled, output only", "tiled, all diagnostics", "tiled, statistics only",
    "tiled, + received", "tiled, + top key",
]  # fmt: skip
BACKWARD = [
    "SDPA", "native, output only", "native, entropy in the loss",
    "tiled, output only", "tiled, entropy in the loss",
]  # fmt: skip
BUILT = native.library() is not None
NOT_BUILT = "is not built here: clearhead doctor says what is missing"
SMALL = bench.Settings(tokens=(32, 64), heads=2, d_head=16, repeats=2, backward=True)


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch):
    quick(monkeypatch)


def quick(patch):
    patch.setattr(bench, "TURN", 0.0)
    patch.setattr(bench, "GEMM_SIZE", 64)
    patch.setattr(chip, "GEMM_SIZE", 64)
    patch.setattr(chip, "STEPS", 1000)


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
        quick(patch)
        said = run(SMALL, directory)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (directory / "bench.json").read_text("ascii")
    return said, json.loads(text, parse_constant=refuse), directory


def test_the_record_has_every_contender_at_every_length(written):
    _, document, _ = written
    assert [run["tokens"] for run in document["runs"]] == [32, 64]
    assert document["settings"] | {"tokens": (32, 64), "only": ()} == vars(SMALL)
    assert {"cpu", "family", "model", "cores", "threads", "torch", "capability"} <= set(
        document["machine"]
    )
    kernel = native.SETS[native.instruction_set()] if BUILT else None
    assert document["machine"]["kernel"] == kernel
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
            matmuls = 1 if row["name"].endswith(", statistics only") else 2
            matmuls = 7 if row["group"] != "forward" else matmuls
            work = matmuls * 2 * run["visible_pairs"] * SMALL.d_head * SMALL.heads
            share = work / row["median"] / run["best_flops_per_second"]
            assert row["share"] == pytest.approx(share)
        assert base["forward"]["ratio"] == base["forward + backward"]["ratio"] == 1


def test_what_is_returned_is_counted_apart(written):
    _, document, _ = written
    rows = {(r["group"], r["name"]): r for r in document["runs"][1]["contenders"]}
    out, row = 2 * 64 * 16 * 4, 2 * 64 * 4  # bytes of the output, and of one figure a row
    ours = FORWARD[4:] if BUILT else FORWARD[8:]
    returned = {name: rows["forward", name]["returned_bytes"] for name in ours}
    key = 2 * row  # int64
    expected = {
        "native, output only": out,
        "native, all diagnostics": out + 7 * row + key,
        "native, statistics only": 7 * row + key,
        "native, + received": out + 8 * row + key,
        "tiled, output only": out,
        "tiled, all diagnostics": out + 7 * row,
        "tiled, statistics only": 7 * row,
        "tiled, + received": out + 8 * row,
        "tiled, + top key": out + 7 * row + key,
    }
    assert returned == {name: expected[name] for name in ours}
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
    absent = ("Flex",) if BUILT else ("Flex", "native")
    assert list(called) == [name for name in FORWARD if not name.startswith(absent)]
    near = {"float32": 2e-6, "float64": 1e-12, "bfloat16": 2e-2}[dtype]
    for name, results in called.items():
        if not name.endswith(", statistics only"):
            torch.testing.assert_close(results["out"], called["SDPA"]["out"], atol=near, rtol=near)
        if name != "SDPA" and not name.endswith(", output only"):
            entropy = called["tiled, all diagnostics"]["entropy"]
            assert results["entropy"].shape == (1, 3, 64)
            torch.testing.assert_close(
                results["entropy"].to(entropy.dtype), entropy, atol=5 * near, rtol=0
            )
        if name.endswith(", + received"):
            assert results["received"].sum().item() == pytest.approx(3 * 64, rel=1e-2)
        if name == "tiled, + top key" or name.startswith("native, all"):
            assert torch.equal(results["top_key"], called["tiled, + top key"]["top_key"])
            assert (results["top_key"] >= 0).all()


@pytest.mark.skipif(not BUILT, reason="the native kernel is not built")
def test_each_is_computed_by_whom_its_name_says(monkeypatch):
    module, made = home_of("contenders"), []
    for name in ("attention", "output"):
        inner = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, inner=inner, **k: made.append(k["impl"]) or inner(*a, **k)
        )
    for one in bench.contenders(Settings((16,), heads=1, d_head=4, backward=True), 16):
        made.clear()
        if one.call is not None:
            one.call()
        assert made == [impl for impl in ("native", "tiled") if one.name.startswith(f"{impl}, ")]


def test_native_that_is_not_built_is_left_out_and_says_so(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    record = bench.measure(
        Settings((16,), heads=1, d_head=4, repeats=1, backward=True), 16, lambda items, *_: items
    )
    assert [row["name"] for row in record["contenders"]] == [*FORWARD, *BACKWARD]
    for row in record["contenders"]:
        if row["name"].startswith("native, "):
            assert row["skipped"] == NOT_BUILT
        elif not row["name"].startswith("Flex"):
            assert row["skipped"] is None
    rates = {rate["name"]: rate for rate in record["rates"]}
    assert "is not built" in rates["multiply-adds"]["skipped"]
    table = bench_table(record, {"heads": 1, "d_head": 4, "dtype": "float32", "causal": True}, 64)
    assert sum(NOT_BUILT in line for line in table) == 6
    assert not any("top key among them" in line for line in table)
    assert max(map(len, table)) <= 100
    assert bench.machine()["kernel"] is None
    assert machine_line(bench.machine())[1].startswith("native kernel not built; ")


def test_only_those_who_are_asked_for_take_part():
    def names(*only):
        settings = Settings((16,), heads=1, d_head=4, backward=True, only=only)
        return [c.name for c in bench.contenders(settings, 16)]

    assert names("all diagnostics", "twice") == [
        "SDPA", "SDPA twice: lse - E[s]", "native, all diagnostics", "tiled, all diagnostics",
        "SDPA",
    ]  # fmt: skip
    assert names("entropy in") == ["SDPA", "SDPA", *BACKWARD[2::2]]


def test_flex_is_not_compiled_for_nobody(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: pytest.fail("compiled"))
    settings = Settings((16,), heads=1, d_head=4, flex=True, only=("native",))
    assert [c.name for c in bench.contenders(settings, 16)] == ["SDPA", *FORWARD[4:8]]


# How fast the machine multiplies -----------------------------------------------------------------


def rates_of(dtype="float32", **more):
    settings = Settings((16,), heads=1, d_head=4, dtype=dtype, repeats=3, only=("dense",), **more)
    return bench.measure(settings, 16, lambda items, *_: items)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_rate_is_there_or_says_why_not(dtype):
    record = rates_of(dtype)
    rates = {rate["name"]: rate for rate in record["rates"]}
    kernel = (bench.machine()["kernel"] or "").replace("amx", "avx512")
    names = [f"{kernel} multiply-adds" if BUILT else "multiply-adds", "oneDNN", "MKL"]
    if not torch.backends.mkl.is_available():
        names.append("torch.mm")
    if dtype in ("bfloat16", "float16"):
        names.append(f"oneDNN in {dtype}")
    assert list(rates) == names
    measured = [rate for rate in record["rates"] if rate["skipped"] is None]
    for rate in measured:
        assert len(rate["seconds"]) == 3 and min(rate["seconds"]) > 0
        if not rate["name"].endswith("multiply-adds"):
            work = 2 * 64**3
            assert rate["flops_per_second"] == work / min(rate["seconds"])
    for rate in record["rates"]:
        if rate not in measured:
            assert set(rate) == {"name", "skipped"} and rate["skipped"]
    assert record["best_flops_per_second"] == max(r["flops_per_second"] for r in measured)
    if dtype == "float64":
        assert rates["oneDNN"]["skipped"] == "knows no float64"
    table = bench_table(record, {"heads": 1, "d_head": 4, "dtype": dtype, "causal": True}, 64)
    head = "\n".join(table[:9])
    for rate in record["rates"]:
        said = f"{rate['name']} left out: {rate['skipped']}"
        if rate in measured:
            said = f"{rate['flops_per_second'] / 1e9:,.0f} {rate['name']}"
        assert said in head
    assert max(map(len, table)) <= 100


def test_products_of_matrices_are_those_of_their_names(monkeypatch):
    def rates():
        return {one.name: one.call for one in chip.rates(Settings((16,))) if one.call is not None}

    libraries = [name for name in ("oneDNN", "MKL") if name in rates()]
    for name in libraries:
        assert torch.equal(rates()[name]()[""], torch.full((64, 64), 64.0))
    monkeypatch.setattr(torch, "mm", lambda *_: "MKL")
    for name in libraries:
        assert (rates()[name]()[""] == "MKL") is (name == "MKL")


def test_a_torch_without_its_libraries_multiplies_all_the_same(monkeypatch):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    rates = {rate["name"]: rate for rate in rates_of("bfloat16")["rates"]}
    assert rates["MKL"]["skipped"] == rates["oneDNN"]["skipped"] == "this torch is without it"
    assert rates["oneDNN in bfloat16"]["skipped"] == "knows none on this chip"
    assert rates["torch.mm"]["flops_per_second"] > 0


def test_a_torch_without_the_operator_leaves_onednn_out(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    if torch.backends.mkldnn.is_available():
        assert (
            chip.rates(Settings((16,)))[1].skipped == "this torch has no mkldnn._linear_pointwise"
        )


def test_a_library_that_fails_is_left_out(monkeypatch):
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch is without oneDNN")

    def broken(*_):
        raise RuntimeError("could not create a primitive\nat all")

    monkeypatch.setattr(chip, "_by_onednn", broken)
    rates = {rate["name"]: rate for rate in rates_of()["rates"]}
    assert rates["oneDNN"] == {"name": "oneDNN", "skipped": "could not create a primitive"}


@pytest.mark.skipif(not BUILT, reason="the native kernel is not built")
@pytest.mark.parametrize("wide", [False, True])
def test_multiply_adds_are_counted(wide, monkeypatch):
    threads = torch.get_num_threads()
    bits = {"baseline": 128, "avx2": 256, "avx512": 512, "avx512bf16": 512, "amx": 512}
    sums = {"baseline": 12, "avx2": 12, "avx512": 16, "avx512bf16": 16, "amx": 16}
    for number in range(native.instruction_set() + 1):
        monkeypatch.setattr(native, "instruction_set", lambda number=number: number)
        name = native.SETS[number]
        if name == "baseline" and platform.machine() == "aarch64":
            continue
        each = 2 * sums[name] * bits[name] // (64 if wide else 32)  # of a step: a product, a sum
        assert native.multiply_adds(1000, wide) == 1000 * each * threads
    monkeypatch.undo()
    monkeypatch.setattr(chip, "STEPS", 7)
    settings = Settings((16,), dtype="float64" if wide else "float32")
    assert chip.rates(settings)[0].work == native.multiply_adds(7, wide)


def test_the_chip_has_a_name_and_numbers(tmp_path):
    said = (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n"
        "model name\t: AMD EPYC\nflags\t\t: fpu avx512f\n\nprocessor\t: 1\ncpu family\t: 99\n"
    )
    (tmp_path / "cpuinfo").write_text(said)
    found = chip.chip(tmp_path / "cpuinfo")
    assert found == {"cpu": "AMD EPYC", "family": 25, "model": 17}
    line = machine_line(bench.machine() | found | {"cores": 2, "threads": 1, "load": 0.26})[0]
    assert line.startswith("AMD EPYC (family 25, model 17)")
    assert line.endswith(": 2 cores, 1 thread, load 0.3 before we began")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    found = chip.chip(tmp_path / "cpuinfo")
    assert found["cpu"] and found["family"] is found["model"] is None
    assert "(" not in machine_line(bench.machine() | found | {"cpu": "Neoverse"})[0]
    assert chip.chip(tmp_path / "none")["cpu"]


def test_backward_gives_the_gradients_of_the_loss():
    settings = bench.Settings(tokens=(48,), heads=2, d_head=8, dtype="float64", backward=True)
    called = {c.name: c.call() for c in bench.contenders(settings, 48)
              if c.group == "forward + backward" and c.call is not None}  # fmt: skip
    assert list(called) == [name for name in BACKWARD if BUILT or not name.startswith("native")]
    plain = called["SDPA"]
    for name, ours in called.items():
        torch.testing.assert_close(ours["out"], plain["out"])
        torch.testing.assert_close(ours["d_v"], plain["d_v"])  # the entropy knows no values
        assert not any(x.requires_grad for x in ours.values())
        if name.endswith("in the loss"):
            assert not torch.allclose(ours["d_q"], plain["d_q"]), "no entropy in the loss"
            torch.testing.assert_close(ours["d_q"], called["tiled, entropy in the loss"]["d_q"])
        else:
            torch.testing.assert_close(ours["d_q"], plain["d_q"])


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
    if not BUILT:
        skipped = {name: why for name, why in skipped.items() if not name.startswith("native")}
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
    for impl in ("native", "tiled") if BUILT else ("tiled",):
        for name in ("attention", "output"):
            inner = getattr(module, name)

            def one_broken(*a, which=impl, inner=inner, **k):
                return (broken if k["impl"] == which else inner)(*a, **k)

            with monkeypatch.context() as patch:
                patch.setattr(module, name, one_broken)
                with pytest.raises(RuntimeError, match="not today"):
                    bench.measure(settings, 16, lambda items, *_: items)


@pytest.mark.skipif(not BUILT, reason="the native kernel is not built")
def test_the_grid_of_the_native_kernel(tmp_path, monkeypatch, capsys):
    script = Path(__file__).parents[1] / "benchmarks" / "native.py"
    spec = importlib.util.spec_from_file_location("benchmarks_native", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BESIDE", (128, 256))
    monkeypatch.setattr(module, "rounds", lambda tokens: 1)
    threads = torch.get_num_threads()
    module.main(["--longest", "256", "--output-dir", str(tmp_path)])
    assert torch.get_num_threads() == threads
    assert sorted(path.name for path in tmp_path.iterdir()) == ["native.json", "native.png"]
    document = json.loads((tmp_path / "native.json").read_text())
    assert document["left_out"] == []
    keys = ("tokens", "heads", "d_head", "dtype", "causal", "threads")
    measured = {tuple(point[key] for key in keys) for point in document["points"]}
    expected = set()
    for T in (128, 256):
        middle = (T, 8, 64, "float32", True, threads)
        changes = ({}, {1: 1}, {1: 32}, {2: 32}, {2: 128}, {4: False}, {3: "bfloat16"}, {5: 1},
                   {1: 1, 5: 1})  # fmt: skip
        expected |= {tuple(c.get(i, x) for i, x in enumerate(middle)) for c in changes}
    assert measured == expected and len(document["points"]) == len(measured)
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 110
    for point in document["points"]:
        rows = {(r["group"], r["name"]): r for r in point["contenders"]}
        assert all(row["skipped"] is None for row in rows.values())
        assert module.line(point) in said
        if (all_of_them := rows.get(("forward", "native, all diagnostics"))) is None:
            pytest.fail("not measured")
        assert f"{all_of_them['ratio']:9.2f}" in module.line(point)
        if (off := rows.get(("forward", "native, output only"))) is not None:
            added = all_of_them["seconds"][0] / off["seconds"][0]
            assert module.FIGURES["all/off"](point) == pytest.approx(added)
    module.main(["--longest", "128", "--minutes", "0", "--output-dir", str(tmp_path)])
    document = json.loads((tmp_path / "native.json").read_text())
    assert document["points"] == [] and len(document["left_out"]) == len(measured) // 2
    assert all(point["left_out"] == 0 for point in document["left_out"])


def test_contenders_take_turns(monkeypatch):
    order = []
    field = [bench.Contender(name, lambda name=name: order.append(name) or {}) for name in "ABC"]
    monkeypatch.setattr(bench, "contenders", lambda *_: field)
    speed = bench.Contender("S", lambda: order.append("S") or {}, group="machine", work=1)
    monkeypatch.setattr(bench, "rates", lambda *_: [speed])
    settings = bench.Settings(tokens=(8,), repeats=3)
    bench.measure(settings, 8, lambda items, *_: items)
    once = ["A", "B", "C"]  # to warm up, and at last for the memory
    assert order == ["S", *once, *["S", "A", "A", "B", "A", "C"] * 3, *once]


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
    assert said.count("native's diagnostics have the top key among them") == 2 * BUILT


def test_the_picture_names_its_curves(written):
    _, document, directory = written
    figure = bench_figure(document)
    texts = [[text.get_text() for text in ax.texts] for ax in figure.axes]
    names = {"SDPA", "SDPA twice", "dense", "tiled, all diagnostics"}
    names |= {"native, all diagnostics", "native, statistics only"} if BUILT else set()
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
        ({"only": ("native", "ours")}, "no name has 'ours' in it; there are dense, as in scratch;"),
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
