"""What is installed, what is missing, and the command that brings it.

Works on the barest Python: nothing is imported here but the standard library, and what it looks
for is imported in a process of its own, so that a broken installation cannot break the doctor.
"""

import importlib.metadata
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from clearhead import __version__
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


# name, what it is for, whether clearhead cannot do without it
_PACKAGES = (
    ("torch", "everything but this verb", True),
    ("numpy", "everything but this verb", True),
    ("matplotlib", "pictures", True),
    ("rich", "colors and progress bars", False),
    ("pytest", "make test", False),
    ("hypothesis", "make test", False),
    ("ruff", "make test", False),
    ("mypy", "make test", False),
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


def examine_package(name: str, purpose: str, needed: bool) -> Finding:
    """Whether a package is installed and, tried in a process of its own, can be imported."""
    install = f"{sys.executable} -m pip install {name}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "missing", "-", purpose, needed, install)
    try:
        trial = subprocess.run(
            [sys.executable, "-c", f"import {name}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        why = (trial.stderr.strip().splitlines() or [f"exit status {trial.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        why = f"import takes more than {_PATIENCE} s"
    else:
        if trial.returncode == 0:
            return Finding(name, "ok", version, purpose, needed)
    reinstall = f"{install} --force-reinstall"
    return Finding(name, "broken", f"{version}: {why}", purpose, needed, reinstall)


def run(terminal: Terminal, as_json: bool = False) -> int:
    """Print what was found; 0 if all that clearhead cannot do without is there, else 1."""
    findings = [examine_python()]
    for package in terminal.progress(_PACKAGES, "trying each package", len(_PACKAGES)):
        findings.append(examine_package(*package))
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
                f"  {found.name:<11} {found.status:<8} {found.seen:<12} "
                f"{'needed' if found.needed else 'optional'}: {found.purpose}"
            )
        terminal.line()
        for found in lacking:
            terminal.line(f"{found.name} is {found.status}: {found.remedy}")
        if not lacking:
            terminal.line("Everything is here.")
    return int(any(found.needed for found in lacking))
