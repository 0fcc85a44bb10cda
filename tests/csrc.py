"""Builds of the native kernel's C beside the one that is installed: wrong ones, watched ones."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clearhead.engine import native

FOLDER = Path(native.__file__).with_name("csrc")
SETS = native.SETS
KINDS = ("f32", "f64")


def compiler() -> str:
    """The C compiler's name; skips the test where there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    pytest.skip("no C compiler here")


def build(
    into: Path, *flags: str, old: str = "", new: str = "", keys: int = 128, every: bool = False,
    number: int = 0,
) -> Path:  # fmt: skip
    """The library, `new` in place of `old`, which stands once in one of its files; "" is nothing.

    With tiles of `keys` keys and as many queries. For every instruction set, or for the one alone
    that every machine has, and `number`: it stands in for the others, and is built in a fraction of
    the time.
    """
    sources = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.[ch]")}
    found = sum(source.count(old) for source in sources.values())
    if old and found != 1:
        pytest.fail(f"{old!r} stands {found} times")
    for name, source in sources.items():
        source = source.replace(old, new) if old else source
        for tile in ("KEYS", "QUERIES"):
            source = source.replace(f"{tile} = 128", f"{tile} = {keys}")
        into.joinpath(name).write_text(source, "utf-8")
    built = SETS if every else {SETS[0], SETS[number]}
    stand_ins = [f"-D{x}_{kind}=baseline_{kind}" for x in SETS for kind in KINDS if x not in built]
    names = [name for x in built for kind in KINDS if (name := f"{x}_{kind}.c") in sources]
    made = into / "_native.so"
    done = subprocess.run(
        [compiler(), "-std=gnu11", "-ffp-contract=fast", "-fPIC", "-shared", "-w", *stand_ins,
         *flags, *names, "native.c", "-o", made, "-lm", "-lpthread"],
        cwd=into, check=False, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return made


def use(monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    """Has calls go to this library."""
    loaded = opened(made)
    monkeypatch.setattr(native, "library", lambda: loaded)


def opened(library: str | Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    loaded.clearhead_plan.restype = ctypes.c_int64
    return loaded


def sets() -> list[int]:
    """The numbers of this machine's instruction sets; none where the kernel is not built."""
    return [] if native.library() is None else list(range(native.instruction_set() + 1))
