"""The textbook run: heads whose q and k are made by hand, so that every weight is known beforehand.

A token, and a position, has a word of 64 signs: +1 for a 1 and -1 for a 0. Of two words

    a . b / 2 = 32 - hamming(a, b)

which float32 holds exactly. Any two words of tokens differ in APART signs or more, those of
positions, chosen at random, in about 32; so a query that is the word it looks for has 32 on
the keys that have this word and far less on all others:

    0.0  previous token   the word of position i - 1 meets those of all positions j
    0.1  first token      FIRST on key 0, 0 on the others: e^FIRST / (e^FIRST + i)
    0.2  same token       the word of token i meets those of all tokens j, token i itself included,
                          so that all occurrences up to i have the same weight
    0.3  induction        the word of token i meets that of the token before each j; key 0 has REST
                          from everywhere, where a row rests whose token has not occurred before
    0.4  local window     NARROW times the mean over 32 frequencies of cos(frequency (i - j)), near
                          NARROW exp(-(i - j)^2 / (2 WIDE^2)): angles of positions, rounded
    0.5  broad            0 everywhere: 1 / (i + 1)

`known_weights` says the same without q and k, in float64; the run's check is against that.
"""

import math
import os
import random
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from clearhead import __version__
from clearhead.cells import is_integer
from clearhead.engine import Attended, attention
from clearhead.gpt import BOX
from clearhead.map import AttentionMap
from clearhead.roles import gather, name_roles
from clearhead.rule import Rule
from clearhead.run import Call, Check, Run, load
from clearhead.run.calls import FIGURES
from clearhead.stats import HeadStats
from clearhead.tokens import Tokenizer

HEADS = ("previous token", "first token", "same token", "induction", "local window", "broad")
N_TOKENS, MOST = 32_768, 1 << 20
SIGNS = 64  # in a word; the head size of all heads
APART = 20  # signs at least in which the words of two tokens differ
FIRST, REST, NARROW, WIDE = 15.0, 24.0, 24.0, 20.0
RULE = Rule(causal=True, scale=1.0)
ROWS, NAMED, CHECKED, AGAIN = 2048, 2048, 64, 4  # rows: at once, for roles, checked, of a cache
ALLOWED = 1e-5  # of a weight: the angles of the local window are rounded to float32
RECIPE = 1  # goes up with any change of what a run holds
STALE = 3600.0  # seconds after which what another process left half-written is removed

Progress = Callable[[float, str], None]  # how much of 1 is done, and what is being done


def textbook(
    n_tokens: int = N_TOKENS, progress: Progress | None = None, folder: Path | None = None
) -> Run:
    """A Run of six heads made by hand over the first n_tokens of bundled speeches.

    The text begins anew where it ends. Kept in `folder`, by default clearhead's in the cache of the
    user, and read from there the next time; in memory where that cannot be written. What lies there
    damaged is made again. `progress` may raise, to cancel. Raises ValueError for n_tokens out of 1
    to MOST.
    """
    if not is_integer(n_tokens) or not 1 <= n_tokens <= MOST:
        raise ValueError(f"n_tokens must be an integer from 1 to {MOST:,}; got {n_tokens!r}")
    folder = _cache() if folder is None else folder
    folder /= f"textbook-{__version__}-{RECIPE}-{n_tokens}"
    kept = _kept(folder, n_tokens)
    if kept is not None:
        return kept
    run = make(n_tokens, (lambda done, what: None) if progress is None else progress)
    with suppress(OSError, ValueError):
        _keep(run, folder)
        kept = _kept(folder, n_tokens)
    return run if kept is None else kept


