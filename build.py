#!/usr/bin/env python3
"""Attention, built from first principles, on eight words or on your own.

    python build.py              d_model 32, 4 heads
    python build.py --full       d_model 64, 8 heads
    python build.py --text "your own words"

There are two files to read. src/clearhead/scratch.py is the attention itself: seven functions from
the embeddings to the picture. src/clearhead/demo.py is the story told with them: what is printed
and drawn here, section by section. This file only finds the two; `clearhead demo` is the same.
"""

import sys

if sys.version_info < (3, 11):
    sys.exit("build.py needs Python 3.11 or newer; this is " + sys.version.split()[0])

from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "src"))


def main() -> int:
    missing = [name for name in ("torch", "numpy", "matplotlib") if find_spec(name) is None]
    if missing:
        install = " ".join([sys.executable, "-m pip install", *missing])
        say = "build.py needs " + " and ".join(missing) + ": " + install
        print(say + " (or let `make demo` set everything up)", file=sys.stderr)
        return 2
    from clearhead.cli import main

    defaults = ["--output-dir", str(HERE / "outputs")]
    return main(["demo", *defaults, *sys.argv[1:]], program="build.py")


if __name__ == "__main__":
    sys.exit(main())
