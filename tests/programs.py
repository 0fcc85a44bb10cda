"""Running the program as a person does: in a process of its own, from a folder of its own."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = [sys.executable, str(ROOT / "build.py")]
CLEARHEAD = [sys.executable, "-m", "clearhead"]


def node() -> str | None:
    """Node, which runs the browser's code: the system's, or the one that playwright brings."""
    if found := shutil.which("node") or shutil.which("nodejs"):
        return found
    try:
        from playwright._impl._driver import compute_driver_executable
    except ImportError:
        return None
    return str(compute_driver_executable()[0])


def run(command, cwd, status=0, stdin=subprocess.DEVNULL, **environment):
    """Run, check the exit status, and return the finished process with its text.

    Warnings are errors there too. An environment variable given as None is taken away.
    """
    settings = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHONWARNINGS": "error",
        "MPLCONFIGDIR": os.environ.get("MPLCONFIGDIR", ""),
        **environment,
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={name: value for name, value in settings.items() if value},
        stdin=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=120,
        check=False,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == status, f"exit status {done.returncode}, not {status}:\n{said}"
    assert "Traceback" not in said, said
    return done


def one_line(done) -> str:
    """The single line on standard error of a program that gave up."""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


class KilledAtStep:
    """os, but the process dies at the n-th flush or move, or other call that is named."""

    def __init__(self, steps: int, *more: str) -> None:
        self.left, self.counted = steps, ("fsync", "replace", *more)

    def __getattr__(self, name: str):
        if name in self.counted:
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
        return getattr(os, name)
