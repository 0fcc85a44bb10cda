"""The learners' chapter: every output on the page is what its code prints, and every decimal number
in the prose is among the outputs of its own section."""

import doctest
import re
from decimal import Decimal
from pathlib import Path

import torch

CHAPTER = Path(__file__).parents[1] / "docs" / "attention-from-scratch.md"

CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(?=## )", re.MULTILINE)
ARXIV = re.compile(r"arXiv:\d+\.\d+|arxiv\.org/\S+", re.IGNORECASE)
DECIMAL = re.compile(r"(?<![\w.])[-\u2212]?\d*\.\d+(?:e[-+]?\d+)?(?!\.?\d)")  # not 3.2.1
MINUS = "\u2212"  # the typographer's, taken for "-"
PRINTED = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e[-+]?\d+)?")


def wrong_outputs(page: str) -> str:
    """What doctest reports for a page: nothing when every output agrees, to the letter."""
    test = doctest.DocTestParser().get_doctest(page, {}, CHAPTER.name, str(CHAPTER), 0)
    report: list[str] = []
    try:
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    finally:
        torch.set_printoptions(profile="default")  # the page sets its own
    return "".join(report)


def numbers_from_nowhere(page: str) -> list[str]:
    """One line for each decimal number in the prose that no output of its section rounds to."""
    found = []
    first_line = 1
    for section in SECTION.split(page):
        examples = doctest.DocTestParser().get_examples(section)
        printed = {Decimal(n) for e in examples for n in PRINTED.findall(e.want)}
        prose = CODE.sub(lambda block: "\n" * block.group().count("\n"), section)
        for at, line in enumerate(prose.splitlines()):
            for number in DECIMAL.findall(ARXIV.sub("", line)):
                value = Decimal(number.replace(MINUS, "-"))
                if not any(rounds_to(output, value) for output in printed):
                    nearest = min(printed, key=lambda p: abs(p - value), default="none")
                    found.append(
                        f"{CHAPTER.name}:{first_line + at}: {number} in the prose is not a number "
                        f"that the code of this section prints (nearest: {nearest})"
                    )
        first_line += section.count("\n")
    return found


def rounds_to(output: Decimal, value: Decimal) -> bool:
    last_digit = int(value.as_tuple().exponent)
    fine_enough = int(output.as_tuple().exponent) <= last_digit
    return fine_enough and abs(output - value) <= Decimal(1).scaleb(last_digit) / 2


# The page ---------------------------------------------------------------------------------------


def test_every_output_is_what_the_code_prints():
    assert wrong_outputs(CHAPTER.read_text(encoding="utf-8")) == ""


def test_every_number_in_the_prose_comes_from_the_code():
    wrong = numbers_from_nowhere(CHAPTER.read_text(encoding="utf-8"))
    assert not wrong, "\n" + "\n".join(wrong)


def test_all_code_is_run():
    blocks = CODE.findall(CHAPTER.read_text(encoding="utf-8"))
    assert len(blocks) > 30
    parts = [part for block in blocks for part in block.strip("\n").split("\n\n")]
    assert [part for part in parts if not part.startswith(">>> ")] == []


# The checks can fail ----------------------------------------------------------------------------


def test_a_wrong_output_is_reported():
    section = SECTION.split(CHAPTER.read_text(encoding="utf-8"))
    page = section[0] + section[1]  # the worked example
    assert wrong_outputs(page) == ""
    report = wrong_outputs(page.replace("0.157, 0.038, 0.647, 0.157", "0.157, 0.038, 0.648, 0.157"))
    assert "0.648" in report and "0.647" in report


PAGE = """
# A page

## One

Half of it is {number}.

```python
>>> 1 / 2
0.5
>>> 2 / 3
0.6666666666666666
>>> -1 / 8
-0.125

```

## Two

Here nothing is printed. See arXiv:1706.03762, section 3.2.1.
"""


def test_a_number_in_the_prose_may_be_rounded():
    for number in ("0.5", ".5", "0.667", "$0.7$", "`-0.125`", MINUS + "0.125", "0.5-0.7", "|0.67|"):
        assert numbers_from_nowhere(PAGE.format(number=number)) == [], number


def test_an_invented_number_is_reported_with_its_line():
    for number in ("0.42", "0.666", "0.50", "0.125", "-0.5", "1.5", "$0.51x$", "| 0.42 |"):
        (line,) = numbers_from_nowhere(PAGE.format(number=number))
        assert line.startswith("attention-from-scratch.md:6: "), line
    assert "0.42 in the prose" in numbers_from_nowhere(PAGE.format(number="0.42"))[0]


def test_a_number_must_come_from_its_own_section():
    moved = PAGE.format(number="0.5").replace("nothing is", "0.667 is not")
    (line,) = numbers_from_nowhere(moved)
    assert line.startswith("attention-from-scratch.md:20: 0.667 "), line
    assert "nearest: none" in line
