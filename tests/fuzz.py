"""Random calls of the native kernel, hostile ones among them, against the dense way in float64."""

import math

import csrc
import dense
import torch
from engine_laws import distance, key_scores
from torch import Tensor

from clearhead import Rule, attention
from clearhead.engine import native

SIZES = (1, 2, 3, 5, 7, 8, 13, 23, 24, 25, 47, 48, 49, 63, 96, 127, 128, 129, 191, 257, 385, 700)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FIGURES = ("lse", "entropy", "max_score", "mean_key", "visible")


class Fuzz:
    """One random call: tensors of any layout, a rule of any parts."""

    def __init__(self, seed: int) -> None:
        self.stream = torch.Generator().manual_seed(seed)
        self.dtype = self.one_of(DTYPES)
        B, G, group = 1 + self.below(3), 1 + self.below(3), self.one_of((1, 1, 2, 4, 7))
        T, S = self.one_of(SIZES), self.one_of(SIZES)
        while B * G * group * T * S > 1 << 19:
            B, group, T = 1, max(1, group // 2), max(1, T // 2)
        H = G * group
        D, Dv = (self.one_of((1, 2, 3, 8, 15, 16, 17, 31, 64, 65, 80, 128, 256)) for _ in range(2))
        self.shape = B, H, T, S
        self.q = self.laid_out(self.one_of((0.1, 1.0, 3.0)) * self.normal(B, H, T, D))
        self.k = self.laid_out(self.normal(B, G, S, D))
        self.v = self.laid_out(self.normal(B, G, S, Dv))
        self.rule = self.random_rule(B, H, T, S)

    def below(self, n: int) -> int:
        return int(torch.randint(0, n, (), generator=self.stream))

    def one_of(self, some):
        return some[self.below(len(some))]

    def chance(self, p: float) -> bool:
        return bool(torch.rand((), generator=self.stream) < p)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.stream, dtype=torch.float64)

    def laid_out(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The same numbers with other strides; or, where it is broadcast, others."""
        x = x.to(dtype or self.dtype)
        way = self.below(6)
        if way == 1:  # heads behind tokens
            return x.transpose(-3, -2).contiguous().transpose(-3, -2)
        if way == 2:  # the last axis is not side by side
            return x.mT.contiguous().mT
        if way == 3:  # a part of something larger, that begins somewhere in it
            larger = x.new_full((*x.shape[:-2], x.shape[-2] + 3, x.shape[-1] + 5), math.nan)
            larger[..., 2:-1, 1:-4] = x
            return larger[..., 2:-1, 1:-4]
        if way == 4:  # every second number
            return torch.stack([x, x.new_full((), math.nan).expand(x.shape)], dim=-1)[..., 0]
        if way == 5:  # all heads, or all rows, share theirs
            axis = self.one_of((0, 1, 2))
            return x.narrow(axis, 0, 1).expand(x.shape)
        return x.contiguous()

    def random_rule(self, B: int, H: int, T: int, S: int) -> dict:
        rule: dict = {}
        if self.chance(0.5):
            rule["causal"] = True
            if self.chance(0.4):
                rule["window"] = 1 + self.below(S)
        elif self.chance(0.4):
            rule["window"] = (self.below(S), self.below(S))
        if self.chance(0.2):
            rule["offset"] = self.one_of((0, -T, S + 3, self.below(S), (1 << 60), -(1 << 60)))
        elif self.chance(0.2):
            rule["offset"] = torch.randint(-T, S + 1, (B,), generator=self.stream)
        if self.chance(0.3):
            rule["key_mask"] = self.normal(B, S) > self.one_of((-1.5, 0.0, 9.0))
        if self.chance(0.3):
            long = torch.arange(B * S).view(B, S) // (1 + self.below(S))
            rule["segments"] = self.one_of((long, long % 2, long % 3))
        if self.chance(0.3):
            whole = self.normal(*self.one_of(((B, H, T, S), (T, S), (B, 1, 1, S), (1, H, T, 1))))
            rule["mask"] = (
                self.laid_out(whole, whole.dtype) > -0.7 if whole.ndim == 4 else whole > 0
            )
        if self.chance(0.3):
            bias = self.normal(*self.one_of(((B, H, T, S), (1, H, 1, S), (1, 1, T, 1))))
            dtype = self.one_of(DTYPES)
            rule["bias"] = self.laid_out(bias, dtype).nan_to_num(0.0)
            if self.chance(0.5):
                rule["bias"] = rule["bias"].clone()
                rule["bias"][..., :1] = self.one_of((-math.inf, torch.finfo(dtype).min))
        if self.chance(0.3):
            rule["softcap"] = self.one_of((0.5, 2.0, 30.0))
        if self.chance(0.3):
            rule["alibi"] = self.normal(H).abs() / 10
            if isinstance(rule.get("offset"), int) and abs(rule["offset"]) > 1 << 20:
                del rule["alibi"]
        if self.chance(0.3):
            rule["sinks"] = self.normal(H)
        if self.chance(0.3):
            rule["scale"] = self.one_of((0.1, -0.3, 0.7))
        return rule

    def attend(self, **options):
        a = attention(self.q, self.k, self.v, Rule(**self.rule), impl="native", distance=True)
        assert a.impl == "native"
        return a


def bounds(case: Fuzz, exact) -> dict[str, Tensor]:
    """How far each figure may be off, from the size of what it is a sum of.

    A score is a sum of D products; each of them, and each partial sum, is rounded once. What a
    score is off by, e, changes every weight by a factor within exp(2 e).
    """
    B, H, T, S = case.shape
    dtype = torch.promote_types(case.dtype, torch.float32)
    eps, rule = torch.finfo(dtype).eps, case.rule
    group, D = H // case.k.shape[1], case.q.shape[-1]
    q, k, v = (x.double() for x in (case.q, case.k, case.v))
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    size = (q.abs() @ k.abs().mT) * abs(rule.get("scale", 1 / math.sqrt(D)))
    size = size.masked_fill(exact.s == -math.inf, 0.0).amax(dim=-1)
    scores = exact.s.abs().masked_fill(exact.s == -math.inf, 0.0).amax(dim=-1)
    own = torch.as_tensor(rule.get("offset", S - T)).reshape(-1, 1, 1) + torch.arange(T)
    lean = 0.0
    if "alibi" in rule:
        lean = rule["alibi"].view(1, H, 1) * (own.abs() + S)
    bias = rule["bias"].double() if "bias" in rule else torch.zeros(())
    lowest = torch.finfo(rule["bias"].dtype).min if "bias" in rule else 0
    bias = bias.masked_fill(bias <= lowest, 0.0).abs().expand(B, H, T, S).amax(dim=-1)
    e = eps * ((2 + D**0.5) * size + 4 * scores + 3 * lean + 2 * bias + 4)
    many = eps * (8 + S**0.5)  # weights, their sums, and the exponential
    w = 2 * e + many
    values = exact.p @ v.abs()
    far = ((torch.arange(S) - own.unsqueeze(-1)).abs() * exact.p).sum(dim=-1)
    far = far / exact.p.sum(dim=-1).clamp(min=1e-300)
    kept = torch.finfo(case.dtype)
    half_a_digit, smallest = kept.eps / 2, kept.tiny * kept.eps
    return {
        "lse": e + eps * exact.lse.abs() + many,
        "entropy": w * (2 + exact.entropy) + 2 * w * math.log(S + 1),
        "max_score": e,
        "mean_key": w * exact.mean_key + eps,
        "visible": torch.zeros(()),
        "distance": w * far + eps,
        "key_scores": e.unsqueeze(-1),
        "out": w.unsqueeze(-1) * values + half_a_digit * exact.out.abs() + smallest,
    }  # fmt: skip


def judge(seed: int) -> float:
    """Asserts that a call is right; says what share of the bounds it used."""
    case = Fuzz(seed)
    got, exact = case.attend(), dense.attend(case.q, case.k, case.v, Rule(**case.rule))
    exact.distance, exact.key_scores = distance(case, exact.s), key_scores(case, exact.s)
    worst = 0.0
    for name, bound in bounds(case, exact).items():
        mine, truth = getattr(got, name).double(), getattr(exact, name).double()
        same = (mine == truth) | (mine.isnan() & truth.isnan())
        share = ((mine - truth).abs() / bound).masked_fill(same, 0.0)
        assert (share <= 1).all(), f"seed {seed}: {name} is off by {share.max()} bounds"
        worst = max(worst, float(share.max()))
    top = exact.s.gather(-1, got.top_key.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    none = exact.visible == 0
    assert (got.top_key[none] == -1).all(), f"seed {seed}: a top key of nothing"
    near = top >= exact.max_score - 2 * bounds(case, exact)["max_score"]
    assert (near | none).all(), f"seed {seed}: another key is larger than the top key"
    return worst


HOSTILE = (math.nan, math.inf, -math.inf, 1e30, -1e30, 6e4, 1e-40, 5e-324, 0.0, -0.0)


def judge_hostile(seed: int) -> None:
    """A row that sees no bad number has the bits it had without it; one that does is NaN."""
    case = Fuzz(seed)
    rule = Rule(**case.rule)
    before = case.attend()
    B, H, T, S = case.shape
    bad, value = case.below(S), case.one_of(HOSTILE)
    which = case.below(3)
    sees = dense.visible(rule, *case.shape)[..., bad]
    q, k, v = (x.clone() for x in (case.q, case.k, case.v))
    if which == 0:
        k[:, :, bad, case.below(k.shape[-1])] = value
    elif which == 1:
        v[:, :, bad, case.below(v.shape[-1])] = value
    else:
        row = case.below(T)
        q[:, :, row, case.below(q.shape[-1])] = value
        sees = torch.zeros(B, H, T, dtype=torch.bool)
        sees[:, :, row] = dense.visible(rule, *case.shape)[:, :, row].any(dim=-1)
    case.q, case.k, case.v = q, k, v
    after = case.attend()
    number = torch.tensor(value, dtype=case.dtype)
    wicked = bool(number.isnan() if which == 2 and rule.softcap else ~number.isfinite())
    for name in ("out", *FIGURES, "distance"):
        mine, old = getattr(after, name), getattr(before, name)
        same = (mine == old) | (mine.isnan() & old.isnan())
        assert same[~sees].all(), f"seed {seed}: {name} of a row that sees nothing bad"
        if wicked and name != "visible":
            assert mine[sees].isnan().all(), f"seed {seed}: {name} of a spoiled row"
    assert torch.equal(after.visible, before.visible), f"seed {seed}: visible"


def judge_collapsed() -> None:
    """Rows in which one key has nearly all the weight: entropies of 3e-6 to 0.02 nats, to 1e-5."""
    scores = -9 - 9 * torch.arange(999) / 999
    k = torch.cat([scores[:500], torch.zeros(1), scores[500:]]).unsqueeze(1)
    for rest in (-12.0, -5.0, 0.0):  # a bias on all others
        bias = torch.where(k[:, 0] == 0, 0.0, rest)
        rule = Rule(scale=1.0, bias=bias)
        got = attention(torch.ones(1, 1), k, None, rule, impl="native").entropy.double()
        log_p = (k[:, 0].double() + bias.double()).log_softmax(0)
        torch.testing.assert_close(got[0], -(log_p.exp() * log_p).sum(), atol=0, rtol=1e-5)


def use(library: str, number: int) -> None:
    """Has calls go to this library (the installed one if it is empty) and instruction set."""
    if library:
        loaded = csrc.opened(library)
        native.library = lambda: loaded
    native.instruction_set = lambda: number
