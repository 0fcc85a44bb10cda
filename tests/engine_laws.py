"""What any exact engine obeys, as functions of the package that is to be judged.

`test_engine.py` holds ours to every law, and then copies of it that are wrong in one place each, of
which every one has to break at least one. Shapes are prime, rules are random, tiles tiny.
"""

import contextlib
import dataclasses
import math

import dense
import torch
from chance import some
from hypothesis import example, given
from hypothesis import strategies as st

LAWS = []
FIGURES = ("lse", "entropy", "max_score", "mean_key", "visible", "sink_mass")
SHAPES = [  # B, H, G, T, S, D, Dv
    (1, 1, 1, 1, 1, 1, 1),
    (1, 2, 2, 7, 7, 3, 3),
    (2, 6, 3, 5, 11, 3, 5),
    (3, 4, 1, 11, 5, 2, 3),
    (2, 3, 3, 13, 13, 5, 2),
    (1, 4, 2, 1, 17, 3, 3),
]
seeds = st.integers(0, 10**6)


def law(function):
    LAWS.append(function)
    return function


@contextlib.contextmanager
def tiles_of(m, elements: int, keys: int):
    before = m.tiles.ELEMENTS, m.tiles.KEYS
    m.tiles.ELEMENTS, m.tiles.KEYS = elements, keys
    try:
        yield
    finally:
        m.tiles.ELEMENTS, m.tiles.KEYS = before


class Case:
    """One random problem: q, k, v in float64 and keyword arguments of a rule."""

    def __init__(self, seed: int, plain: bool = False) -> None:
        self.stream = torch.Generator().manual_seed(seed)
        B, H, G, T, S, D, Dv = SHAPES[self.below(len(SHAPES))]
        self.shape = B, H, T, S
        self.q = 2 * self.normal(B, H, T, D)
        self.k, self.v = self.normal(B, G, S, D), self.normal(B, G, S, Dv)
        self.tiles = [(1 << 19, 512), (1, 1), (3 * H * T, 3), (50, 5)][self.below(4)]
        self.rule = {} if plain else self.random_rule(B, H, T, S)

    def random_rule(self, B, H, T, S) -> dict:
        rule = {}
        if self.chance(0.5):
            rule["causal"] = True
            if self.chance(0.5):
                rule["window"] = 1 + self.below(S)
        elif self.chance(0.4):
            rule["window"] = (self.below(S), self.below(S))
        if self.chance(0.3):
            rule["offset"] = self.below(S + 2) - 1
        elif self.chance(0.2):
            rule["offset"] = torch.randint(-1, S, (B,), generator=self.stream)
        if self.chance(0.3):
            rule["key_mask"] = self.normal(B, S) > -0.7
        if self.chance(0.3):
            rule["query_mask"] = self.normal(B, T) > -0.7
        if self.chance(0.3):
            rule["segments"] = torch.randint(0, 3, (B, S), generator=self.stream)
        if self.chance(0.3):
            rule["mask"] = self.normal(*[(B, H, T, S), (T, S), (B, 1, 1, S)][self.below(3)]) > -0.7
        if self.chance(0.3):
            rule["bias"] = self.normal(*[(B, H, T, S), (H, 1, S), (S,)][self.below(3)])
            lowest = torch.finfo(torch.float64).min
            rule["bias"][..., :1] = [-math.inf, lowest][self.below(2)]
        if self.chance(0.3):
            rule["softcap"] = 1.5
        if self.chance(0.3):
            rule["alibi"] = self.normal(H).abs()
        if self.chance(0.3):
            rule["sinks"] = self.normal(H)
        if self.chance(0.3):
            rule["scale"] = 0.7
        return rule

    def normal(self, *shape):
        return torch.randn(*shape, generator=self.stream, dtype=torch.float64)

    def below(self, n: int) -> int:
        return int(torch.randint(0, n, (), generator=self.stream))

    def chance(self, p: float) -> bool:
        return bool(torch.rand((), generator=self.stream) < p)

    def attend(self, m, dtype=torch.float64, **options):
        with tiles_of(m, *self.tiles):
            inputs = (self.q.to(dtype), self.k.to(dtype), self.v.to(dtype))
            return m.attention(*inputs, m.Rule(**self.rule), **options)

    def dense(self, m, dtype=torch.float64):
        return dense.attend(self.q, self.k, self.v, m.Rule(**self.rule), dtype)


def distance(case: Case, scores) -> torch.Tensor:
    """How far each row looks, from its dense scores (B, H, T, S): the sink has no part in it."""
    _, _, T, S = case.shape
    offset = torch.as_tensor(case.rule.get("offset", S - T)).reshape(-1, 1, 1, 1)
    apart = (torch.arange(T).view(T, 1) + offset - torch.arange(S)).abs()
    return (torch.softmax(scores, dim=-1).nan_to_num(0.0) * apart).sum(dim=-1)


