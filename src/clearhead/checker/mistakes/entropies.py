"""Mistakes in the entropy of a row of weights."""

import math
from typing import cast

import torch

from clearhead.checker.line import Mistake, Step, Work, one

LOG = r"log|entr"
SUM = r"sum|mean|dim|axis|einsum"


def _unit(factor: float) -> Step:
    def unit(work: Work) -> None:
        work.entropy = work.entropy * factor

    return unit


def _exponential(work: Work) -> None:
    work.entropy = work.entropy.exp()


def _along(axis: int) -> Step:
    def reduce(work: Work) -> None:
        if work.terms.ndim < -axis:
            raise LookupError("there is no such axis")
        work.entropy = work.terms.sum(dim=axis)

    return reduce


def _mean(work: Work) -> None:
    work.entropy = work.terms.mean(dim=-1)


def _mean_of_seen(work: Work) -> None:
    seen = (work.weights > 0).sum(dim=-1)
    work.entropy = work.terms.sum(dim=-1) / seen


def _everything(axes: int) -> Step:
    def pool(work: Work) -> None:
        if work.entropy.ndim < axes:
            raise LookupError("there is no such axis")
        work.out = work.entropy.sum(dim=tuple(range(-axes, 0)))

    return pool


def _again(work: Work) -> None:
    work.weights = work.p.p.softmax(dim=-1)


def _again_over_queries(work: Work) -> None:
    work.weights = work.p.p.softmax(dim=-2)


def _rowless(work: Work) -> None:
    work.weights = work.p.p / work.p.p.sum(dim=(-2, -1), keepdim=True)


def _bare_log(work: Work) -> None:
    work.logs = work.weights.log()  # -inf, and 0 times that is NaN


def _unweighted(work: Work) -> None:
    work.terms = -work.logs


def _other_weighting(work: Work) -> None:
    work.terms = -work.weights.log()


def _shared(by: str) -> Step:
    def share(work: Work) -> None:
        p = work.weights
        if by == "visible":
            n = (
                (p > 0).sum(dim=-1).double().clamp(min=2)
            )  # a single key: 0, whatever it is divided by
        else:
            n = torch.tensor(float(p.shape[-1 if by == "keys" else -2])).double()
        work.entropy = work.entropy / n.log()

    return share


def _gini(work: Work) -> None:
    work.entropy = 1 - (work.weights**2).sum(dim=-1)


def _collision(work: Work) -> None:
    work.entropy = -(work.weights**2).sum(dim=-1).log()


def _surprise(work: Work) -> None:
    work.entropy = -work.weights.amax(dim=-1).log()


def with_epsilon(eps: float, form: str) -> dict[str, Step]:
    """The steps of an entropy that adds `eps` in one of three places."""

    def inside(work: Work) -> None:
        work.logs = (work.weights + eps).log()

    def clamped(work: Work) -> None:
        work.logs = work.weights.clamp(min=eps).log()

    def both(work: Work) -> None:
        work.terms = -(work.weights + eps) * (work.weights + eps).log()

    def both_clamped(work: Work) -> None:
        p = work.weights.clamp(min=eps)
        work.terms = -p * p.log()

    steps = {
        "log(p + eps)": {"log": inside},
        "log(max(p, eps))": {"log": clamped},
        "(p + eps) log(p + eps)": {"term": both},
        "max(p, eps) log(max(p, eps))": {"term": both_clamped},
    }
    return cast("dict[str, Step]", steps[form])


FORMS = ("log(p + eps)", "log(max(p, eps))", "(p + eps) log(p + eps)",
         "max(p, eps) log(max(p, eps))")  # fmt: skip

EPSILON = Mistake(
    "entropy-epsilon", "entropy: zeros", "a small number in the logarithm changes the entropy",
    "Every visible weight is counted as larger than it is: the entropy of many keys comes out too "
    "low, by about eps times their number, and hidden keys may count.",
    "torch.special.entr(p), torch.xlogy(p, p), or log of torch.where(p > 0, p, 1)",
    look=r"eps|1e-|log|clip|clamp",
)  # fmt: skip


