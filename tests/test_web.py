"""The browser's code: its own tests, run by node, and the rules that let one file hold it all."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from programs import node

ROOT = Path(__file__).parents[1]
WEB = ROOT / "src" / "clearhead" / "viewer" / "web"
TESTS = sorted((ROOT / "tests" / "web").glob("*.test.js"))
MODULES = sorted(WEB.glob("*.js"))
NAMED = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|class|const|let|var) ([A-Za-z_$][\w$]*)", re.M
)
IMPORT = re.compile(r'^import \{[\w\s,$]+\} from "\./[\w]+\.js";$', re.M)
LONGEST = 350  # lines


@pytest.mark.skipif(node() is None, reason="node is not installed: the browser's code is untested")
def test_arithmetic() -> None:
    command = [str(node()), "--test", *map(str, TESTS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"pass (\d+)", done.stdout)
    assert passed and int(passed.group(1)) >= 30, done.stdout[-2000:]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_module(path: Path) -> None:
    """Named exports, plain imports of neighbors, no markup from text, nothing from elsewhere."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("// "), "a module begins with what it is for"
    assert text.count("\n") <= LONGEST
    imports = [line for line in re.findall(r"^import\b.*?;$", text, re.M | re.S) if line]
    assert all(IMPORT.fullmatch(line) for line in imports), imports
    assert all((WEB / name).exists() for name in re.findall(r'from "\./([\w.]+)"', text))
    exports = re.findall(r"^[ \t]*export\b.*", text, re.M)
    assert all(re.match(r"export (async )?(function|class|const) ", line) for line in exports)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text, f"{word}: text must stay text"
    assert not re.search(r"\bimport\(|new Function\b|\.setAttribute\(\"style\"", text)
    elsewhere = re.findall(r"https?://[^\s\"'`]+", text)
    assert [found for found in elsewhere if "www.w3.org" not in found] == []


def test_names_are_unique() -> None:
    """Modules can be laid end to end in one file: no two have a name at the top in common."""
    names = Counter(
        name for path in MODULES for name in NAMED.findall(path.read_text(encoding="utf-8"))
    )
    assert {name: count for name, count in names.items() if count > 1} == {}


def test_what_is_exported_is_imported_and_each_style_has_its_element() -> None:
    """By another module, or by a test that asks it something: else it is nobody's."""
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    asking = [path.read_text(encoding="utf-8") for path in (WEB.parent / "offline.py",
              *(ROOT / "tests" / "web").iterdir()) if path.is_file()]  # fmt: skip
    imported = {name for text in (*texts.values(), *asking)
                for names in re.findall(r"^import \{([^}]*)\}", text, re.M)
                for name in re.findall(r"[\w$]+", names)}  # fmt: skip
    exported = {name for text in texts.values()
                for name in re.findall(r"^export (?:async )?(?:function\*?|class|const) ([\w$]+)",
                                       text, re.M)}  # fmt: skip
    assert exported - imported == set()
    page = "".join([*texts.values(), (WEB / "index.html").read_text(encoding="utf-8")])
    for path in WEB.glob("*.css"):
        rules = re.sub(r"/\*.*?\*/|\{[^{}]*\}", "", path.read_text("utf-8"), flags=re.S)
        classes = set(re.findall(r"\.([a-z][\w-]*)", rules))
        shades = {name for name in classes if re.fullmatch(r"s\d+", name)}  # token.js counts them
        assert {name for name in classes - shades
                if not re.search(rf"(?<![\w-]){name}(?![\w-])", page)} == set()  # fmt: skip


def test_styles() -> None:
    modules = "".join(path.read_text(encoding="utf-8") for path in MODULES)
    for path in sorted(WEB.glob("*.css")):
        text = path.read_text(encoding="utf-8")
        assert text.startswith("/* ")
        assert "@import" not in text and "url(" not in text, f"{path.name} loads from elsewhere"
        used = set(re.findall(r"var\((--[\w-]+)", text))
        known = set(re.findall(r"(--[\w-]+)\s*:", (WEB / "base.css").read_text(encoding="utf-8")))
        known |= set(re.findall(r"(--[\w-]+)\s*:", text)) | set(
            re.findall(r'setProperty\("(--[\w-]+)"', modules)
        )
        families = tuple(re.findall(r"`(--[\w-]+)\$\{", modules))
        assert {name for name in used - known if not name.startswith(families)} == set()


def test_small_before_the_first_picture() -> None:
    """All that the page loads before its first numbers stays far below 300 KB."""
    loaded, waiting = {"index.html", *(path.name for path in WEB.glob("*.css"))}, ["boot.js"]
    while waiting:
        loaded.add(name := waiting.pop())
        text = (WEB / name).read_text(encoding="utf-8")
        waiting += set(re.findall(r'from "\./([\w.]+)"', text)) - loaded
    assert sum((WEB / name).stat().st_size for name in loaded) < 280_000
    assert not {"packed.js", "softmax.js"} & loaded, "what only the offline file needs"