def key_scores(case: Case, scores) -> torch.Tensor:
    """Of each row the scores of its document's first key, the key before its own and its own."""
    B, H, T, S = case.shape
    offsets = torch.as_tensor(case.rule.get("offset", S - T)).expand(B).tolist()
    real = case.rule.get("key_mask", torch.ones(B, S, dtype=torch.bool))
    documents = case.rule.get("segments", torch.zeros(B, S))
    found = torch.full((B, H, T, 3), math.nan, dtype=scores.dtype)
    for b, offset in enumerate(offsets):
        for own in range(offset, offset + T):
            mine = documents[b] == documents[b, own] if 0 <= own < S else documents[b] < math.inf
            mine = (mine & real[b]).nonzero().flatten().tolist() or [-1]
            for n, key in enumerate((mine[0], own - 1, own)):
                if 0 <= key < S:
                    score = scores[b, :, own - offset, key]
                    found[b, :, own - offset, n] = score.where(score > -math.inf, math.nan)
    return found


def close(got, wanted, atol=1e-9, rtol=1e-9) -> None:
    torch.testing.assert_close(got, wanted, atol=atol, rtol=rtol, check_dtype=False, equal_nan=True)


@law
def equals_the_dense_way(m) -> None:
    @some(60)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        got, wanted = case.attend(m, received=True, top=True, distance=True), case.dense(m)
        for name in (*FIGURES, "out", "received"):
            close(getattr(got, name), getattr(wanted, name))
        close(got.distance, distance(case, wanted.s))
        keys = key_scores(case, wanted.s)
        close(got.key_scores, keys)
        close(got.key_weights, torch.exp(keys - wanted.lse[..., None]))
        assert torch.equal(got.top_key, wanted.top_key)
        without = m.attention(case.q, case.k, None, m.Rule(**case.rule))
        for name in FIGURES:
            close(getattr(without, name), getattr(wanted, name))

    check()


@law
def float32_loses_no_more_than_float32_must(m) -> None:
    """Against float64, at most four times what the dense way loses in float32, plus two ulps."""

    @some(40)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        case.q, case.k, case.v = case.q.float(), case.k.float(), case.v.float()
        got, judge, exact = (
            case.attend(m, torch.float32, distance=True),
            case.dense(m, torch.float32),
            case.dense(m),
        )
        for dense_one in (judge, exact):
            dense_one.distance = distance(case, dense_one.s)
        for name in (*FIGURES, "out", "distance"):
            truth = getattr(exact, name)
            lost = (getattr(judge, name) - truth).abs().nan_to_num(0.0)
            ulps = 2 * torch.finfo(torch.float32).eps * truth.abs().nan_to_num(0.0).clamp(min=1)
            error = (getattr(got, name) - truth).abs().nan_to_num(0.0)
            assert (error <= 4 * lost.amax() + ulps if lost.numel() else True).all(), name

    check()


@law
def gradients_equal_the_dense_ones(m) -> None:
    @some(40)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        inputs = [case.q, case.k, case.v]
        inputs += [case.rule[name] for name in ("bias", "sinks") if name in case.rule]
        for x in inputs:
            x.requires_grad_()
        got, wanted = case.attend(m), case.dense(m)
        seen = wanted.lse.isfinite()
        pull = [case.normal(*x.shape) for x in (wanted.out, wanted.lse, wanted.entropy)]

        def loss(a, parts):
            lse = a.lse.masked_fill(~seen, 0.0)
            values = (a.out * pull[0], lse * pull[1], a.entropy * pull[2])
            return sum(values[part].sum() for part in parts)

        for parts in ((0, 1, 2), (0,), (2,)):
            ours = torch.autograd.grad(
                loss(got, parts), inputs, allow_unused=True, retain_graph=True
            )
            theirs = torch.autograd.grad(
                loss(wanted, parts), inputs, allow_unused=True, retain_graph=True
            )
            for a, b in zip(ours, theirs, strict=True):
                if b is None:
                    assert a is None or (a == 0).all()
                else:
                    close(a, b.nan_to_num(0.0), atol=1e-8)

    check()


