"""The story that `python build.py` and `clearhead demo` tell with the functions of scratch.py.

    words -> embeddings -> one head -> many heads -> entropy -> with and without 1/sqrt(d_head)

build.py beside this file computes every number once, into a Build. What is printed, logged, drawn
and written as JSON are four readings of that record; none of them computes attention again.
"""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from clearhead import __version__
from clearhead.build import Build, Heads, Settings, build, check
from clearhead.files import json_text, make_directory, write_files
from clearhead.scaling import (
    HEAD_SIZES,
    N_TOKENS,
    ScalingRow,
    measure_scaling,
    scaling_results,
    scaling_table,
)
from clearhead.views import plots
from clearhead.views.labels import readable
from clearhead.views.terminal import Terminal, curve, matrix, token_list

TOY_SENTENCE = "the cat sat on the mat . and"

_SHOWN_ROWS = 31  # numpy prints up to 1,000 numbers in full, above that three at each end


# Telling --------------------------------------------------------------------------------------


def opening(built: Build) -> list[str]:
    """What was built, one head in full, and every head's entropy: the original lines."""
    settings, T, highest = built.settings, built.T, math.log(built.T)
    shape = (T, settings.d_model)
    lines = [
        f"Tokens: {token_list(settings.tokens)}",
        f"T={T}  d_model={settings.d_model}  n_heads={settings.n_heads}  "
        f"d_head={settings.d_model // settings.n_heads}",
    ]
    if not settings.toy:
        lines += ["", *_on_embeddings(settings.tokens)]
    lines += [
        "",
        "=== Single-head attention ===",
        f"  Q,K,V shape: {shape}",
        f"  scores (post-mask, post-softmax) shape: {tuple(built.single_weights.shape)}",
        f"  output shape: {tuple(built.single_out.shape)}",
        "  attention matrix (one head):",
        *matrix(built.single_weights.numpy()),
        "",
        "=== Multi-head attention ===",
        f"  multi-head output shape: {tuple(built.multi_out.shape)}",
        f"  weights shape (H, T, T): {tuple(built.scaled.weights.shape)}",
        "",
        "Per-head mean entropy (lower = more concentrated):",
    ]
    for head, mean in enumerate(built.scaled.mean_entropy):
        bar = "#" * int(20 * mean / highest) if highest else ""
        lines.append(f"  head {head}: {mean:.3f}  {bar:<20}  (max possible: {highest:.3f})")
    return lines


def log_opening(built: Build) -> list[str]:
    """The same in the words of the original run log."""
    settings, T = built.settings, built.T
    return [
        "# Project 4 run log",
        f"tokens     : {token_list(settings.tokens)}",
        f"T          : {T}",
        f"d_model    : {settings.d_model}",
        f"n_heads    : {settings.n_heads}",
        f"d_head     : {settings.d_model // settings.n_heads}",
        "",
        "# single-head attention weights (causal mask + scaled dot product)",
        *matrix(built.single_weights.numpy()),
        "",
        f"# per-head mean entropy (max possible = log(T) = {math.log(T):.3f})",
        *(f"  head {h}: {mean:.4f}" for h, mean in enumerate(built.scaled.mean_entropy)),
    ]


def on_heads(built: Build) -> list[str]:
    """Each head against the ceiling that a causal mask leaves, with and without the scaling."""
    T, highest, ceiling = built.T, math.log(built.T), built.mean_ceiling
    if T == 1:
        return ["One token sees itself alone, so there is nothing to choose: 0 is all it can be."]
    lines = [
        f"{highest:.3f} = ln({T}) is out of reach under a causal mask: row i sees i keys, so at",
        f"most ln(i). Their mean is at most ln({T}!)/{T} = {ceiling:.3f}, the ceiling used below.",
        "",
        "=== The same heads with and without 1/sqrt(d_head) ===",
        "        mean entropy (of ceiling)    mean largest weight   each row, 0 to ln(i)",
        "  head   scaled       unscaled        scaled  unscaled     scaled    unscaled",
    ]
    pair = (built.scaled, built.unscaled)
    for head in range(built.settings.n_heads):
        means = [heads.mean_entropy[head] for heads in pair]
        lines.append(
            f"  {head:>4}   "
            + "  ".join(f"{mean:.3f} ({mean / ceiling:4.0%})" for mean in means)
            + "".join(f"     {heads.mean_max_prob[head]:.3f}" for heads in pair)
            + "     "
            + "  ".join(curve(heads.shares(head)) for heads in pair)
        )
    return lines


def on_oddities(built: Build) -> list[str]:
    """What a careful reader would stumble over."""
    lines = ["=== What is odd here ==="]
    if built.same_rows:
        lines += [
            f"  W_Q's first {_count(built.same_rows, 'row')} repeat x / sqrt(d_model) exactly: one "
            "seed, one random stream.",
            "  Kept, so that the figures stay what they were; the experiment above has its own "
            "streams.",
        ]
    if built.settings.toy:
        lines += _on_embeddings(built.settings.tokens)
    return lines if len(lines) > 1 else []


