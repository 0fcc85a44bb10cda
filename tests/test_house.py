"""The house: who may import whom, what is public, how light it is."""

import ast
import inspect
import re
import sys
from functools import cache
from pathlib import Path

import pytest
from programs import ROOT, run

import clearhead

PACKAGE = ROOT / "src" / "clearhead"
DESIGN = (ROOT / "DESIGN.md").read_text("utf-8")


@cache
def drawn_floors() -> dict[str, tuple[int, int]]:
    """Each room's floor and place on it, as DESIGN.md draws them: "views.plots" -> (1, 2)."""
    rooms = {}
    for line in DESIGN.splitlines():
        if match := re.match(r"    (\d)  (.*)", line):
            for place, file in enumerate(re.findall(r"([\w/]+)\.py", match[2])):
                rooms[file.replace("/", ".")] = (int(match[1]), place)
    return rooms


@cache
def beside() -> set[str]:
    (line,) = [line for line in DESIGN.splitlines() if line.startswith("    beside  ")]
    return set(re.findall(r"(\w+)\.py", line))


@cache
def imports_of(source: str) -> set[str]:
    """The rooms that a file imports anywhere in it, deferred imports included."""
    known = set(drawn_floors()) | beside()
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "clearhead":
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            rooms = {name for name in inside if name.removeprefix("clearhead.") in known}
            names |= rooms or {node.module, f"{node.module}.__init__"}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.startswith("clearhead.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), "relative import"
    return {name.removeprefix("clearhead.") for name in names} & known


# Deferred imports: a run and a diagnosis show themselves.
UPWARD = {
    "run.__init__ -> views.report",
    "run.__init__ -> viewer.offline",
    "checker.diagnosis -> views.diagnosis",
}


def breaches(sources: dict[str, str]) -> list[str]:
    """Arrows that go up, to the right, or out of where they may."""
    floors, top = drawn_floors(), max(floor for floor, _ in drawn_floors().values())
    wrong = []
    for room, source in sources.items():
        for other in imports_of(source):
            if room in beside():
                wrong.append(f"{room} -> {other}")
            elif other == "scratch":
                if floors[room][0] != top:
                    wrong.append(f"{room} -> {other}")
            elif floors[other] >= floors[room]:
                wrong.append(f"{room} -> {other}")
    return [arrow for arrow in wrong if arrow not in UPWARD]


def sources() -> dict[str, str]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text("utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" or path.parent.name not in ("clearhead", "views", "viewer")
    }


@pytest.mark.quick
def test_the_drawing_shows_every_room_and_no_other():
    assert set(sources()) == set(drawn_floors()) | beside()


@pytest.mark.quick
def test_arrows_go_down_or_to_the_left():
    assert breaches(sources()) == []


@pytest.mark.parametrize(
    ("room", "line", "arrow"),
    [
        ("files", "from clearhead.views import plots", "files -> views.plots"),
        ("rule", "from clearhead.engine import attention", "rule -> engine.__init__"),
        ("bound", "import clearhead.softmax", "bound -> softmax"),
        ("map", "from clearhead.stats import HeadStats", "map -> stats"),
        ("rotary", "from clearhead.rule import Rule", "rotary -> rule"),
        ("views.labels", "import clearhead.views.plots", "views.labels -> views.plots"),
        ("views.plots", "def f():\n    from clearhead import demo", "views.plots -> demo"),
        ("views.plots", "from clearhead.scratch import causal_mask", "views.plots -> scratch"),
        ("scratch", "from clearhead.files import json_text", "scratch -> files"),
        ("scaling", "from clearhead import demo", "scaling -> demo"),
    ],
)
def test_a_wrong_arrow_is_found(room, line, arrow):
    assert breaches({**sources(), room: line}) == [arrow]


def test_scratch_imports_torch_and_the_standard_library_only():
    outside = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).split(".")[0]
        for node in ast.walk(ast.parse((PACKAGE / "scratch.py").read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    } - set(sys.stdlib_module_names)
    assert outside == {"torch", "matplotlib"}


@pytest.mark.quick
def test_scratch_copied_alone_into_an_empty_folder_runs(tmp_path):
    (tmp_path / "scratch.py").write_bytes((PACKAGE / "scratch.py").read_bytes())
    code = (
        "import sys\n"
        "import scratch as s\n"
        "x, W, mask = s.make_input_embeddings(8, 32), s.init_projections(32, 4), s.causal_mask(8)\n"
        "out, weights = s.multi_head_attention(x, *W, 4, mask)\n"
        "print([round(h, 3) for h in s.attention_entropy(weights).mean(-1).tolist()])\n"
        "s.single_head_attention(x, *W[:3], mask)\n"
        "assert 'matplotlib' not in sys.modules\n"
        "s.write_heatmap(weights, list('abcdefgh'), 'map.png', 'a title')\n"
        "assert 'clearhead' not in sys.modules\n"
    )
    done = run([sys.executable, "-c", code], cwd=tmp_path, PYTHONPATH=None)
    assert done.stdout == "[1.047, 1.045, 1.043, 1.127]\n"
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_the_heart_stays_small():
    text = (PACKAGE / "scratch.py").read_text("utf-8")
    assert len(text.splitlines()) <= 300
    build = (ROOT / "build.py").read_text("utf-8")
    assert len(build.splitlines()) <= 50
    docstring = ast.get_docstring(ast.parse(build))
    assert docstring.index("scratch.py") < docstring.index("demo.py")


SIGNATURES = {
    "make_input_embeddings": "(T: int, d_model: int, seed: int = 0) -> torch.Tensor",
    "causal_mask": "(T: int) -> torch.Tensor",
    "single_head_attention": "(x: torch.Tensor, W_Q: torch.Tensor, W_K: torch.Tensor, "
    "W_V: torch.Tensor, mask: torch.Tensor, scale: bool = True) -> "
    "tuple[torch.Tensor, torch.Tensor]",
    "multi_head_attention": "(x: torch.Tensor, W_Q: torch.Tensor, W_K: torch.Tensor, "
    "W_V: torch.Tensor, W_O: torch.Tensor, n_heads: int, mask: torch.Tensor, scale: bool = True) "
    "-> tuple[torch.Tensor, torch.Tensor]",
    "attention_entropy": "(weights: torch.Tensor) -> torch.Tensor",
    "init_projections": "(d_model: int, n_heads: int, seed: int = 0) -> "
    "tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]",
    "write_heatmap": "(weights: torch.Tensor, tokens: collections.abc.Sequence[str], "
    "path: str | pathlib.Path, title: str) -> None",
}


def test_the_seven_functions_are_as_promised():
    scratch = clearhead.scratch
    assert sorted(SIGNATURES) == sorted(scratch.__all__)
    for name, signature in SIGNATURES.items():
        function = getattr(scratch, name)
        assert str(inspect.signature(function)) == signature
        assert function.__doc__.count("\n") > 3, f"{name} says too little"
    order = [scratch.__dict__[name].__code__.co_firstlineno for name in SIGNATURES]
    assert order == sorted(order), "in the order in which the data meets them"


def test_public_names():
    public = [
        "Attended",
        "AttentionConfig",
        "AttentionInputs",
        "AttentionMap",
        "AttentionOutput",
        "Diagnosis",
        "GPTConfig",
        "HeadStats",
        "KVCache",
        "MultiHeadAttention",
        "Rotary",
        "Rule",
        "Run",
        "TinyGPT",
        "__version__",
        "attention",
        "check",
        "check_against",
        "load",
        "name_heads",
        "observe",
        "scratch",
    ]
    assert clearhead.__all__ == public
    for name in public:
        assert getattr(clearhead, name) is not None
    assert set(clearhead.__all__) <= set(dir(clearhead))
    with pytest.raises(AttributeError, match="clearhead has no 'attend'; it has Attended"):
        clearhead.attend  # noqa: B018


def test_no_submodule_shares_a_public_functions_name():
    functions = set(clearhead.scratch.__all__) | (set(clearhead.__all__) - {"scratch"})
    modules = {part for path in PACKAGE.rglob("*.py") for part in path.with_suffix("").parts[-2:]}
    assert functions & modules == set()


def test_importing_is_lazy_and_light():
    code = (
        "import sys, clearhead\n"
        "assert not {'torch', 'numpy', 'matplotlib', 'rich', 'transformers'} & set(sys.modules)\n"
        "clearhead.scratch.causal_mask(2)\n"
        "assert 'torch' in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    run([sys.executable, "-c", code], cwd=ROOT)


def test_importing_plots_does_not_import_matplotlib():
    code = "import sys, clearhead.views.plots\nassert 'matplotlib' not in sys.modules"
    run([sys.executable, "-c", code], cwd=ROOT)


def test_the_version_is_one():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == clearhead.__version__


def test_files_stay_short():
    long = {
        str(path.relative_to(ROOT)): count
        for path in (ROOT / "src").rglob("*.py")
        if (count := len(path.read_text("utf-8").splitlines())) > 350
    }
    assert long == {}


def test_nothing_names_a_place_on_this_machine():
    here = str(Path.home())
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.rglob("*.py")]:
        assert here not in path.read_text("utf-8"), path
