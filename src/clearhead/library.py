"""Where the compiled kernel lies, whether it is of these sources, and what compiles it.

The build (setup.py, scripts/setup.py), the engine and the doctor ask here. Nothing but the standard
library is imported and nothing is kept, so that each of them can run this file by itself.
"""

import ctypes
import hashlib
import os
import re
import shlex
import shutil
import sysconfig
from pathlib import Path

ENGINE = Path(__file__).resolve().parent / "engine"
CSRC = ENGINE / "csrc"  # in a checkout; an installed package has the compiled kernel alone
SETUP = CSRC.parents[3] / "setup.py"  # says how it is compiled
COMPILERS = ("cc", "gcc", "clang")
POSIX = os.name == "posix"  # elsewhere it is not built

_MARK = re.compile(rb"clearhead csrc ([0-9a-f]{64})")  # what setup.py has native.c say


def digest() -> str:
    """A hash of all that it is compiled from; empty where that is not."""
    total, sources = hashlib.sha256(), sorted(CSRC.glob("*.[ch]"))
    for path in [*sources, *([SETUP] if SETUP.exists() else [])]:
        content = path.read_bytes()
        total.update(f"{path.name} {len(content)}\n".encode() + content)
    return total.hexdigest() if sources else ""


def compiled() -> list[Path]:
    """The libraries that lie there, whatever they were compiled from."""
    return sorted(ENGINE.glob("_native*.so"))


def built() -> Path | None:
    """The library of the sources that lie beside it; the caller's arrays would be misread by
    another. One that does not say what it is of was compiled by hand, and is taken.
    """
    wanted = digest()
    for path in compiled():
        mark = _MARK.search(path.read_bytes())
        if not (wanted and mark) or mark[1].decode() == wanted:
            return path
    return None


def load(path: Path) -> ctypes.CDLL:
    """The compiled kernel. OSError: it is none for this machine."""
    loaded = ctypes.CDLL(str(path))
    loaded.clearhead_name.restype = ctypes.c_char_p
    return loaded


def best(loaded: ctypes.CDLL) -> str:
    """The best instruction set of this machine that the kernel knows: native.SETS has all."""
    name: bytes = loaded.clearhead_name(loaded.clearhead_best())
    return name.decode()


def compiler() -> str:
    """The C compiler that a build will use: $CC, else the one that Python was built with, else
    the first of the usual ones; empty where there is none.
    """
    for command in (os.environ.get("CC") or sysconfig.get_config_var("CC") or "", *COMPILERS):
        if command and shutil.which(shlex.split(command)[0]):
            return str(command)
        if os.environ.get("CC"):
            return ""
    return ""
