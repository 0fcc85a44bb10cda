"""Causal self-attention from first principles: seven functions and the few that they share.

A *head* lets every position look back at the positions before it and take a weighted average of
what it finds there. Three projections of the same embeddings say what happens:

    Q = x W_Q     the query: what position i is looking for
    K = x W_K     the key:   what position j offers to be found by
    V = x W_V     the value: what position j hands over once it is found

    weights = softmax(Q Kᵀ / sqrt(d_head), hidden keys at -inf)     row i: what i takes from each j
    out     = weights V

That is equation 1 of Vaswani et al., "Attention Is All You Need" (2017, arXiv:1706.03762).

Letters, one meaning each, at the end of nearly every line:

    T        tokens; rows are queries (who looks), columns are keys (who is looked at)
    d_model  numbers in an embedding
    H        heads
    d_head   numbers in a query or key of one head; d_v in a value
    ...      any leading axes: none for one head, H for many

This file needs torch and nothing else: copy it anywhere. It keeps every weight, T x T of them.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

__all__ = [
    "attention_entropy",
    "causal_mask",
    "init_projections",
    "make_input_embeddings",
    "multi_head_attention",
    "single_head_attention",
    "write_heatmap",
]


# 1. What goes in ------------------------------------------------------------------------------


def make_input_embeddings(T: int, d_model: int, seed: int = 0) -> Tensor:
    """Standard-normal embeddings, one row per position: a stand-in for learned token embeddings.

    Row i belongs to position i and not to a word, so the same word twice gets two different rows;
    order itself is not in them. The generator is our own: torch's random state stays as it was.

    Returns (T, d_model), float32. Raises ValueError if a size is below 1.
    """
    if T < 1 or d_model < 1:
        raise ValueError(f"embeddings need T >= 1 and d_model >= 1; got T={T}, d_model={d_model}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, d_model, generator=generator, dtype=torch.float32)  # (T, d_model)


# 2. Who may look at whom ----------------------------------------------------------------------


def causal_mask(T: int) -> Tensor:
    """Lower-triangular ones: 1 where position i may attend to position j, that is where j <= i.

    With it a model cannot read the answer that it is being trained to predict.

    Returns (T, T), float32 zeros and ones. Raises ValueError if T is below 1.
    """
    if T < 1:
        raise ValueError(f"a mask needs at least one position; got T={T}")
    return torch.tril(torch.ones(T, T, dtype=torch.float32))  # (T, T)


# 3. One head ----------------------------------------------------------------------------------


def single_head_attention(
    x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, mask: Tensor, scale: bool = True
) -> tuple[Tensor, Tensor]:
    """One attention head over the sequence x.

        weights = softmax(x W_Q (x W_K)ᵀ / sqrt(d_head))     out = weights x W_V

    x is (T, d_model); W_Q and W_K are (d_model, d_head); W_V is (d_model, d_v); mask is (T, T),
    1 = may attend, 0 = may not. scale=False leaves out 1/sqrt(d_head), to see what it is for.

    Returns out (T, d_v) and weights (T, T). A row of weights sums to 1; of a position that may see
    nothing it is all 0, and so is the output. Raises ValueError, with the shapes that do not fit.
    """
    _check_shapes(x, mask, W_Q=W_Q, W_K=W_K, W_V=W_V)
    Q = x @ W_Q  # (T, d_model) @ (d_model, d_head) -> (T, d_head)
    K = x @ W_K  # (T, d_head)
    V = x @ W_V  # (T, d_v)
    return _attend(Q, K, V, mask, scale)  # the next function, and the one to read slowly


def _attend(Q: Tensor, K: Tensor, V: Tensor, mask: Tensor, scale: bool) -> tuple[Tensor, Tensor]:
    """The heart of the matter, for one head (T, d_head) or for H at once (H, T, d_head)."""
    wide = torch.promote_types(Q.dtype, torch.float32)  # half precision overflows at 65504
    # Entry (i, j) is the dot product q_i . k_j: large where what i seeks is what j offers.
    scores = Q.to(wide) @ K.to(wide).transpose(-2, -1)  # (..., T, d_head) -> (..., T, T)

    # With components of variance 1, q_i . k_j adds up d_head products of variance 1: its variance
    # is d_head and its typical size sqrt(d_head). Dividing by that keeps the typical score at 1
    # for every head size. Undivided, the softmax gives nearly everything to one key; there its
    # slope, p (1 - p), is close to 0, and no gradient comes back.
    if scale:
        d_head = Q.shape[-1]
        scores = scores / math.sqrt(d_head)

    # exp(-inf) = 0: a hidden key gets exactly no weight. A score of 0 would not hide it, because
    # exp(0) = 1 is a vote like any other.
    scores = scores.masked_fill(mask == 0, -math.inf)  # mask (T, T) serves every head

    weights = _softmax(scores)  # (..., T, T)
    out = weights @ V.to(wide)  # (..., T, T) @ (..., T, d_v) -> (..., T, d_v)
    return out.to(V.dtype), weights


def _softmax(scores: Tensor) -> Tensor:
    """softmax(s)_j = exp(s_j) / (exp(s_0) + exp(s_1) + ...) per row; only -inf gives only zeros.

    Subtracting the row's largest score from all of them divides above and below by the same number,
    and keeps exp from overflowing: exp(89) is already more than float32 can hold.
    """
    largest = scores.amax(dim=-1, keepdim=True)  # (..., T, 1)
    largest = largest.masked_fill(largest == -math.inf, 0.0)  # -inf - -inf would be NaN
    exps = torch.exp(scores - largest)  # (..., T, T), the largest of a row is exp(0) = 1
    total = exps.sum(dim=-1, keepdim=True)  # (..., T, 1), so at least 1, or 0 for an empty row
    return exps / total.masked_fill(total == 0, 1.0)  # 0 / 1 for an empty row, not 0 / 0


# 4. Many heads --------------------------------------------------------------------------------


def multi_head_attention(
    x: Tensor,
    W_Q: Tensor,
    W_K: Tensor,
    W_V: Tensor,
    W_O: Tensor,
    n_heads: int,
    mask: Tensor,
    scale: bool = True,
) -> tuple[Tensor, Tensor]:
    """H heads side by side, each on its own slice of d_head = d_model / H numbers.

        head_h = attention of (Q, K, V)[:, h d_head : (h+1) d_head]
        out    = [head_0 | head_1 | ... | head_(H-1)] W_O

    One head has one softmax, so one thing to look for per position. H heads have H of them, for as
    many multiplications: each works on d_model / H numbers. Only the T x T maps become H.

    x is (T, d_model), the four projections are (d_model, d_model), mask is (T, T) and shared.
    Returns out (T, d_model) and weights (H, T, T). Raises ValueError, naming every number, if
    n_heads is below 1 or does not divide d_model, or if a shape does not fit.
    """
    _check_shapes(x, mask, square=True, W_Q=W_Q, W_K=W_K, W_V=W_V, W_O=W_O)
    T, d_model = x.shape
    d_head = _head_size(d_model, n_heads)

    def split_heads(joined: Tensor) -> Tensor:
        # view cuts each token's d_model numbers into H runs of d_head; transpose then brings one
        # head's tokens together. A bare view(H, T, d_head) has the right shape and the wrong
        # content: it deals the tokens out to the heads, and the mask no longer hides the future.
        return joined.view(T, n_heads, d_head).transpose(0, 1)  # (T, H, d_head) -> (H, T, d_head)

    Q = split_heads(x @ W_Q)  # (T, d_model) -> (H, T, d_head)
    K = split_heads(x @ W_K)  # (H, T, d_head)
    V = split_heads(x @ W_V)  # (H, T, d_head)
    heads, weights = _attend(Q, K, V, mask, scale)  # (H, T, d_head), (H, T, T)

    # The way back is the way in, reversed: tokens first, then a token's H slices side by side
    # (reshape copies where view would refuse). W_O mixes them: so far no head heard of another.
    joined = heads.transpose(0, 1).reshape(T, d_model)  # (T, H, d_head) -> (T, d_model)
    return joined @ W_O, weights  # (T, d_model), (H, T, T)


# 5. How concentrated is a head? ---------------------------------------------------------------


def attention_entropy(weights: Tensor) -> Tensor:
    """Shannon entropy of each row of weights, in nats: entropy_i = -sum_j p_ij log p_ij.

    0 when one key takes everything, log(n) when n keys share alike: exp(entropy) reads as "so many
    keys". A weight of zero contributes exactly 0, the limit of p log p: no epsilon is added, which
    over many keys would add up to entropy that is not there. Sums in float32 or better.

    weights is (..., keys). Returns (...), with finite gradients. Raises ValueError for a negative
    weight or a row that sums to more than 1.
    """
    p = weights.to(torch.promote_types(weights.dtype, torch.float32))  # (..., keys)
    if (p < 0).any() or (p.sum(dim=-1) > 1.01).any():
        raise ValueError(
            f"a row of weights is not negative and sums to 1; got {p.min().item():.4g} and a sum "
            f"of {p.sum(dim=-1).max().item():.4g}. Are these scores, from before the softmax?"
        )
    log_p = p.masked_fill(p == 0, 1.0).log()  # (..., keys), log(1) = 0 where p = 0
    entropy = -(p * log_p).sum(dim=-1)  # (...)
    return entropy.clamp(min=0) + 0.0  # rounding may leave -1e-7, and -0.0 + 0.0 is 0.0


# 6. Weights to start from ---------------------------------------------------------------------


def init_projections(
    d_model: int, n_heads: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random projections W_Q, W_K, W_V, W_O, drawn in this order from one seeded generator.

    Entries have variance 1 / d_model, so x W, a sum of d_model products, keeps the variance of x.

    Returns four (d_model, d_model), float32. Raises ValueError if n_heads does not divide d_model.
    """
    _head_size(d_model, n_heads)
    generator = torch.Generator().manual_seed(seed)
    size = (d_model, d_model)
    drawn = (torch.randn(size, generator=generator, dtype=torch.float32) for _ in range(4))
    W_Q, W_K, W_V, W_O = (W / math.sqrt(d_model) for W in drawn)  # each (d_model, d_model)
    return W_Q, W_K, W_V, W_O


