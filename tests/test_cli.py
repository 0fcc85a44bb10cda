"""The command line as a whole: help, mistakes, terminals, and the doctor."""

import io
import json
import os
import pty
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
import test_view
from programs import CLEARHEAD, ROOT, one_line, run

from clearhead import __version__, doctor, library
from clearhead.cli import VERBS, main
from clearhead.views.terminal import Terminal, curve, matrix, token_list


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_groups_the_verbs(arguments, capsys):
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert said.index("Learn:") < said.index("  demo ") < said.index("  scaling ")
    assert said.index("Check:") < said.index("  doctor ")


def example_of(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb.name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.count("Example:") == 1
    return said.split("Example:\n")[1].strip()


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_each_verbs_help_has_one_example(verb, capsys):
    assert example_of(verb, capsys).startswith(f"clearhead {verb.name}")


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_example_runs(verb, tmp_path, capsys):
    example = example_of(verb, capsys)
    if verb.name in ("plot", "view", "report"):  # a run to draw, to show
        text = [*CLEARHEAD, "inspect", "--text", "a cat", "--keep", "qk", "--save", "runs/a"]
        run(text, cwd=tmp_path)
    command = example.replace("clearhead", f"'{sys.executable}' -m clearhead", 1)
    if verb.name == "view":  # it runs until it is told to end
        test_view.ended(test_view.begun(shlex.split(command), tmp_path))
    elif verb.name == "check":  # a file of the clone, in which something is wrong
        run(["sh", "-c", command], cwd=ROOT, status=1)
    else:
        run(["sh", "-c", command], cwd=tmp_path)


def test_help_of_the_script_speaks_of_the_script(tmp_path):
    said = run([sys.executable, ROOT / "build.py", "--help"], cwd=tmp_path).stdout
    assert said.startswith("usage: build.py ")
    assert "python build.py --text" in said
    assert "clearhead" not in said


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["--version"], ["nonsense"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from clearhead.cli import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    run([sys.executable, "-c", code], cwd=ROOT)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"clearhead {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demmo"], "there is no verb 'demmo'; did you mean demo? (see clearhead --help)"),
        (["xyz"], f"there is no verb 'xyz'; verbs: {', '.join(verb.name for verb in VERBS)}"),
        (["scaling", "--token", "5"], "clearhead scaling: unrecognized arguments: --token 5"),
        (["doctor", "now"], "clearhead doctor: unrecognized arguments: now"),
        (["demo\nand more"], "there is no verb"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(arguments, words, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_interrupted_is_one_line(monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("clearhead.demo.build", interrupt)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "clearhead demo: interrupted\n"


def test_a_bug_of_ours_is_not_passed_off_as_a_mistake(monkeypatch, tmp_path):
    def bug(*_):
        raise ValueError("inside")

    monkeypatch.setattr("clearhead.demo.build", bug)
    with pytest.raises(ValueError, match="inside"):
        main(["demo", "--output-dir", str(tmp_path)])


# The terminal ---------------------------------------------------------------------------------


def on_a_terminal(command, cwd, **environment) -> str:
    """What a program writes when standard output and error are a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color",
             "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(ours)
    assert process.wait() == 0
    return b"".join(pieces).decode()


SWEEP = [*CLEARHEAD, "scaling", "--tokens", "64"]


def test_colors_and_a_bar_on_a_terminal_only(tmp_path):
    shown = on_a_terminal(SWEEP, tmp_path)
    assert "\x1b[1;36m=== Why sqrt(d_head)" in shown
    assert "scaling experiment" in shown
    assert "━" in shown
    piped = run(SWEEP, cwd=tmp_path)
    assert "\x1b" not in piped.stdout + piped.stderr
    assert "scaling experiment" not in piped.stdout + piped.stderr


@pytest.mark.slow
def test_a_long_text_shows_how_far_it_is_read(tmp_path):
    (tmp_path / "long.txt").write_text("to be or not to be, that is the question " * 60)
    inspect = [*CLEARHEAD, "inspect", "--no-probe", "--top", "1", "--file", "long.txt"]
    shown = on_a_terminal(inspect, tmp_path)
    assert "reading" in shown and "\u2501" in shown
    piped = run(inspect, cwd=tmp_path)
    assert "reading" not in piped.stdout.split("head:")[0] + piped.stderr
    short = on_a_terminal([*inspect[:-2], "--text", "to be"], tmp_path)
    assert "\u2501" not in short


def test_no_color_is_respected(tmp_path):
    shown = on_a_terminal(SWEEP, tmp_path, NO_COLOR="1")
    assert "=== Why sqrt(d_head)" in shown
    assert "36m" not in shown
    assert "q·k" in shown


def test_what_an_encoding_lacks_is_spelled_out():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    Terminal(out, io.StringIO()).line("q·k √d ▁█ ±1 … 猫")
    out.flush()
    assert raw.getvalue() == b"q.k sqrtd _# +-1 ... \\u732b\n"


def test_curve():
    assert curve([None, 0.0, 0.5, 1.0]) == "·▁▅█"
    assert curve([0.0] * 50 + [1.0] * 50, width=4) == "▁▁██"
    assert curve([None] * 10 + [1.0] * 10, width=2) == "·█"


def test_controls_of_a_terminal_are_spelled_out():
    out = io.StringIO()
    Terminal(out, io.StringIO()).line("a\x1b[31mb\x07\n{}")
    assert out.getvalue() == "a\\x1b[31mb\\x07\n{}\n"


def test_token_list_shows_both_ends():
    assert token_list(["a", "b"]) == "['a', 'b']"
    shown = token_list([str(i) for i in range(100)])
    assert shown.startswith("['0', '1', ")
    assert len(token_list(["x" * 100_000])) < 80
    assert shown.endswith("'19', ... 77 more ..., '97', '98', '99']")


def test_matrix_ignores_the_callers_print_options():
    import numpy as np

    with np.printoptions(precision=1, threshold=2):
        assert matrix(np.array([[0.5, 0.123456]])) == ["[[0.5   0.123]]"]


# The doctor -----------------------------------------------------------------------------------


@pytest.mark.quick
def test_doctor_finds_everything_that_is_here(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = {found["name"]: found for found in json.loads(capsys.readouterr().out)["findings"]}
    for name in ("python", "torch", "numpy", "matplotlib", "rich", "pytest", "hypothesis"):
        assert findings[name]["status"] == "ok"
    import torch

    assert findings["torch"]["seen"] == torch.__version__


def test_doctor_names_what_is_missing_and_the_command(tmp_path):
    bare = [sys.executable, "-S", "-m", "clearhead", "doctor"]
    said = run(bare, cwd=tmp_path, status=1).stdout
    assert f"torch is missing: {sys.executable} -m pip install torch" in said
    assert "rich is missing" in said
    extra = shlex.quote(f"{ROOT}[view]")
    assert (
        f"starlette, uvicorn are missing: {sys.executable} -m pip install --editable {extra}\n"
        in said
    )
    assert "\n  native " in said
    assert "pytest-xdist, hypothesis, " in said
    assert "mypy are missing: `make test` brings what it needs" in said


def test_a_broken_package_is_broken_and_not_the_doctor(tmp_path):
    package = tmp_path / "brokenpackage"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libwhatever.so is gone')")
    info = tmp_path / "brokenpackage-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brokenpackage\nVersion: 1.2\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from clearhead.doctor import Package, examine\n"
        "print(examine(Package('brokenpackage', 'tests')))"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    said = run([sys.executable, "-c", code], cwd=tmp_path, PYTHONPATH=path).stdout
    assert "status='broken'" in said
    assert "1.2: ImportError: libwhatever.so is gone" in said


def test_an_old_package_is_old():
    found = doctor.examine(doctor.Package("pytest", "tests", at_least="999.0"))
    assert (found.status, found.remedy[-16:]) == ("old", "pytest --upgrade")


def test_only_what_is_needed_counts(monkeypatch, capsys):
    def without(lacking):
        return lambda package: doctor.Finding(
            package.name, "missing" if package.name == lacking else "ok", "-",
            package.purpose, package.needed, "pip",
        )  # fmt: skip

    monkeypatch.setattr(doctor, "examine", without("rich"))
    assert main(["doctor"]) == 0
    assert "rich is missing: pip" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "examine", without("numpy"))
    assert main(["doctor"]) == 1


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """A folder in place of the engine's, without a kernel, on a machine with a compiler."""
    monkeypatch.setattr(library, "ENGINE", tmp_path)
    monkeypatch.setattr(library, "compiler", lambda: "cc")
    return tmp_path


def test_doctor_names_the_instructions_of_the_kernel():
    found = doctor.examine_kernel()
    if library.built() is None:
        pytest.skip("the native kernel is not built here")
    assert (found.status, found.remedy, found.needed) == ("ok", "", False)
    assert found.seen in ("baseline", "avx2", "avx512", "avx512bf16", "amx")


def test_doctor_says_what_compiles_the_kernel(engine):
    found = doctor.examine_kernel()
    assert (found.status, found.seen) == ("missing", "-")
    assert "without it PyTorch computes the same, more slowly" in found.purpose
    command = f"{sys.executable} -m pip install --no-deps --editable {shlex.quote(str(ROOT))}"
    assert found.remedy == command


def test_doctor_says_that_a_compiler_is_missing(engine, monkeypatch):
    monkeypatch.setattr(library, "compiler", lambda: "")
    remedy = doctor.examine_kernel().remedy
    assert remedy.startswith("no C compiler here (cc, gcc, clang): ")
    assert f"then {sys.executable} -m pip install" in remedy


def test_an_installed_package_is_compiled_from_where_it_came(engine, monkeypatch):
    monkeypatch.setattr(library, "CSRC", engine / "csrc")
    origin = SimpleNamespace(read_text=lambda name: '{"url": "file:///a%20folder"}')
    monkeypatch.setattr(doctor.importlib.metadata, "distribution", lambda name: origin)
    assert doctor.examine_kernel().remedy.endswith(" --no-cache-dir file:///a%20folder")


def test_a_kernel_of_other_sources_is_old_and_is_not_loaded(engine):
    (engine / "_native.abi3.so").write_text("clearhead csrc " + 64 * "0", "utf-8")
    assert library.built() is None
    found = doctor.examine_kernel()
    assert found.status == "old"
    assert " -m pip install " in found.remedy


def test_a_kernel_that_cannot_be_loaded_is_broken(engine):
    (engine / "_native.abi3.so").write_text(f"clearhead csrc {library.digest()}", "utf-8")
    found = doctor.examine_kernel()
    assert found.status == "broken"
    assert "_native.abi3.so" in found.seen
    assert found.remedy


def test_a_kernel_compiled_by_hand_or_installed_is_taken(engine, monkeypatch):
    by_hand = engine / "_native.so"
    by_hand.write_text("no mark", "utf-8")
    assert library.built() == by_hand
    by_hand.write_text("clearhead csrc " + 64 * "0", "utf-8")
    assert library.built() is None
    monkeypatch.setattr(library, "CSRC", engine / "csrc")
    assert library.built() == by_hand


@pytest.mark.parametrize(
    ("there", "given", "taken"),
    [
        (("gcc", "clang"), None, "gcc"),
        (("clang",), None, "clang"),
        ((), None, ""),
        (("gcc", "icx"), "icx -w", "icx -w"),
        (("gcc",), "icx", ""),
    ],
)
def test_the_compiler_is_the_one_asked_for_or_the_first_that_is_there(
    monkeypatch, there, given, taken
):
    monkeypatch.setattr(library.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(library.sysconfig, "get_config_var", lambda name: "gone -pthread")
    monkeypatch.delenv("CC", raising=False)
    if given:
        monkeypatch.setenv("CC", given)
    assert library.compiler() == taken


def test_an_extra_of_what_was_installed_from_elsewhere(engine, monkeypatch):
    monkeypatch.setattr(library, "digest", lambda: "")
    origin = SimpleNamespace(read_text=lambda name: None)
    monkeypatch.setattr(doctor.importlib.metadata, "distribution", lambda name: origin)
    assert doctor.with_extra("view").endswith(" -m pip install 'clearhead[view]'")
    origin.read_text = lambda name: json.dumps({"url": "file:///a%20folder"})
    assert doctor.with_extra("view").endswith(" 'clearhead[view] @ file:///a%20folder'")


@pytest.mark.parametrize("lacking", ["uvicorn", "starlette"])
def test_the_viewer_says_which_extra_it_lacks(lacking, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("clearhead.viewer.")]:
        monkeypatch.delitem(sys.modules, name)
    import clearhead.viewer

    monkeypatch.delattr(clearhead.viewer, "server", raising=False)
    monkeypatch.setitem(sys.modules, lacking, None)
    monkeypatch.setitem(sys.modules, f"{lacking}.applications", None)
    assert main(["view", "--no-open"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{lacking} is not installed, which the extra [view] of clearhead brings: " in line
    assert line.endswith(doctor.with_extra("view"))


def test_a_library_that_is_missing_at_work_is_one_line(tmp_path):
    line = one_line(run([sys.executable, "-S", "-m", "clearhead", "scaling"], tmp_path, status=2))
    assert "No module named" in line
    assert "clearhead doctor" in line
