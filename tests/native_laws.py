"""What the native kernel obeys beside the laws of any engine."""

import math

import dense
import engine_laws
import torch
from chance import some
from engine_laws import Case, close, seeds
from hypothesis import given

from clearhead import AttentionMap

LAWS = list(engine_laws.LAWS)


def native_law(function):
    LAWS.append(function)
    return function


@native_law
def cells_of_a_map_are_the_dense_weights(m) -> None:
    """Of any rectangle, with known and with unknown lse; pooled too."""

    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        (B, H, T, S), wanted = case.shape, case.dense(m)
        rule = m.Rule(**case.rule)
        given_lse = (None, m.attention(case.q, case.k, None, rule))[case.below(2)]
        whole = AttentionMap(case.q, case.k, rule, given_lse)
        b, h = case.below(B), case.below(H)
        (i0, i1), (j0, j1) = (sorted((case.below(n + 1), case.below(n + 1))) for n in (T, S))
        step = 1 + case.below(3)
        here = b, h, slice(i0, i1, step), slice(j0, j1)
        close(whole[here], wanted.p[here])
        close(whole.scores[here], wanted.s[here])
        close(whole.dense(), wanted.p)
        for reduce, of in (("sum", torch.sum), ("max", torch.amax)):
            pooled = whole.pooled(b, h, rows=(i0, i1), cols=(j0, j1), shape=(1, 1), reduce=reduce)
            if i0 < i1 and j0 < j1:
                close(pooled.values[0, 0], of(wanted.p[b, h, i0:i1, j0:j1], dim=(0, 1)))

    check()


@native_law
def a_spoiled_row_of_a_map_is_nan_where_it_sees(m) -> None:
    @some(20)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        row, before = case.below(case.shape[2]), case.dense(m).p
        case.q[:, :, row, 0] = math.nan
        sees = dense.visible(m.Rule(**case.rule), *case.shape)
        cells = AttentionMap(case.q, case.k, m.Rule(**case.rule)).dense()
        before[:, :, row] = torch.where(sees[:, :, row], math.nan, 0.0)
        close(cells, before)

    check()


@native_law
def gradients_under_a_fixed_bias_equal_the_dense_ones(m) -> None:
    """That of a bias is left to tiled.py, and with it those of q, k and v."""

    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        inputs = [x.requires_grad_() for x in (case.q, case.k, case.v)]
        got, wanted = case.attend(m), case.dense(m)
        pull = [case.normal(*x.shape) for x in (wanted.out, wanted.lse, wanted.entropy)]
        pull[1][wanted.lse.isinf()] = 0
        for parts in ((0, 1, 2), (0,), (1,), (2,)):
            ours, theirs = (
                torch.autograd.grad(
                    [(a.out, a.lse, a.entropy)[n] for n in parts], inputs,
                    [pull[n] for n in parts], allow_unused=True, retain_graph=True,
                )
                for a in (got, wanted)
            )  # fmt: skip
            for a, b in zip(ours, theirs, strict=True):
                if b is None:
                    assert a is None or (a == 0).all()
                else:
                    close(a, b.nan_to_num(0.0), atol=1e-8)

    check()


@native_law
def a_large_constant_changes_no_cell(m) -> None:
    """A row's lse has digits that float32 does not hold, and each row has others."""

    @some(10)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed, plain=True)
        q, k = (x.float().round() for x in (case.q, case.k))  # sums without rounding
        here = (..., slice(case.below(case.shape[2]), None), slice(None))
        plain, moved = (
            AttentionMap(q, k, m.Rule(scale=1.0, bias=torch.tensor([constant])))[here]
            for constant in (0.0, float(1 << 20))
        )
        close(moved, plain, atol=1e-5, rtol=1e-4)

    check()


@native_law
def a_power_of_two_changes_no_digit(m) -> None:
    """Each key head has its own: for queries, of which keys have the reciprocal; for values; for
    what comes back. Scores are the same, and all that is made of them."""

    @some(30)
    @given(seeds)
    def check(seed: int) -> None:
        case = Case(seed)
        (B, H, T, _), G, rule = case.shape, case.k.shape[1], m.Rule(**case.rule)
        of_q, of_v, of_d = (
            torch.tensor([case.below(2 * most + 1) - most for _ in range(G)])
            for most in (95, 95, 20)
        )
        of_g = of_d - of_v  # so that a product of g and v is not far from 1
        pull = [case.normal(B, H, T, case.v.shape[-1]), case.normal(B, H, T), case.normal(B, H, T)]

        def made(q, k, v, up_q, up_v, up_g, up_d):
            group = H // G
            wide = [up.repeat_interleave(group) for up in (up_q, up_g, up_d)]
            leaves = [
                (x.float() * 2.0 ** up[:, None, None]).requires_grad_()
                for x, up in ((q, wide[0]), (k, -up_q), (v, up_v))
            ]
            a = m.attention(*leaves, rule, received=True, distance=True)
            back = [
                pull[0] * 2.0 ** wide[1][:, None, None],
                *(x.masked_fill(a.lse.isinf(), 0) * 2.0 ** wide[2][:, None] for x in pull[1:]),
            ]
            grads = torch.autograd.grad(
                [a.out, a.lse, a.entropy], leaves, [x.float() for x in back]
            )
            rows = (a.lse, a.lse_low, a.entropy, a.max_score, a.mean_key, a.top_key, a.received)
            return [*rows, a.distance, a.out, *grads]

        none = torch.zeros_like(of_q)
        inputs = case.q, case.k, case.v
        plain = made(*inputs, none, none, none, none)
        moved = made(*inputs, of_q, of_v, of_g, of_d)
        up = [none] * 8 + [of_v, of_d - of_q, of_d + of_q, of_g]
        for x, y, by in zip(plain, moved, up, strict=True):
            if x is None:
                continue
            by = by.repeat_interleave(x.shape[1] // G).double()
            by = by.view(-1, *[1] * (x.ndim - 2))
            last = 2.0**-140 * 2.0**-by  # where a float has no more digits
            same = ((x - y.double() * 2.0**-by).abs() <= last) | (x == y)
            assert (same | (x.isnan() & y.isnan())).all()

    check()
