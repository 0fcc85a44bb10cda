"""What is installed, what is missing, and the command that brings it.

Works on the barest Python: nothing is imported here but the standard library, and what it looks
for is imported in a process of its own, so that a broken installation cannot break the doctor.
"""

import importlib.metadata
import json
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from clearhead import __version__, library
from clearhead.files import json_text
from clearhead.views.terminal import Terminal

_PATIENCE = 120  # seconds for one import: a cold disk may need many for torch


@dataclass(frozen=True)
class Finding:
    """One thing looked for. status: ok, missing, broken or old; remedy: a command, or empty."""

    name: str
    status: str
    seen: str
    purpose: str
    needed: bool
    remedy: str = ""


@dataclass(frozen=True)
class Package:
    """What to look for. module: what is imported, where it is not called as the package is;
    extra: that of clearhead's own that brings it."""

    name: str
    purpose: str
    needed: bool = False
    module: str = ""
    remedy: str = ""
    at_least: str = "0"
    extra: str = ""


VIEW = "view"  # what pyproject.toml calls it
_WITH_TESTS = "`make test` brings what it needs"
PACKAGES = (
    Package("torch", "everything but this verb", needed=True, at_least="2.6"),
    Package("numpy", "everything but this verb", needed=True),
    Package("matplotlib", "pictures", needed=True),
    Package("rich", "colors and progress bars"),
    Package("safetensors", "models and runs on the disk"),
    Package("tokenizers", "texts as tokens"),
    Package("starlette", "view: walking through maps", extra=VIEW),
    Package("uvicorn", "view: walking through maps", extra=VIEW),
    Package("pytest", "make test", remedy=_WITH_TESTS),
    Package("pytest-xdist", "make test", module="xdist", remedy=_WITH_TESTS),
    Package("hypothesis", "make test", remedy=_WITH_TESTS),
    Package("onnx", "make test, as a judge", remedy=_WITH_TESTS),
    Package("transformers", "inspect: its models; make test, as a judge", remedy=_WITH_TESTS),
    Package("ruff", "make test", remedy=_WITH_TESTS),
    Package("mypy", "make test", remedy=_WITH_TESTS),
)


def examine_python() -> Finding:
    """The running Python against the oldest that clearhead runs on."""
    new_enough = sys.version_info >= (3, 11)
    return Finding(
        name="python",
        status="ok" if new_enough else "old",
        seen=platform.python_version(),
        purpose="everything",
        needed=True,
        remedy="" if new_enough else "install Python 3.11 or newer",
    )


def examine(package: Package) -> Finding:
    """Whether a package is installed and, tried in a process of its own, can be imported."""
    found = Finding(package.name, "ok", "-", package.purpose, package.needed)
    install = f"{sys.executable} -m pip install {package.name}"
    try:
        found = replace(found, seen=importlib.metadata.version(package.name) or "?")
    except (importlib.metadata.PackageNotFoundError, KeyError):
        if package.extra:
            install = with_extra(package.extra)
        return replace(found, status="missing", remedy=package.remedy or install)
    trial = _trial(f"import {package.module or package.name}")
    if trial.returncode == 0 and _numbers(found.seen) < _numbers(package.at_least):
        return replace(found, status="old", remedy=f"{install} --upgrade")
    if trial.returncode == 0:
        return found
    reinstall = f"{install} --force-reinstall"
    seen = f"{found.seen}: {_last_line(trial)}"
    return replace(found, status="broken", seen=seen, remedy=reinstall)


def with_extra(name: str) -> str:
    """The command that brings what an extra of clearhead's names, to this Python."""
    if library.digest():
        what = f"--editable {shlex.quote(f'{_checkout()}[{name}]')}"
    else:
        url = _origin()
        what = shlex.quote(f"clearhead[{name}]" + (f" @ {url}" if url != "clearhead" else ""))
    return f"{sys.executable} -m pip install {what}"


def _trial(code: str) -> subprocess.CompletedProcess[str]:
    """What becomes of a line of Python in a process of its own."""
    command = [sys.executable, "-P", "-c", code]
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_PATIENCE, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"takes more than {_PATIENCE} s")


def _last_line(trial: subprocess.CompletedProcess[str]) -> str:
    return (trial.stderr.strip().splitlines() or [f"exit status {trial.returncode}"])[-1]


def examine_kernel() -> Finding:
    """Whether the native kernel was compiled, from these sources, and for which instructions."""
    purpose = "attention on CPUs; without it PyTorch computes the same, more slowly"
    found = Finding("native", "ok", "-", purpose, needed=False)
    path = library.built()
    if path is None:
        return replace(found, status="old" if library.compiled() else "missing", remedy=_compile())
    code = (
        f"import sys; sys.path.insert(0, {str(Path(library.__file__).parents[1])!r})\n"
        "from clearhead.library import best, load\n"
        f"sys.stdout.write(best(load({str(path)!r})))"
    )
    trial = _trial(code)
    if trial.returncode:
        return replace(found, status="broken", seen=_last_line(trial), remedy=_compile())
    return replace(found, seen=trial.stdout)


def _compile() -> str:
    """What compiles the kernel, of a checkout or of a package installed from somewhere."""
    if not library.POSIX:
        return "it is not built for Windows; in WSL it is"
    if library.digest():
        where = f"--editable {shlex.quote(str(_checkout()))}"
    else:
        where = f"--force-reinstall --no-cache-dir {shlex.quote(_origin())}"
    command = f"{sys.executable} -m pip install --no-deps {where}"
    if library.compiler():
        return command
    get = "xcode-select --install" if sys.platform == "darwin" else "apt-get install gcc libc6-dev"
    names = ", ".join(library.COMPILERS)
    return f"no C compiler here ({names}): {get}, or what your system has for it; then {command}"


def _checkout() -> Path:
    return library.CSRC.parents[3]


def _origin() -> str:
    """Where pip had clearhead from, if that was no package index."""
    try:
        origin = importlib.metadata.distribution("clearhead").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        origin = None
    return str(json.loads(origin)["url"]) if origin else "clearhead"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def _alike(findings: list[Finding]) -> dict[tuple[str, str], list[str]]:
    """Names of findings with the same status and remedy, in the order in which they come."""
    groups: dict[tuple[str, str], list[str]] = {}
    for found in findings:
        groups.setdefault((found.status, found.remedy), []).append(found.name)
    return groups


def run(terminal: Terminal, as_json: bool = False) -> int:
    """Print what was found; 0 if all that clearhead cannot do without is there, else 1."""
    findings = [examine_python()]
    for package in terminal.progress(PACKAGES, "trying each package", len(PACKAGES)):
        findings.append(examine(package))
    findings.append(examine_kernel())
    lacking = [found for found in findings if found.status != "ok"]
    if as_json:
        document = {"clearhead": __version__, "findings": [asdict(found) for found in findings]}
        terminal.line(json_text(document))
    else:
        terminal.line(
            f"clearhead {__version__} in {Path(__file__).parent}, run by {sys.executable}"
        )
        for found in findings:
            terminal.line(
                f"  {found.name:<12} {found.status:<8} {found.seen:<12} "
                f"{'needed' if found.needed else 'optional'}: {found.purpose}"
            )
        terminal.line()
        for (status, remedy), some in _alike(lacking).items():
            are = "is" if len(some) == 1 else "are"
            terminal.line(f"{', '.join(some)} {are} {status}: {remedy}")
        if not lacking:
            terminal.line("Everything is here.")
    return int(any(found.needed for found in lacking))
