"""One file that works from disk: the modules of web/ as one script, its styles, and data as text.

A module becomes a function of its own, which gives what it exports, so that names need not differ
between modules. What may be imported and exported, and how, is therefore held narrow here.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WEB = Path(__file__).parent / "web"
_STYLES = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">')
_IMPORT = re.compile(r'^import \{([\w\s,$]*)\} from "\./(\w+)\.js";[ \t]*$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function\*?|class|const) (\w+))", re.MULTILINE)


def script(entry: str, start: str, folder: Path = WEB) -> str:
    """All modules that `entry` ("main") needs and it, in order, then the lines `start`.

    `start` may import as a module does. Raises ValueError for a module that is put together in
    another way, or that needs itself.
    """
    modules: dict[str, str] = {}
    for name in (entry, *(name for _, name in _IMPORT.findall(start))):
        _collect(name, folder, modules, ())
    return "\n".join([*modules.values(), _inside("the start", start)[0]])


def _collect(name: str, folder: Path, modules: dict[str, str], within: tuple[str, ...]) -> None:
    if name in within:
        raise ValueError(f"modules need each other: {' -> '.join((*within, name))}")
    if name in modules:
        return
    text = (folder / f"{name}.js").read_text("utf-8")
    for _, needed in _IMPORT.findall(text):
        _collect(needed, folder, modules, (*within, name))
    body, exported = _inside(f"{name}.js", text)
    modules[name] = (
        f"const ${name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();"
    )


def _inside(name: str, text: str) -> tuple[str, list[str]]:
    """A module as what stands inside of a function, and the names that it exports."""
    exported = _EXPORT.findall(text)
    body = _IMPORT.sub(lambda found: f"const {{{found[1]}}} = ${found[2]};", _EXPORT.sub("", text))
    if wrong := re.search(r"^\s*(?:import|export)\b.*|\bimport\s*[(.]", body, re.MULTILINE):
        raise ValueError(
            f'{name} says {wrong[0].strip()!r}: modules import {{ names }} from "./x.js" and '
            "export functions, classes and constants"
        )
    if "</script" in body.lower() or "<!--" in body:
        raise ValueError(f"{name} holds what would end or change a script")
    return body, exported


def page(
    title: str, code: str, data: dict[str, Any], blobs: list[bytes], folder: Path = WEB
) -> str:
    """The page: styles and script by their hashes, data that is nothing but text.

    What is in `data` and `blobs` cannot become markup: < is spelled out, bytes are base64.
    """
    names = _STYLES.findall((folder / "index.html").read_text("utf-8"))
    style = "\n".join((folder / name).read_text("utf-8") for name in names)
    if "</style" in style.lower():
        raise ValueError("a style holds what would end it")
    style, code = f"\n{style}\n", f"\n{code}\n"
    policy = (
        f"default-src 'none'; script-src {_hash(code)}; style-src {_hash(style)}; "
        "img-src blob: data:; form-action 'none'"
    )
    return "".join([
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="color-scheme" content="light dark">\n',
        '<meta name="referrer" content="no-referrer">\n',
        f'<title>{html.escape(title)}</title>\n<link rel="icon" href="data:,">\n',
        f"<style>{style}</style>\n</head>\n<body>\n",
        '<div id="app"><p class="boot">Opening the run …</p></div>\n',
        '<noscript><p class="boot">This page is drawn by its own small program: please allow '
        "JavaScript for it.</p></noscript>\n",
        *_data(data, blobs),
        f'<script type="module">{code}</script>\n</body>\n</html>\n',
    ])  # fmt: skip


def _data(data: dict[str, Any], blobs: list[bytes]) -> Iterator[str]:
    said = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII
    said = said.replace("<", "\\u003c")
    yield f'<script type="application/json" id="said">{said}</script>\n'
    for n, blob in enumerate(blobs):
        text = base64.b64encode(blob).decode("ascii")
        yield f'<script type="text/plain" id="blob-{n}">{text}</script>\n'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
