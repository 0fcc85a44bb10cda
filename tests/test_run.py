"""Runs: calls put together into maps, judged densely in float64, and what they are on the disk."""

import math
import re
from dataclasses import replace
from itertools import pairwise

import dense
import engine_laws
import pytest
import torch
from chance import randn, some
from hypothesis import given

from clearhead.engine import attention
from clearhead.rule import Rule
from clearhead.run import COLUMNS, Call, Check, Heads, Run
from clearhead.run.calls import FIGURES
from clearhead.stats import HeadStats

CHECK = Check(rows=7, worst=1e-7, allowed=1e-6)
B, H, G, L, D = 2, 4, 2, 11, 3


def call_of(q, k, rule, rows=None, heads=None, keep=True, **more) -> Call:
    """A call as an observer records it, with the engine's own figures."""
    size = (q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    found = attention(q, k, None, rule)
    at = slice(None) if rows is None else rows
    tensors = {name: getattr(found, name)[:, :, at] for name in FIGURES}
    taken = q[:, :, at]
    if keep:
        tensors |= {"q": taken, "k": k}
        if heads is not None:
            groups = sorted({h // (q.shape[1] // k.shape[1]) for h in heads})
            tensors |= {"q": taken[:, list(heads)], "k": k[:, groups]}
    more = {"module": "layers.0.attn", "index": 0, "layer": 0, "number": 0} | more
    return Call(
        entry="sdpa", shape=size, Dv=size[-1], rule=rule, tensors=tensors, check=CHECK, rows=rows,
        heads=heads, dtype=str(q.dtype).removeprefix("torch."), **more,
    )  # fmt: skip


def run_of(calls, **more) -> Run:
    sites = {c.layer: (c.module, c.index) for c in calls}
    sites = [sites.get(n, (f"absent.{n}", 0)) for n in range(max(sites, default=-1) + 1)]
    return Run("a model", sites, len(calls), calls, keep="qk", **more)


def close(got, wanted, q) -> None:
    """Within what float32 scores of this size lose: weights are at most 1."""
    tolerance = 1e-12 if q.dtype == torch.float64 else 2e-6
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0, check_dtype=False)


# The steps of a generation ------------------------------------------------------------------------


def part_of_rule(rule: Rule, rows: slice, keys: slice, n_rows: int, n_keys: int) -> Rule:
    """The rule of the same queries and keys as a call of their own."""
    offset = n_keys - n_rows if rule.offset is None else rule.offset
    parts = {"offset": offset + rows.start - keys.start}
    for name, at in (("key_mask", keys), ("query_mask", rows), ("segments", keys)):
        if getattr(rule, name) is not None:
            parts[name] = getattr(rule, name)[:, at]
    for name in ("mask", "bias"):
        x = getattr(rule, name)
        if x is not None:
            x = x.expand(*x.shape[:-2], n_rows, n_keys) if x.ndim > 1 else x.expand(n_rows, n_keys)
            parts[name] = x[..., rows, keys]
    return replace(rule, **parts)


def steps(q, k, rule, cuts, keys_of, rules=None):
    """Calls of the rows between `cuts`, given the keys keys_of(i0, i1) each."""
    calls = []
    for n, (i0, i1) in enumerate(pairwise(cuts)):
        j0, j1 = keys_of(i0, i1)
        mine = part_of_rule(rule, slice(i0, i1), slice(j0, j1), q.shape[2], k.shape[2])
        if rules is not None and i1 - i0 == 1:
            mine = rules(mine, i0, i1)
        calls.append(
            call_of(q[:, :, i0:i1], k[:, :, j0:j1], mine, number=n, first_row=i0, key_start=j0)
        )
    return calls


CUTS = [0, 5, 6, 7, 10, 11]  # a prompt, two steps, a chunk, a step
PADDED = torch.arange(L) >= torch.tensor([[0], [3]])


def bare(rule, i0, i1):
    """A step of one query that sees all that it is given: its mask is None, and so is its rule."""
    return replace(rule, causal=False, window=None, offset=None)


def holes(rule, i0, i1):
    """A step with a static cache: what is not filled yet is masked, as keys."""
    real = (torch.arange(L) < i1).expand(B, L)
    real = real if rule.key_mask is None else real & rule.key_mask
    return replace(rule, causal=False, offset=None, key_mask=real)


def growing(i0, i1):
    return 0, i1


def sliding(i0, i1):
    return (max(0, i1 - 4), i1) if i1 - i0 == 1 else (0 if i0 == 0 else max(0, i0 - 3), i1)


def static(i0, i1):
    return 0, L


BIAS = -randn(1, H, L, L, seed=5).abs()
GENERATIONS = {  # the rule of the whole, which keys a call is given, what a step says
    "a cache that grows": (Rule(causal=True), growing, None),
    "steps without a rule": (Rule(causal=True), growing, bare),
    "softcap, sinks, alibi": (
        Rule(causal=True, softcap=2.0, sinks=randn(H), alibi=randn(H).abs(), scale=0.7),
        growing,
        None,
    ),
    "left padding": (Rule(causal=True, key_mask=PADDED, query_mask=PADDED), growing, bare),
    "a window": (Rule(causal=True, window=4), sliding, None),
    "a window, steps without a rule": (Rule(causal=True, window=4), sliding, bare),
    "a window and padding": (Rule(causal=True, window=4, key_mask=PADDED), sliding, bare),
    "a static cache": (Rule(causal=True), static, None),
    "a static cache with holes": (Rule(causal=True), static, holes),
    "a static cache, padded, with holes": (Rule(causal=True, key_mask=PADDED), static, holes),
    "documents": (Rule(causal=True, segments=(torch.arange(L) // 4).expand(B, L)), growing, None),
    "an offset each": (Rule(causal=True, offset=torch.tensor([0, -2])), growing, None),
}


def with_junk(calls):
    """What a static cache holds where nothing was written yet is anything at all."""
    found = []
    for c in calls:
        filled = c.first_row + c.shape[3] - c.key_start
        k = c.tensors["k"].clone()
        k[:, :, filled:] = 1e4
        found.append(replace(c, tensors={**c.tensors, "k": k}))
    return found


@pytest.mark.parametrize("name", GENERATIONS)
def test_the_steps_of_a_generation_are_one_map(name):
    rule, keys_of, rules = GENERATIONS[name]
    q, k = randn(B, H, L, D), randn(B, G, L, D, seed=1)
    calls = with_junk(steps(q, k, rule, CUTS, keys_of, rules))
    truth = dense.attend(q, k, None, rule).p
    for h in range(H):
        found = run_of(calls[::-1]).map(f"0.{h}")
        assert found.shape == (B, 1, L, L)
        assert found.rule.mask is None, "a rule is enough"
        close(found[:], truth[:, h : h + 1], q)
    whole = run_of(calls).map("layers.0.attn")
    close(whole[:], truth, q)
    assert whole.rule.causal
    assert whole.rule.window == rule.window
    close(run_of(calls).map("layers.0.attn", call=2)[:], truth[:, :, 6:7, slice(*keys_of(6, 7))], q)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(causal=True, mask=randn(1, 1, L, L, seed=3) > -0.5),
        Rule(causal=True, mask=randn(B, H, L, L, seed=3) > -0.5),
        Rule(causal=True, bias=BIAS),
        Rule(causal=True, bias=BIAS.clone().index_fill_(3, torch.tensor([2]), -math.inf)),
        Rule(causal=True, bias=BIAS[0, 0], alibi=randn(H).abs(), softcap=1.5, key_mask=PADDED),
    ],
    ids=["mask", "mask of each head", "bias", "bias that hides", "bias, alibi, softcap"],
)
def test_what_is_no_simple_rule_becomes_a_mask_and_a_bias(rule):
    q, k = randn(B, H, L, D), randn(B, G, L, D, seed=1)
    found = run_of(steps(q, k, rule, CUTS, growing))
    truth = dense.attend(q, k, None, rule).p
    close(found.map("layers.0.attn")[:], truth, q)
    before = truth.diagonal(-1, 2, 3)
    close(found.map("layers.0.attn").on_lag(1)[..., 1:], before, q)
    for h in range(H):
        close(found.map(f"0.{h}")[:], truth[:, h : h + 1], q)


def test_steps_that_see_other_keys_become_a_mask():
    """A key that is hidden at one step only, a window that ends: no rule says so of the whole."""
    q, k = randn(1, 1, L, D), randn(1, 1, L, D, seed=1)
    for step, change in (
        (1, {"key_mask": torch.arange(6)[None] != 2}),
        (0, {"key_mask": torch.arange(5)[None] != 2}),
        (0, {"window": 3}),
        (2, {"window": 2}),
        (3, {"causal": False}),
        (0, {"segments": torch.arange(5)[None] // 2}),
        (3, {"offset": 6}),
    ):
        calls = steps(q, k, Rule(causal=True), CUTS, growing)
        calls[step] = replace(calls[step], rule=replace(calls[step].rule, **change))
        i0, i1 = CUTS[step], CUTS[step + 1]
        calls[step] = call_of(
            q[:, :, i0:i1], k[:, :, :i1], calls[step].rule, number=step, first_row=i0
        )
        wanted = dense.attend(q, k, None, Rule(causal=True)).p
        part = dense.attend(q[:, :, i0:i1], k[:, :, :i1], None, calls[step].rule).p
        wanted[:, :, i0:i1] = 0.0
        wanted[:, :, i0:i1, :i1] = part
        close(run_of(calls).map("0.0")[:], wanted, q)


def test_a_call_that_was_not_given_the_keys_of_its_last_rows():
    """Causal, and yet its last row does not see its own key: the call did not have it."""
    q, k = randn(1, 1, L, D), randn(1, 1, L, D, seed=1)
    calls = steps(q, k, Rule(causal=True), [0, 5, 7, L], growing)
    calls[1] = call_of(
        q[:, :, 5:7], k[:, :, :6], Rule(causal=True, offset=5), number=1, first_row=5
    )
    wanted = dense.attend(q, k, None, Rule(causal=True)).p
    wanted[:, :, 6, :6] = dense.attend(q[:, :, 6:7], k[:, :, :6], None, Rule()).p[:, :, 0]
    wanted[:, :, 6, 6:] = 0.0
    close(run_of(calls).map("0.0")[:], wanted, q)


def test_a_window_shows_by_the_keys_that_a_cache_hands_over():
    """No rule says so: the prompt is shorter than the window, and a step sees all that it gets."""
    q, k = randn(1, 1, L, D), randn(1, 1, L, D, seed=1)
    calls = steps(q, k, Rule(causal=True), [0, 3, *range(4, L + 1)], sliding, bare)
    found = run_of(calls).map("0.0")
    close(found[:], dense.attend(q, k, None, Rule(causal=True, window=4)).p, q)
    assert (found.rule.mask, found.rule.window) == (None, 4)


def test_a_window_cache_seen_late_has_the_positions_of_the_sequence():
    """Its first keys were never handed over: nobody sees them."""
    q, k = randn(1, 1, L, D), randn(1, 1, L, D, seed=1)
    rule = Rule(causal=True, window=4)
    calls = steps(q, k, rule, [7, 8, 9, 10, 11], sliding, bare)
    found = run_of(calls)
    close(found.map("0.0")[:], dense.attend(q, k, None, rule).p[:, :, 7:], q)
    assert (found.map("0.0").rule.mask, found.map("0.0").rule.window) == (None, 4)
    assert found.positions("0.0").tolist() == [7, 8, 9, 10]
    (one,) = run_of(calls[:1]).between((7, 8), (4, 6))
    wanted = dense.attend(q, k, None, rule).p[0, 0, 7, 4:6].sum()
    assert one == ("0.0", pytest.approx(wanted.item(), abs=1e-6), 0.5)


@pytest.mark.parametrize("name", GENERATIONS)
def test_a_step_need_not_hold_again_what_is_kept(name):
    rule, keys_of, rules = GENERATIONS[name]
    q, k = randn(B, H, L, D), randn(B, G, L, D, seed=1)
    calls, whole = [], steps(q, k, rule, CUTS, keys_of, rules)
    for c in whole:
        new = c.first_row - c.key_start  # its own keys, and behind them what is not filled yet
        held = c.tensors["k"][:, :, new:]
        calls.append(replace(c, held_from=new, tensors={**c.tensors, "k": held}))
    found = run_of(calls).map("layers.0.attn")
    assert torch.equal(found[:], run_of(whole).map("layers.0.attn")[:])
    assert found.rule.mask is None
    with pytest.raises(ValueError, match=r"its first . keys are kept with the calls before it"):
        calls[1].map()
    with pytest.raises(ValueError, match=r"the keys . to 5 that .* are with calls that were not"):
        run_of(calls[2:]).map("0.0")


def test_steps_of_a_static_cache_alone_are_causal():
    """Their sizes say nothing of where they stand; what is not filled yet does."""
    q, k = randn(B, H, L, D), randn(B, G, L, D, seed=1)
    calls = with_junk(steps(q, k, Rule(causal=True), [*range(5, L), L], static, holes))
    found = run_of(calls).map("0.1")
    close(found[:], dense.attend(q, k, None, Rule(causal=True)).p[:, 1:2, 5:], q)
    assert (found.rule.mask, found.rule.causal, found.rule.offset) == (None, True, 5)


def test_cross_attention_sees_the_same_keys_at_every_step():
    q, k = randn(B, H, L, D), randn(B, G, 6, D, seed=1)
    rule = Rule(key_mask=torch.arange(6) < torch.tensor([[6], [4]]))
    calls = [
        call_of(q[:, :, i : i + 1], k, rule, number=i, first_row=i, cross=True) for i in range(L)
    ]
    found = run_of(calls).map("layers.0.attn")
    close(found[:], dense.attend(q, k, None, rule).p, q)
    assert found.rule.mask is None
    with pytest.raises(ValueError, match="no q and k of sequence 0"):
        run_of(calls).between((0, 1), (0, 1))


@given(engine_laws.seeds)
@some(60)
def test_any_calls_in_any_pieces_are_the_whole(seed):
    case = engine_laws.Case(seed)
    n = 2 + case.below(9)
    q, k = case.normal(B, H, n, D), case.normal(B, G, n, D)
    rule = Rule(**case.random_rule(B, H, n, n))
    cuts = sorted({0, n, *(case.below(n) for _ in range(3))})
    short = rule.causal and rule.offset is None

    def keys_of(i0, i1):
        last = i1 if short else n
        return (max(0, i0 - rule.window + 1), last) if short and rule.window else (0, last)

    calls = steps(q, k, rule, cuts, keys_of)
    truth = dense.attend(q, k, None, rule).p
    joined = run_of(calls)
    close(joined.map("layers.0.attn")[:], truth, q)
    h = case.below(H)
    close(joined.map(f"0.{h}")[:], truth[:, h : h + 1], q)
    if rule.query_mask is not None:
        assert torch.equal(joined.map(f"0.{h}").rule.query_mask, rule.query_mask)


@given(engine_laws.seeds)
@some(40)
def test_sampled_rows_are_rows_of_the_map(seed):
    case = engine_laws.Case(seed)
    t, rule = case.shape[2], Rule(**case.rule)
    rows = torch.randperm(t, generator=case.stream)[: 1 + case.below(t)].sort().values
    c = call_of(case.q, case.k, rule, rows=rows, first_row=5)
    truth = dense.attend(case.q, case.k, None, rule).p[:, :, rows]
    close(c.map()[:], truth, case.q)
    close(run_of([c]).map("0.0")[:], truth[:, :1], case.q)
    assert run_of([c]).positions("0.0").tolist() == (rows + 5).tolist()
    without = {name: x for name, x in c.tensors.items() if name in ("q", "k")}
    close(replace(c, tensors=without).map()[:], truth, case.q)


@given(engine_laws.seeds)
@some(40)
def test_the_map_of_some_heads_is_theirs(seed):
    case = engine_laws.Case(seed)
    H = case.shape[1]
    rule = Rule(**case.rule)
    heads = tuple(torch.randperm(H, generator=case.stream)[: 1 + case.below(H)].tolist())
    c = call_of(case.q, case.k, rule, heads=heads)
    truth = dense.attend(case.q, case.k, None, rule).p
    close(c.map()[:], truth[:, list(heads)], case.q)
    for h in heads:
        close(run_of([c]).map(f"0.{h}")[:], truth[:, h : h + 1], case.q)
    for h in set(range(H)) - set(heads):
        with pytest.raises(ValueError, match=f"head {h} has no map"):
            c.map(h)


def test_one_call_is_not_copied():
    q, k = randn(1, H, L, D), randn(1, G, L, D, seed=1)
    c = call_of(q, k, Rule(causal=True))
    assert c.map()._q.data_ptr() == q.data_ptr()
    found = run_of([c]).map("0.3")
    assert found._q.data_ptr() == q[:, 3:].data_ptr()
    assert found._k.data_ptr() == k[:, 1:].data_ptr()


def test_what_rounding_took_from_lse_is_not_lost():
    """Equal scores of 1e6: the last digit of their lse, s + log n, is worth 0.06 in float32."""
    q, k = torch.full((1, 1, L, 1), 1e3), torch.full((1, 1, L, 1), 1e3)
    calls = steps(q, k, Rule(causal=True, scale=1.0), CUTS, growing)
    even = torch.ones(L, L).tril() / torch.arange(1, L + 1)[:, None]
    close(calls[0].map()[0, 0], even[:5, :5], q)
    close(run_of(calls).map("0.0")[0, 0], even, q)


def test_calls_that_do_not_fit_are_refused():
    q, k = randn(1, H, L, D), randn(1, G, L, D, seed=1)
    calls = steps(q, k, Rule(causal=True), CUTS, growing)

    def refuse(changed, match):
        with pytest.raises(ValueError, match=match):
            run_of(changed).map("0.1")

    refuse([calls[0], calls[2]], r"the rows 5 to 5 before layers.0.attn, .* pass 2 are missing")
    refuse([*calls[:3], replace(calls[2], number=9)], "the rows 6 to 6 .* were computed twice")
    rule = replace(calls[1].rule, scale=0.123)
    refuse([calls[0], replace(calls[1], rule=rule)], "differ in scale")
    both = call_of(q[:, :, 5:6].expand(2, -1, -1, -1), k[:, :, :6].expand(2, -1, -1, -1), Rule())
    refuse(
        [calls[0], replace(both, first_row=5)], "differ in batch, heads, key heads and head size"
    )
    refuse(
        [calls[0], call_of(q[:, :, 5:6].double(), k[:, :, :6].double(), Rule(), first_row=5)],
        "differ in dtype",
    )
    for j in (0, 4):  # a rotated cache, a reordered one
        other = calls[1].tensors["k"].clone()
        other[:, :, j] += 1
        tensors = {**calls[1].tensors, "k": other}
        refuse([calls[0], replace(calls[1], tensors=tensors)], "was given other keys")
    with pytest.raises(ValueError, match="keys were not kept, and zeros for them take"):
        run_of([replace(calls[1], key_start=1 << 40)]).map("0.0")


# Asking a Run -------------------------------------------------------------------------------------


def a_run(dtype=torch.float32, **more) -> Run:
    """Two layers, the second of a module that is called twice a pass; two passes."""
    calls, stats = [], {}
    for number in range(2):
        for layer, (module, index) in enumerate([("a", 0), ("b.c", 0), ("b.c", 1)]):
            q, k = (randn(B, n, L, D, seed=7 * layer + number + n, dtype=dtype) for n in (H, G))
            padded = Rule(causal=True, key_mask=PADDED, query_mask=PADDED)
            calls.append(
                call_of(q, k, padded, module=module, index=index, layer=layer, number=number,
                        sequence=number)
            )  # fmt: skip
            new = HeadStats.of(calls[-1].attended(), calls[-1].map())
            stats[layer] = stats.get(layer, HeadStats.empty(H)) + new
    said = {
        "tokens": {0: torch.arange(B * L).view(B, L), 1: torch.zeros(B, L, dtype=torch.int64)},
        "pieces": {0: "\ud800 caf\u00e9", 17: "</script>"},
        "roles": {"0.1": {"role": "previous token", "mass": 0.5, "uniform": 0.1}},
        "versions": {"torch": "2"},
        "notes": ["a note"],
        "checked": [("some more", Check(0, 0.0, 0.0, "dropout", 3)), ("x", Check(1, math.nan, 1))],
    }
    return run_of(calls, stats=stats, **{**said, **more})


def test_the_table_of_heads():
    found = a_run()
    heads = found.heads()
    assert [r.head for r in heads] == [f"{n}.{h}" for n in range(3) for h in range(H)]
    assert list(heads[0].as_dict()) == list(COLUMNS)
    at = heads[1 + H]
    summary = found.stats[1].summary()[1]
    assert (at.module, at.layer, at.index, at.rows) == ("b.c", 1, 0, summary["rows"])
    assert (at.entropy, at.max_score) == (summary["entropy"], summary["max_score"])
    assert (heads[1].role, heads[1].role_mass, heads[1].role_uniform) == (
        "previous token",
        0.5,
        0.1,
    )
    assert found.heads("entropy") == sorted(heads, key=lambda r: r.entropy)
    assert found.heads("head", layers=[2, 0], reverse=True)[0].head == "2.3"
    assert [r.role_mass for r in found.heads("role_mass", reverse=True)][:2] == [0.5, None]
    with pytest.raises(ValueError, match=r"'entropie'; did you mean entropy\? There are head, mod"):
        found.heads("entropie")
    with pytest.raises(ValueError, match="no statistics of layer 3; there are of 0, 1, 2"):
        found.heads(layers=[3])
    assert isinstance(heads.sorted("rows"), Heads)


def test_numbers_of_heads_sort_as_numbers():
    one = a_run().heads()[0]
    names = Heads(replace(one, head=name) for name in ("10.0", "2.10", "2.9"))
    assert [r.head for r in names.sorted("head")] == ["2.9", "2.10", "10.0"]


def test_pandas_is_optional(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="to_pandas needs pandas, which is not installed: pip"):
        a_run().heads().to_pandas()


def test_what_there_is_no_map_of():
    found = a_run()
    for name, options, match in (
        ("3.0", {}, "there is no layer 3; there are 3"),
        ("0.9", {}, "head 9 has no map; heads 0 to 3 have one"),
        ("x", {}, "named by its layer and number, such as 3.5; got 'x'"),
        ("x", {"head": 1}, "no module 'x' made a call; there are a, b.c"),
        ("b.c", {}, "called 2 times a pass, as the layers 1 to 2: name a head, such as 1.0"),
        ("a", {"call": 2}, "a has 2 calls kept; there is no call 2"),
        ("0.0", {"sequence": 4}, r"no call of layer 0 \(a\) in sequence 4 was kept"),
    ):
        with pytest.raises(ValueError, match=match):
            found.map(name, **options)
    figures = {n: x for n, x in found.calls[0].tensors.items() if n not in ("q", "k")}
    bare = run_of([replace(found.calls[0], tensors=figures)])
    for ask in (bare.calls[0].map, lambda: bare.map("0.0"), lambda: bare.between((0, 1), (0, 1))):
        with pytest.raises(ValueError, match=r'observe\(keep="qk"\)'):
            ask()
    assert found.map("b.c", head=2, call=3).shape == (B, 1, L, L)


@pytest.mark.parametrize("name", [3, 0, 1.5, None, (1, 3), ["1.3"]])
def test_a_head_that_is_no_text_is_refused_by_what_it_is(name):
    said = re.escape(f'heads are named "layer.head", such as run.map("1.3"); got {name!r}')
    for ask in (a_run().map, a_run().positions):
        with pytest.raises(ValueError, match=f"{said}$"):
            ask(name)


@given(engine_laws.seeds)
@some(40)
def test_between_is_the_mass_beside_what_uniform_attention_lays_there(seed):
    case = engine_laws.Case(seed)
    b, h, t, s = case.shape
    rule = Rule(**case.rule)
    one = run_of([call_of(case.q, case.k, rule)])
    rows = sorted(case.below(t + 1) for _ in range(2))
    cols = sorted(case.below(s + 1) for _ in range(2))
    if rows[0] == rows[1]:
        rows = [0, t]
    wanted = {}
    p, sees = dense.attend(case.q, case.k, None, rule).p, dense.visible(rule, b, h, t, s)
    real = torch.ones(b, t, dtype=torch.bool) if rule.query_mask is None else rule.query_mask
    for head in range(h):
        mass, share = [], []
        for x in range(b):
            for i in range(*rows):
                if real[x, i] and sees[x, head, i].any():
                    mass.append(p[x, head, i, slice(*cols)].sum().item())
                    seen = sees[x, head, i]
                    share.append((seen[slice(*cols)].sum() / seen.sum().double()).item())
        if mass:
            wanted[f"0.{head}"] = (sum(mass) / len(mass), sum(share) / len(share))
    found = one.between(tuple(rows), tuple(cols))
    assert {name: pytest.approx((m, u), abs=1e-9) for name, m, u in found} == wanted
    assert [m for _, m, _ in found] == sorted((m for _, m, _ in found), reverse=True)


def test_between_takes_spans_of_the_sequence_only():
    found = a_run()
    for queries, keys, match in (
        ((0, L + 1), (0, 1), "queries must be"),
        ((0, 1), (0, L + 1), "keys must be"),
        ((3, 3), (0, 1), "queries 3 to 3"),
    ):
        with pytest.raises(ValueError, match=match):
            found.between(queries, keys)
    assert len(found.between((4, 6), slice(0, 2), batch=1)) == 3 * H
    with pytest.raises(ValueError, match="no batch element 2; there are 2"):
        found.between((4, 6), (0, 2), batch=2)


def test_the_line_that_says_how_it_was_verified():
    calls = a_run().calls
    assert run_of([]).checked_line() == "nothing was verified"
    line = run_of(calls[:1]).checked_line()
    assert line == "1 call replayed, worst output difference 1e-07 (allowed 1e-06)"
    off = replace(calls[1], check=Check(5, 0.2, 1e-6))
    dropped = replace(calls[2], check=Check(0, 0.0, 0.0, "dropout"))
    found = run_of([calls[0], off, dropped], checked=[("x", Check(0, 0, 0, "dropout", 4))])
    assert found.checked_line() == (
        "2 calls replayed, worst output difference 0.2 (allowed 1e-06); 1 DISAGREE; "
        "5 not verifiable (dropout)"
    )
    assert [check.ok for _, check in found.checks] == [True, False, False, False]


def test_checks_merge():
    a, b = Check(3, 1e-7, 1e-6), Check(4, 2e-5, 1e-5, None, 2)
    assert a.merge(b) == b.merge(a) == Check(7, 2e-5, 1e-5, None, 3)
    assert not Check(1, math.nan, 1.0).ok
    with pytest.raises(ValueError, match="dropout"):
        a.merge(Check(0, 0, 0, "dropout"))
