"""A diagnosis as one HTML file: offline, without a script, for the screen, the phone and paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from clearhead.views import squares
from clearhead.views.example import example_parts, picture_parts
from clearhead.views.style import document, style_sheet
from clearhead.views.wording import (
    KINDS,
    LEGEND,
    STATES,
    counted,
    place,
    proof,
    safe,
    sentence,
    sureness,
    titled,
    verdict,
)  # fmt: skip

if TYPE_CHECKING:
    from clearhead.checker.diagnosis import Diagnosis, Found


def page(diagnosis: Diagnosis, file: str | None = None) -> str:
    """The report of one check, a whole page; `file` is where it was defined.

    The same diagnosis gives the same text.
    """
    d = diagnosis
    head = [
        "<header>", f'<h1 class="verdict {_class(d.verdict)}">{safe(verdict(d), 400)}</h1>',
        *_facts(d, file), "</header>",
    ]  # fmt: skip
    return document(safe(verdict(d), 120), [*head, *_parts(d, file, "d", 2)], _style())


def folder_page(diagnoses: Sequence[Diagnosis], files: Sequence[str]) -> str:
    """A table of several checks, with a section for each. Raises ValueError for other numbers."""
    if len(diagnoses) != len(files):
        raise ValueError(f"{len(diagnoses)} diagnoses but {len(files)} files: one for each")
    counts = [
        f"{sum(d.verdict == v for d in diagnoses)} {v}" for v in ("right", "wrong", "untried")
    ]
    several = len(set(files)) < len(files)
    title = counted(len(set(files)), "file") + f" with {len(files)} functions" * several
    title += f": {', '.join(counts)}"
    body = [
        "<header>", f"<h1>{title}</h1>", "</header>",
        "<section aria-labelledby=all><h2 id=all>Every file</h2>",
        *_table(
            ("file", "name", "verdict", "what is wrong", ""),
            [_row(n, d, file) for n, (d, file) in enumerate(zip(diagnoses, files, strict=True))],
            "all",
        ),
        "</section>",
    ]  # fmt: skip
    for n, (d, file) in enumerate(zip(diagnoses, files, strict=True)):
        body += [
            f'<section class=one id=d{n} aria-labelledby=d{n}t>'
            f'<h2 id=d{n}t class="verdict {_class(d.verdict)}">'
            f'<span class=file>{safe(file, 200)}</span> {safe(verdict(d), 400)}</h2>',
            *_facts(d, None), *_parts(d, file, f"d{n}", 3),
            "<p class=back><a href=#all>Every file</a></p></section>",
        ]  # fmt: skip
    return document(title, body, _style())


def _row(n: int, d: Diagnosis, file: str) -> list[str]:
    mistakes = ", ".join(each.name for each in d.mistakes) or "not explained" * bool(d.unexplained)
    return [
        f"<a href=#d{n}>{safe(file, 120)}</a>", safe(d.target, 80),
        f'<b class="verdict {_class(d.verdict)}">{safe(d.verdict)}</b>',
        safe(mistakes or d.trouble, 200),
        safe("note: " * bool(d.cautions) + ", ".join(each.name for each in d.cautions), 200),
    ]  # fmt: skip


def _class(verdict: str) -> str:
    return verdict if verdict in ("right", "wrong", "untried") else "untried"


# The parts of the page --------------------------------------------------------------------------


def _facts(d: Diagnosis, file: str | None) -> Iterator[str]:
    kind = KINDS.get(d.kind, d.kind)
    facts = [safe(kind, 60)] * bool(kind)
    facts += [f"<code>{safe(file, 200)}</code>"] * (file is not None)
    facts += [f"{d.seconds:.1f} s"] * (d.seconds >= 0.05)
    if d.tried:
        yield f"<p class=proof>{safe(proof(d))}</p>"
    if facts:
        yield f"<p class=facts>{' · '.join(facts)}</p>"


def _parts(d: Diagnosis, file: str | None, uid: str, h: int) -> Iterator[str]:
    """Everything below the verdict, with headings of level `h`."""
    if d.verdict == "untried":
        yield from _section("Why it could not be tried", f"{uid}u", h, _trouble(d, file))
    if d.mistakes:
        title = "The mistake" if len(d.mistakes) == 1 else "The mistakes"
        many = len(d.mistakes) > 1
        body = [
            line
            for n, found in enumerate(d.mistakes, 1)
            for line in _mistake(found, f"{n}. " * many, file, h + 1)
        ]
        yield from _section(title, f"{uid}m", h, body)
    if d.unexplained:
        yield from _section("Not explained", f"{uid}n", h, _unexplained(d))
    if d.example is not None:
        title = "The smallest input that shows it"
        yield from _section(title, f"{uid}e", h, example_parts(d.example, uid, h + 1))
    if d.pictures:
        yield from _section("Pictures", f"{uid}p", h, picture_parts(d, uid, h + 1))
    if d.cautions or d.remarks:
        body = [line for found in d.cautions for line in _mistake(found, "", file, h + 1)]
        if d.remarks:
            items = "".join(f"<li>{safe(sentence(remark))}</li>" for remark in d.remarks)
            body.append(f"<ul>{items}</ul>")
        yield from _section("Notes", f"{uid}c", h, body)
    if d.conventions:
        yield from _section("How it does things", f"{uid}h", h, _conventions(d, f"{uid}h"))
    if d.tried:
        body = [*_tried(d, f"{uid}a")]
        if h > 2:  # one of many: folded
            body = ["<details><summary>All probes</summary>", *body, "</details>"]
        yield from _section("What it was asked", f"{uid}a", h, body)


def _section(title: str, uid: str, h: int, body: Iterable[str]) -> Iterator[str]:
    yield f"<section aria-labelledby={uid}><h{h} id={uid}>{title}</h{h}>"
    yield from body
    yield "</section>"


def _mistake(found: Found, number: str, file: str | None, h: int) -> Iterator[str]:
    yield "<article class=mistake>"
    yield (
        f"<h{h}>{number}{safe(titled(found).rstrip('.'), 400)} "
        f"<span>[{safe(found.name, 80)}]</span></h{h}>"
    )
    if found.does:
        yield f"<p>{safe(sentence(found.does))}</p>"
    yield f"<dl class=words><dt>How sure</dt><dd>{safe(sureness(found))}</dd>"
    if found.also:
        yield f"<dt>The same as</dt><dd>{safe('; '.join(found.also))}</dd>"
    if found.look:
        code = "".join(_code(place(file, number), text) for number, text in found.look)
        yield f"<dt>Where to look</dt><dd>{code}</dd>"
    if found.mend:
        yield f"<dt>How to mend it</dt><dd>{safe(found.mend)}</dd>"
    yield "</dl></article>"


def _code(where: str, text: str) -> str:
    return (
        f"<div class=source><span>{safe(where, 200)}</span> "
        f"<code>{safe(text.strip(), 400)}</code></div>"
    )


def _trouble(d: Diagnosis, file: str | None) -> Iterator[str]:
    yield f"<p class=missing>{safe(sentence(d.trouble or 'nobody said why'))}</p>"
    if d.trouble_at is not None:
        yield _code(place(file, d.trouble_at[0]), d.trouble_at[1])


def _unexplained(d: Diagnosis) -> Iterator[str]:
    yield f"<p class=missing>{safe(sentence(d.unexplained))}</p>"
    if d.nearest:
        items = "".join(f"<li>{safe(each)}</li>" for each in d.nearest)
        yield f"<p>Nearest to it comes:</p><ul>{items}</ul>"
    if d.example is not None:
        yield (
            "<p>Compute the example below by hand, step by step: the first number that differs is "
            "where to look.</p>"
        )


def _conventions(d: Diagnosis, uid: str) -> Iterator[str]:
    rows = []
    for c in d.conventions:
        word = STATES.get(c.state, c.state)
        mark = f"<b class=off>{word}</b>" if c.state == "mistake" else safe(word, 40)
        rows.append([safe(c.name, 80), safe(c.value, 400), mark])
    yield from _table(("what", "how", ""), rows, uid, "plain")
    for state in dict.fromkeys(c.state for c in d.conventions):
        if state in LEGEND:
            yield f"<p class=muted>{sentence(LEGEND[state])}</p>"


def _tried(d: Diagnosis, uid: str) -> Iterator[str]:
    yield (
        "<p>A probe is an input whose right answer is known. How far an answer is off is relative "
        "to the size of its numbers.</p>"
    )
    rows = []
    for t in d.tried:
        came = safe(t.outcome, 40)
        came = f"<b class=off>{came}</b>" if t.outcome == "wrong" else came
        why = "; ".join(part for part in (t.why, t.note) if part)
        off = "" if t.off is None else f"{t.off:.1g}"
        rows.append([safe(t.name, 80), came, off, safe(why, 400)])
    heads = ("probe", "came out", "off by", "why it was asked")
    yield from _table(heads, rows, uid, "plain tries")


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], uid: str, kind: str = "plain"
) -> Iterator[str]:
    """A table of HTML cells, the first of each row its heading."""
    yield f"<div class=scroll role=region aria-labelledby={uid} tabindex=0>"
    top = "".join(f"<th scope=col>{head}</th>" for head in heads)
    yield f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>'
    for first, *rest in rows:
        cells = "".join(f"<td>{cell}</td>" for cell in rest)
        yield f"<tr><th scope=row>{first}</th>{cells}</tr>"
    yield "</tbody></table></div>"


# How it looks ----------------------------------------------------------------------------------


def _style() -> str:
    return style_sheet() + squares.style() + _SHEET


_SHEET = """
.verdict{border-left:.3rem solid var(--muted);padding-left:.6em}
.verdict.right{border-color:var(--accent)}.verdict.wrong{border-color:var(--warn)}
b.verdict{border:0;padding:0}b.verdict.wrong,.off{color:var(--warn)}
b.verdict.right{color:var(--accent)}
section section{margin-top:1.8rem;border-top:0;padding-top:0}
section section h3{font-size:1.2rem;margin-bottom:.6rem}
h4{font-size:1rem;margin:0}h4 span{font-weight:400;color:var(--accent)}
.mistake{margin:0 0 1.8rem}.mistake p{font-size:1rem;margin:.3rem 0 .7rem}
.mistake .words{margin:0;grid-template-columns:8.5rem minmax(0,1fr)}
.words dd,.words dt{min-width:0;overflow-wrap:anywhere}
.source{display:flex;flex-wrap:wrap;gap:0 .8rem;background:var(--wash);padding:.15rem .5rem;
border-radius:3px;margin-bottom:2px;max-width:52rem}
.source span{color:var(--muted);font-size:.85rem;overflow-wrap:anywhere}
.source code{white-space:pre-wrap;overflow-wrap:anywhere}
.arrays{display:flex;flex-wrap:wrap;gap:1rem 2.4rem;margin:.5rem 0 1.2rem;align-items:flex-start}
.scroll.array{margin:0;padding:2px 0;max-width:100%}
.array caption{color:var(--ink);font-weight:600;white-space:nowrap}
.array caption span{font-weight:400;color:var(--muted)}
.array td,.array th{padding:.12rem .4rem;font-size:.9rem}
.array th{font-weight:400;color:var(--muted);text-align:right;padding-left:0;white-space:nowrap}
.array tbody{border-left:0}.array td{background:var(--wash)}
.array td.off{font-weight:700;text-decoration:underline;text-underline-offset:3px}
.plain{font-size:.92rem}.plain th,.plain td{padding:.35rem 1.2rem .35rem 0;vertical-align:top;
border-bottom:1px solid var(--line);text-align:left;overflow-wrap:anywhere;min-width:4.2rem}
.plain td:not(:last-child){overflow-wrap:break-word}
.plain thead th{color:var(--muted);font-weight:400}
.plain a,.back a{color:var(--accent)}.tries td:not(:last-child){white-space:nowrap}
.verdict .file{display:block;overflow-wrap:anywhere}.back{font-size:.9rem}
summary{cursor:pointer;color:var(--accent)}
.legends{display:flex;flex-wrap:wrap;gap:.4rem 2.4rem;margin-top:.8rem}
figure{margin:0}figcaption{font-weight:600;margin-bottom:.3rem;overflow-wrap:anywhere}
@media (max-width:36rem){.mistake .words{grid-template-columns:minmax(0,1fr)}
.plain,.plain tbody,.plain tr,.plain th{display:block}.plain thead{display:none}
.plain tr{padding:.45rem 0;border-bottom:1px solid var(--line)}
.plain th,.plain td{border:0;padding:0 .9rem 0 0}.plain td{display:inline-block;max-width:100%;
min-width:0}.plain td:empty{display:none}}
@media print{.legends{break-after:avoid}.cards{grid-template-columns:repeat(3,1fr)}
figure,.array{break-inside:avoid}
.source{border:1px solid var(--line)}}
"""
