"""Mistakes in what builds a mask: the triangle, the band, and what they are written with."""

import torch

from clearhead.checker import lines
from clearhead.checker.line import Changes, Mistake, Step, Work, one
from clearhead.checker.problem import Problem

TRIANGLE = r"tri[lu]|diagonal|<|>|arange|range"
BAND = r"window|<|>|tri[lu]|diagonal|range|max"


def _shifted(by: int) -> Step:
    """The future begins so many keys later."""

    def causal(work: Work) -> None:
        work.past = lines.lag(work) >= -by

    return causal


def _all(work: Work) -> None:
    work.past = torch.ones_like(lines.lag(work), dtype=torch.bool)


def _other_end(work: Work) -> None:
    work.past = lines.lag(work, "start" if work.p.align == "end" else "end") >= 0


def _wider(by: int) -> Step:
    def near(work: Work) -> None:
        work.near = lines.lag(work) < _window(work) + by

    return near


def _window(work: Work) -> int:
    if work.p.window is None:
        return 10**9
    return int(work.p.window)


def _no_window(work: Work) -> None:
    work.near = torch.ones_like(lines.lag(work), dtype=torch.bool)


def _far(work: Work) -> None:
    lines.near(work)
    if work.p.window is not None:
        work.near = ~work.near


def _both_sides(by: int = 0) -> Changes:
    def near(work: Work) -> None:
        if work.p.window is None:
            lines.causal(work)
        work.near = lines.lag(work).abs() < _window(work) + by

    def causal(work: Work) -> None:
        if work.p.window is None:
            lines.causal(work)
        else:
            _all(work)

    return {"causal": causal, "near": near}


def _either(work: Work) -> None:
    if work.p.window is None:
        raise LookupError("there is no window")
    work.sees = work.past | work.near


def _inverted(work: Work) -> None:
    work.out = (~work.sees).double()


def _transposed(work: Work) -> None:
    """As for keys and queries exchanged."""
    p: Problem = work.p
    other = lines.MASK.run(p.but(q=p.k, k=p.q), {})
    work.out = other.sees.mT.double()


def _own_only(work: Work) -> None:
    work.past = lines.lag(work) == 0


MISTAKES = (
    Mistake(
        "mask-inverted", "mask: values", "it says the opposite: visible and hidden are exchanged",
        "Whoever reads True as may look sees the future and nothing else, and the last query sees "
        "nothing. If True is meant to hide, as nn.MultiheadAttention has it, say so.",
        "torch.ones(T, T, dtype=torch.bool).tril(): True where a query may look",
        one(tell=_inverted), look=TRIANGLE + "|~|==|not",
    ),
    Mistake(
        "mask-future-one", "mask: triangle", "every query sees the future",
        "The next token is in plain sight: the loss falls to nothing, and copying is learned.",
        "j <= i: tril() without a diagonal, or triu(diagonal=1) for what is hidden",
        (("one key too many", {"causal": _shifted(1)}),
         ("two keys too many", {"causal": _shifted(2)})),
        look=TRIANGLE,
    ),
    Mistake(
        "mask-past-one", "mask: triangle", "a query does not see itself",
        "The first query sees nothing (NaN, or the mean of everything), and each other one only "
        "what was before it.",
        "j <= i: tril() without a diagonal, or triu(diagonal=1) for what is hidden",
        (("its own key is hidden", {"causal": _shifted(-1)}),
         ("its own key and the one before are hidden", {"causal": _shifted(-2)})),
        look=TRIANGLE,
    ),
    Mistake(
        "mask-transposed", "mask: values", "rows and columns are exchanged",
        "Each query sees itself and the future, where it should see itself and the past.",
        "queries are rows and keys columns: tril(), not triu()",
        one(tell=_transposed), look=TRIANGLE,
    ),
    Mistake(
        "mask-missing", "mask: triangle", "nothing of the future is hidden",
        "The next token is in plain sight: the loss falls to nothing, and copying is learned.",
        "torch.ones(T, T, dtype=torch.bool).tril()",
        one(causal=_all), look=TRIANGLE + "|ones|zeros",
    ),
    Mistake(
        "mask-aligned", "mask: triangle",
        "the triangle begins at the other end if there are more keys",
        "With a cache of S - T keys, a decoded token sees the first keys only, or too many.",
        "tril(diagonal=S - T): the last query sees all keys",
        one(causal=_other_end), look=TRIANGLE,
    ),
    Mistake(
        "mask-diagonal", "mask: triangle", "a query sees itself alone",
        "Nothing is ever looked at: the output is the token's own value.",
        "torch.ones(T, T, dtype=torch.bool).tril()",
        one(causal=_own_only), look=TRIANGLE + "|eye",
    ),
    Mistake(
        "window-one-more", "mask: window", "a window of W lets W + 1 keys through",
        "Each query sees one key more than it should; a cache of W keys is one too small.",
        "i - j < W: W keys, the query's own included",
        one(near=_wider(1)), look=BAND,
    ),
    Mistake(
        "window-one-less", "mask: window", "a window of W lets W - 1 keys through",
        "Each query sees one key less than it should; a window of 1 sees nothing.",
        "i - j < W: W keys, the query's own included",
        one(near=_wider(-1)), look=BAND,
    ),
    Mistake(
        "window-missing", "mask: window", "the window is accepted and ignored",
        "Every query sees all of the past.",
        "(j <= i) & (i - j < W)",
        one(near=_no_window), look=BAND,
    ),
    Mistake(
        "window-both-sides", "mask: window", "the window reaches into the future as well",
        "The next tokens are in plain sight.",
        "(j <= i) & (i - j < W)",
        (("W - 1 keys on both sides", _both_sides()), ("W keys on both sides", _both_sides(1))),
        look=BAND + "|abs",
    ),
    Mistake(
        "window-inverted", "mask: window", "the window hides what is near, and shows what is far",
        "Each query sees only keys that are W or more behind it.",
        "(j <= i) & (i - j < W)",
        one(near=_far), look=BAND,
    ),
    Mistake(
        "window-or-causal", "mask: window", "causal or near, where it should be both",
        "The past is seen whatever the window says.",
        "(j <= i) & (i - j < W)",
        one(join=_either), look=r"\||or",
    ),
)  # fmt: skip

NOT_LOW = Mistake(
    "mask-not-low", "mask: values", "hidden with a number that is not low enough",
    "A hidden key whose score is larger by as much is seen all the same.",
    "-inf, or torch.finfo(dtype).min",
    look=r"-?\d|inf|fill|full",
)  # fmt: skip
ADDED = Mistake(
    "mask-added", "mask: values", "a mask that is to be added holds 1 and 0",
    "Added to the scores it hides nothing: what is seen gets e times the weight, no more.",
    "0 where a query may look and -inf where not: zeros(T, T).masked_fill(~visible, -inf)",
    look=r"ones|float|to\(|type|astype|return",
)  # fmt: skip
NAN = Mistake(
    "mask-nan", "mask: values", "NaN in the mask",
    "0 * -inf is NaN: one of them makes a whole row of weights NaN.",
    "zeros(T, T).masked_fill(~visible, -inf); do not multiply by -inf",
    look=r"inf|\*",
)  # fmt: skip
