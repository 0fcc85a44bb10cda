"""The verbs that look: inspect, compare and plot, from the command line."""

import csv
import io
import json
import sys

import pytest
import torch
import transformers
import zoo

import clearhead as ch
from clearhead import inspection, subject
from clearhead.cli import main

TEXT = "the cat sat on the mat. the cat sat"


@pytest.fixture
def say(tmp_path, monkeypatch, capsys):
    """Run a verb in an empty folder: what it prints, and what it complains of."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments, status: int = 0) -> str:
        assert main([str(a) for a in arguments]) == status
        said = capsys.readouterr()
        if status:
            assert len(said.err.splitlines()) == 1, said.err
            assert said.out == ""
            return said.err
        return said.out

    return run


def test_inspect_alone_looks_at_the_model_in_the_box(say):
    lines = say("inspect").splitlines()
    assert lines[0].startswith("tiny-en")
    assert lines[1].startswith("checked  ")
    assert "replayed, worst output difference" in lines[1]
    assert any("induction" in line for line in lines[3:8])
    assert any("previous token" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert "not why the model answers" in lines[-2]
    assert "--text" in lines[-1]  # what was read is ours


def test_the_roles_come_from_the_probe_with_the_texts_own_mass_beside():
    found = subject.find(None)
    windows = found.windows(inspection.TEXT)
    seen = inspection.glance(found, windows[0])
    assert seen.causal
    named = inspection.examine(found, windows, inspection.Asked(), seen).roles
    from_text = inspection.examine(found, windows, inspection.Asked(probe=False), seen).roles
    assert {role["source"] for role in named.values()} == {"probe"}
    assert {role["source"] for role in from_text.values()} == {"text"}
    assert "induction" in {role["role"] for role in named.values()}
    best = next(role for role in named.values() if role["role"] == "induction")
    assert best["mass"] > 2 * best["text_mass"]


def test_json_and_csv_hold_what_the_table_shows(say):
    said = json.loads(say("inspect", "--text", TEXT, "--json"))
    rows = list(csv.DictReader(io.StringIO(say("inspect", "--text", TEXT, "--csv"))))
    assert len(said["heads"]) == len(rows) > 3
    for one, other in zip(said["heads"], rows, strict=True):
        assert one["head"] == other["head"]
        assert float(other["entropy"]) == one["entropy"]
    model = ch.TinyGPT.load("tiny-en")
    ids = torch.tensor([model.tokenizer.encode(TEXT)])
    layers = model(ids, need="map").layers
    stats = [ch.HeadStats.of(layer.attended, layer.map) for layer in layers]
    exact = [x for found in stats for x in found.mean("entropy").tolist()]
    assert [one["entropy"] for one in said["heads"]] == pytest.approx(exact, abs=1e-6)


def test_a_saved_run_shows_the_same(say, tmp_path):
    first = say("inspect", "--text", TEXT, "--save", "a", "--keep", "qk")
    assert "keeping q and k of up to" in first
    again = say("inspect", "a")
    assert [x for x in first.splitlines() if x not in again.splitlines()][:1] == [
        first.splitlines()[0]
    ]
    run = ch.load(tmp_path / "a")
    assert run.map("1.0").shape[2] == len(ch.TinyGPT.load("tiny-en").tokenizer.encode(TEXT))


def test_pages_and_pictures_are_written(say, tmp_path):
    said = say("inspect", "--text", TEXT, "--report", "deep/r.html", "--plot", "pictures")
    assert "written: deep/r.html" in said
    page = (tmp_path / "deep" / "r.html").read_text("utf-8")
    assert "replayed, worst output difference" in page
    assert "<svg" in page or "data:image/png" in page
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {"heads.png", "heads.svg"} <= names
    assert any(name.startswith("head-1.") for name in names)


def test_from_here_to_there_is_the_exact_mass(say):
    lines = say("inspect", "--text", TEXT, "--from", "sat", "--to", "cat", "--top", 99).splitlines()
    model = ch.TinyGPT.load("tiny-en")
    tokens = model.tokenizer.encode(TEXT)
    pieces = model.tokenizer.pieces(tokens)
    text = "".join(pieces)

    def places(word: str) -> list[int]:
        starts = [i for i in range(len(text)) if text.startswith(word, i)]
        ends = [sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
        return [n for s in starts for n, e in enumerate(ends)
                if e > s and e - len(pieces[n]) < s + len(word)]  # fmt: skip

    rows, keys = places("sat"), places("cat")
    layers = model(torch.tensor([tokens]), need="map").layers
    for line in lines[4:]:
        if not line.strip():
            break
        head, mass, _, *_ = line.split()
        layer, h = map(int, head.split("."))
        weights = layers[layer].map.dense()[0, h]
        assert float(mass) == pytest.approx(float(weights[rows][:, keys].sum(-1).mean()), abs=0.006)
    assert len(lines) > 8


@pytest.mark.slow
def test_from_here_to_there_is_everywhere_that_was_asked_for(say, tmp_path):
    asked = ["--text", TEXT, "--from", "sat", "--to", "cat"]
    table = say("inspect", *asked, "--top", 99, "--report", "r.html", "--plot", "p").splitlines()
    ranked = [line.split()[0] for line in table[4:22]]
    said = json.loads(say("inspect", *asked, "--json"))
    assert [head["head"] for head in said["looks"]["heads"]] == ranked
    assert said["looks"]["places"] == [
        {"sequence": 0, "batch": 0, "from": [[4, 6], [13, 15]], "to": [[2, 4], [11, 13]]}
    ]
    rows = list(csv.DictReader(io.StringIO(say("inspect", *asked, "--csv"))))
    assert [row["head"] for row in rows] == ranked
    assert [float(row["mass"]) for row in rows] == [h["mass"] for h in said["looks"]["heads"]]
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "From “sat” to “cat”" in page
    assert page.index(f"<th scope=row>{ranked[0]}<") < page.index(f"<th scope=row>{ranked[1]}<")
    assert {f"head-{head}.png" for head in ranked[:4]} <= {
        p.name for p in (tmp_path / "p").iterdir()
    }
    assert "looks" not in json.loads(say("inspect", "--text", TEXT, "--json"))


@pytest.mark.slow
def test_words_are_looked_for_in_every_window(say, tmp_path):
    lines = [
        f"The keeper number {n} climbed the stairs, lit the lamp and wrote a line."
        for n in range(60)
    ]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    found = subject.find(None)
    windows = found.windows("\n".join(lines))
    assert len(windows) > 9
    asked = ["inspect", "--file", "long.txt", "--no-probe"]
    said = json.loads(say(*asked, "--from", "keeper", "--to", "lamp", "--json"))
    assert said["tokens"] == sum(map(len, windows)) == said["heads"][0]["rows"]
    assert said["texts"] == len(windows)
    assert len(said["looks"]["places"]) >= len(windows) - 1
    last = say(*asked, "--from", "number 55", "--to", "the").splitlines()
    assert f"of {len(windows)}" in last[0] + last[1]
    where = next(n for n, w in enumerate(windows) if " 55 " in found.tokenizer.decode(w))
    assert f"in window {where} " in last[0] + last[1]
    assert "Windows and tokens count from 0" in "\n".join(last)
    far = say(*asked, "--from", "number 1", "--to", "number 55", status=2)
    assert f"'number 1' is in window 0, and 'number 55' in {where}" in far
    assert "is not in any of the" in say(*asked, "--from", "number 99", "--to", "the", status=2)
    assert "in window 0 of" in say(*asked, "--from", "7", "--to", "3")
    assert "window 0, whose positions" in say(*asked, "--from", "number 55", "--to", "3", status=2)


@pytest.mark.parametrize("place", ["(", "!", "mat.", "the cat", '"', "sat (the"])
def test_marks_and_several_words_are_places_too(say, place):
    text = 'the cat sat (the one!) on the mat. "the cat" sat'
    assert "mass" in say("inspect", "--text", text, "--from", place, "--to", "the")


def test_a_run_that_is_there_is_kept_unless_one_says_otherwise(say, tmp_path):
    say("inspect", "--text", TEXT, "--save", "a")
    before = (tmp_path / "a" / "run.json").read_bytes()
    said = say("inspect", "--text", "a b", "--save", "a", status=2)
    assert "a holds a run of tiny-en already: --overwrite replaces it, another --save" in said
    assert (tmp_path / "a" / "run.json").read_bytes() == before
    say("inspect", "--text", "a b", "--save", "a", "--overwrite")
    assert (tmp_path / "a" / "run.json").read_bytes() != before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{}")
    assert "is not the run.json of a clearhead run" in say("inspect", "--save", "b", status=2)


@pytest.mark.parametrize("place", ["7", "3:9", "CAT"])
def test_places_are_words_positions_or_spans(say, place):
    assert "mass" in say("inspect", "--text", TEXT, "--from", place, "--to", "the")


def test_a_long_text_is_read_in_windows(say):
    said = json.loads(say("inspect", "--text", inspection.TEXT * 4, "--json"))
    assert said["heads"][0]["rows"] == said["tokens"] > 500
    few = json.loads(say("inspect", "--text", inspection.TEXT * 4, "--tokens", 50, "--json"))
    assert few["heads"][0]["rows"] == 50


def test_a_transformers_folder_without_a_tokenizer_reads_numbers(say, tmp_path):
    zoo.build("llama").save_pretrained(tmp_path / "llama")
    (tmp_path / "ids").write_text("[" + ", ".join(map(str, range(3, 43))) + "]")
    said = json.loads(say("inspect", "llama", "--ids", "ids", "--json"))
    assert said["model"] == f"LlamaForCausalLM {tmp_path.name}/llama"
    assert [h["head"] for h in said["heads"]] == [f"{n}.{h}" for n in (0, 1) for h in range(4)]
    assert said["heads"][0]["rows"] == 40
    assert "no tokenizer" in say("inspect", "llama", "--text", "a", status=2)


def test_a_tokenizer_that_the_library_made_up_is_none(say, tmp_path):
    """Without its files some classes of the library have one of special tokens alone."""
    config = transformers.GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=16,
        vocab_size=50,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    (tmp_path / "idx.json").write_text("[1, 2, 3, 1, 2, 3, 4, 5]")
    assert "8 tokens: #1|#2|#3|" in say("inspect", "gpt2", "--ids", "idx.json")
    said = say("inspect", "gpt2", "--text", "hello", status=2)
    assert "gpt2 has no tokenizer: give token numbers, --ids FILE" in said


def test_a_module_that_takes_something_else_than_tokens_is_said_to(say, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "floats.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def forward(self, x):\n"
        "        B, T, D = x.shape\n"
    )
    (tmp_path / "ids").write_text("1 2 3 4")
    said = say("inspect", "floats:Net", "--ids", "ids", status=2)
    assert "floats:Net was called with token numbers (B, T) = (1, 4), and its own forward" in said
    assert "raised ValueError: not enough values to unpack (expected 3, got 2)" in said
    assert "clearhead.observe" in said
    sys.modules.pop("floats", None)


@pytest.mark.parametrize(
    ("stored", "asked", "runs"),
    [("bfloat16", None, "bfloat16"), ("float32", None, "float32"),
     ("float32", "bfloat16", "bfloat16"), ("bfloat16", "float64", "float64")],
)  # fmt: skip
def test_a_checkpoint_runs_in_its_own_dtype_unless_told_otherwise(
    say, tmp_path, stored, asked, runs
):
    zoo.build("llama").to(getattr(torch, stored)).save_pretrained(tmp_path / "llama")
    (tmp_path / "ids").write_text("3 4 5 6 7 8 9 10 11")
    options = [] if asked is None else ["--dtype", asked]
    say("inspect", "llama", "--ids", "ids", *options, "--save", "run", "--keep", "qk")
    run = ch.load(tmp_path / "run")
    assert {call.dtype for call in run.calls} == {runs}
    assert run.calls[0].tensors["q"].dtype == getattr(torch, runs)


def test_an_encoder_decoder_and_a_short_text_work(say, tmp_path):
    zoo.build("t5").save_pretrained(tmp_path / "t5")
    (tmp_path / "ids").write_text("5 6 7")
    said = json.loads(say("inspect", "t5", "--ids", "ids", "--json"))
    assert len(said["heads"]) == 6 * 4
    assert said["notes"] == []


def test_a_factory_is_called(say, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.e = nn.Embedding(50, 16)\n"
        "        self.a = nn.MultiheadAttention(16, 2, batch_first=True)\n"
        "    def forward(self, x):\n"
        "        h = self.e(x)\n"
        "        return self.a(h, h, h)[0]\n"
        "def make():\n    torch.manual_seed(0)\n    return Net()\n"
        "def number():\n    return 3\n"
        "def fails():\n    raise RuntimeError('first\\nsecond')\n"
    )
    (tmp_path / "ids").write_text("1 2 3 4 5 6")
    said = json.loads(say("inspect", "mine:make", "--ids", "ids", "--json"))
    assert [h["module"] for h in said["heads"]] == ["a", "a"]
    assert "returned a int" in say("inspect", "mine:number", "--ids", "ids", status=2)
    assert "RuntimeError: first" in say("inspect", "mine:fails", "--ids", "ids", status=2)
    assert "token 60 is beyond the vocabulary of 50" in say_bad_ids(say, tmp_path)
    sys.modules.pop("mine", None)


def say_bad_ids(say, folder) -> str:
    (folder / "bad").write_text("1 60")
    return say("inspect", "mine:make", "--ids", "bad", status=2)


WRONG = [
    (["nowhere"], "is no folder and no package.module:factory"),
    (["."], "holds neither a model (config.json) nor a run (run.json)"),
    (["--from", "cat"], "--from and --to go together"),
    (["--keep", "qk"], "say which, --save RUN"),
    (["--top", "0"], "must be at least 1"),
    (["--tokens", "0"], "must be at least 1"),
    (["--sort", "beauty"], "there is no column 'beauty'"),
    (["--sort", "entrpy"], "did you mean entropy? There are does, there"),
    (["--sort", "max", "--from", "a", "--to", "b"], "--sort is for the table of heads"),
    (["--overwrite"], "--overwrite is for --save RUN"),
    (
        ["--text", "a b", "--keep", "stats", "--from", "a", "--to", "b"],
        "--from and --to need q and k",
    ),
    (["--text", "a b", "--from", " ", "--to", "a"], "is no word: it has no visible character"),
    (["--dtype", "int8"], "dtype must be one of float32"),
    (["--device", "abacus"], "device 'abacus'"),
    (["--text", ""], "makes no token of this text"),
    (["--text", "a b", "--from", "dog", "--to", "a"], "'dog' is not in the text"),
    (["--text", "a b", "--from", "99", "--to", "0"], "99 is no place among the"),
    (["--layers", "9", "--text", "a b"], "there are layers 0 to"),
    (["--heads", "0.77", "--save", "r", "--keep", "qk"], "there is no head 0.77"),
    (["--file", "missing.txt"], "missing.txt"),
    (["json.decoder:JSONDecoder", "--text", "a"], "returned a JSONDecoder"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG, ids=lambda x: " ".join(x)[:40])
def test_what_is_wrong_is_said_in_one_line(say, arguments, words):
    assert words in say("inspect", *arguments, status=2)


def test_a_run_cannot_be_made_to_read_another_text(say):
    say("inspect", "--text", TEXT, "--save", "a")
    assert "a is a run: --text cannot change it now" in say("inspect", "a", "--text", "b", status=2)
    assert 'observe(keep="qk")' in say("inspect", "a", "--from", "cat", "--to", "the", status=2)


def test_where_a_model_was_looked_for_is_said(say, tmp_path):
    assert f"(looked for in {tmp_path})" in say("inspect", "nope", status=2)


def test_models_with_code_of_their_own_are_refused(say, tmp_path):
    (tmp_path / "m").mkdir()
    said = {"model_type": "odd", "architectures": ["Odd"], "auto_map": {"AutoModel": "odd.Odd"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(said))
    (tmp_path / "m" / "odd.py").write_text("raise SystemExit('ran')\n")
    assert "code of its own" in say("inspect", "m", status=2)


def test_hostile_words_are_data(say, tmp_path):
    words = "</script><b>x </scRIPt> a\"b onmouseover=1 <img src=x onerror=1> &amp; <!-- \\ \n ' %"
    say("inspect", "--text", words, "--report", "r.html")
    page = (tmp_path / "r.html").read_text("utf-8").lower()
    assert "<img src=x" not in page
    assert "<script" not in page
    assert "<!--" not in page.replace("<!doctype", "")


def test_checkpoints_are_compared_in_order(say, tmp_path):
    """A head that is driven into collapse in the second checkpoint is the first to leave."""
    model = ch.TinyGPT.load("tiny-en")
    for step in (1, 2, 3):
        if step == 2:
            with torch.no_grad():
                model.blocks[0].attention.q_proj.weight[:16] *= 9
        model.save(tmp_path / f"step-{step}")
    said = say("compare", "step-1", "step-2", "step-3", "--text", inspection.TEXT)
    assert "head 0.0 at step-2" in said
    assert "collapsed first" in said
    found = json.loads(say("compare", "step-1", "step-3", "--json"))
    assert found["names"] == ["step-1", "step-3"]
    assert found["left_first"][0] == "0.0"
    assert len(found["heads"]) == 18
    assert "two runs or more" in say("compare", "step-1", status=2)


@pytest.mark.slow
def test_checkpoints_read_what_inspect_reads(say, tmp_path):
    model = ch.TinyGPT.load("tiny-en")
    for step in (1, 2):
        model.save(tmp_path / f"step-{step}")
    (tmp_path / "ids").write_text(" ".join(map(str, range(5, 65))))
    wide = ("--ids", "ids", "--tokens", 40, "--dtype", "float64")
    assert json.loads(say("compare", "step-1", "step-2", *wide, "--json"))["heads"]
    assert "dtype must be one of" in say(
        "compare", "step-1", "step-2", "--dtype", "float7", status=2
    )
    assert "--tokens must be at least 1" in say("compare", "a", "b", "--tokens", 0, status=2)
    for name in ("a", "b"):
        say("inspect", "step-1", "--ids", "ids", "--save", name)
    assert say("compare", "a", "b", "--json")
    refused = say("compare", "a", "b", "--ids", "ids", "--tokens", 9, status=2)
    assert "all of them are runs: --ids, --tokens cannot change them now" in refused


def test_plot_draws_a_run_and_a_training(say, tmp_path):
    say("inspect", "--text", TEXT, "--save", "a")
    assert "2 pictures in a/plots" in say("plot", "a")
    assert "pictures" in say("plot", "a", "--output-dir", "elsewhere")
    say("train", "--recipe", "induction", "--steps", 2, "--out", "t")
    assert "training.png" in say("plot", "t", "--output-dir", "curves")
    assert (tmp_path / "curves" / "training.png").stat().st_size > 1000
    assert say("plot", "nowhere", status=2)


def test_only_what_is_needed_is_computed():
    """The last logits alone, and no cache."""
    model = zoo.build("llama")
    seen = {}
    forward = model.forward

    def watched(input_ids, use_cache=None, logits_to_keep=0, **rest):
        seen.update(use_cache=use_cache, logits_to_keep=logits_to_keep)
        return forward(input_ids=input_ids, use_cache=use_cache, logits_to_keep=logits_to_keep)

    model.forward = watched
    subject.Subject(model, "m", vocab_size=101).read(torch.ones(1, 4, dtype=torch.int64))
    assert seen == {"use_cache": False, "logits_to_keep": 1}


@pytest.mark.parametrize("option", ["--report", "--plot"])
def test_what_could_not_be_written_is_said_before_anything_is_read(option, tmp_path, capsys):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "new" / "page.html"
    assert main(["inspect", "--text", "a cat", option, str(place)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{tmp_path / 'file'}: nothing can be written there (it is a file)" in said.err
    fresh = tmp_path / "fresh" / "page.html"
    assert main(["inspect", "no such model", "--text", "a", option, str(fresh)]) == 2
    assert not fresh.parent.exists()