def _count(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def _on_embeddings(tokens: Sequence[str]) -> list[str]:
    repeated = [token for token, times in Counter(tokens).items() if times > 1]
    differ = f", and no two {readable(repeated[0])!r} are alike" if repeated else ""
    return [
        f"  Embeddings are random, one per position{differ}: any text of this length",
        "  gives these numbers. They show the mechanism, not what a trained head would do.",
    ]


# Keeping --------------------------------------------------------------------------------------


def results(built: Build, scaling: Sequence[ScalingRow]) -> dict[str, object]:
    """Every number that is printed, at full precision, as what json.dumps takes."""
    settings, T = built.settings, built.T
    shown = list(range(T)) if T <= _SHOWN_ROWS else [0, 1, 2, T - 3, T - 2, T - 1]
    return {
        "clearhead": __version__,
        "torch": torch.__version__,
        "tokens": list(settings.tokens),
        "T": T,
        "d_model": settings.d_model,
        "n_heads": settings.n_heads,
        "d_head": settings.d_model // settings.n_heads,
        "seed": settings.seed,
        "entropy_unit": "nats",
        "max_entropy": math.log(T),
        "ceiling": built.ceiling,
        "mean_ceiling": built.mean_ceiling,
        "single_head": {
            "output_shape": list(built.single_out.shape),
            "rows": shown,
            "weights": built.single_weights[shown][:, shown].tolist(),
        },
        "multi_head": {
            "output_shape": list(built.multi_out.shape),
            "weights_shape": list(built.scaled.weights.shape),
            "scaled": _head_results(built.scaled, built.mean_ceiling),
            "unscaled": _head_results(built.unscaled, built.mean_ceiling),
        },
        "scaling": scaling_results(scaling, N_TOKENS, settings.seed),
        "W_Q_rows_equal_to_x": built.same_rows,
    }


def _head_results(heads: Heads, ceiling: float) -> dict[str, object]:
    return {
        "mean_entropy": heads.mean_entropy,
        "share_of_ceiling": [mean / ceiling if ceiling else None for mean in heads.mean_entropy],
        "mean_max_prob": heads.mean_max_prob,
        "entropy": heads.entropy.tolist(),
    }


def pictures(built: Build, scaling: Sequence[ScalingRow]) -> dict[str, bytes]:
    """The three pictures, as PNG files by name."""
    settings, T = built.settings, built.T
    size = f"{_count(T, 'token')}, d_model {settings.d_model}, random projections"
    return {
        "attention_heatmaps.png": plots.png_bytes(
            plots.heatmap_grid(
                built.scaled.weights.numpy(),
                settings.tokens,
                f"Who attends to whom: {size}",
                visible=built.mask.bool().numpy(),
            )
        ),
        "entropy.png": plots.png_bytes(
            plots.entropy_curves(
                built.scaled.entropy.numpy(),
                f"Entropy of each row against its ceiling: {size}",
                ceiling=np.array(built.ceiling),
            )
        ),
        "scaling.png": plots.png_bytes(
            plots.scaling_figure(
                scaling_results(scaling, N_TOKENS, settings.seed)["rows"], N_TOKENS
            )
        ),
    }


def run(settings: Settings, output_dir: Path, terminal: Terminal, as_json: bool = False) -> None:
    """Build, print, draw and write: five files in `output_dir`, or none.

    With as_json the JSON document goes to standard output in place of the text. Raises ValueError
    for settings that cannot be built and OSError for an output directory that cannot be written,
    both before the work starts; OSError later on if the disk fills up.
    """
    check(settings)
    make_directory(output_dir)

    built = build(settings)
    if not as_json:
        terminal.lines([*opening(built), *on_heads(built), ""])
    scaling = list(
        terminal.progress(
            measure_scaling(seed=settings.seed), "scaling experiment", len(HEAD_SIZES)
        )
    )
    rest = [*scaling_table(scaling, N_TOKENS), "", *on_oddities(built)]
    if not as_json:
        terminal.lines(rest)

    numbers = json_text(results(built, scaling))
    log = [*log_opening(built), "", *on_heads(built), "", *rest]
    with terminal.warnings_as_notes():
        drawn = pictures(built, scaling)
    write_files(
        output_dir,
        {
            **drawn,
            "run_log.txt": ("\n".join(log) + "\n").encode(),
            "results.json": (numbers + "\n").encode(),
        },
    )
    closing = ["", *_FILES, f"Outputs written to {output_dir.resolve()}"]
    terminal.lines([numbers] if as_json else closing)


_FILES = (
    "attention_heatmaps.png  each head, who attends to whom   run_log.txt   this, as a log",
    "entropy.png             each row against its ceiling     results.json  every number",
    "scaling.png             the scaling experiment",
)