MISTAKES = (
    Mistake(
        "entropy-log2", "entropy: unit", "the entropy is in bits, not in nats",
        "Numbers are 1.4427 times those in nats: uniform over n keys gives log2(n), not ln(n).",
        "torch.log, not torch.log2 (or say that it is in bits)",
        one(unit=_unit(1 / math.log(2))), look=LOG,
    ),
    Mistake(
        "entropy-log10", "entropy: unit", "the logarithm has base 10",
        "Numbers are 0.4343 times those in nats.",
        "torch.log, not torch.log10",
        one(unit=_unit(1 / math.log(10))), look=LOG,
    ),
    Mistake(
        "entropy-sign", "entropy: sign", "the minus is missing",
        "Entropies are negative: sharp heads look diffuse, and the other way round.",
        "-(p * log p).sum(-1)",
        one(share=_unit(-1.0)), look=LOG + "|sum|return",
    ),
    Mistake(
        "entropy-nan", "entropy: zeros", "NaN where a weight is 0",
        "0 * log 0 is 0 * -inf, which is NaN: all rows of a causal map but the last are lost.",
        "torch.special.entr(p), torch.xlogy(p, p), or log of torch.where(p > 0, p, 1)",
        one(log=_bare_log), look=LOG,
    ),
    Mistake(
        "entropy-axis", "entropy: axis", "the sum runs over the queries, not over the keys",
        "A column of a map is no distribution: what comes out is the entropy of nothing.",
        "sum over the last axis: dim=-1",
        one(reduce=_along(-2)), look=SUM,
    ),
    Mistake(
        "entropy-over-heads", "entropy: axis", "the sum runs over the heads, not over the keys",
        "What comes out is the entropy of nothing.",
        "sum over the last axis: dim=-1",
        (("heads", {"reduce": _along(-3)}), ("batch", {"reduce": _along(-4)})), look=SUM,
    ),
    Mistake(
        "entropy-mean", "entropy: axis", "the mean over the keys instead of their sum",
        "Entropies are too small by the number of keys, and rows of other lengths do not compare.",
        "-(p * log p).sum(-1)",
        (("", {"reduce": _mean}), ("over the keys that are seen", {"reduce": _mean_of_seen})),
        look=SUM,
    ),
    Mistake(
        "entropy-future", "entropy: weights", "the weights are taken as logits: softmax once more",
        "Hidden keys, the future's too, get a weight again, and every row looks nearly uniform.",
        "use the weights as they are; a softmax belongs to scores",
        (("", {"take": _again}), ("over the queries", {"take": _again_over_queries})),
        look="softmax|Categorical|logits",
    ),
    Mistake(
        "entropy-rescaled", "entropy: weights", "the weights are divided by the sum of a whole map",
        "Each row's weights sum to 1 already; divided by the sum of all rows they are none.",
        "use the weights as they are",
        one(take=_rowless), look="sum|/",
    ),
    Mistake(
        "entropy-normalized", "entropy: share",
        "the entropy is divided by the logarithm of a number",
        "What comes out is a share of the largest entropy, not nats: rows of other lengths do not "
        "compare with each other, nor with other people's numbers.",
        "leave the division out, or call it normalized",
        (
            ("of keys", {"share": _shared("keys")}),
            ("of queries", {"share": _shared("queries")}),
            ("of visible keys", {"share": _shared("visible")}),
        ),
        look=r"log|/",
    ),
    Mistake(
        "entropy-unweighted", "entropy: terms", "the logarithms are not weighted by the weights",
        "Keys that get nothing count most; with a weight of 0 it is infinite.",
        "-(p * log p).sum(-1)",
        (("", {"term": _other_weighting}), ("zeros left out", {"term": _unweighted})), look=LOG,
    ),
    Mistake(
        "entropy-exponential", "entropy: share", "exp(H), the perplexity, instead of H",
        "What comes out is a number of keys, not nats.",
        "leave the exponential out, or call it perplexity",
        one(share=_exponential), look="exp",
    ),
    Mistake(
        "entropy-other", "entropy: terms", "it is another measure of spread than Shannon's entropy",
        "It rises and falls with the entropy, but is not in nats, and does not add up as it does.",
        "-(p * log p).sum(-1)",
        (
            ("1 - sum of p^2", {"reduce": _gini}),
            ("-log of the sum of p^2", {"reduce": _collision}),
            ("-log of the largest weight", {"reduce": _surprise}),
        ),
        look=r"\*\*|square|pow|max|sum",
    ),
    Mistake(
        "entropy-summed", "entropy: rows", "the entropies of all rows are added up",
        "Longer texts get larger numbers.",
        "return each row's, or their mean",
        (("rows", {"pool": _everything(1)}), ("rows and heads", {"pool": _everything(2)}),
         ("everything", {"pool": _everything(3)})),
        look=SUM,
    ),
)  # fmt: skip
