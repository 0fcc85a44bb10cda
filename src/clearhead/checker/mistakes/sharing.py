"""Mistakes where several query heads share a key head."""

from collections.abc import Callable

from torch import Tensor

from clearhead.checker.line import Mistake, Step, Work, one


def _expand_by(order: Callable[[Tensor, int], Tensor], always: bool = False) -> Step:
    def expand(work: Work) -> None:
        n = work.p.H // work.p.G
        if n > 1 or always:
            work.k, work.v = order(work.k, n), order(work.v, n)

    return expand


def _flipped(shared: Tensor, n: int) -> Tensor:
    return shared.flip(1).repeat_interleave(n, dim=1)


def _first(shared: Tensor, n: int) -> Tensor:
    return shared[:, :1].expand(-1, shared.shape[1] * n, -1, -1)


def _along_tokens(shared: Tensor, n: int) -> Tensor:
    B, G, S, D = shared.shape
    return shared.repeat_interleave(n, dim=2).reshape(B, G * n, S, D)


MISTAKES = (
    Mistake(
        "gqa-tiled", "shared key heads", "key heads are tiled instead of repeated one by one",
        "Query head h reads key head h mod G: with weights that were trained grouped each head "
        "looks with another's keys.",
        "k.repeat_interleave(H // G, dim=1), not k.repeat",
        one(expand=_expand_by(lambda a, n: a.repeat(1, n, 1, 1))), look="repeat|expand|tile",
    ),
    Mistake(
        "gqa-reversed", "shared key heads", "key heads are read in reverse order",
        "Each group of query heads reads the keys of another group.",
        "query head h reads key head h // (H / G)",
        (("", {"expand": _expand_by(_flipped)}),
         ("without sharing too", {"expand": _expand_by(_flipped, always=True)})),
        look="repeat|expand|flip|::-1",
    ),
    Mistake(
        "gqa-first-only", "shared key heads", "all query heads read the first key head",
        "All other key heads are never read nor trained.",
        "k.repeat_interleave(H // G, dim=1)",
        (("", {"expand": _expand_by(_first)}),
         ("without sharing too", {"expand": _expand_by(_first, always=True)})),
        look="repeat|expand",
    ),
    Mistake(
        "gqa-wrong-axis", "shared key heads", "keys are repeated along the tokens, not the heads",
        "A head gets each second token twice and the other half of them never.",
        "k.repeat_interleave(H // G, dim=1): the axis of heads",
        one(expand=_expand_by(_along_tokens)), look="repeat|expand",
    ),
)  # fmt: skip
