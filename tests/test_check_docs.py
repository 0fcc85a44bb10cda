"""The page about checking lists what the library knows; the lesson's starter can be completed."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

from programs import ROOT

from clearhead.checker import mistakes
from clearhead.checker.checks import check_file
from clearhead.checker.diagnosis import Diagnosis
from clearhead.checker.line import Mistake
from clearhead.checker.told import Told

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


# The lesson -------------------------------------------------------------------------------------

HEAD = """scores = q @ k.T / math.sqrt(d_head)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return weights @ v, weights"""
HEADS = """q, k, v = ((x @ W).view(T, n_heads, d_head).transpose(0, 1) for W in (W_Q, W_K, W_V))
    scores = q @ k.transpose(1, 2) / math.sqrt(d_head)
    weights = scores.masked_fill(~mask, -math.inf).softmax(dim=-1)
    return (weights @ v).transpose(0, 1).reshape(T, d_model) @ W_O, weights"""
ENTROPY = "return torch.special.entr(weights).sum(dim=-1)"
FUNCTIONS = ("attention", "multi_head_attention", "attention_entropy")


def starter() -> str:
    """The block of Python that students begin with."""
    text = (ROOT / "docs" / "teaching.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return code


def completed(*answers: str) -> str:
    """The starter with each TODO replaced by what a student wrote there."""
    parts = re.split(r"raise NotImplementedError\(.*\)", starter())
    assert len(parts) == len(answers) + 1
    return "".join(a + b for a, b in zip(parts, (*answers, ""), strict=True))


def checked(code: str, folder: Path) -> list[Diagnosis]:
    file = folder / "attention.py"
    file.write_text(code, "utf-8")
    return check_file(str(file), Told())


def test_the_completed_starter_is_right(tmp_path):
    found = checked(completed(HEAD, HEADS, ENTROPY), tmp_path)
    assert [(each.target, each.verdict) for each in found] == [(f, "right") for f in FUNCTIONS]
    assert [each.kind for each in found] == ["sdp", "teach", "entropy"]


def test_the_starter_as_it_is_could_not_be_tried(tmp_path):
    found = checked(starter(), tmp_path)
    assert [(each.target, each.verdict) for each in found] == [(f, "untried") for f in FUNCTIONS]
    assert all("TODO" in each.trouble for each in found)


def test_what_students_get_wrong_in_the_starter_is_named(tmp_path):
    found = checked(
        completed(
            HEAD.replace("~mask", "mask"),
            HEADS.replace("view(T, n_heads, d_head).transpose(0, 1)", "view(n_heads, T, d_head)"),
            "return -(weights * weights.log()).sum(dim=-1)",
        ),
        tmp_path,
    )
    names = [[mistake.name for mistake in each.mistakes] for each in found]
    assert names == [["mask-inverted"], ["heads-view"], ["entropy-nan"]]


def test_every_name_that_the_lesson_speaks_of_is_one():
    text = (ROOT / "docs" / "teaching.md").read_text("utf-8").partition("## What to say")[2]
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z0-9-]+)`", row)}
    assert len(named) > 10
    assert named <= {name for _, name, _ in known()}
