"""Every command and every Python line of README.md and docs/ is run, and gives what is shown."""

import doctest
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from programs import ROOT, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks, as (language, content)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Each `$ command` of the console blocks with the lines shown under it."""
    found: list[tuple[str, list[str]]] = []
    for language, content in blocks(text):
        if language == "console":
            for line in content.splitlines():
                if line.startswith("$ "):
                    found.append((line[2:], []))
                else:
                    found[-1][1].append(line)
    return found


def mismatch(shown: list[str], got: list[str]) -> str:
    """Why the output is not as shown, or "". A line of ... is any lines, ... any text."""
    pattern = "\n".join("(.*\n)*?.*" if line == "..." else line_pattern(line) for line in shown)
    if not shown or re.fullmatch(pattern + r"\n*", "\n".join(got)):
        return ""
    absent = [line for line in shown if not any(re.fullmatch(line_pattern(line), g) for g in got)]
    return f"not in the output: {absent or 'in this order'}\n" + "\n".join(got)


def line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("..."))


def status(command: str, shown: list[str]) -> int:
    """The exit status that a page promises: 1 of a check that shows something wrong, or 0."""
    wrong = re.compile(r"^\w+: wrong\.|\bwrong  +\S+:|,wrong,|^=== \w+ and \w+ differ,")
    return int(command.startswith("clearhead check ") and any(map(wrong.search, shown)))


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy of the checkout, so that the commands write there."""
    copy = tmp_path_factory.mktemp("checkout") / "clearhead"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "outputs", "build", "__pycache__", ".*_cache"
    )
    shutil.copytree(ROOT, copy, ignore=left_out)
    scripts = copy / "bin"
    scripts.mkdir()
    python = scripts / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program = scripts / "clearhead"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clearhead "$@"\n')
    for script in (python, program):
        script.chmod(0o755)
    return copy


LONG = ("corpus.md", "checking.md", "teaching.md")  # pages whose commands take long


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in LONG)) for p in PAGES],
)
def test_the_commands_of_a_page_show_what_it_shows(page, checkout):
    """In the order in which they stand: some look at what those before them have made."""
    for command, shown in commands(page.read_text("utf-8")):
        if command.startswith("make "):
            # Setting up has its own tests; this run must not test itself. What make would run is
            # asked of make, where there is one, and the build's command is then run.
            tests = command == "make test"
            if shutil.which("make") is not None:
                plan = run(["make", "--dry-run", *command.split()[1:]], cwd=checkout).stdout
                for part in ("-m pytest", "mypy") if tests else ("build.py",):
                    assert part in plan
            if tests:
                continue
            command = "python build.py"
        path = os.pathsep.join([str(checkout / "bin"), os.environ["PATH"]])
        done = run(["sh", "-c", command], cwd=checkout, status=status(command, shown), PATH=path,
                   PYTHONPATH=checkout / "src")  # fmt: skip
        assert mismatch(shown, done.stdout.splitlines()) == "", command


def test_a_page_that_shows_something_else_is_caught():
    got = ["T=8  d_model=32", "x", "head 0: 1.047", "Outputs written to /somewhere"]
    assert (
        mismatch(["T=8  d_model=32", "...", "head 0: 1.047", "Outputs written to ..."], got) == ""
    )
    assert mismatch(["...", "head 0: 1.048", "..."], got) != ""
    assert mismatch(["head 0: 1.047", "..."], got) != ""
    assert mismatch(["...", "head 0: 1.047", "T=8  d_model=32", "..."], got) != ""


def test_a_check_that_shows_a_mistake_must_end_with_1_and_any_other_command_with_0():
    wrong = (
        ["f: wrong. 1 mistake"],
        ["a/b.py  f g...  wrong    f:scale-missing"],
        ["a.py,f,sdp,wrong,scale-missing,,1,"],
        ["=== f and g differ, first here: plain ==="],
    )
    for shown in wrong:
        assert status("clearhead check a.py", ["...", *shown]) == 1
        assert status("python build.py", shown) == 0
    for shown in ([], ["f: right. 15 probes"], ["a.py  f  right  -", "1 file: 1 right, 0 wrong."]):
        assert status("clearhead check a.py", shown) == 0


def test_python_in_the_readme_gives_what_it_shows():
    """The chapter's, which is a good deal more, has tests of its own."""
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted > 5
    assert results.failed == 0


@pytest.mark.parametrize("page", [*PAGES, *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_block_of_commands_goes_unrun():
    for page in PAGES:
        languages = {language for language, _ in blocks(page.read_text("utf-8"))}
        assert languages <= {"console", "python", "text"}, page.name