@law
def chunks_of_keys_merge_into_the_whole(m) -> None:
    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        stream = torch.Generator().manual_seed(seed)
        scores = 4 * torch.randn(2, 5, 13, generator=stream, dtype=torch.float64)
        values = torch.randn(2, 13, 3, generator=stream, dtype=torch.float64)
        scores[0, 1] = -math.inf  # a row that sees nothing
        scores[:, 2, :9] = -math.inf  # and one that sees nothing for long
        at = torch.arange(13, dtype=torch.float64)
        apart = (torch.arange(5).view(5, 1) + 3 - at).abs()[None, None]

        def part(a: int, b: int):
            piece = m.softmax.empty((2, 5), 3, scores, distance=True)
            m.softmax.absorb(
                piece, scores[..., a:b].clone(), at[a:b], values[:, a:b], masked=True,
                apart=apart[..., a:b],
            )  # fmt: skip
            return piece

        merge, nothing = m.softmax.merge, m.softmax.empty((2, 5), 3, scores, distance=True)
        whole = m.softmax.finish(part(0, 13))
        for piece in (
            merge(merge(part(0, 4), part(4, 9)), part(9, 13)),
            merge(part(9, 13), merge(part(4, 9), part(0, 4))),
            merge(nothing, part(0, 13)),
            merge(part(0, 13), nothing),
        ):
            done = m.softmax.finish(piece)
            for field in dataclasses.fields(whole):
                close(getattr(done, field.name), getattr(whole, field.name))
        p = torch.softmax(scores, dim=-1).nan_to_num(0.0)
        close(whole.out, p @ values)
        close(whole.entropy, -torch.xlogy(p, p).sum(dim=-1))
        close(whole.distance, (p * apart[0]).sum(dim=-1))

    check()


@law
def batches_and_heads_apart_are_the_whole(m) -> None:
    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        whole, (B, H, T, S) = case.attend(m), case.shape
        group = H // case.k.shape[1]
        full = {"mask": (B, H, T, S), "bias": (B, H, T, S)}
        for b in range(B):
            for h in range(H):
                rule = {}
                for name, value in case.rule.items():
                    if name in full:
                        value = value.expand(full[name])[b : b + 1, h : h + 1]
                    elif name in ("alibi", "sinks"):
                        value = value[h : h + 1]
                    elif isinstance(value, torch.Tensor):  # one row for each batch element
                        value = value[b : b + 1]
                    rule[name] = value
                g = h // group
                one = m.attention(
                    case.q[b : b + 1, h : h + 1], case.k[b : b + 1, g : g + 1],
                    case.v[b : b + 1, g : g + 1], m.Rule(**rule),
                )  # fmt: skip
                for name in ("out", *FIGURES):
                    close(getattr(one, name)[0, 0], getattr(whole, name)[b, h])

    check()


