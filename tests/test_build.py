"""`python build.py` as a person runs it: its figures, its files, its errors."""

import errno
import importlib.metadata
import io
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from programs import BUILD, CLEARHEAD, ROOT, KilledAtStep, one_line, run

from clearhead import demo, files, scratch
from clearhead.cli import main
from clearhead.views import plots
from clearhead.views.terminal import curve

DATA = Path(__file__).parent / "data"
FILES = ["attention_heatmaps.png", "entropy.png", "results.json", "run_log.txt", "scaling.png"]
WORDS = 'the $cat$ sat_on "the" mat 🐈 the'


def files_in(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def strict_json(text: str) -> dict:
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def here(tmp_path, monkeypatch, capsys):
    """Build in this process, in a folder of its own and without the pictures: what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "pictures", lambda *_: {})

    def build(*arguments):
        assert main(["demo", *arguments]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return build


@pytest.fixture(scope="module", params=["tiny", "full"])
def built(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    done = run([*BUILD, f"--{request.param}", "--output-dir", folder / "out"], cwd=folder)
    return request.param, done, folder / "out"


@pytest.mark.quick
def test_golden_lines_to_the_character(built):
    name, done, out = built
    golden, last = (DATA / f"stdout_{name}.txt").read_text().rsplit("\n\n", 1)
    assert done.stdout.startswith(golden + "\n")
    assert last.startswith("Outputs written to <")
    assert done.stdout.endswith(f"\nOutputs written to {out}\n")
    log = (out / "run_log.txt").read_text("utf-8")
    assert log.startswith((DATA / f"run_log_{name}.txt").read_text().rstrip("\n") + "\n")


def test_nothing_on_standard_error_and_all_files(built):
    _, done, out = built
    assert done.stderr == ""
    assert files_in(out) == FILES
    for name in FILES:
        assert name in done.stdout


def test_output_fits_two_screens(built):
    _, done, _ = built
    lines = done.stdout.splitlines()
    assert len(lines) <= 80
    assert max(len(line) for line in lines[:-1]) <= 100


def test_the_line_after_the_bars_tells_the_true_ceiling(built):
    _, done, out = built
    lines = done.stdout.splitlines()
    last_bar = max(i for i, line in enumerate(lines) if "(max possible:" in line)
    assert lines[last_bar + 1].startswith("2.079 = ln(8) is out of reach under a causal mask")
    assert "ln(8!)/8 = 1.326" in lines[last_bar + 2]
    results = strict_json((out / "results.json").read_text("utf-8"))
    assert results["mean_ceiling"] == pytest.approx(math.log(math.factorial(8)) / 8)


def printed_numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text))


def test_every_printed_number_is_in_results_json(built):
    _, done, out = built
    results = strict_json((out / "results.json").read_text("utf-8"))
    assert results["max_entropy"] == pytest.approx(math.log(8))

    values = []

    def gather(value):
        if isinstance(value, dict | list):
            for part in value.values() if isinstance(value, dict) else value:
                gather(part)
        elif isinstance(value, float):
            values.append(value)

    gather(results)
    for text in (done.stdout, (out / "run_log.txt").read_text("utf-8")):
        for number in printed_numbers(text):
            digits = len(number.split(".")[1])
            error = min(abs(value - float(number)) for value in values)
            assert error <= 0.5001 * 10**-digits, f"{number} is printed, but not in results.json"


def test_the_oddity_of_the_original_is_said(built):
    _, done, _ = built
    assert "W_Q's first 8 rows repeat x / sqrt(d_model) exactly" in done.stdout


def test_heads_with_and_without_the_scaling_stand_side_by_side(built):
    _, done, out = built
    results = strict_json((out / "results.json").read_text("utf-8"))
    heads = results["multi_head"]
    for head in range(results["n_heads"]):
        assert heads["unscaled"]["mean_entropy"][head] < heads["scaled"]["mean_entropy"][head]
        row = next(line for line in done.stdout.splitlines() if re.match(rf" +{head}   \d", line))
        assert f"{heads['scaled']['mean_entropy'][head]:.3f}" in row
        assert f"{heads['unscaled']['mean_entropy'][head]:.3f}" in row
        assert f"{heads['scaled']['share_of_ceiling'][head]:.0%}" in row


def test_pictures_are_pictures(built):
    from matplotlib.image import imread

    _, _, out = built
    for name in FILES:
        if name.endswith(".png"):
            height, width = imread(out / name).shape[:2]
            assert height > 300, name
            assert width > 500, name


@pytest.mark.slow
def test_the_same_command_gives_the_same_bytes(built, tmp_path):
    name, _, out = built
    run([*BUILD, f"--{name}", "--output-dir", tmp_path], cwd=tmp_path)
    for file in FILES:
        assert (tmp_path / file).read_bytes() == (out / file).read_bytes(), file


def test_own_words(tmp_path):
    done = run([*BUILD, "--text", WORDS, "--output-dir", "made/for/it"], cwd=tmp_path)
    assert done.stdout.startswith(f"Tokens: {WORDS.split()}\nT=7  d_model=32")
    note = done.stdout.index("no two 'the' are alike: any text of this length")
    assert note < done.stdout.index("=== Single-head attention ===")
    assert done.stderr.count("\n") <= 1  # one word on the font that has no cat, or none
    out = tmp_path / "made/for/it"
    assert files_in(out) == FILES
    assert strict_json((out / "results.json").read_text("utf-8"))["tokens"] == WORDS.split()
    assert "🐈" in (out / "run_log.txt").read_text("utf-8")


def test_any_text_of_one_length_gives_the_same_numbers(here):
    texts = ("the cat sat on the mat", "a b c d e f")
    first, second = (strict_json(here("--json", "--text", text)) for text in texts)
    assert first.pop("tokens") != second.pop("tokens")
    assert first == second


@pytest.mark.slow
def test_a_file_of_500_words(tmp_path):
    text = " ".join(f"word{i % 90}" for i in range(500))
    (tmp_path / "text.txt").write_text("\ufeff" + text, "utf-8")
    done = run([*BUILD, "--file", "text.txt", "--output-dir", "out"], cwd=tmp_path)
    assert "T=500" in done.stdout
    assert "... 477 more ..." in done.stdout
    assert len(done.stdout.splitlines()) <= 80
    assert files_in(tmp_path / "out") == FILES
    tokens = strict_json((tmp_path / "out/results.json").read_text("utf-8"))["tokens"]
    assert tokens == text.split()


@pytest.mark.parametrize("n_tokens", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_shortest_texts(n_tokens, tmp_path):
    command = [*BUILD, "--text", "a " * n_tokens, "--d-model", "1", "--n-heads", "1"]
    done = run([*command, "--output-dir", "out"], cwd=tmp_path)
    assert f"T={n_tokens} " in done.stdout
    assert "nan" not in done.stdout.lower()
    assert files_in(tmp_path / "out") == FILES


def test_text_from_a_pipe(tmp_path):
    (tmp_path / "text").write_text("to be or not")
    with open(tmp_path / "text") as text:
        command = [*CLEARHEAD, "demo", "--file", "-", "--json"]
        done = run(command, cwd=tmp_path, stdin=text)
    assert strict_json(done.stdout)["tokens"] == ["to", "be", "or", "not"]


def test_as_json_prints_what_is_written(here, tmp_path):
    assert here("--json") == (tmp_path / "outputs/results.json").read_text("utf-8")


def test_the_seed_reaches_every_number(here):
    first, second = (strict_json(here("--json", "--seed", seed)) for seed in ("1", "2"))
    assert (first["seed"], first["scaling"]["seed"]) == (1, 1)
    assert first["single_head"]["weights"][1] != second["single_head"]["weights"][1]
    for name in ("scaled", "unscaled"):
        assert first["multi_head"][name]["entropy"] != second["multi_head"][name]["entropy"]
    for a, b in zip(first["scaling"]["rows"], second["scaling"]["rows"], strict=True):
        assert a["score_std"] != b["score_std"]
        assert a["scaled"] != b["scaled"]


def test_each_reading_of_the_build_reads_the_right_thing(tmp_path, monkeypatch):
    """The pictures, the table and the log against the functions of scratch.py, called here."""
    shown = {}
    for name in ("heatmap_grid", "entropy_curves"):
        original = getattr(plots, name)
        monkeypatch.setattr(
            plots,
            name,
            lambda *a, _o=original, _n=name, **k: shown.update({_n: (a, k)}) or _o(*a, **k),
        )
    assert main(["demo", "--full", "--seed", "3", "--output-dir", str(tmp_path)]) == 0
    x, W = scratch.make_input_embeddings(8, 64, 3), scratch.init_projections(64, 8, 3)
    mask = scratch.causal_mask(8)
    scaled, unscaled = (
        scratch.multi_head_attention(x, *W, 8, mask, scale)[1] for scale in (True, False)
    )
    (weights, tokens, _), options = shown["heatmap_grid"]
    assert torch.equal(torch.from_numpy(weights), scaled)
    assert (options["visible"] == mask.bool().numpy()).all()
    assert list(tokens) == demo.TOY_SENTENCE.split()
    (entropy, _), options = shown["entropy_curves"]
    assert torch.equal(torch.from_numpy(entropy), scratch.attention_entropy(scaled))
    assert options["ceiling"] == pytest.approx([math.log(i) for i in range(1, 9)])

    log = (tmp_path / "run_log.txt").read_text("utf-8")
    for head in range(8):
        row = next(line for line in log.splitlines() if re.match(rf" +{head}   \d", line))
        curves = row.split()[-2:]
        for maps, drawn in ((scaled, curves[0]), (unscaled, curves[1])):
            assert f"{maps[head].amax(-1).mean():.3f}" in row
            rows = scratch.attention_entropy(maps[head])[1:]
            shares = [h / math.log(i) for i, h in enumerate(rows.tolist(), start=2)]
            assert drawn == curve([None, *shares])
    results = strict_json((tmp_path / "results.json").read_text("utf-8"))
    assert results["W_Q_rows_equal_to_x"] == 8
    for heading in ("=== The same heads", "=== Why sqrt(d_head)", "=== What is odd"):
        assert heading in log


# Errors: one line, status 2, nothing half-written ---------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--n-heads", "0"], ["d_model=32", "n_heads=0", "at least 1"]),
        (["--n-heads", "-4"], ["n_heads=-4"]),
        (["--d-model", "30", "--n-heads", "4"], ["d_model=30", "n_heads=4", "divide"]),
        (["--d-model", "0"], ["d_model=0"]),
        (["--d-model", "20000", "--n-heads", "4"], ["d_model=20000", "at most"]),
        (["--n-heads", "two"], ["--n-heads", "'two'"]),
        (["--seed", str(2**64)], ["seed", str(2**64)]),
        (["--text", ""], ["empty"]),
        (["--text", " \n\t "], ["empty"]),
        (["--text", "a " * 9000], ["9000 tokens", "at most"]),
        (["--text", "a", "--file", "b"], ["--file", "--text"]),
        (["--tiny", "--full"], ["--full", "--tiny"]),
        (["--file", "missing.txt"], ["missing.txt", "No such file"]),
        (["--file", "."], [".", "directory"]),
        (["--file", "latin1.txt"], ["latin1.txt", "not UTF-8", "0xe9", "offset 3"]),
        (["--file", "empty.txt"], ["empty"]),
        (["--file", "/dev/zero"], ["/dev/zero", "longer than"]),
        (["--output-dir", "latin1.txt"], ["latin1.txt", "it is a file", "choose another"]),
        (["--output-dir", ""], ["--output-dir", "empty"]),
        (["--output-dir", "latin1.txt/below"], ["latin1.txt"]),
        (["--output-dir", "/proc/nowhere"], ["/proc/nowhere"]),
        (["--unknown"], ["--unknown"]),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "latin1.txt").write_bytes("caf\u00e9".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    before = files_in(tmp_path)
    if "--output-dir" not in arguments:
        arguments = ["--output-dir", "out", *arguments]
    assert main(["demo", *arguments], program="build.py") == 2
    said = capsys.readouterr()
    assert said.err.startswith("build.py: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err
    assert said.out == ""
    assert files_in(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "seteuid") or os.geteuid() != 0, reason="needs root to drop it")
def test_a_read_only_directory(tmp_path, capsys):
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    os.seteuid(65534)  # root may write anywhere; nobody may not
    try:
        status = main(["demo", "--output-dir", str(tmp_path / "out")])
    finally:
        os.seteuid(0)
    assert status == 2
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"clearhead demo: \S+/out: nothing can be .* \(Permission denied\).*\n", said
    )
    assert files_in(tmp_path) == []


def test_a_full_disk_leaves_nothing_of_the_new_and_all_of_the_old(tmp_path, monkeypatch, capsys):
    (tmp_path / "run_log.txt").write_text("old")
    monkeypatch.setattr(files.os, "fsync", lambda fd: fail_after_three())
    calls = []

    def fail_after_three():
        calls.append(1)
        if len(calls) > 4:  # the first is the probe of the directory
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert main(["demo", "--output-dir", str(tmp_path)]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert files_in(tmp_path) == ["run_log.txt"]
    assert (tmp_path / "run_log.txt").read_text() == "old"


def test_a_mistake_ends_the_program_with_status_2(tmp_path):
    done = run([*BUILD, "--n-heads", "0"], cwd=tmp_path, status=2)
    assert "n_heads=0" in one_line(done)
    assert done.stdout == ""


# Hostile surroundings -------------------------------------------------------------------------


def test_killed_at_any_moment_the_files_are_whole(tmp_path, monkeypatch):
    """Killed at each step of the writing: every file is the old one or the new one, whole."""
    old, new = ({name: bytes([byte]) * 100_000 for name in "abc"} for byte in (1, 2))
    steps = 0
    while True:
        files.write_files(tmp_path, old)
        child = os.fork()
        if child == 0:
            files.os = KilledAtStep(steps, "fsync", "replace")
            files.write_files(tmp_path, new)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        for name in "abc":
            assert (tmp_path / name).read_bytes() in (old[name], new[name])
        if status == 0:
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        steps += 1
    assert steps == 6  # three files flushed, three moved into place


@pytest.mark.slow
def test_closed_standard_streams_do_not_fail_the_work(tmp_path):
    for closed in (">&-", "2>&-", ">&- 2>&-"):
        command = " ".join(f"'{part}'" for part in [*BUILD, "--text", "a b", "--output-dir", "out"])
        run(["sh", "-c", f"{command} {closed}"], cwd=tmp_path)
        assert files_in(tmp_path / "out") == FILES
        shutil.rmtree(tmp_path / "out")


@pytest.mark.slow
def test_two_at_once_end_in_whole_files(tmp_path):
    pair = [
        subprocess.Popen(
            [*BUILD, size, "--output-dir", "out"],
            cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for size in ("--tiny", "--full")
    ]  # fmt: skip
    assert [(process.communicate()[1], process.returncode) for process in pair] == [(b"", 0)] * 2
    assert files_in(tmp_path / "out") == FILES
    assert strict_json((tmp_path / "out/results.json").read_text("utf-8"))["T"] == 8


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_other_encodings_of_the_terminal(encoding, here, tmp_path, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, newline=""))
    here("--text", f"{WORDS} caf\u00e9 \u732b")
    shown = raw.getvalue().decode(encoding)
    assert ("▇" in shown) == (encoding == "utf-8")
    assert ("U0001f408" in shown) == (encoding != "utf-8")
    assert "🐈" in (tmp_path / "outputs/run_log.txt").read_text("utf-8")


def test_an_ascii_terminal_of_a_real_process(tmp_path):
    done = run([*BUILD, "--text", WORDS, "--output-dir", "out"], tmp_path, PYTHONIOENCODING="ascii")
    assert done.stdout.isascii()
    assert done.stderr.isascii()


def test_bytes_that_are_not_utf8_on_the_command_line(here, tmp_path):
    assert "udcff" in here("--text", b"a\xff b".decode("utf-8", "surrogateescape"))
    assert "udcff" in (tmp_path / "outputs/run_log.txt").read_text("utf-8")


def test_terminal_escapes_in_a_text_stay_text(here, tmp_path):
    shown = here("--text", "a \x1b[31mred\x07 b \x1b[31mred\x07")
    log = (tmp_path / "outputs/run_log.txt").read_text("utf-8")
    for control in "\x1b\x07":
        assert control not in shown
        assert control not in log


@pytest.mark.slow
def test_a_reader_that_leaves_early_hears_no_complaint(tmp_path):
    command = [*BUILD, "--output-dir", "out"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert files_in(tmp_path / "out") == FILES  # the reader left; the work was done


@pytest.mark.slow
def test_with_a_bogus_display(tmp_path):
    settings = {"DISPLAY": "nowhere:99", "MPLBACKEND": "TkAgg"}
    run([*BUILD, "--text", "a b", "--output-dir", "out"], cwd=tmp_path, **settings)


def closure_of(names: set[str]) -> set[str]:
    """These distributions and all that they require, as installed here."""
    wanted, seen = set(names), set()
    while wanted:
        name = wanted.pop()
        seen.add(name)
        for text in importlib.metadata.requires(name) or []:
            required = Requirement(text)
            if required.marker is None or required.marker.evaluate({"extra": ""}):
                wanted |= {required.name} - seen
    return seen


def test_from_a_bare_clone_with_torch_numpy_and_matplotlib_alone(tmp_path):
    """The package is not installed there, nor is rich, nor anything else that we use."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in closure_of({"torch", "numpy", "matplotlib"}):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    isolated = [sys.executable, "-S", ROOT / "build.py"]  # -S: no site-packages
    for name in ("rich", "clearhead", "pytest"):
        absent = [
            sys.executable,
            "-S",
            "-c",
            f"import importlib.util as u; u.find_spec('{name}') and 1/0",
        ]
        run(absent, cwd=tmp_path, PYTHONPATH=packages)
    done = run([*isolated, "--output-dir", "out"], cwd=tmp_path, PYTHONPATH=packages)
    assert "=== Multi-head attention ===" in done.stdout
    assert files_in(tmp_path / "out") == FILES


def test_what_is_missing_is_said_with_the_command_that_brings_it(tmp_path):
    isolated = [sys.executable, "-S", ROOT / "build.py"]
    line = one_line(run(isolated, cwd=tmp_path, status=2, PYTHONPATH=None))
    assert "torch and numpy and matplotlib" in line
    assert "-m pip install torch numpy matplotlib" in line
