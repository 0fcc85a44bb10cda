"""The page that works from disk: its numbers are Python's, and what it carries is data."""

import json
import re
import subprocess

import numpy as np
import pytest
import torch
from programs import ROOT, node

from clearhead import Rule, attention
from clearhead.cli import main
from clearhead.rule import alibi_slopes
from clearhead.run import Call, Check, Run
from clearhead.run.calls import FIGURES
from clearhead.stats import HeadStats
from clearhead.viewer import bundle, offline, pyramid
from clearhead.viewer.places import Atlas, Where
from clearhead.viewer.textbook import textbook

NODE = node()
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: numbers of the page")


def run_of(q, k, rule, texts=None, rows=None):
    """A run of one call (B, H, T, D), (B, G, S, D); of `rows` alone where given."""
    (B, H, T, D), (G, S) = q.shape, k.shape[1:3]
    seen = attention(q, k, None, rule)
    figures = {name: getattr(seen, name) for name in FIGURES}
    if rows is not None:
        figures, q = {name: x[..., rows] for name, x in figures.items()}, q[:, :, rows]
    call = Call(
        module="attn", index=0, layer=0, number=0, entry="sdpa", shape=(B, H, G, T, S, D), Dv=D,
        rule=rule, tensors={**figures, "q": q, "k": k}, check=Check(T, 1e-7, 1e-6), rows=rows,
        dtype=str(q.dtype).removeprefix("torch."),
    )  # fmt: skip
    L = max(T, S)
    ids = torch.arange(B * L).view(B, L)
    pieces = dict(enumerate(texts)) if texts else {n: f" t{n}" for n in range(B * L)}
    return Run(
        "model", [("attn", 0)], 1, [call], {0: HeadStats.of(seen)}, {0: ids}, pieces, keep="qk"
    )


def asked(page, path, *questions):
    """What the browser code answers."""
    path.write_text(page.text, "utf-8")
    done = subprocess.run(
        [NODE, str(ROOT / "tests" / "web" / "numbers.mjs"), str(path)],
        input=json.dumps(questions), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def floats(answer):
    return np.array([np.nan if x is None else -np.inf if x == "hidden" else x for x in answer])


def draw(H=4, G=2, T=23, S=31, D=8, B=2, seed=0, dtype=torch.float32, size=1.5):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, T, D, generator=generator) * size
    k = torch.randn(B, G, S, D, generator=generator) * size
    return q.to(dtype), k.to(dtype)


