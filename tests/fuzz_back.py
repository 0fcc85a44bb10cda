"""Random calls of the native kernel on their way back, and what is made with keys in the lanes:
gradients, what keys receive, and cells of the map, against the dense way in float64.

As a program, `python fuzz_back.py LIBRARY SET FIRST COUNT`, it judges the seeds from FIRST on,
there and back, and the laws, by a library and an instruction set of it.
"""

import math
import sys
from types import SimpleNamespace

import chance
import dense
import native_laws
import torch
from fuzz import HOSTILE, Fuzz, bounds, judge, judge_hostile, use
from test_engine import judged
from torch import Tensor

from clearhead import AttentionMap, Rule, attention


def gradients(case: Fuzz, back: list[Tensor]) -> list[Tensor]:
    """Of q, k and v, from what comes back into out, lse and entropy."""
    leaves = [x.detach().requires_grad_() for x in (case.q, case.k, case.v)]
    a = attention(*leaves, Rule(**case.rule), impl="native")
    rows = (a.out, a.lse, a.entropy)
    return list(torch.autograd.grad(rows, leaves, back))


def what_comes_back(case: Fuzz) -> list[Tensor]:
    B, H, T, _ = case.shape
    wide = torch.promote_types(case.dtype, torch.float32)
    g = case.laid_out(case.normal(B, H, T, case.v.shape[-1]))
    lse, entropy = (case.laid_out(case.normal(B, H, T, 1), wide)[..., 0] for _ in range(2))
    if case.chance(0.2):
        g = g.new_ones(()).expand(g.shape)  # of out.sum()
    return [g, lse, entropy]


def exactly(case: Fuzz, back: list[Tensor]) -> tuple[SimpleNamespace, list[Tensor]]:
    """The dense rows, and their gradients."""
    leaves = [x.detach().double().requires_grad_() for x in (case.q, case.k, case.v)]
    exact = dense.attend(*leaves, Rule(**case.rule))
    g, lse, entropy = (x.double() for x in back)
    lse = lse.masked_fill(exact.lse.isinf(), 0.0)
    rows = (exact.out, exact.lse, exact.entropy)
    found = torch.autograd.grad(rows, leaves, [g, lse, entropy], allow_unused=True)
    zeros = [torch.zeros_like(x) if y is None else y for x, y in zip(leaves, found, strict=True)]
    for name, x in vars(exact).items():
        setattr(exact, name, x.detach())
    return exact, [x.nan_to_num(0.0) for x in zeros]


def gradient_bounds(case: Fuzz, exact, back: list[Tensor], wanted: list[Tensor]) -> list[Tensor]:
    """How far each gradient may be off: of dL/ds = p (g . v - g . out + gl - gH (log p + H)) each
    part by itself, as what the score is off by changes p, and log p.
    """
    _, H, T, S = case.shape
    group, kept = H // case.k.shape[1], torch.finfo(case.dtype)
    eps = torch.finfo(torch.promote_types(case.dtype, torch.float32)).eps
    q, k, v, g = (x.double() for x in (case.q, case.k, case.v, back[0]))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    lse, entropy = (x.double().unsqueeze(-1).abs() for x in back[1:])
    e = bounds(case, exact)["max_score"].unsqueeze(-1)
    many = eps * (16 + S**0.5 + T**0.5 + 2 * q.shape[-1] ** 0.5 + 2 * v.shape[-1] ** 0.5)
    w, p, scale = 4 * e + many, exact.p, abs(case.rule.get("scale", q.shape[-1] ** -0.5))
    far = (exact.s - exact.lse.unsqueeze(-1)).abs().masked_fill(p == 0, 0.0)
    of_values = (g.abs() @ v.abs().mT) + (g.abs() * (p @ v.abs())).sum(dim=-1, keepdim=True)
    parts = p * (of_values + lse + entropy * (far + exact.entropy.unsqueeze(-1)))
    rounded = (g.abs() * (exact.out.abs() * kept.eps / 2 + kept.tiny * kept.eps)).sum(-1, True)
    off = w * parts + p * (2 * e * entropy + rounded)
    if cap := case.rule.get("softcap"):
        slope = 1 - torch.tanh(q @ k.mT * scale / cap) ** 2
        off = off * slope + parts * (8 * eps + 2 * e / cap)
    smallest = 1e-37 if eps > 1e-10 else 1e-300  # below it float32 has fewer digits

    def of_heads(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, group)).sum(dim=2)

    into = [
        scale * (off @ k.abs()),
        of_heads(scale * (off.mT @ q.abs())),
        of_heads((w * p).mT @ g.abs()),
    ]
    return [
        x + kept.eps / 2 * y.abs() + kept.tiny * kept.eps + smallest
        for x, y in zip(into, wanted, strict=True)
    ]


def share_of(name: str, seed: int, got: Tensor, wanted: Tensor, bound: Tensor) -> float:
    got = got.double()
    share = ((got - wanted).abs() / bound).masked_fill(got == wanted, 0.0)
    assert (share <= 1).all(), f"seed {seed}: {name} is off by {share.max()} bounds"
    return float(share.max()) if share.numel() else 0.0


