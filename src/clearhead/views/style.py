"""How our pages look: what is around a page, its style sheet, and the shades of cells.

A page fetches nothing and can fetch nothing: its content policy allows its own style sheet, by its
hash, and pictures inside the page.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence

RGB = tuple[int, int, int]

LEVELS = 11  # shades of entropy: 0, 0.1, ... 1
# From all on one key over the middle to all keys alike, on white and on black.
LIGHT = ((11, 79, 125), (112, 173, 208), (241, 239, 232))
DARK = ((138, 208, 246), (52, 112, 146), (38, 45, 50))


def cells(value: float | None) -> str:
    """The class of a cell whose normalized entropy this is."""
    if value is None or not math.isfinite(value):
        return "none"
    return f"e{round((LEVELS - 1) * min(max(value, 0.0), 1.0))}"


def shades(dark: bool, stops: Sequence[RGB] | None = None) -> list[tuple[RGB, RGB]]:
    """Background and text of LEVELS shades, from the first of three colors over the second to the
    third: those of entropy unless given, from all on one key to all keys alike.
    """
    stops, found = stops or (DARK if dark else LIGHT), []
    for n in range(LEVELS):
        at = 2 * n / (LEVELS - 1)
        half = min(int(at), 1)
        pairs = zip(stops[half], stops[half + 1], strict=True)
        red, green, blue = (round(a + (b - a) * (at - half)) for a, b in pairs)
        back, black, white = (red, green, blue), (0, 0, 0), (255, 255, 255)
        found.append((back, max(black, white, key=lambda ink: contrast(ink, back))))
    return found


def contrast(one: RGB, other: RGB) -> float:
    """The contrast of two colors after WCAG 2.2, from 1 to 21; text needs 4.5."""
    lights = []
    for color in (one, other):
        linear = [
            c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4
            for c in color
        ]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def css_color(color: RGB) -> str:
    return "#{:02x}{:02x}{:02x}".format(*color)


def document(title: str, body: Iterable[str], style: str) -> str:
    """A page in one file; `title` and `body` are HTML already."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return "\n".join(
        [
            "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title>", f"<style>{style}</style>", "</head>", "<body>", "<main>",
            *body, "</main>", "</body>", "</html>", "",
        ]
    )  # fmt: skip


def style_sheet() -> str:
    """The style sheet of the report: light, dark where that is preferred, and light on paper."""
    light, dark = (
        "".join(
            f".e{n}{{background:{css_color(back)};color:{css_color(ink)}}}"
            for n, (back, ink) in enumerate(shades(mode))
        )
        for mode in (False, True)
    )
    night = f"@media screen and (prefers-color-scheme:dark){{{_NIGHT}{dark}}}"
    return f"{_COLORS}{light}{_SHEET}{night}{_PAPER}"