@torch.no_grad()
def make(n_tokens: int, progress: Progress) -> Run:
    """The run itself, in memory: two tensors of n_tokens x 64 for each head."""
    progress(0.0, "reading the text")
    ids, pieces = bundled_tokens(n_tokens)
    q, k = _queries_and_keys(ids)
    parts: list[Attended] = []
    stats = HeadStats.empty(len(HEADS))
    cells = n_tokens * (n_tokens + 1) / 2  # of the triangle that rows see
    for i0 in range(0, n_tokens, ROWS):
        progress(0.95 * i0 * (i0 + 1) / 2 / cells, f"attending, row {i0:,} of {n_tokens:,}")
        i1 = min(i0 + ROWS, n_tokens)
        rule = Rule(causal=True, scale=1.0, offset=i0)
        parts.append(attention(q[:, :, i0:i1], k[:, :, :i1], None, rule, distance=True))
        stats = stats.merge(HeadStats.of(parts[-1]))
    tensors = {name: torch.cat([getattr(a, name) for a in parts], dim=-1) for name in FIGURES}
    progress(0.95, "naming what heads do, checking weights")
    shape = (1, len(HEADS), len(HEADS), n_tokens, n_tokens, SIGNS)
    call = Call(
        module="textbook", index=0, layer=0, number=0, entry="by hand", shape=shape, Dv=0,
        rule=RULE, tensors=tensors | {"q": q, "k": k}, check=Check(0, 0.0, 0.0, "not yet"),
    )  # fmt: skip
    rows = sorted(random.Random(n_tokens).sample(range(n_tokens), min(CHECKED, n_tokens)))
    worst = max(_differences(call, ids, rows))
    call = Call(**{**vars(call), "check": Check(len(rows) * len(HEADS), worst, ALLOWED)})
    run = Run(
        "textbook", [("textbook", 0)], 1, [call], {0: stats}, {0: ids[None]}, pieces,
        _roles(call, ids), {"clearhead": __version__, "torch": str(torch.__version__)}, keep="qk",
        notes=[
            "No model: q and k are made by hand, so that every weight is known beforehand. "
            f"Replayed and compared are the weights of {len(rows)} rows of each head on all their "
            "keys, with what a formula in float64 that has no q and k says.",
            f"Roles are named from the first {min(NAMED, n_tokens):,} tokens.",
        ],
    )  # fmt: skip
    progress(1.0, "done")
    return run


# The text and its words ---------------------------------------------------------------------------


def bundled_tokens(n_tokens: int) -> tuple[Tensor, dict[int, str]]:
    """The first tokens of the bundled text, (n,) int64, over and over, and the text of each."""
    text = (Path(__file__).parent / "textbook.txt").read_text("utf-8")
    tokenizer = Tokenizer.from_json((BOX / "tiny-en" / "tokenizer.json").read_text("utf-8"))
    ids = list(islice(cycle(tokenizer.encode(text)), n_tokens))
    known = sorted(set(ids))
    return torch.tensor(ids), dict(zip(known, tokenizer.pieces(known), strict=True))


@cache
def token_words(n: int) -> Tensor:
    """n words of 64 bits, (n,) int64, any two of which differ in APART bits or more."""
    found: list[int] = []
    for word in _random_words("tokens"):
        if len(found) == n:
            break
        if all((word ^ other).bit_count() >= APART for other in found):
            found.append(word)
    return _signed(found)


def position_words(n: int) -> Tensor:
    """The words of the positions -1 to n - 2, (n,) int64: those of n - 1 keys and more are these
    and some behind them."""
    return _signed(list(islice(_random_words("positions"), n)))


def _random_words(seed: str) -> Iterator[int]:
    stream = random.Random(seed)
    while True:
        yield stream.getrandbits(SIGNS)


def _signed(words: list[int]) -> Tensor:
    half = 1 << (SIGNS - 1)
    return torch.tensor([(word ^ half) - half for word in words], dtype=torch.int64)


def _signs(words: Tensor) -> Tensor:
    """(n,) int64 as (n, 64) of +1 and -1."""
    bits = (words[:, None] >> torch.arange(SIGNS)) & 1
    return bits.float() * 2 - 1


def _frequencies() -> Tensor:
    """32 quantiles of a normal distribution of deviation 1 / WIDE, (32,) float64."""
    n = SIGNS // 2
    normal = NormalDist(0, 1 / WIDE)
    found = [normal.inv_cdf(0.5 + (m + 0.5) / (2 * n)) for m in range(n)]
    return torch.tensor(found, dtype=torch.float64)


def _queries_and_keys(ids: Tensor) -> tuple[Tensor, Tensor]:
    """(1, 6, n, 64) both, as the head of this file has them."""
    n, half = len(ids), SIGNS // 2
    q, k = torch.zeros(2, 1, len(HEADS), n, SIGNS)
    where, tokens = _signs(position_words(n + 1)), _signs(_words_of(ids))
    q[0, 0], k[0, 0] = where[:-1], where[1:] / 2
    q[0, 1, :, 0], k[0, 1, 0, 0] = FIRST, 1.0
    q[0, 2], k[0, 2] = tokens, tokens / 2
    # One sign less, whose place is taken by what brings every row to key 0.
    q[0, 3], k[0, 3, 1:] = tokens, tokens[:-1] / 2
    q[0, 3, :, -1], k[0, 3, :, -1] = 1.0, 0.0
    k[0, 3, 0] = 0.0
    k[0, 3, 0, -1] = REST
    angles = torch.arange(n).double()[:, None] * _frequencies()
    turned = torch.cat([angles.cos(), angles.sin()], dim=1) * math.sqrt(NARROW / half)
    q[0, 4] = k[0, 4] = turned.float()
    return q, k


