"""Wrong copies of modules: each is changed in one place, and some check has to notice it."""

from pathlib import Path
from types import ModuleType

import pytest


def copies(old: str, new: str, *originals: ModuleType) -> list[ModuleType]:
    """Copies of modules, `new` in place of `old`, which stands once in one of them; "" is nothing.

    What a copy has from an original before it, it has from the copy of that one.
    """
    sources = [Path(str(module.__file__)).read_text("utf-8") for module in originals]
    found = sum(source.count(old) for source in sources)
    if old and found != 1:
        pytest.fail(f"{old!r} stands {found} times")
    made: list[ModuleType] = []
    for original, source in zip(originals, sources, strict=True):
        copy = ModuleType(original.__name__)  # by this name dataclasses look for their module
        exec(source.replace(old, new) if old else source, vars(copy))
        for before, now in zip(originals, made, strict=False):
            vars(copy).update({name: now for name, value in vars(copy).items() if value is before})
            for name, value in vars(before).items():
                if vars(copy).get(name) is value:
                    vars(copy)[name] = vars(now)[name]
        made.append(copy)
    return made
