"""The page about checking lists what the library knows, and Python on it gives what it shows."""

import doctest
import importlib
import pkgutil
import re

from programs import ROOT

from clearhead.checker import mistakes
from clearhead.checker.line import Mistake

PAGE = ROOT / "docs" / "checking.md"


def known() -> set[tuple[str, str, str]]:
    """Family, name and title of every mistake that a module of the library holds."""
    found = set()
    for module in pkgutil.iter_modules(mistakes.__path__):
        held = vars(importlib.import_module(f"{mistakes.__name__}.{module.name}")).values()
        for each in held:
            for one in each if isinstance(each, tuple) else (each,):
                if isinstance(one, Mistake):
                    found.add((one.family, one.name, one.title))
    return found


def told(text: str) -> list[tuple[str, ...]]:
    return re.findall(r"^\| ([^|`]+) \| `([a-z0-9-]+)` \| ([^|]+) \|$", text, re.MULTILINE)


def test_the_page_lists_every_mistake_that_is_known_and_no_other():
    """By the words of the report; of each family its rows stand together."""
    rows = told(PAGE.read_text("utf-8").partition("## All mistakes")[2])
    assert len(rows) > 100
    assert len(rows) == len(set(rows))
    assert known() - set(rows) == set(), "known, and not on the page"
    assert set(rows) - known() == set(), "on the page, and not known"


def test_a_row_that_is_missing_or_reworded_is_seen():
    text = PAGE.read_text("utf-8")
    assert set(told(text.replace("| `scale-missing` |", "| `scale-mising` |"))) != known()
    assert set(told(re.sub(r"^\| scale \| `scale-no-root`.*\n", "", text, flags=re.M))) != known()


def test_python_on_the_page_gives_what_it_shows():
    results = doctest.testfile(str(PAGE), module_relative=False)
    assert results.attempted > 5
    assert results.failed == 0