def _words_of(ids: Tensor) -> Tensor:
    known, at = ids.unique(return_inverse=True)
    return token_words(len(known))[at]


# What is known ------------------------------------------------------------------------------------

_ONES = torch.tensor([byte.bit_count() for byte in range(256)], dtype=torch.uint8)


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """In how many bits words differ, (n,) float64."""
    found = _ONES[(a ^ b).view(torch.uint8).long()]
    return found.view(-1, SIGNS // 8).sum(dim=1).double()


def known_weights(head: str, ids: Tensor, i: int) -> Tensor:
    """The weights of row i on its keys 0 to i, (i + 1,) float64, without q and k.

    Of one of HEADS over the tokens ids. Raises ValueError for another name.
    """
    if head not in HEADS:
        raise ValueError(
            f"no head of the textbook is called {head!r}; there are {', '.join(HEADS)}"
        )
    half, scores = SIGNS / 2, torch.zeros(i + 1, dtype=torch.float64)
    if head == "previous token":
        where = position_words(i + 2)
        scores = half - _differ(where[i], where[1:])
    elif head == "first token":
        scores[0] = FIRST
    elif head == "same token":
        words = _words_of(ids)
        scores = half - _differ(words[i], words[: i + 1])
    elif head == "induction":
        words = _words_of(ids) & ((1 << (SIGNS - 1)) - 1)  # without the sign that is not theirs
        scores[1:] = half - 0.5 - _differ(words[i], words[:i])
        scores[0] = REST
    elif head == "local window":
        lags = i - torch.arange(i + 1).double()
        scores = NARROW * (lags[:, None] * _frequencies()).cos().mean(dim=1)
    return scores.softmax(dim=0)


def _differences(call: Call, ids: Tensor, rows: list[int]) -> Iterator[float]:
    """How far the weights of some rows of each head are from what is known, at most."""
    seen = call.map()
    for h, head in enumerate(HEADS):
        for i in rows:
            found = seen[0, h, i].double()
            found[: i + 1] -= known_weights(head, ids, i)
            yield float(found.abs().nan_to_num(nan=math.inf).max())


def _roles(call: Call, ids: Tensor) -> dict[str, dict[str, Any]]:
    """What each head does, by the evidence of the first rows."""
    n = min(NAMED, len(ids))
    few = {name: x[:, :, :n] for name, x in call.tensors.items()}
    amap = AttentionMap(few["q"], few["k"], RULE, few["lse"])
    found = name_roles(gather(amap, few, ids[None, :n]))
    return {
        f"0.{h}": {"role": role.name, "mass": role.mass, "uniform": role.uniform, "lag": role.lag,
                   "source": "text"}
        for h, role in enumerate(found)
    }  # fmt: skip


# On the disk --------------------------------------------------------------------------------------


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME", "")
    # Others are told to be ignored by the specification of these folders.
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "clearhead"


def _kept(folder: Path, n_tokens: int) -> Run | None:
    """The run that lies there, if it is whole: all is opened, and a few rows are checked."""
    try:
        run = load(folder)
        ids = run.tokens[0][0]
        (call,) = run.calls
        sound = len(ids) == n_tokens and run.stats[0].n_heads == len(HEADS)
        sound = sound and all(call.tensors[name].isfinite().all() for name in FIGURES)
        rows = sorted({*range(0, n_tokens, -(-n_tokens // AGAIN)), n_tokens - 1})
        return run if sound and max(_differences(call, ids, rows)) <= ALLOWED else None
    except (OSError, ValueError, KeyError, RuntimeError):
        return None


def _keep(run: Run, folder: Path) -> None:
    """Write it beside its place and move it there, unless another process was faster.

    Raises OSError. A folder that is there already and is whole stays; a damaged one goes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    aside = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        run.save(aside)
        if folder.exists() and _kept(folder, len(run.tokens[0][0])) is None:
            with suppress(FileNotFoundError):
                os.rename(folder, aside / "damaged")
        with suppress(FileExistsError, OSError):  # another process was faster
            os.rename(aside, folder)
        shutil.rmtree(folder / "damaged", ignore_errors=True)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed left half-written."""
    with suppress(OSError):
        for path in folder.parent.glob(f".{folder.name}-*"):
            if path.stat().st_mtime < folder.parent.stat().st_mtime - STALE:
                shutil.rmtree(path, ignore_errors=True)
