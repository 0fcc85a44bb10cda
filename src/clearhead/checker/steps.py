"""Attention as a line of steps, dense and in float64: what every answer is held against.

    x -> project -> split -> place -> turn -> expand -> score -> scale -> cap -> lean -> hide
                                               -> weigh -> mix -> merge -> output, report

The dense and obvious way, sharing nothing with the engine. A problem of q, k and v begins at `turn`
and ends with the heads. A row that sees nothing comes out as NaN and is not compared: what becomes
of it is asked for by itself.
"""

import math

import torch
from torch import Tensor

from clearhead.checker.line import Line, Work, nothing


def project(work: Work) -> None:
    p = work.p
    if p.x is None:
        work.q, work.k, work.v = p.q, p.k, p.v
        return
    projected(work, p.x, p.x, p.x)


def projected(work: Work, *three: Tensor) -> None:
    """Queries, keys and values of what they are made of, (B, T, heads D)."""
    W = work.p.W
    work.q, work.k, work.v = (x @ w for x, w in zip(three, (W.q, W.k, W.v), strict=True))
    if W.biases is not None:
        work.q, work.k, work.v = (
            a + b for a, b in zip((work.q, work.k, work.v), W.biases, strict=False)
        )


def split(work: Work) -> None:
    p = work.p
    if p.x is not None:
        work.q = split_heads(work.q, p.H)
        work.k, work.v = split_heads(work.k, p.G), split_heads(work.v, p.G)


def split_heads(joined: Tensor, H: int) -> Tensor:
    B, T, _ = joined.shape
    return joined.reshape(B, T, H, -1).transpose(1, 2)  # (B, H, T, D)


def offset(work: Work) -> int:
    """The key position of the first query."""
    _, T, S = work.p.sizes
    return S - T if work.p.align == "end" else 0


def place(work: Work) -> None:
    """Where the first query stands for its rotary angle."""
    work.at = offset(work)


def turn(work: Work) -> None:
    if work.p.turn is not None:
        _, T, S = work.p.sizes
        work.q = rotated(work.q, torch.arange(T) + work.at, work.p.turn.base, work.p.turn.pairing)
        work.k = rotated(work.k, torch.arange(S), work.p.turn.base, work.p.turn.pairing)


def rotated(
    x: Tensor, positions: Tensor, base: float, pairing: str, sign: float = 1.0, axis: int = -2,
) -> Tensor:  # fmt: skip
    """x (..., T, D), each pair turned by position base^(-2n/D); positions run along `axis`."""
    D = x.shape[-1]
    angles = positions[:, None] * base ** (-2.0 * torch.arange(D // 2) / D).double()  # (T, D/2)
    if axis != -2:
        angles = angles[:, None]
    cos, sin = angles.cos(), sign * angles.sin()
    return turned(x, cos, sin, pairing)


def turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: str) -> Tensor:
    a, b = parted(x, pairing)
    return joined(a * cos - b * sin, a * sin + b * cos, pairing)


def parted(x: Tensor, pairing: str) -> tuple[Tensor, Tensor]:
    """The two numbers of each pair, (..., D/2) both."""
    if pairing == "halves":
        a, b = x.chunk(2, dim=-1)
        return a, b
    return x[..., 0::2], x[..., 1::2]


def joined(a: Tensor, b: Tensor, pairing: str) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    if pairing == "halves":
        return torch.cat((a, b), dim=-1)
    return torch.stack((a, b), dim=-1).flatten(-2)


def expand(work: Work) -> None:
    n = work.p.H // work.p.G
    if n > 1:
        work.k, work.v = (a.repeat_interleave(n, dim=1) for a in (work.k, work.v))


def score(work: Work) -> None:
    work.scores = work.q @ work.k.mT  # (B, H, T, S)


def factor(work: Work) -> float:
    """What a score is multiplied by."""
    scale = work.p.scale
    return work.p.head_size**-0.5 if scale is None else float(scale)


def scale(work: Work) -> None:
    work.scores = work.scores * factor(work)


def cap(work: Work) -> None:
    c = work.p.softcap
    if c is not None:
        work.scores = c * torch.tanh(work.scores / c)


def lean(work: Work) -> None:
    """ALiBi, a slope times how far back the key lies; and what the caller adds."""
    if work.p.slopes is not None:
        work.scores = work.scores - work.p.slopes.view(1, -1, 1, 1) * back(work)
    if work.p.bias is not None:
        work.scores = work.scores + work.p.bias


def back(work: Work) -> Tensor:
    """(T, S): how many positions key j lies before query i."""
    _, T, S = work.p.sizes
    return torch.arange(T)[:, None] + offset(work) - torch.arange(S)


def see(work: Work) -> None:
    work.visible = positional(work) & given(work)


def positional(work: Work, causal_by: int = 0, window_by: int = 0) -> Tensor:
    """(T, S): what the causal rule and the window leave, shifted by so many keys."""
    p, lag = work.p, back(work)
    sees = torch.ones_like(lag, dtype=torch.bool)
    if p.causal:
        sees = lag >= -causal_by
    if p.window is not None:  # on both sides where the future may be seen
        far = lag if p.causal else lag.abs()
        sees = sees & (far < p.window + window_by)
    return sees


def given(work: Work) -> Tensor:
    """(B, H, T, S): what the caller's mask leaves."""
    B, T, S = work.p.sizes
    mask = torch.ones((), dtype=torch.bool) if work.p.mask is None else work.p.mask
    return mask.expand(B, work.p.H, T, S)


def hide(work: Work) -> None:
    work.scores = work.scores.masked_fill(~work.visible, -math.inf)


def weigh(work: Work) -> None:
    if work.p.sinks is None:
        work.weights = work.scores.softmax(dim=-1)
        return
    work.weights = with_sinks(work).softmax(dim=-1)[..., :-1]


def with_sinks(work: Work) -> Tensor:
    """The scores, and the logit that each head has for nothing as one more key."""
    B, H, T, _ = work.scores.shape
    return torch.cat((work.scores, work.p.sinks.view(1, H, 1, 1).expand(B, H, T, 1)), dim=-1)


def mix(work: Work) -> None:
    work.heads = work.weights @ work.v  # (B, H, T, Dv)


def merge(work: Work) -> None:
    joined = work.heads
    if work.p.x is not None:
        B, _, T, _ = joined.shape
        joined = joined.transpose(1, 2).reshape(B, T, -1)
    work.out = joined


def output(work: Work) -> None:
    W = work.p.W
    if W is not None and W.o is not None:
        work.out = work.out @ W.o
        if W.biases is not None:
            work.out = work.out + W.biases[3]


def report(work: Work) -> None:
    work.reported = work.weights


ATTENTION = Line(
    "attention",
    {
        "project": project, "split": split, "place": place, "turn": turn, "expand": expand,
        "pick": nothing,
        "score": score, "early cap": nothing, "scale": scale, "cap": cap, "lean": lean,
        "see": see, "hide": hide, "late cap": nothing, "weigh": weigh, "after": nothing,
        "mix": mix, "merge": merge, "output": output, "report": report,
    },
)  # fmt: skip
