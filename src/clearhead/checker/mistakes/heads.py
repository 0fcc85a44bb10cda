"""Mistakes on the way to the heads and back: projections, split, merge, output."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from clearhead.checker import steps
from clearhead.checker.line import Mistake, Step, Work, nothing, one

SPLIT = r"view|reshape|transpose|permute|rearrange|swapaxes"
MERGE = (  # where no count of heads is but in a product
    r"^(?!.*\b(n_?heads?|num_heads|heads?|H|h)\b(?! ?\*))"
    r".*(view|reshape|flatten|rearrange|cat\()"
)
PROJECT = r"W_?[qkvQKV]|[qkv]_proj|query|key|value|qkv|@|matmul|einsum|Linear"
OUTPUT = r"W_?[oO]\b|out_proj|o_proj|c_proj|to_out|proj"


# Splitting and merging ------------------------------------------------------------------------


def _split_by(cut: Callable[[Tensor, int], Tensor]) -> Step:
    def split(work: Work) -> None:
        p = work.p
        if p.x is None:
            return
        work.q, work.k, work.v = cut(work.q, p.H), cut(work.k, p.G), cut(work.v, p.G)

    return split


def _viewed(joined: Tensor, H: int) -> Tensor:
    B, T, width = joined.shape
    return joined.reshape(B, H, T, width // H)


def _interleaved(joined: Tensor, H: int) -> Tensor:
    B, T, width = joined.shape
    return joined.reshape(B, T, width // H, H).permute(0, 3, 1, 2)


def _not_transposed(joined: Tensor, H: int) -> Tensor:
    B, T, width = joined.shape
    return joined.reshape(B, T, H, width // H)  # the heads stand where the tokens should


def _merge_viewed(work: Work) -> None:
    heads = work.heads
    B, _, T, _ = heads.shape
    work.out = heads.reshape(B, T, -1) if work.p.x is not None else heads


def _merge_interleaved(work: Work) -> None:
    heads = work.heads
    B, _, T, _ = heads.shape
    work.out = heads.permute(0, 2, 3, 1).reshape(B, T, -1) if work.p.x is not None else heads


def _see_all_heads(work: Work) -> None:
    work.visible = torch.ones(work.p.H, work.k.shape[2], dtype=torch.bool)


def _see_heads_before(work: Work) -> None:
    _see_all_heads(work)
    work.visible = work.visible.tril()


def _no_output(work: Work) -> None:
    if work.p.W is None or work.p.W.o is None:
        raise LookupError("there is no output projection")


def _output_transposed(work: Work) -> None:
    W = work.p.W
    if W is None or W.o is None:
        raise LookupError("there is no output projection")
    work.out = work.out @ W.o.mT
    if W.biases is not None:
        work.out = work.out + W.biases[3]


def _averaged(work: Work) -> None:
    work.weights = work.weights.mean(dim=1, keepdim=True).expand_as(work.weights)


def _first_only(work: Work) -> None:
    work.weights = work.weights[:, :1].expand_as(work.weights)


def _merge_across(work: Work) -> None:
    heads = work.heads  # (B, T, H, d_head), as it was split
    work.out = heads.transpose(1, 2) if work.p.x is None else heads.flatten(2)


def _merge_across_transposed(work: Work) -> None:
    B, T = work.heads.shape[:2]
    if work.p.x is None:
        raise LookupError("the heads are merged by the caller")
    work.out = work.heads.transpose(1, 2).reshape(B, T, -1)


def _split_across(work: Work) -> None:
    if work.p.x is None:
        work.q, work.k, work.v = (a.transpose(1, 2) for a in (work.q, work.k, work.v))
    else:
        _split_by(_not_transposed)(work)


_ACROSS = {"split": _split_across, "expand": nothing, "see": _see_all_heads}


def _folded(heads_first: bool) -> Step:
    """The axes of texts and heads as one, and apart again in the other order."""

    def merge(work: Work) -> None:
        B, H = work.heads.shape[:2]
        if heads_first:
            work.heads = work.heads.transpose(0, 1).flatten(0, 1).unflatten(0, (B, H))
        else:
            work.heads = work.heads.flatten(0, 1).unflatten(0, (H, B)).transpose(0, 1)
        steps.merge(work)

    return merge


HEADS = (
    Mistake(
        "heads-view", "heads", "heads are split by view alone, without the transpose",
        "The shape is right and the content is not: a head gets a run of tokens instead of its "
        "slice of each, and the mask hides nothing that it should.",
        "x.view(B, T, H, d_head).transpose(1, 2)",
        one(split=_split_by(_viewed)),
        also=("heads mixed into the batch: view(B * H, T, d_head)",), look=SPLIT,
    ),
    Mistake(
        "heads-into-batch", "heads", "texts and heads are folded in one order, unfolded in another",
        "With more than one text a text gets heads of others: the output depends on who is "
        "beside it in the batch. A batch of one shows nothing.",
        "fold and unfold alike: (B * n_heads, T, d_head) comes back as view(B, n_heads, ...)",
        (("texts first, read as heads first", {"merge": _folded(heads_first=False)}),
         ("heads first, read as texts first", {"merge": _folded(heads_first=True)})),
        look=r"view|reshape|cat|chunk|repeat",
    ),
    Mistake(
        "merge-view", "heads", "heads are merged without transposing back",
        "A token gets pieces of other tokens' outputs, the future's among them.",
        "heads and tokens change places before the merge: heads.transpose(-3, -2).reshape(..., T, "
        "H * d_head)",
        one(merge=_merge_viewed), look=MERGE,
    ),
    Mistake(
        "heads-interleaved", "heads", "a head gets every H-th number instead of a run of them",
        "Trained from scratch it works as well; trained weights do not fit.",
        "x.view(B, T, H, d_head): the heads come before the numbers of a head",
        one(split=_split_by(_interleaved)), look=SPLIT,
    ),
    Mistake(
        "merge-interleaved", "heads", "heads are merged number by number instead of side by side",
        "The output projection reads each number in another place: trained weights do not fit.",
        "heads.transpose(1, 2).reshape(B, T, H * d_head)",
        one(merge=_merge_interleaved), look=MERGE,
    ),
    Mistake(
        "heads-attend-heads", "heads",
        "the heads of a token attend to each other, not tokens to tokens",
        "No token ever looks at another one: the axis of heads stands where that of tokens should.",
        "transpose(1, 2) before the product: (B, H, T, d_head)",
        (
            ("", {**_ACROSS, "merge": _merge_across}),
            ("and transposed on the way back", {**_ACROSS, "merge": _merge_across_transposed}),
            ("with a mask over the heads",
             {**_ACROSS, "merge": _merge_across, "see": _see_heads_before}),
        ),
        look=SPLIT,
    ),
    Mistake(
        "output-missing", "heads", "there is no output projection",
        "The heads' outputs lie side by side and are never mixed.",
        "return joined @ W_O",
        one(output=_no_output), look=OUTPUT + "|return",
    ),
    Mistake(
        "output-transposed", "heads", "the output projection is transposed",
        "The matrix is read along the wrong axis: trained weights do not fit.",
        "joined @ W_O; with nn.Linear's own weight, joined @ weight.T",
        one(output=_output_transposed), look=OUTPUT,
    ),
    Mistake(
        "heads-averaged", "heads", "all heads use the average of their weights",
        "H heads look at one and the same mixture: there is one head, at the price of H.",
        "weights @ v with the heads' axis kept",
        one(after=_averaged), look=r"mean|softmax",
    ),
    Mistake(
        "heads-first-only", "heads", "all heads use the first head's weights",
        "H heads look where the first one looks.",
        "weights @ v with the heads' axis kept",
        one(after=_first_only), look=r"\[:?,? ?0|softmax",
    ),
)  # fmt: skip


# Queries, keys and values ---------------------------------------------------------------------


def _picked(q: str = "q", k: str = "k", v: str = "v") -> Step:
    def pick(work: Work) -> None:
        work.q, work.k, work.v = getattr(work, q), getattr(work, k), getattr(work, v)

    return pick


def _project_transposed(*names: str) -> Step:
    def project(work: Work) -> None:
        p = work.p
        if p.x is None:
            raise LookupError("there are no projections")
        turned = {name: getattr(p.W, name).mT for name in names}
        work.p = p.but(W=replace(p.W, **turned))
        steps.project(work)
        work.p = p

    return project


def _unprojected(work: Work) -> None:
    p = work.p
    if p.x is None:
        raise LookupError("there are no projections")
    steps.project(work)
    work.v = p.x


def _mix_transposed(work: Work) -> None:
    work.heads = work.weights.mT @ work.v


SHARED = "{} made with the weights of the {}"
QKV = (
    Mistake(
        "qk-swapped", "q, k, v", "queries and keys are exchanged",
        "Position i is found by what it looks for: the map is that of the transposed scores.",
        "scores = q @ k.transpose(-2, -1)",
        one(pick=_picked(q="k", k="q")), look=PROJECT,
    ),
    Mistake(
        "kv-swapped", "q, k, v", "keys and values are exchanged",
        "What a position offers is handed over, and what it should hand over is compared.",
        "scores of q and k, output of weights and v; mind the order of a fused projection",
        one(pick=_picked(k="v", v="k")), look=PROJECT + "|chunk|split",
    ),
    Mistake(
        "qv-swapped", "q, k, v", "queries and values are exchanged",
        "What a position should hand over is used to look.",
        "scores of q and k, output of weights and v; mind the order of a fused projection",
        one(pick=_picked(q="v", v="q")), look=PROJECT + "|chunk|split",
    ),
    Mistake(
        "qkv-rotated", "q, k, v", "all three have another's place",
        "The fused projection is taken apart in another order than it was put together.",
        "mind the order of a fused projection: q, k, v",
        (("k, v, q", {"pick": _picked(q="k", k="v", v="q")}),
         ("v, q, k", {"pick": _picked(q="v", k="q", v="k")})),
        look=PROJECT + "|chunk|split",
    ),
    Mistake(
        "k-is-q", "q, k, v", SHARED.format("keys are", "queries"),
        "Scores are symmetric, and each position likes itself best.",
        "k = x @ W_K",
        one(pick=_picked(k="q")), look=PROJECT,
    ),
    Mistake(
        "q-is-k", "q, k, v", SHARED.format("queries are", "keys"),
        "Scores are symmetric, and each position likes itself best.",
        "q = x @ W_Q",
        one(pick=_picked(q="k")), look=PROJECT,
    ),
    Mistake(
        "v-is-k", "q, k, v", SHARED.format("values are", "keys"),
        "What is handed over is what was compared: W_V is never trained.",
        "v = x @ W_V",
        one(pick=_picked(v="k")), look=PROJECT,
    ),
    Mistake(
        "v-is-q", "q, k, v", SHARED.format("values are", "queries"),
        "What is handed over is what others looked for: W_V is never trained.",
        "v = x @ W_V",
        one(pick=_picked(v="q")), look=PROJECT,
    ),
    Mistake(
        "k-is-v", "q, k, v", SHARED.format("keys are", "values"),
        "What is compared is what is handed over: W_K is never trained.",
        "k = x @ W_K",
        one(pick=_picked(k="v")), look=PROJECT,
    ),
    Mistake(
        "v-unprojected", "q, k, v", "the values are the embeddings themselves",
        "W_V has no part in the output and is never trained.",
        "v = x @ W_V",
        one(project=_unprojected), look=PROJECT,
    ),
    *(
        Mistake(
            f"{letter}-transposed", "q, k, v", f"W_{letter.upper()} is used transposed",
            "The matrix is read along the wrong axis: trained weights do not fit.",
            f"{letter} = x @ W_{letter.upper()}; with nn.Linear's own weight, x @ weight.T",
            one(project=_project_transposed(letter)), look=PROJECT + r"|\.T\b|transpose",
        )
        for letter in "qkv"
    ),
    Mistake(
        "mix-transposed", "q, k, v", "the weights are transposed where they meet the values",
        "A key's column takes the place of a query's row: with a causal mask each position gets "
        "its future.",
        "out = weights @ v",
        one(mix=_mix_transposed), look=r"@|matmul|einsum|transpose",
    ),
)  # fmt: skip


MISTAKES = (*HEADS, *QKV)
