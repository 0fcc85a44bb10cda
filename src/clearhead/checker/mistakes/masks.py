"""Mistakes in who may look at whom, and in how a key is hidden."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead.checker import steps
from clearhead.checker.line import Changes, Mistake, Step, Work, nothing, one

MASK = r"mask|tril|triu|-?inf\b|1e9|1e-?4|finfo|where"


def _sees(of: str) -> Callable[[Callable[[Work, Tensor], Tensor]], Step]:
    """A step `see` with another reading of the mask that was given, of positions, or of both."""

    def make(other: Callable[[Work, Tensor], Tensor]) -> Step:
        def see(work: Work) -> None:
            B, T, S = work.p.sizes
            shape = (B, work.p.H, T, S)
            own, asked = steps.positional(work).expand(shape), steps.given(work)
            ruled, handed = work.p.causal or work.p.window is not None, work.p.mask is not None
            if of == "both" and (ruled or handed):
                work.visible = other(work, own & asked)
            elif of == "given" and handed:
                work.visible = own & other(work, asked)
            elif of == "positions" and ruled:
                work.visible = other(work, own) & asked
            else:
                work.visible = own & asked  # there is no mask that could be wrong

        return see

    return make


def _variants(other: Callable[[Work, Tensor], Tensor]) -> tuple[tuple[str, Changes], ...]:
    return (
        ("", {"see": _sees("both")(other)}),
        ("the causal mask alone", {"see": _sees("positions")(other)}),
        ("the mask that is handed over alone", {"see": _sees("given")(other)}),
    )


def _inverted(work: Work, sees: Tensor) -> Tensor:
    return ~sees


def _inverted_of(keys: bool) -> Callable[[Work, Tensor], Tensor]:
    """Of two masks the one: of keys, which has one row for all queries, or of pairs."""

    return lambda work, sees: ~sees if (work.p.mask.shape[-2] == 1) == keys else sees


def _all(work: Work, sees: Tensor) -> Tensor:
    return torch.ones_like(sees)


def _laid_on_queries(work: Work, sees: Tensor) -> Tensor:
    return sees if bool(sees.all()) else sees.mT


def _forward(work: Work) -> None:
    """The causal mask turned round by hand, which differs from the transposed one if T != S."""
    p, ahead = work.p, -steps.back(work)
    if not p.causal:
        steps.see(work)
        return
    sees = ahead >= 0
    if p.window is not None:
        sees = sees & (ahead < p.window)
    work.visible = sees & steps.given(work)


def _first_head(work: Work, sees: Tensor) -> Tensor:
    return torch.cat((sees[:, :1], torch.ones_like(sees[:, 1:])), dim=1)


def _first_of_batch(work: Work, sees: Tensor) -> Tensor:
    return torch.cat((sees[:1], torch.ones_like(sees[1:])))


def _of_first_for_all(work: Work, sees: Tensor) -> Tensor:
    return sees[:1].expand_as(sees)


def _repeated(work: Work, sees: Tensor) -> Tensor:
    """Element b, head h reads the mask of element (b H + h) mod B, as mask.repeat(H) lays it."""
    B, H = sees.shape[:2]
    return sees[:, 0].repeat(H, 1, 1).view(B, H, *sees.shape[2:])


def _lost_unequal(work: Work, sees: Tensor) -> Tensor:
    return sees if work.p.sizes[1] == work.p.sizes[2] else torch.ones_like(sees)


def _shifted(by: int) -> Step:
    def see(work: Work) -> None:
        work.visible = steps.positional(work, causal_by=by) & steps.given(work)

    return see


def _closed(work: Work) -> None:
    if not work.p.open:
        raise LookupError("nobody said that the future must be seen")
    work.visible = steps.positional(Work(p=work.p.but(causal=True))) & steps.given(work)


def _other_end(work: Work) -> None:
    work.p = work.p.but(align="start" if work.p.align == "end" else "end")
    steps.see(work)


def _filled(value: float) -> Step:
    def hide(work: Work) -> None:
        work.scores = work.scores.masked_fill(~work.visible, value)

    return hide


def _lowered(value: float) -> Step:
    def hide(work: Work) -> None:
        work.scores = work.scores - value * (~work.visible).double()

    return hide


def _nan(work: Work) -> None:
    handed = work.p.mask is not None or work.p.causal
    work.scores = work.scores * math.nan if handed else work.scores


def _bias_scaled(work: Work) -> None:
    p = work.p
    work.p = p if p.bias is None else p.but(bias=p.bias * steps.factor(work))
    steps.lean(work)
    work.p = p


def _added(work: Work) -> None:
    work.scores = work.scores + work.visible


def _subtracted(work: Work) -> None:
    work.scores = work.scores - work.visible.double()


def _after(renormalized: bool) -> Step:
    def after(work: Work) -> None:
        weights = work.weights.float() * work.visible
        if renormalized:  # in float32, where a much larger hidden score leaves 0 / 0
            weights = weights / weights.sum(dim=-1, keepdim=True)
        work.weights = weights.double()

    return after


MASKS = (
    Mistake(
        "mask-inverted", "mask",
        "the mask is inverted: it hides what may be seen and shows the rest",
        "With a causal mask each position sees its future and nothing else: the loss falls fast, "
        "because the answer can be read off, and the model can generate nothing. With a padding "
        "mask the texts are ignored and the padding is read.",
        "hide where the mask is False: scores.masked_fill(~mask, -inf)",
        (*_variants(_inverted),
         ("the mask of keys alone", {"see": _sees("given")(_inverted_of(keys=True))}),
         ("the mask of pairs alone", {"see": _sees("given")(_inverted_of(keys=False))})),
        look=MASK,
    ),
    Mistake(
        "mask-future-one", "mask", "each query sees one key of the future",
        "The next token is the very one that is to be predicted: the loss falls to near 0 in "
        "training, and the model can generate nothing.",
        "j <= i: torch.tril(ones) with diagonal=0, torch.triu with diagonal=1 for what is hidden",
        one(see=_shifted(1)), look=MASK + "|diagonal",
    ),
    Mistake(
        "mask-past-one", "mask", "no query sees its own key",
        "Nobody can look at their own position, and the first sees nothing at all, which makes NaN "
        "or an average of everything.",
        "j <= i: torch.tril(ones) with diagonal=0, torch.triu with diagonal=1 for what is hidden",
        one(see=_shifted(-1)), look=MASK + "|diagonal",
    ),
    Mistake(
        "mask-missing", "mask", "there is no mask",
        "Every query sees every key: a causal model reads the answer off its future.",
        "scores = scores.masked_fill(~visible, -inf) before the softmax",
        _variants(_all), look=MASK + "|causal",
    ),
    Mistake(
        "mask-transposed", "mask", "the mask is laid on queries instead of keys",
        "Rows and columns are exchanged: a causal mask shows the future and hides the past; a "
        "padding mask silences the padded queries and leaves their keys in everybody's sums.",
        "the last axis of the mask is that of the keys: mask[:, None, None, :] for padding, tril "
        "for causal",
        (*_variants(_laid_on_queries), ("towards the future", {"see": _forward})), look=MASK,
    ),
    Mistake(
        "mask-zero-score", "mask", "hidden scores are set to 0, not to -inf",
        "exp(0) is 1: a hidden key gets as much as one with an average score.",
        "scores.masked_fill(~visible, -inf)",
        one(hide=_filled(0.0)), also=("the scores are multiplied by the mask",), look=MASK,
    ),
    Mistake(
        "mask-nan", "mask", "the mask makes NaN of everything",
        "0 * inf is NaN: so is the loss, from the first step on.",
        "scores.masked_fill(~visible, -inf), or torch.where: no product with infinity",
        one(hide=_nan), look=MASK + "|inf",
    ),
    Mistake(
        "bias-scaled", "mask", "what is added to the scores is divided by sqrt(d_head) with them",
        "A bias, of ALiBi or of relative positions, has sqrt(d_head) times too little say.",
        "scale the product of q and k, then add",
        one(lean=_bias_scaled), look=MASK + "|bias|scal|sqrt",
    ),
    Mistake(
        "mask-added", "mask", "the mask of ones and zeros is added to the scores",
        "A key that may be seen gets e times the weight of one that may not, and that is all.",
        "add 0 and -inf, or fill: scores.masked_fill(~visible, -inf)",
        (("", {"hide": _added}), ("subtracted", {"hide": _subtracted})), look=MASK,
    ),
    Mistake(
        "mask-not-low", "mask", "hidden scores are set to a number that is not low enough",
        "As soon as the visible scores of a row are lower, the hidden keys take over.",
        "use -inf, or the lowest number of the dtype: torch.finfo(scores.dtype).min",
        (*((f"about {-value:g}", {"hide": _filled(-value)})
           for value in (1.0, 2.0, 5.0, 9.0, 10.0, 20.0, 50.0, 100.0, 1000.0)),
         *((f"about {-value:g}, added", {"hide": _lowered(value)})
           for value in (2.0, 5.0, 9.0, 10.0, 20.0, 50.0, 100.0, 1000.0))),
        look=MASK,
    ),
    Mistake(
        "mask-after-softmax", "mask", "the weights are masked after the softmax, not the scores",
        "Rows no longer sum to 1: the hidden keys have taken their share, so that a position tells "
        "of its future by what is missing.",
        "mask the scores with -inf before the softmax",
        one(hide=nothing, after=_after(renormalized=False)), look=MASK + "|softmax",
    ),
    Mistake(
        "mask-after-softmax-renormalized", "mask",
        "the weights are masked after the softmax and divided by their sum",
        "It is the same until a hidden score is about 100 above the visible ones: their weights "
        "are 0 then, and 0 / 0 is NaN.",
        "mask the scores with -inf before the softmax",
        one(hide=nothing, after=_after(renormalized=True)), look=MASK + "|softmax|sum",
    ),
    Mistake(
        "mask-first-head", "mask", "only the first head is masked",
        "All other heads see everything.",
        "a mask needs an axis of size 1 for the heads: mask[:, None]",
        _variants(_first_head), look=MASK,
    ),
    Mistake(
        "mask-first-batch", "mask", "only the first element of the batch is masked",
        "All other texts are read unmasked, which a test with one text never shows.",
        "a mask needs an axis of size 1 for the batch, or one row for each element",
        _variants(_first_of_batch), look=MASK,
    ),
    Mistake(
        "mask-other-batch", "mask", "elements of the batch read each other's masks",
        "Padding of one text hides words of another.",
        "repeat_interleave a mask over the heads of (B * H, T, S), or give it an axis of heads",
        (
            ("repeated in the order of the heads",
             {"see": _sees("given")(_repeated)}),
            ("the first one's for all", {"see": _sees("given")(_of_first_for_all)}),
        ),
        look=MASK + "|repeat",
    ),
    Mistake(
        "mask-lost-unequal", "mask", "the mask is lost where there are more keys than queries",
        "With a cache, in decoding, nobody is hidden any more: results differ from those of one "
        "pass over the whole text.",
        "build the mask from both lengths: j <= i + (S - T)",
        _variants(_lost_unequal), look=MASK + "|shape|size",
    ),
    Mistake(
        "mask-causal", "mask", "the future is hidden, though it should be seen",
        "An encoder that cannot look ahead knows only half of each sentence.",
        "leave the causal mask out, or make it a choice of the caller",
        one(see=_closed), look=MASK + "|causal",
    ),
    Mistake(
        "mask-other-end", "mask",
        "with fewer queries than keys the causal mask is aligned otherwise",
        "Top-left lets the last query see T keys, as if the cache were not there; bottom-right "
        "lets it see all.",
        "with a cache, j <= i + (S - T); torch's is_causal means j <= i",
        one(see=_other_end), look=MASK + "|diagonal",
    ),
)  # fmt: skip


# The window -----------------------------------------------------------------------------------


def _window_by(by: int) -> Step:
    def see(work: Work) -> None:
        work.visible = steps.positional(work, window_by=by) & steps.given(work)

    return see


def _window_missing(work: Work) -> None:
    work.p = work.p.but(window=None)
    steps.see(work)


def _both_sides(work: Work) -> None:
    window, far = work.p.window, steps.back(work).abs()
    if window is None:
        steps.see(work)
    else:
        work.visible = (far < window) & steps.given(work)


WINDOWS = (
    Mistake(
        "window-one-more", "window", "a window of W shows W + 1 keys",
        "One key more than in training, in every layer: with weights trained otherwise each row is "
        "a little off, and a cache of W entries is one short.",
        "i - j < W, the query's own key included",
        one(see=_window_by(1)), look=MASK + "|window",
    ),
    Mistake(
        "window-one-less", "window", "a window of W shows W - 1 keys",
        "The farthest key of each window is lost.",
        "i - j < W, the query's own key included",
        one(see=_window_by(-1)), look=MASK + "|window",
    ),
    Mistake(
        "window-missing", "window", "there is no window",
        "Long texts are seen whole, which the weights were never trained for.",
        "hide keys with i - j >= W",
        one(see=_window_missing), look=MASK + "|window",
    ),
    Mistake(
        "window-both-sides", "window", "the window reaches into the future",
        "Each query sees W - 1 keys that are still to be predicted.",
        "0 <= i - j < W",
        one(see=_both_sides), look=MASK + "|window|abs",
    ),
)  # fmt: skip

MISTAKES = (*MASKS, *WINDOWS)
