"""What pyproject.toml has no words for: the native kernel, compiled from src/clearhead/engine/csrc.

Where there is no C compiler, or where it fails, the package is built without it, and attention runs
in PyTorch. It is plain C, loaded by ctypes: Python's own headers are not needed, and one build
serves every version of Python, which is what abi3 in a wheel's name says.
"""

import os
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CSRC = Path("src/clearhead/engine/csrc")
UNITS = [*CSRC.glob("*_f32.c"), *CSRC.glob("*_f64.c"), CSRC / "native.c"]  # the rest they include

library = SimpleNamespace(**run_path("src/clearhead/library.py"))


def kernel() -> Extension:
    return Extension(
        "clearhead.engine._native",
        sources=sorted(map(str, UNITS)),
        depends=sorted(str(path) for path in CSRC.iterdir() if path not in UNITS),
        define_macros=[("SOURCES", f'"{library.digest()}"')],
        extra_compile_args=["-O3", "-std=gnu11", "-ffp-contract=fast", "-g0"],
        libraries=["m", "pthread"],
        py_limited_api=True,
        optional=True,
    )


class BuildAnew(build_ext):
    """Never takes the library of another day that lies in build/: it may be of other sources."""

    def build_extension(self, ext: Extension) -> None:
        Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
        super().build_extension(ext)


if library.POSIX and library.compiler():
    os.environ["CC"] = library.compiler()
setup(
    ext_modules=[kernel()] if library.POSIX else [],
    cmdclass={"build_ext": BuildAnew},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