@law
def grouped_heads_are_those_of_repeated_keys(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        grouped = case.attend(m)
        group = case.q.shape[1] // case.k.shape[1]
        case.k, case.v = (x.repeat_interleave(group, dim=1) for x in (case.k, case.v))
        repeated = case.attend(m)
        for name in ("out", *FIGURES):
            close(getattr(grouped, name), getattr(repeated, name))

    check()


@law
def entropy_in_float32_is_right_to_five_digits(m) -> None:
    """1e-5 of itself (of 0.01 nats for a collapsed row), where the dense way keeps as much."""

    @some(30)
    @example(497)  # rows of 0.004 to 0.085 nats, which float32 alone does not hold
    @example(1044)
    @example(64447)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        case.q, case.k = (x.float().double() for x in (case.q, case.k))
        for name in ("bias", "alibi", "sinks"):
            if name in case.rule:
                case.rule[name] = case.rule[name].float()
        entropy = case.attend(m, torch.float32).entropy.double()
        rule = m.Rule(**case.rule)
        exact = dense.attend(case.q, case.k, None, rule).entropy
        judge = dense.attend(case.q, case.k, None, rule, dtype=torch.float32).entropy
        allowed = torch.maximum(1e-5 * exact.clamp(min=0.01), 4 * (judge - exact).abs())
        assert ((entropy - exact).abs() <= allowed).all()

    check()


@law
def adding_a_constant_moves_lse_alone(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        before = case.attend(m)
        case.rule = {"bias": torch.full((1,), 3.5, dtype=torch.float64)}
        after = case.attend(m)
        close(after.lse, before.lse + 3.5)
        close(after.max_score, before.max_score + 3.5)
        for name in ("out", "entropy", "mean_key", "visible"):
            close(getattr(after, name), getattr(before, name))

    check()


@law
def doubling_a_key_adds_ln_2_to_its_score(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        S = case.shape[3]
        bias = torch.zeros(S, dtype=torch.float64)
        bias[0] = math.log(2)
        case.rule = {"bias": bias}
        weighted = case.attend(m)
        case.rule = {}
        case.k = torch.cat([case.k, case.k[:, :, :1]], dim=2)
        case.v = torch.cat([case.v, case.v[:, :, :1]], dim=2)
        twice = case.attend(m)
        close(twice.out, weighted.out)
        close(twice.lse, weighted.lse)

    check()


@law
def permuting_keys_changes_nothing_without_positions(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        before = case.attend(m, received=True)
        order = torch.randperm(case.shape[3], generator=case.stream)
        case.k, case.v = case.k[:, :, order], case.v[:, :, order]
        after = case.attend(m, received=True)
        for name in ("out", "lse", "entropy", "max_score"):
            close(getattr(after, name), getattr(before, name))
        close(after.received, before.received[..., order])

    check()


@law
def a_window_as_wide_as_the_keys_is_causal(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        case.rule = {"causal": True}
        causal = case.attend(m)
        case.rule = {"causal": True, "window": case.shape[3]}
        windowed = case.attend(m)
        for name in (*FIGURES, "out"):
            close(getattr(windowed, name), getattr(causal, name))

    check()


@law
def what_is_hidden_may_hold_anything(m) -> None:
    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        before = case.attend(m, received=True, distance=True)
        bad = case.below(case.shape[3])
        visible = dense.visible(m.Rule(**case.rule), *case.shape)
        sees = visible[..., bad]
        which = case.below(3)  # a key, a value, or both
        if which != 1:
            case.k[:, :, bad, 0] = math.nan
        if which != 0:
            case.v[:, :, bad, -1] = math.inf
        after = case.attend(m, received=True, distance=True)
        real = case.rule.get("query_mask", torch.ones(sees.shape[0], sees.shape[2]).bool())
        spoiled = (sees & real[:, None])[..., None] & visible
        touched = spoiled.any(dim=2)  # (B, H, S)
        assert after.received[touched].isnan().all()
        close(after.received[~touched], before.received[~touched], atol=1e-8, rtol=1e-5)
        for name in ("out", "lse", "entropy", "max_score", "mean_key", "distance", "key_scores"):
            got, wanted = getattr(after, name), getattr(before, name)
            assert got[sees].isnan().all(), name
            close(got[~sees], wanted[~sees], atol=1e-8, rtol=1e-5)

    check()


@law
def a_spoiled_row_reaches_no_gradient_that_it_does_not_see(m) -> None:
    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        (_, _, T, S), value = case.shape, (math.nan, math.inf)[case.below(2)]
        key, query = case.below(S), case.below(T)
        sees = dense.visible(m.Rule(**case.rule), *case.shape)
        of_key = sees[..., key, None]  # (B, H, T, 1): the rows that it spoils
        of_query = (torch.arange(T) == query).unsqueeze(-1)  # even where it sees nothing
        for name, at, spoiled in (("k", key, of_key), ("q", query, of_query)):
            inputs = {name: getattr(case, name).clone() for name in "qkv"}
            inputs[name][:, :, at, 0] = value
            touched = (sees & spoiled).any(dim=(1, 2))  # (B, S)
            for power in (1, 2):  # with 2, NaN comes back into a row that is NaN
                q, k, v = (x.detach().requires_grad_() for x in inputs.values())
                with tiles_of(m, *case.tiles):
                    a = m.attention(q, k, v, m.Rule(**case.rule))
                    for x in (a.out, a.entropy):
                        x = x.nan_to_num(0.0) if power == 1 else x
                        (x**power).sum().backward(retain_graph=True)
                for x in (k, v):
                    assert x.grad.transpose(1, 2)[~touched].isfinite().all()

    check()


@law
def a_large_constant_changes_no_weight_and_no_gradient(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        q, k, v = (x.float().round() for x in (case.q, case.k, case.v))  # sums without rounding
        found = []
        for constant in (0.0, float(1 << 20)):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            rule = m.Rule(scale=1.0, bias=torch.tensor([constant]))
            with tiles_of(m, *case.tiles):
                a = m.attention(*leaves, rule, received=True)
                (a.out.sum() + a.entropy.sum()).backward()
            found.append([a.received, a.entropy, a.max_prob, *(x.grad for x in leaves)])
        for one, other in zip(*found, strict=True):
            close(other, one, atol=1e-5, rtol=1e-4)

    check()


@law
def the_top_key_of_equals_is_the_lowest(m) -> None:
    @some(10)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        case.q *= 0
        assert (case.attend(m, top=True).top_key == 0).all()

    check()


@law
def the_query_mask_never_changes_the_output(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        B, _, T, _ = case.shape
        case.rule.pop("query_mask", None)
        before = case.attend(m)
        case.rule["query_mask"] = case.normal(B, T) > 0
        after = case.attend(m)
        for name in (*FIGURES, "out"):
            assert torch.equal(getattr(after, name), getattr(before, name))

    check()


@law
def asking_for_the_distance_changes_no_bit(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        for dtype in (torch.float32, torch.float64):
            without, asked = (case.attend(m, dtype, distance=flag) for flag in (False, True))
            assert without.distance is None
            for name in (*FIGURES, "out"):
                assert torch.equal(getattr(asked, name), getattr(without, name)), name

    check()
