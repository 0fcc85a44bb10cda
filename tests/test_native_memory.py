"""The native kernel under random calls, and what it reads and writes there: no byte too many."""

import os
import random
import subprocess
import sys

import csrc
import fuzz_back
import pytest
from programs import ROOT, run

from clearhead.engine import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native kernel is not built")
TESTS = ROOT / "tests"
DTYPES = ("float32", "float16", "bfloat16", "float64")


def each_set():
    return pytest.mark.parametrize("number", csrc.sets(), ids=lambda n: csrc.SETS[n])


@each_set()
def test_random_calls_are_right(number, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    for seed in range(15 * number, 15 * number + 15):
        fuzz_back.judge_all(seed)


@pytest.mark.slow
@each_set()
def test_random_calls_are_right_in_a_long_run(number, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: number)
    begin = random.randrange(1 << 30)  # others each time: a failure names its seed
    for seed in range(begin, begin + 300):
        fuzz_back.judge_all(seed)


# Beyond an array ----------------------------------------------------------------------------------


def program(name: str, *arguments, **environment):
    path = os.pathsep.join([str(ROOT / "src"), str(TESTS)])
    return run([sys.executable, TESTS / name, *arguments], TESTS, PYTHONPATH=path, **environment)


fences = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages by mprotect")


@fences
def test_nothing_beyond_an_array_is_touched():
    assert "results are the same" in program("fenced.py", "", csrc.sets()[-1], "bfloat16").stdout


@pytest.mark.slow
@fences
@each_set()
def test_nothing_beyond_an_array_of_any_kind_is_touched(number):
    assert "results are the same" in program("fenced.py", "", number, *DTYPES).stdout


@pytest.mark.slow
@fences
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "for (; d < n; d++) *seen += every(x[d] * 0);",
            "for (; d <= n; d++) *seen += every(x[d] * 0);",
        ),
        ("if (n == W && dtype ==", "if (dtype =="),
        ("for (int d = 0; d < n; d++) switch", "for (int d = -1; d < n; d++) switch"),
        ("j < high; j++) shown[j] &= row[j", "j <= high; j++) shown[j] &= row[j"),
        ("x.n; j++) to[x.j0 + j]", "LANES; j++) to[x.j0 + j]"),
        ("to->x.n, one, c->dk", "LANES, one, c->dk"),
        ("to->x.n, one, c->dv", "LANES, one, c->dv"),
        ("rows->x.n, scale, c->dq", "rows->x.n + 1, scale, c->dq"),
        ("(const REAL *)c->d_entropy)[row]", "(const REAL *)c->d_entropy)[row + 1]"),
        ("pack_rows(&c->g, t->b, t->h, t->i0, n", "pack_rows(&c->g, t->b, t->h, t->i0, n + 1"),
        ("if (x.n == LANES)", "if (1)"),
    ],
    ids=[
        "reads one number more",
        "writes whole vectors",
        "writes one before",
        "one key more of a mask",
        "all lanes of what a key receives",
        "all lanes of k",
        "all lanes of v",
        "one query more",
        "one row more comes back",
        "one more g",
        "all lanes of the map",
    ],
)
def test_the_fence_holds_a_wrong_copy(old, new, tmp_path):
    made = csrc.build(tmp_path, "-O1", old=old, new=new)
    with pytest.raises(AssertionError, match=r"exit status -(6|7|11)"):
        program("fenced.py", made, 0, *DTYPES)


# What C leaves undefined -------------------------------------------------------------------------

watched = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs LD_PRELOAD")


def sanitizer() -> str:
    where = subprocess.run(
        [csrc.compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not os.path.isabs(where):
        pytest.skip("the C compiler has no sanitizers here")
    return where


def watched_build(into, **copy):
    sanitizer()
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g")
    return csrc.build(into, *flags, **copy)


def watch(made, number: int, calls: int) -> str:
    """What comes of random calls while addresses and all undefined are watched; a report fails."""
    so = {"LD_PRELOAD": sanitizer(), "ASAN_OPTIONS": "detect_leaks=0", "OMP_NUM_THREADS": "2"}
    return program("fuzz_back.py", made, number, 5000, calls, **so).stdout


@pytest.mark.slow
@watched
def test_the_sanitizers_find_nothing(tmp_path):
    made = watched_build(tmp_path, every=True)
    for number in csrc.sets():
        assert "30 calls" in watch(made, number, 30)


@pytest.mark.slow
@watched
@pytest.mark.parametrize(
    ("old", "new", "report"),
    [
        ("{h, i, i + c->offset[b], 0", "{h, i, i + c->offset[b] * 16, 0", "overflow"),
        ("n * sizeof(Rows)", "sizeof(Rows)", "use-after-poison"),
        ("n * sizeof(QueryRows)", "sizeof(QueryRows)", "use-after-poison"),
        ("n * lanes_size(D)", "lanes_size(D)", "use-after-poison"),
        ("tall = QUERIES + GROUP", "tall = QUERIES", "use-after-poison"),
        ("(space, LANES * most(D, Dv))", "(space, LANES * D)", "use-after-poison"),
        ("columns_size(QUERIES, Dv)", "QUERIES * Dv", "use-after-poison"),
        (
            "*dk = numbers(space, LANES * whole_groups(D))",
            "*dk = numbers(space, LANES * D)",
            "use-after-poison",
        ),
    ],
    ids=[
        "an overflow",
        "room for one block",
        "room for one block on the way back",
        "room for one block of keys",
        "no room for a whole group",
        "no room for the output",
        "no room for whole groups of g",
        "no room for whole groups of k",
    ],
)
def test_the_sanitizers_find_a_wrong_copy(old, new, report, tmp_path):
    with pytest.raises(AssertionError, match=report):
        watch(watched_build(tmp_path, old=old, new=new), 0, 30)