def judge_back(seed: int) -> float:
    """Asserts that gradients, what keys receive and cells are right; the share of the bounds."""
    case = Fuzz(seed)
    if case.chance(0.3):
        case.rule["query_mask"] = case.normal(case.shape[0], case.shape[2]) > -0.5
    back = what_comes_back(case)
    exact, wanted = exactly(case, back)
    allowed = gradient_bounds(case, exact, back, wanted)
    used = [
        share_of(f"d{name}", seed, *one)
        for name, *one in zip("qkv", gradients(case, back), wanted, allowed, strict=True)
    ]
    (B, H, T, S), rule = case.shape, Rule(**case.rule)
    eps = torch.finfo(torch.promote_types(case.dtype, torch.float32)).eps
    error = bounds(case, exact)
    w = 2 * error["max_score"].unsqueeze(-1) + eps * (8 + S**0.5)
    tiny = 1e-37 if eps > 1e-10 else 1e-300
    a = attention(case.q, case.k, None, rule, impl="native", received=True)
    real = case.rule.get("query_mask", torch.ones(B, T).bool())[:, None, :, None]
    allowed = (w * exact.p * real).sum(dim=2) + eps * T**0.5 * exact.received + tiny
    used.append(share_of("received", seed, a.received, exact.received, allowed))
    b, h = case.below(B), case.below(H)
    (i0, i1), (j0, j1) = (sorted((case.below(n + 1), case.below(n + 1))) for n in (T, S))
    here = b, h, slice(i0, i1), slice(j0, j1)
    whole = AttentionMap(case.q, case.k, rule, a if case.chance(0.5) else None)
    used.append(share_of("cells", seed, whole[here], exact.p[here], (w * exact.p + tiny)[here]))
    scores = exact.s[here]
    allowed = error["max_score"].unsqueeze(-1).expand_as(exact.s)[here] + 0 * scores.nan_to_num()
    used.append(share_of("scores", seed, whole.scores[here], scores, allowed))
    return max(used)


def judge_hostile_back(seed: int) -> None:
    """A bad number changes no bit of a gradient, nor of what a key receives, that it is not part
    of."""
    case = Fuzz(seed)
    back, rule, (B, H, T, S) = what_comes_back(case), Rule(**case.rule), case.shape
    old = gradients(case, back)
    received = attention(case.q, case.k, None, rule, impl="native", received=True).received
    value, which, G = case.one_of(HOSTILE), case.one_of("qkvg"), case.k.shape[1]
    sees = dense.visible(rule, B, H, T, S)
    rows = torch.zeros(B, H, T, dtype=torch.bool)
    at = case.below(S if which in "kv" else T)
    if which == "g":
        back[0] = back[0].clone()
        back[0][:, :, at, case.below(back[0].shape[-1])] = value
    else:
        x = getattr(case, which).clone()
        x[:, :, at, case.below(x.shape[-1])] = value
        setattr(case, which, x)
    if which in "kv":
        rows |= sees[..., at]
    else:
        rows[:, :, at] = True
    spoiled = attention(case.q, case.k, case.v, rule, impl="native").lse.isnan()
    back[0] = back[0].masked_fill(spoiled.unsqueeze(-1), math.nan)  # as the square of NaN would be
    keys = (sees & rows.unsqueeze(-1)).any(dim=2).unflatten(1, (G, -1)).any(dim=2)  # (B, G, S)
    new = gradients(case, back)
    if which == "g" or (which == "q" and not torch.tensor(value).isnan()):
        keys |= True  # a row that is not NaN may have what is not finite for its keys
    if which in "kv":
        keys[:, :, at] = True
    for name, mine, before, touched in zip("qkv", new, old, (rows, keys, keys), strict=True):
        same = (mine == before).all(dim=-1)
        assert same[~touched].all(), f"seed {seed}: d{name} of what sees nothing bad"
    after = attention(case.q, case.k, None, rule, impl="native", received=True).received
    if which in "qk":
        seen = (sees & rows.unsqueeze(-1)).any(dim=2)
        if which == "k":
            seen[..., at] = True
        same = after == received
        assert same[~seen].all(), f"seed {seed}: received of what no bad row sees"


def judge_all(seed: int) -> float:
    """What is made of a call, there and back: the largest share of the bounds."""
    judge_hostile(seed)
    judge_hostile_back(seed)
    return max(judge(seed), judge_back(seed))


def main(library: str, number: str, first: str, count: str) -> None:
    use(library, int(number))
    worst = max(judge_all(int(first) + n) for n in range(int(count)))
    chance.LONGER = 0.1
    for law in native_laws.LAWS:
        law(judged(impl="native"))
    print(f"{count} calls used at most {worst:.2f} of the bounds")


if __name__ == "__main__":
    main(*sys.argv[1:])