def rules():
    B, H, T, S = 2, 4, 23, 31
    generator = torch.Generator().manual_seed(1)
    chance = torch.rand(B, H, T, S, generator=generator)
    bias = torch.randn(1, H, T, S, generator=generator)
    real = torch.arange(S) < torch.tensor([[S], [20]])
    documents = (torch.arange(S) // 7).expand(B, S)
    return {
        "everything": Rule(),
        "causal": Rule(causal=True),
        "offset": Rule(causal=True, offset=2),
        "offset before the keys": Rule(causal=True, offset=-5),
        "offsets": Rule(causal=True, offset=torch.tensor([0, 6])),
        "window": Rule(causal=True, window=5),
        "window beyond the keys": Rule(window=(2, 1), offset=20),
        "two sides": Rule(window=(4, 2), offset=0),
        "scale": Rule(causal=True, scale=0.9),
        "softcap": Rule(causal=True, softcap=2.5),
        "alibi": Rule(causal=True, alibi=alibi_slopes(4)),
        "sinks": Rule(causal=True, sinks=torch.tensor([0.5, -1.0, 3.0, 0.0])),
        "padding": Rule(causal=True, key_mask=real, query_mask=real[:, :T]),
        "documents": Rule(causal=True, offset=0, segments=documents),
        "mask": Rule(mask=chance > 0.5),
        "mask of keys": Rule(mask=chance[:1, :1, :1] > 0.5),
        "bias": Rule(bias=bias.masked_fill(chance[:1] > 0.8, -torch.inf)),
        "bias in half": Rule(bias=bias.half().masked_fill(chance[:1] > 0.8, -65504.0)),
        "all at once": Rule(
            causal=True, window=9, scale=0.4, softcap=3.0, alibi=alibi_slopes(4),
            sinks=torch.tensor([0.5, -1.0, 3.0, 0.0]), key_mask=real, segments=documents,
            mask=chance[:, :, :, :1] > 0.1, bias=bias[:, :1], offset=8,
        ),
    }  # fmt: skip


def check(run, page, path, known=None):
    """Rows, columns, cells and tiles of every head and batch element, as Python has them; or as it
    has them of the run `known`."""
    atlas, tolerance = Atlas(run if known is None else known, ""), 1e-5
    questions, wanted = [], []
    for said in atlas.sequences():
        for batch in range(said["batches"]):
            at, where = {"seq": said["seq"], "batch": batch}, Where(said["seq"], batch)
            for row in atlas.grid()["heads"]:
                head = row["head"]
                T, S = atlas.open(head, where).map.shape[-2:]
                for i in {0, T // 3, T - 1}:
                    questions.append(["row", "run", head, i, at])
                    wanted.append(atlas.row(head, i, where))
                questions.append(["column", "run", head, S // 2, at])
                wanted.append(atlas.column(head, S // 2, where))
                span = max(0, T - 9), T, max(0, S - 12), S
                questions.append(["cells", "run", head, *span, at])
                wanted.append(atlas.cells(head, span, where))
                questions.append(["received", "run", head, at])
                wanted.append(pyramid.received(atlas.open(head, where).map, lambda done: None))
                if head in ("0.0", "0.3", "1.2"):
                    for z, reduce in enumerate(pyramid.REDUCE):
                        questions.append(["tile", "run", head, reduce, z, 0, 0, at])
                        tile = pyramid.exact_tile(atlas.open(head, where).map, reduce, z, 0, 0)
                        wanted.append(tile.astype(float))
    for question, answer, known in zip(
        questions, asked(page, path, *questions), wanted, strict=True
    ):
        assert not (isinstance(answer, dict) and "error" in answer), (question, answer)
        if question[0] == "cells":
            answer = [*answer["weights"], *answer["scores"]]
        found, known = floats(answer), known.astype(float).ravel()
        assert found.shape == known.shape, question
        assert (np.isnan(found) == np.isnan(known)).all(), question
        assert (np.isinf(found) == np.isinf(known)).all(), question
        sound = np.isfinite(known)
        if question[0] == "tile":
            assert ((found == 0) == (known == 0)).all(), question  # hidden
            steps = np.abs(found - known)[known > 20_000]
            assert steps.max(initial=0) <= 2, question
        else:
            gap = np.abs(found[sound] - known[sound]) / np.maximum(1, np.abs(known[sound]))
            assert gap.max(initial=0) <= tolerance, question


@needs_node
@pytest.mark.parametrize("name", rules())
def test_every_part_of_a_rule_is_computed_as_in_python(name, tmp_path):
    run = run_of(*draw(), rules()[name])
    page = offline.make_page(run, "run", "clearhead view run")
    assert page.kind == "exact"
    check(run, page, tmp_path / "p.html")


@needs_node
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_every_dtype(dtype, tmp_path):
    run = run_of(*draw(dtype=dtype), Rule(causal=True))
    check(run, offline.make_page(run, "run", ""), tmp_path / "p.html")


@needs_node
@pytest.mark.parametrize("size", [4.0, 60.0])
def test_scores_that_float32_rounds_are_those_of_float64(size, tmp_path):
    """Scores of thousands, which float32 has to 1e-4 only: a page does not repeat its rounding."""
    q, k = draw(size=size)
    run, exact = run_of(q, k, Rule(causal=True)), run_of(q.double(), k.double(), Rule(causal=True))
    check(run, offline.make_page(run, "run", ""), tmp_path / "p.html", known=exact)


@needs_node
def test_numbers_that_are_none_and_rows_that_see_nothing(tmp_path):
    q, k = draw(B=1)
    k[0, 0, 3] = torch.nan
    k[0, 1, 29] = torch.inf
    run = run_of(q, k, Rule(causal=True, offset=-4))
    check(run, offline.make_page(run, "run", ""), tmp_path / "p.html")


@needs_node
def test_rows_that_were_sampled(tmp_path):
    rows = torch.tensor([1, 2, 9, 17, 22])
    run = run_of(*draw(), Rule(causal=True), rows=rows)
    page = offline.make_page(run, "run", "")
    check(run, page, tmp_path / "p.html")
    link, none, head = asked(
        page, tmp_path / "p.html", ["link", "run", 9, 4, {"seq": 0, "batch": 1}],
        ["link", "run", 3, 4, {"seq": 0, "batch": 1}], ["head", "run", "0.1", {}],
    )  # fmt: skip
    expected = Atlas(run, "").link(9, 4, Where(0, 1), lambda done: None)
    assert [x["head"] for x in link] == [x["head"] for x in expected]
    for found, known in zip(link, expected, strict=True):
        assert found["rank"] == known["rank"] and found["visible"] == known["visible"]
        assert found["weight"] == pytest.approx(known["weight"], abs=1e-6)
        assert found["uniform"] == pytest.approx(known["uniform"])
    assert none == {"error": "no head lets the query at 3 see key 4"}
    assert head["rowAt"] == rows.tolist()


@pytest.mark.slow
@needs_node
def test_larger_maps_are_pooled_as_the_server_does(tmp_path):
    """More than one tile, an overview above, and the sums of its means."""
    run = textbook(1500, folder=tmp_path / "cache")
    run.calls = [Call(**{f: getattr(c, f) for f in Call.__dataclass_fields__}) for c in run.calls]
    whole = offline.make_page(run, "run", "")
    pooled = offline.make_page(run, "run", "clearhead view x", offline.estimate(run)["pooled", 512])
    assert (whole.kind, pooled.kind) == ("exact", "pooled")
    atlas, at = Atlas(run, ""), {"seq": 0, "batch": 0}
    for page in (whole, pooled):
        heads = ["0.0", "0.3", "0.4"]
        asks = [
            [head, reduce, z, ty, tx]
            for head in heads for reduce in pyramid.REDUCE
            for z, ty, tx in [(3, 0, 0), (2, 1, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0), (0, 5, 4)]
            if page is whole or z >= 2
        ]  # fmt: skip
        found = asked(page, tmp_path / "p.html", *(["tile", "run", *ask, at] for ask in asks))
        for (head, reduce, *place), answer in zip(asks, found, strict=True):
            amap = atlas.open(head, Where(0, 0)).map
            known = pyramid.exact_tile(amap, reduce, *place).astype(float).ravel()
            assert (floats(answer) == 0).tolist() == (known == 0).tolist()
            assert np.abs(floats(answer) - known)[known > 20_000].max(initial=0) <= 2
    refused, info, curves, received = asked(
        pooled, tmp_path / "p.html", ["row", "run", "0.0", 5, at], ["head", "run", "0.0", at],
        ["rows", "run", "0.2", at], ["received", "run", "0.2", at],
    )  # fmt: skip
    assert refused["error"].startswith("this file holds no q and k of head 0.0, only its overview")
    assert (info["finest"], info["exact"], info["hasMap"]) == (2, False, True)
    assert np.allclose(floats(curves["entropy"]), atlas.figures("0.2", Where(0, 0))[0])
    assert np.allclose(floats(received).sum(), 1500, rtol=1e-4)
    assert "maps pooled to 512 x 512 at most" in pooled.said() and "--max-mb" in pooled.said()
    tooth = asked(pooled, tmp_path / "p.html", ["tile", "run", "0.0", "max", 1, 0, 0, at])
    assert "no pixels" in tooth[0]["error"]


# The model in the box -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def boxed():
    from clearhead import inspection, subject

    found = subject.find(None)
    text = (bundle.WEB.parent / "textbook.txt").read_text("utf-8")
    windows = found.windows(text, 500)
    seen = inspection.glance(found, windows[0])
    return inspection.examine(found, windows, inspection.Asked(keep="qk"), seen)


@needs_node
def test_500_tokens_of_the_model_in_the_box(boxed, tmp_path):
    page = offline.make_page(boxed, "tiny-en", "")
    assert sum(ids.numel() for ids in boxed.tokens.values()) == 500
    assert page.kind == "exact" and len(page.text.encode()) <= 5_000_000
    check(boxed, page, tmp_path / "p.html")


def test_the_verb_says_the_size_before_it_writes(boxed, tmp_path, capsys, monkeypatch):
    boxed.save(tmp_path / "run")
    file = tmp_path / "a.html"
    said = []
    write = offline.write_page
    monkeypatch.setattr(
        offline, "write_page",
        lambda page, path: (said.append(capsys.readouterr().out), write(page, path)),
    )  # fmt: skip
    assert main(["report", str(tmp_path / "run"), "--interactive", str(file)]) == 0
    assert re.fullmatch(
        rf"{re.escape(str(file))}: 3\.\d+ MiB, with q, k and lse: every weight, exactly\n", said[0]
    )
    assert capsys.readouterr().out == f"written: {file}\n"
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert main(["report", str(tmp_path / "run"), "--interactive", str(file), "--max-mb", "1"]) == 0
    assert "with the figures of rows, no maps; every weight takes 3." in said[1]
    assert main(["report", str(tmp_path / "run"), str(file)]) == 0
    assert "<p class=versions>9 calls" in file.read_text("utf-8")
    assert [p.name for p in tmp_path.iterdir()] in (["run", "a.html"], ["a.html", "run"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "a.html"], "clearhead report: nowhere is no run: there is no such folder"),
        (["run", "a.html", "--max-mb", "3"], "--max-mb is for --interactive pages"),
        (["run", "--interactive", "a.html", "--max-mb", "0"], "--max-mb must be 1 or more; got 0"),
        (["run", "--interactive", "."], ". is a folder; name the page to write, such as run.html"),
        (["run", "--interactive", "no/such/a.html"], "No such file or directory"),
    ],
)
def test_mistakes_are_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_of(*draw(), Rule()).save("run")
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1
    assert not (tmp_path / "a.html").exists()


def test_a_run_without_q_and_k_says_so(tmp_path):
    run = run_of(*draw(), Rule(causal=True))
    (call,) = run.calls
    kept = {name: x for name, x in call.tensors.items() if name not in ("q", "k")}
    run.calls = [Call(**{**vars(call), "tensors": kept})]
    run.keep = "stats"
    page = offline.make_page(run, "run", "the command")
    assert page.kind == "curves" and "the run keeps no q and k" in page.said()
    with pytest.raises(ValueError, match="of its rows alone, and 10 bytes are allowed"):
        offline.make_page(run, "run", "the command", 10)


# What a page carries is data ----------------------------------------------------------------------

EVIL = [
    "</script><b>x", "</scRIPt>", 'a"b onmouseover=1', "<img src=x onerror=1>", "&amp;", "<!--",
    "\\", "\n", "\u2028", "]]>", "\ud800", "<script>",
]  # fmt: skip


def test_tokens_and_names_cannot_become_markup(tmp_path):
    texts = EVIL * 3
    run = run_of(*draw(B=1, T=31, S=31), Rule(causal=True), texts=texts)
    run.model, run.notes = EVIL[0], [EVIL[3]]
    page = offline.make_page(run, EVIL[0], EVIL[3])
    tags = re.findall(r"</?script[^>]*>", page.text, re.IGNORECASE)
    blobs = page.text.count('<script type="text/plain"')
    assert len(tags) == 2 * (blobs + 2) and "<img" not in page.text and "<!--" not in page.text
    title = re.search(r"<title>(.*?)</title>", page.text)[1]
    assert title == "&lt;/script&gt;&lt;b&gt;x · clearhead"
    said = json.loads(re.search(r'id="said">(.*?)</script>', page.text)[1])
    assert said["pieces"][:4] == EVIL[:4] and "\\ud800" in said["pieces"]
    if NODE:
        (tokens,) = asked(page, tmp_path / "p.html", ["tokens", "run", {}, 0, 4])
        assert tokens["texts"] == EVIL[:4]


def test_a_page_loads_nothing_and_runs_only_what_its_hash_names():
    page = offline.make_page(run_of(*draw(), Rule()), "run", "").text
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert "unsafe" not in policy and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy and "http" not in policy
    (code,) = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert bundle._hash(code) in policy and bundle._hash(style) in policy
    outside = [x for x in re.findall(r"https?://[^\s\"'`]+", code + style)
               if not x.startswith("http://www.w3.org/")]  # fmt: skip
    assert outside == [] and " style=" not in page and " src=" not in page.split("<script", 1)[0]


def test_the_same_run_gives_the_same_page():
    run = run_of(*draw(), Rule(causal=True))
    assert offline.make_page(run, "a", "").text == offline.make_page(run, "a", "").text


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ('import x from "./y.js";', "says 'import x from"),
        ('import { a as b } from "./y.js";\n', "y.js"),
        ("export default 3;", "says 'export default 3;'"),
        ("export { a };", "says 'export"),
        ('const f = () => import("./y.js");', "says 'import"),
        ('const s = "</script>";', "would end or change a script"),
        ('import { a } from "./main.js";', "modules need each other: main -> main"),
    ],
)
def test_modules_that_cannot_be_put_together(module, words, tmp_path):
    (tmp_path / "main.js").write_text(module, "utf-8")
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(words)):
        bundle.script("main", "", tmp_path)


@needs_node
def test_modules_become_one_script_whose_names_do_not_meet(tmp_path):
    (tmp_path / "one.js").write_text("const n = 1;\nexport function one() { return n; }\n")
    (tmp_path / "two.js").write_text(
        'import { one } from "./one.js";\nconst n = 2;\nexport const two = n * one();\n'
    )
    (tmp_path / "main.js").write_text(
        'import { one } from "./one.js";\nimport {\n  two,\n} from "./two.js";\n'
        "export async function both() { return [one(), two]; }\n"
    )
    code = bundle.script(
        "main", 'import { both } from "./main.js";\nconsole.log(await both());', tmp_path
    )
    file = tmp_path / "all.mjs"
    file.write_text(code)
    done = subprocess.run([NODE, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout == "[ 1, 2 ]\n"


# Notebooks ----------------------------------------------------------------------------------------


def test_a_notebook_shows_the_page_of_a_small_run():
    run = run_of(*draw(), Rule(causal=True), texts=EVIL * 6)
    shown = run._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts allow-downloads"')
    assert shown.count("<") == 2 and "allow-same-origin" not in shown
    assert "&lt;!doctype html&gt;" in shown


def test_a_notebook_shows_the_table_of_a_large_one(monkeypatch):
    monkeypatch.setattr(offline, "IN_A_NOTEBOOK", 1000)
    run = run_of(*draw(), Rule(causal=True))
    run.model = EVIL[0]
    shown = run._repr_html_()
    assert shown.startswith("<pre>") and "clearhead view runs/a" in shown and "<b>" not in shown
    assert "<pre>" in Run("empty", [])._repr_html_()