_COLORS = """
:root{--page:#fff;--ink:#1b2a34;--muted:#5a6872;--line:#dfe3e6;--wash:#f5f4f0;--hatch:#cfcbc1;
--accent:#0b4f7d;--warn:#8a3b12}
"""
_NIGHT = """
:root{--page:#14191d;--ink:#e6eaec;--muted:#a3afb7;--line:#303a41;--wash:#1e252a;--hatch:#3b454c;
--accent:#8ccdf2;--warn:#f0b48a}
"""
_SHEET = """
*{box-sizing:border-box}
html{background:var(--page);color:var(--ink);-webkit-text-size-adjust:100%}
body{margin:0;font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
main{max-width:72rem;margin:0 auto;padding:3rem 1.25rem 4rem}
h1,h2{font-family:Charter,"Bitstream Charter","Iowan Old Style",Georgia,"Noto Serif",serif;
font-weight:600;line-height:1.2;overflow-wrap:anywhere}
h1{font-size:clamp(1.6rem,1.2rem + 2vw,2.4rem);margin:0 0 .6rem}
h2{font-size:1.4rem;margin:0 0 .6rem}
h3{font-size:1.1rem;margin:0;overflow-wrap:anywhere}
h3 span{font-weight:400;color:var(--accent)}
p{margin:0 0 .8rem;max-width:44rem;overflow-wrap:anywhere}
section{margin-top:3rem;border-top:1px solid var(--line);padding-top:1.6rem}
code{font:.9em/1.4 ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace}
header p{margin-bottom:.35rem}
.proof{color:var(--accent)}
p.facts{color:var(--muted)}
.tokens{max-width:none;margin:1rem 0 0;font:.85rem/1.9 ui-monospace,"SF Mono",Menlo,Consolas,
"DejaVu Sans Mono",monospace;white-space:pre-wrap}
:where(.tokens span){background:var(--wash)}
.tokens span{display:inline-block;border-radius:3px;padding:0 .2em;
line-height:1.5;margin-right:3px;unicode-bidi:isolate;max-width:100%;overflow-wrap:anywhere}
.tokens .gap{background:none;color:var(--muted)}
.caveat{border-left:3px solid var(--accent);padding-left:.8rem;font-weight:600}
.missing{border-left:3px solid var(--warn);padding-left:.8rem}
.scroll{position:relative;overflow-x:auto;margin:0 -1.25rem;padding:2px 1.25rem}
.scroll:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--muted);font-size:.85rem;padding-bottom:.4rem}
th{font-weight:600;text-align:left}
.key{display:inline-block;padding:0 .45em;border-radius:3px;font-variant-numeric:tabular-nums}
.map{border-collapse:separate;border-spacing:2px}
.map th{font-size:.8rem;font-weight:400;color:var(--muted);padding:0 .4rem;white-space:nowrap}
.map thead th{text-align:center}
.map td{min-width:4.6rem;width:5.6rem;padding:.35rem .2rem .3rem;text-align:center;
border-radius:3px;font-size:.9rem;line-height:1.25;vertical-align:top}
.map small{display:block;font-size:.72rem;line-height:1.15;min-height:1.15em}
.map .named{font-weight:600}
.small{border-spacing:1px}
.small td{min-width:1.9rem;width:auto;padding:.2rem .1rem;font-size:.72rem;border-radius:2px}
.small .named{text-decoration:underline;text-underline-offset:2px}
.hush{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));
gap:2.4rem 2rem;margin-top:1.4rem}
article p{font-size:.92rem;margin:.15rem 0 .5rem}
article p.does{min-height:4.65em}
article svg{display:block;width:100%;height:auto}
article .pooled{color:var(--muted);font-size:.82rem;margin:.2rem 0 0}
.tick,.axis{font:9.5px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:var(--ink);white-space:pre}
.axis{font-family:system-ui,sans-serif;fill:var(--muted);text-anchor:middle}
.end{text-anchor:end}
.paper{fill:var(--wash)}
.hatch{fill:var(--hatch)}
.row{fill:#fff;fill-opacity:0}
.row:hover{fill-opacity:.22}
.scale{display:block;width:24rem;max-width:100%;height:auto;margin:.2rem 0 0}
.scale .tick{text-anchor:middle}
dl.facts{display:grid;grid-template-columns:1fr 1fr 1.4fr 1fr;
gap:.3rem 1rem;margin:.5rem 0 0;font-size:.85rem;font-variant-numeric:tabular-nums}
dl.facts dt{color:var(--muted);font-size:.75rem}
dl.facts dd{margin:0}
dl.facts small,.muted{color:var(--muted)}
.hills,.ends{max-width:46rem}
.hills>div{display:flex;align-items:end;gap:.8rem;margin-bottom:.3rem}
.hills span{flex:0 0 4.4rem;font-size:.85rem;color:var(--muted);padding-bottom:.6rem}
.hill{flex:1;min-width:0;height:auto}
.hill path{fill:var(--accent);fill-opacity:.45}
.base{fill:var(--line)}
.mark{fill:var(--ink)}
.ends{display:flex;justify-content:space-between;margin:0;padding-left:5.2rem;font-size:.8rem;
color:var(--muted)}
.all{font-size:.82rem;width:100%}
.all th,.all td{padding:.28rem .45rem;border-bottom:1px solid var(--line);white-space:nowrap}
.all thead th{color:var(--muted);font-weight:400;vertical-align:bottom;border-color:var(--muted)}
.all.looks{width:auto}
.bar{display:block;width:12rem;height:.7rem}
.fill{fill:var(--accent);fill-opacity:.6}
.strip{margin:.3rem 0 1.4rem}
.strip .from{text-decoration:underline;text-underline-offset:3px;font-weight:700}
.num{text-align:right}
.words{display:grid;grid-template-columns:minmax(7rem,auto) 1fr;gap:.3rem 1.2rem;margin:0 0 1.6rem;
max-width:52rem;font-size:.92rem}
.words dt{font-weight:600}
.words dd{margin:0}
ul{margin:0 0 1rem;padding-left:1.1rem}
li{overflow-wrap:anywhere}
.versions{color:var(--muted);font-size:.85rem}
@media (max-width:36rem){main{padding-top:1.6rem}.words{grid-template-columns:1fr;gap:0}
.words dd{margin-bottom:.6rem}article p.does{min-height:0}
.hills span{flex-basis:3.6rem}.ends{padding-left:4.4rem}
.small td{min-width:1.9rem}section{margin-top:2.2rem}}
"""
_PAPER = """
@page{size:A4;margin:14mm}
@media print{*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
html{font-size:12px}body{font-size:1rem}main{max-width:none;padding:0}section{margin-top:1.4rem;padding-top:1rem}
h2,h3,caption,.lead{break-after:avoid}article,p,.hills>div,.words dt,tr,.map{break-inside:avoid}
.cards{grid-template-columns:1fr 1fr;gap:1rem 1.6rem}article svg{width:86%}
article p.does{min-height:0}.scroll{overflow:visible;margin:0;padding:0}
.map{width:100%;table-layout:fixed}.map th,.map td{min-width:0;padding:1.2mm .2mm}
.map th:first-child{width:9mm}.map td{font-size:8pt}.map small{font-size:5.5pt;white-space:normal}
.map.small td,.map.small th{font-size:4.6pt;padding:.6mm 0}
.all{font-size:6.6pt}.all th,.all td{padding:.7mm .6mm}.all .word{white-space:normal;
overflow-wrap:anywhere}thead{display:table-header-group}}
"""