# 7. Seeing it ---------------------------------------------------------------------------------


def write_heatmap(weights: Tensor, tokens: Sequence[str], path: str | Path, title: str) -> None:
    """Draw each head's weights as a picture: a row is a query, a column a key, yellow is 1.

    weights is (T, T) or (H, T, T), tokens holds T labels, path names the file (.png, .svg, .pdf).
    Raises ValueError if labels and map differ in length, ImportError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError("a heatmap needs matplotlib: pip install matplotlib") from missing
    maps = weights.detach().float().cpu().numpy()
    maps = maps if maps.ndim == 3 else maps[None]  # (H, T, T)
    if maps.ndim != 3 or not maps.shape[1] == maps.shape[2] == len(tokens) or not maps.size:
        raise ValueError(
            f"{len(tokens)} tokens label the rows and columns of each head, but weights are "
            f"{tuple(weights.shape)}. Are they of another text, or is a special token counted once?"
        )
    H, T = maps.shape[:2]
    columns = min(H, 4)  # more would leave the labels no room
    rows = math.ceil(H / columns)
    figure = Figure(figsize=(1 + 3.6 * columns, 0.8 + 3.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    ticks = range(0, T, math.ceil(T / 24))  # every token, or evenly fewer where they would overlap
    # Shortened, and with escapes for what no font can draw.
    labels = [tokens[i][:16].encode("utf-8", "backslashreplace").decode() for i in ticks]
    for head, panel in enumerate(panels):
        if head >= H:
            panel.axis("off")
            continue
        image = panel.imshow(maps[head], cmap="viridis", vmin=0, vmax=1)  # one scale for all heads
        panel.set_xticks(ticks, labels, rotation=90, fontsize=7, parse_math=False)  # "$" is a "$"
        panel.set_yticks(ticks, labels, fontsize=7, parse_math=False)
        panel.set_facecolor("red")  # shines through where a weight is NaN
        panel.set(title=f"head {head}", xlabel="key", ylabel="query")
    figure.colorbar(image, ax=list(panels), label="attention weight", shrink=0.8)
    figure.suptitle(title, parse_math=False)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box in its place says enough
        figure.savefig(path, dpi=120, format=Path(path).suffix[1:] or "png")


# What the functions refuse --------------------------------------------------------------------


def _check_shapes(x: Tensor, mask: Tensor, square: bool = False, **projections: Tensor) -> None:
    seen = ", ".join(f"{name} {tuple(W.shape)}" for name, W in projections.items())
    if x.ndim != 2 or x.numel() == 0:
        raise ValueError(f"x must be (T, d_model), neither of them 0; got x {tuple(x.shape)}")
    T, d_model = x.shape
    if any(W.ndim != 2 or W.shape[0] != d_model or not W.shape[1] for W in projections.values()):
        raise ValueError(f"each projection needs d_model = {d_model} rows, as x has; got {seen}")
    if square and any(W.shape[1] != d_model for W in projections.values()):
        raise ValueError(f"each projection must be ({d_model}, {d_model}); got {seen}")
    if projections["W_Q"].shape != projections["W_K"].shape:
        raise ValueError(f"q . k needs W_Q and W_K of one shape; got {seen}")
    if mask.shape != (T, T):
        raise ValueError(f"mask must be (T, T) = ({T}, {T}); got {tuple(mask.shape)}")
    if ((mask != 0) & (mask != 1)).any():
        raise ValueError(
            "mask must hold only 1 (may attend) and 0 (may not); got values from "
            f"{mask.min().item():g} to {mask.max().item():g}. If 0 and -inf: pass mask == 0 instead"
        )


def _head_size(d_model: int, n_heads: int) -> int:
    if n_heads < 1 or d_model < 1 or d_model % n_heads:
        raise ValueError(
            f"d_model={d_model} cannot be split into n_heads={n_heads} heads of equal size: "
            "both must be at least 1, and n_heads must divide d_model"
        )
    return d_model // n_heads
