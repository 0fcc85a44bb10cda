"""Roles: against a dense count, pair by pair; hand-made heads, the model in the box, chance."""

import doctest
import math
from pathlib import Path
from types import ModuleType

import pytest
import torch
from chance import some
from dense import attend, visible
from hypothesis import given
from hypothesis import strategies as st
from mutants import copies

import clearhead.rolekeys
import clearhead.roles
from clearhead.engine import attention, tiles
from clearhead.gpt import GPTConfig, TinyGPT
from clearhead.map import AttentionMap
from clearhead.probe import PERIOD, REPEATS, TEXTS, probe_heads, repeated_tokens
from clearhead.roles import MIN_ROWS, ROLES, Evidence, gather, name_roles
from clearhead.rule import Rule

OPTIONS = (
    "causal", "offset", "offsets", "window", "local", "padding", "query_mask", "segments", "mask",
    "sinks", "alibi", "softcap", "bias", "tokens", "delimiters",
)  # fmt: skip


# A dense count ------------------------------------------------------------------------------------


def dense_evidence(q, k, rule, tokens, delimiters) -> dict[str, list[list[float]]]:
    """What `gather` should find in self-attention: (mass, uniform, rows) by tally and head."""
    (B, H, T, _), S = q.shape, k.shape[2]
    call, sees = attend(q, k, None, rule), visible(rule, B, H, T, S)
    offset = torch.as_tensor(S - T if rule.offset is None else rule.offset).expand(B).tolist()
    one = lambda name, b, n: getattr(rule, name)[b, n].item()  # noqa: E731
    real = lambda b, j: rule.key_mask is None or one("key_mask", b, j)  # noqa: E731
    document = lambda b, j: 0 if rule.segments is None else one("segments", b, j)  # noqa: E731
    lags = [f"lag {n}" for n in range(16, -17, -1)]
    others = ("local window", "broad", "first token", "delimiter", "same token", "induction")
    found = {name: [[0.0, 0.0, 0] for _ in range(H)] for name in (*lags, *others)}
    for b in range(B):
        for i in range(T):
            if rule.query_mask is not None and not rule.query_mask[b, i]:
                continue
            own = i + offset[b]
            inside = 0 <= own < S
            lone = rule.segments is not None and not inside
            mine = [
                j for j in range(S)
                if real(b, j) and not lone
                and (rule.segments is None or document(b, j) == document(b, own))
            ]  # fmt: skip
            first = mine[0] if mine else None
            keys = {f"lag {n}": {own - n} - {first} for n in range(16, -17, -1)}
            if first is None or abs(first - own) > 8:
                keys["local window"] = set(range(own - 8, own + 9))
            if first not in (None, own, own - 1):
                keys["first token"] = {first}
            if delimiters is not None:
                marked = set()
                for j in range(S):
                    begins = not any(
                        real(b, n) and document(b, n) == document(b, j) for n in range(j)
                    )
                    if delimiters[b, j] and not (real(b, j) and begins):
                        marked.add(j)
                if not marked & {own, own - 1}:
                    keys["delimiter"] = marked
            if tokens is not None and inside and real(b, own):
                ids = tokens[b].tolist()
                same = {j for j in range(S) if ids[j] == ids[own]} - {own}
                marked = delimiters is not None and bool(delimiters[b, own])
                if not same & {own - 1, first} and not marked:
                    keys["same token"] = same
                after = {
                    j for j in range(1, S)
                    if j <= own and ids[j - 1] == ids[own] and real(b, j - 1)
                    and document(b, j - 1) == document(b, j)
                }  # fmt: skip
                if not after & {own, own - 1}:
                    keys["induction"] = after
            for h in range(H):
                seen = set(sees[b, h, i].nonzero()[:, 0].tolist())
                for name, wanted in keys.items():
                    share = len(wanted & seen) / max(len(seen), 1)
                    if 0 < share <= 0.5:
                        total = found[name][h]
                        total[0] += sum(call.p[b, h, i, j].item() for j in wanted & seen)
                        total[1] += share
                        total[2] += 1
                if len(seen) >= 16:
                    total = found["broad"][h]
                    outcomes = len(seen) + (rule.sinks is not None)
                    total[0] += math.exp(call.entropy[b, h, i].item()) / outcomes
                    total[1] += 1
                    total[2] += 1
    return found


def random_call(options, B, G, group, T, S, seed):
    """q, k, a rule, tokens and delimiters in float64."""
    stream = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=stream, dtype=torch.float64)  # noqa: E731
    integers = lambda n, *shape: torch.randint(n, shape, generator=stream)  # noqa: E731
    H, rule = G * group, {}
    q, k = 2 * draw(B, H, T, 3), draw(B, G, S, 3)
    if "causal" in options:
        rule["causal"] = True
        if "window" in options:
            rule["window"] = 1 + int(integers(S, 1))
    elif "local" in options:
        rule["window"] = (int(integers(S, 1)), int(integers(S, 1)))
    if "offset" in options:
        rule["offset"] = int(integers(S + 6, 1)) - 3
    if "offsets" in options:
        rule["offset"] = integers(S + 6, B) - 3
    if "padding" in options:
        rule["key_mask"] = integers(5, B, S) > 0
    if "query_mask" in options:
        rule["query_mask"] = integers(4, B, T) > 0
    if "segments" in options:
        rule["segments"] = integers(8, B, S).eq(0).cumsum(1)
    if "mask" in options:
        rule["mask"] = integers(6, B, H, T, S) > 0
    if "sinks" in options:
        rule["sinks"] = draw(H)
    if "alibi" in options:
        rule["alibi"] = draw(H).abs()
    if "softcap" in options:
        rule["softcap"] = 2.0
    if "bias" in options:
        rule["bias"] = draw(1, 1, T, S)
    tokens = integers(5, B, S) - 2 if "tokens" in options else None
    delimiters = integers(5, B, S) == 0 if "delimiters" in options else None
    return q, k, Rule(**rule), tokens, delimiters


def found_by(m, q, k, rule, tokens=None, delimiters=None, **how):
    attended = attention(q, k, None, rule)
    return m.gather(AttentionMap(q, k, rule, attended), attended, tokens, delimiters, **how)


def agrees_with_a_dense_count(call, m=clearhead.roles):
    q, k, rule, tokens, delimiters = call
    got = found_by(m, *call).to_tensors()
    for name, heads in dense_evidence(q, k, rule, tokens, delimiters).items():
        tally, _, lag = name.partition(" ") if name.startswith("lag") else (name, "", "")
        for part, wanted in zip(("mass", "uniform", "rows"), zip(*heads, strict=True), strict=True):
            x = got[f"{tally}.{part}"]
            x = x[:, 16 - int(lag)] if lag else x
            wanted = torch.tensor(wanted, dtype=x.dtype)
            torch.testing.assert_close(x, wanted, rtol=1e-11, atol=1e-11, msg=f"{name} {part}")


@some(40)
@given(
    st.sets(st.sampled_from(OPTIONS), max_size=8), st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]), st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 7, 19]), st.sampled_from([1, 5, 23, 31]),
    st.sampled_from([None, 7]), st.integers(0, 1000),
)  # fmt: skip
def test_it_agrees_with_a_dense_count(options, B, G, group, T, S, wide, seed):
    with pytest.MonkeyPatch.context() as patch:
        if wide is not None:  # several tiles, so that something is added up
            patch.setattr(tiles, "KEYS", wide)
            patch.setattr(tiles, "ELEMENTS", 16 * wide)
        agrees_with_a_dense_count(random_call(options, B, G, group, T, S, seed))


def test_a_long_call_in_several_tiles():
    options = {"causal", "tokens", "delimiters"}
    agrees_with_a_dense_count(random_call(options, 1, 1, 2, 139, 277, 3))


def test_float32_loses_no_more_than_its_scores_do():
    """A weight is off by the error of its score and of lse: D + 3 roundings of what is summed."""
    q, k, rule, tokens, delimiters = random_call(
        {"causal", "tokens", "delimiters"}, 1, 2, 2, 97, 97, 5
    )
    q, k = q.float(), k.float()
    exact = found_by(clearhead.roles, q.double(), k.double(), rule, tokens, delimiters).to_tensors()
    got = found_by(clearhead.roles, q, k, rule, tokens, delimiters).to_tensors()
    largest = (q.norm(dim=-1).max() * k.norm(dim=-1).max()).item()
    # plus the sum of up to S weights, each rounded
    allowed = torch.finfo(torch.float32).eps * (2 * 6 * largest + 97)
    for name, x in exact.items():
        rows = exact[name.split(".")[0] + ".rows"]
        if name.endswith(".rows"):
            assert torch.equal(got[name], x)
        else:
            assert ((got[name] - x).abs() <= allowed * rows).all(), name


# Cross-attention, decoding, merging ---------------------------------------------------------------


def cross_attention(m=clearhead.roles):
    q, k, _, tokens, delimiters = random_call({"tokens", "delimiters"}, 2, 1, 2, 40, 23, 1)
    asking = torch.randint(5, (2, 40), generator=torch.Generator().manual_seed(2)) - 2
    found = found_by(m, q, k, Rule(), tokens, delimiters, cross=True, query_tokens=asking)
    p = attend(q, k, None, Rule()).p
    same = asking[:, :, None] == tokens[:, None]
    share = same.double().mean(dim=-1)
    rows = (share > 0) & (share <= 0.5)
    mass = (p * same[:, None]).sum(dim=-1).masked_fill(~rows[:, None], 0).sum(dim=(0, 2))
    torch.testing.assert_close(found.mass["same token"], mass)
    assert found.rows["same token"].tolist() == [int(rows.sum())] * 2
    torch.testing.assert_close(found.mass["first token"], p[..., 0].sum(dim=(0, 2)))
    assert found.rows["first token"].tolist() == [80, 80]
    delimiters[:, 0] = False  # a first key has a role of its own
    torch.testing.assert_close(
        found.mass["delimiter"], (p * delimiters[:, None, None]).sum(dim=(0, 2, 3))
    )
    untested = {"induction", "previous token", "self", "positional", "local window"}
    for head in name_roles(found):
        assert set(head.untested) == untested


def test_queries_of_another_sequence_have_no_place_among_the_keys():
    cross_attention()
    q, k, _, tokens, _ = random_call({"tokens"}, 2, 1, 2, 40, 23, 1)
    found = found_by(clearhead.roles, q, k, Rule(), tokens, cross=True)
    assert not found.rows["same token"].any()


def test_a_decoder_with_a_cache_gives_what_the_whole_text_gives():
    q, k, _, tokens, delimiters = random_call({"tokens", "delimiters"}, 2, 1, 2, 37, 37, 8)
    whole = found_by(clearhead.roles, q, k, Rule(causal=True), tokens, delimiters)
    parts, rule = Evidence.empty(2), Rule(causal=True)
    for i0, i1 in ((0, 20), *((i, i + 1) for i in range(20, 37))):
        piece = (q[:, :, i0:i1], k[:, :, :i1], rule, tokens[:, :i1], delimiters[:, :i1])
        parts = parts.merge(found_by(clearhead.roles, *piece))
    assert_same(parts, whole)


def assert_same(a, b):
    for name, x in a.to_tensors().items():
        torch.testing.assert_close(x, b.to_tensors()[name], rtol=1e-12, atol=1e-12, msg=name)


def halves_equal_the_whole(m=clearhead.roles):
    q, k, rule, tokens, delimiters = random_call(
        {"causal", "padding", "query_mask", "tokens", "delimiters"}, 4, 1, 2, 29, 29, 4
    )
    whole = found_by(m, q, k, rule, tokens, delimiters)
    parts = []
    for half in (slice(0, 1), slice(1, 4)):
        masks = {name: getattr(rule, name)[half] for name in ("key_mask", "query_mask")}
        part = (q[half], k[half], Rule(causal=True, **masks), tokens[half], delimiters[half])
        parts.append(found_by(m, *part))
    assert_same(parts[0].merge(parts[1]), whole)
    assert_same(parts[1] + parts[0], whole)
    assert_same(whole.merge(m.Evidence.empty(2)), whole)


def test_halves_equal_the_whole():
    halves_equal_the_whole()


def test_tensors_and_back():
    evidence = found_by(clearhead.roles, *random_call({"causal", "tokens"}, 1, 1, 2, 40, 40, 6))
    stored = evidence.to_tensors()
    assert_same(Evidence.from_tensors(stored), evidence)
    assert all(x.device.type == "cpu" for x in stored.values())
    with pytest.raises(ValueError, match=r"no evidence of roles: lag\.rows missing"):
        Evidence.from_tensors({k: v for k, v in stored.items() if k != "lag.rows"})
    with pytest.raises(ValueError, match=r"broad\.mass must be torch\.float64 \(2,\); got"):
        Evidence.from_tensors({**stored, "broad.mass": torch.zeros(3, dtype=torch.float64)})
    with pytest.raises(ValueError, match=r"broad\.rows must be torch\.int64"):
        Evidence.from_tensors({**stored, "broad.rows": torch.zeros(2)})
    with pytest.raises(ValueError, match="2 heads cannot be merged with that of 3"):
        evidence.merge(Evidence.empty(3))
    assert "2 heads; rows: lag 39, local window 23, broad 25" in repr(evidence)
    assert repr(Evidence.empty(2)) == "Evidence(2 heads; rows: none)"


# Hand-made heads ----------------------------------------------------------------------------------

T = 96
WORDS = torch.tensor([[7 * n % 13 + 2 for n in range(24)] * 2 + list(range(100, 124)) * 2])
COMMAS = torch.arange(T).remainder(9).eq(4)[None]


def looking_at(wanted: torch.Tensor, rule: Rule, strength=14.0):
    """q and k whose weights lie on the `wanted` (T, S) cells of a row; key 0 where there are none.

    A key is a direction of its own, and a query points at those that it wants.
    """
    wanted = wanted & visible(rule, 1, 1, *wanted.shape)[0, 0]
    wanted[:, 0] |= ~wanted.any(dim=1)
    return strength * wanted.float()[None, None], torch.eye(wanted.shape[1])[None, None]


def patterns() -> dict[str, torch.Tensor]:
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    same = WORDS[0][:, None] == WORDS[0]
    return {
        "previous token": j == i - 1,
        "self": j == i,
        "first token": (j == 0) & (i >= 0),
        "local window": ((i - j).abs() <= 4) & (i != j),
        "same token": same & (i != j),
        "induction": same.roll(1, 1) & (j > 0) & (j < i),
        "delimiter": COMMAS & (i >= 0),
        "positional": j == i - 5,
        "broad": (j >= 0) & (i >= 0),
    }


def named(m, wanted, rule):
    q, k = looking_at(wanted, rule)
    rule = Rule(**{**vars(rule), "scale": 1.0})
    return m.name_roles(found_by(m, q, k, rule, WORDS, COMMAS))[0]


def hand_made_heads(m=clearhead.roles):
    for causal in (True, False):
        for name, wanted in patterns().items():
            head = named(m, wanted, Rule(causal=causal))
            assert head.name == name, (causal, name, head)
            assert head.mass > 0.9
            assert head.lag == (5 if name == "positional" else None)
            assert (head.mass, head.uniform) == (head.all[name].mass, head.all[name].uniform)
            assert not head.untested


@pytest.mark.quick
def test_hand_made_heads_have_their_names():
    hand_made_heads()


def test_the_next_token_is_a_position():
    i, j = torch.arange(T)[:, None], torch.arange(T)[None]
    head = named(clearhead.roles, j == i + 1, Rule())
    assert (head.name, head.lag) == ("positional", -1)


def test_an_induction_head_at_rest_on_the_first_token_is_one():
    """Most rows have nothing to follow and lie on key 0; those that have tell the two apart."""
    lone = torch.cat([torch.arange(60), torch.arange(20, 40)])[None]
    i, j = torch.arange(80)[:, None], torch.arange(80)[None]
    q, k = looking_at((lone[0].roll(1) == lone[0][:, None]) & (j > 0) & (j < i), Rule(causal=True))
    rule = Rule(causal=True, scale=1.0)
    (head,) = name_roles(found_by(clearhead.roles, q, k, rule, lone))
    assert head.all["first token"].clear
    assert head.name == "induction"


def test_a_role_without_rows_is_untested_and_not_unclear():
    q, k = looking_at(patterns()["induction"], Rule(causal=True))
    rule = Rule(causal=True, scale=1.0)
    (head,) = name_roles(found_by(clearhead.roles, q, k, rule))
    assert set(head.untested) == {"induction", "same token", "delimiter"}
    assert head.name == "unclear"
    assert (head.mass, head.uniform) == (None, None)
    assert (head.all["induction"].mass, head.all["induction"].rows) == (None, 0)
    # Different words throughout: none of them comes again.
    (head,) = name_roles(found_by(clearhead.roles, q, k, rule, torch.arange(T)[None]))
    assert {"induction", "same token"} <= set(head.untested)
    # So few rows that nothing is tested.
    short = found_by(clearhead.roles, q[:, :, :MIN_ROWS], k[:, :, :MIN_ROWS], rule)
    assert name_roles(short)[0].name == "untested"
    assert name_roles(Evidence.empty(2))[1].untested == ROLES


@pytest.mark.parametrize("words", [[3], [3, 4]])
def test_repeats_in_which_roles_fall_together_test_none_of_them(words):
    """a a a: the same token is the one before. a b a b: so is what followed it earlier."""
    tokens = torch.tensor([words * (T // len(words))])
    q, k = torch.randn(1, 1, T, 4), torch.randn(1, 1, T, 4)
    (head,) = name_roles(found_by(clearhead.roles, q, k, Rule(causal=True), tokens))
    assert not head.all["induction"].tested


def test_where_a_window_leaves_no_other_keys_local_is_untested():
    rule = Rule(causal=True, window=9)
    q, k = torch.zeros(1, 1, T, 2), torch.zeros(1, 1, T, 2)
    (head,) = name_roles(found_by(clearhead.roles, q, k, rule, WORDS))
    assert "local window" in head.untested
    assert head.name == "unclear"


def rows_without_a_choice(m=clearhead.roles):
    """A window of one key: whoever sees only itself has not chosen to look at itself."""
    q, k = torch.zeros(1, 1, T, 2), torch.zeros(1, 1, T, 2)
    found = found_by(m, q, k, Rule(causal=True, window=1), WORDS, COMMAS)
    assert not any(rows.any() for rows in found.rows.values())


def test_rows_without_a_choice_do_not_count():
    rows_without_a_choice()


def test_a_sink_is_not_divided_out():
    q, k = looking_at(patterns()["previous token"], Rule(causal=True))
    for sink, name in ((10.0, "previous token"), (16.0, "unclear")):  # beside scores of 14
        rule = Rule(causal=True, scale=1.0, sinks=torch.tensor([sink]))
        (head,) = name_roles(found_by(clearhead.roles, q, k, rule))
        assert head.name == name
        share = 1 / (1 + math.exp(sink - 14))
        assert head.all["previous token"].mass == pytest.approx(share, abs=1e-3)


def test_rows_that_are_not_finite_do_not_count():
    q, k, rule, tokens, _ = random_call({"causal", "tokens"}, 1, 1, 1, 40, 40, 9)
    k[0, 0, 30] = math.nan
    found = found_by(clearhead.roles, q, k, rule, tokens)
    fewer = found_by(clearhead.roles, q[:, :, :30], k[:, :, :30], rule, tokens[:, :30])
    assert_same(found, fewer)


def test_nothing_at_all():
    for B, T, S in ((0, 3, 3), (1, 0, 3), (1, 3, 0)):
        q, k = torch.zeros(B, 2, T, 4), torch.zeros(B, 2, S, 4)
        tokens = torch.zeros(B, S, dtype=torch.int64)
        found = found_by(clearhead.roles, q, k, Rule(), tokens, tokens > 0)
        assert not any(rows.any() for rows in found.rows.values())


def test_autocast_gradients_and_inference_mode_do_not_matter():
    q, k, rule, tokens, _ = random_call({"causal", "tokens"}, 1, 1, 2, 40, 40, 2)
    wanted = found_by(clearhead.roles, q, k, rule, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(found_by(clearhead.roles, q.requires_grad_(), k, rule, tokens), wanted)
    with torch.inference_mode():
        assert_same(found_by(clearhead.roles, q, k, rule, tokens).merge(Evidence.empty(2)), wanted)


def test_what_does_not_fit_is_refused():
    q, k = torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 4)
    a = attention(q, k, None)
    amap, tokens = AttentionMap(q, k, lse=a), torch.zeros(1, 5, dtype=torch.int64)
    figures = {name: getattr(a, name) for name in ("entropy", "max_score", "sink_mass", "visible")}
    assert_same(gather(amap, figures, tokens), gather(amap, a, tokens))
    for wrong, error, words in (
        (lambda: gather(AttentionMap(q[0], k[0]), a), ValueError, r"map \(B, H, T, S\); got"),
        (
            lambda: gather(AttentionMap(q, k, Rule(causal=True)), a),
            ValueError,
            "the call was under",
        ),
        (lambda: gather(amap, {**figures, "entropy": a.entropy[0]}), ValueError, "hold entropy"),
        (lambda: gather(amap, {}), ValueError, "got a dict without"),
        (lambda: gather(amap, a, tokens[0]), ValueError, r"tokens must hold integers \(1, 5\)"),
        (lambda: gather(amap, a, tokens.float()), ValueError, "integers"),
        (lambda: gather(amap, a, tokens > 0), ValueError, r"integers .* got torch\.bool"),
        (lambda: gather(amap, a, tokens, tokens), ValueError, "delimiters must hold booleans"),
        (lambda: gather(amap, a, [1]), TypeError, "tokens must be a tensor; got list"),
        (lambda: gather(amap, a, tokens, query_tokens=tokens), ValueError, "for cross=True"),
    ):
        with pytest.raises(error, match=words):
            wrong()


def test_the_page_shows_what_comes_out():
    page = Path(__file__).parents[1] / "docs" / "roles.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 8
    assert results.failed == 0


def test_the_page_names_every_role_and_constant():
    page = (Path(__file__).parents[1] / "docs" / "roles.md").read_text("utf-8")
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in rows if name in ROLES] == list(ROLES)
    for name in ("CLEAR", "BROAD", "MIN_ROWS"):
        assert f"| `{name}` | {getattr(clearhead.roles, name)} |" in page
    for name in ("MOST", "WINDOW", "BAND", "WIDE"):
        assert f"| `{name}` | {getattr(clearhead.rolekeys, name)} |" in page


# Real heads, and none -----------------------------------------------------------------------------


def roles_of(model, tokens):
    with torch.no_grad():
        layers = model(tokens, need="map").layers
    found = {}
    for n, layer in enumerate(layers):
        heads = name_roles(gather(layer.map, layer.attended, tokens))
        found |= {f"{n}.{h}": head for h, head in enumerate(heads)}
    return found


def test_the_model_in_the_box_has_the_heads_that_the_probe_finds():
    model = TinyGPT.load("tiny-en").eval()
    heads = roles_of(model, repeated_tokens(model.config.vocab_size))
    n = PERIOD * REPEATS * TEXTS
    probed = probe_heads(model)
    best = max(probed, key=lambda head: head.induction)
    assert heads[best.name].name == "induction"
    # The probe divides by all queries; the rows that count here see its keys, and by chance more.
    role = heads[best.name].all["induction"]
    assert role.mass * role.rows > best.induction * n - (0.75 * n - role.rows) - 1e-3
    before = max(probed, key=lambda head: head.previous)
    assert heads[before.name].name == "previous token"
    role = heads[before.name].all["previous token"]
    assert (
        role.rows == n - 2 * TEXTS
    )  # the first two rows of a text see no key before but the first
    assert -1e-3 < before.previous * n - role.mass * role.rows < TEXTS + 1e-3
    for head in probed:
        if head.induction < 0.25:
            assert heads[head.name].name != "induction"


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_has_learned_nothing_is_broad(seed):
    """Its weights begin so small that its attention is nearly uniform: that is what it does."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TinyGPT(GPTConfig(vocab_size=64, context=100, n_layers=3, d_model=96)).eval()
    heads = roles_of(model, repeated_tokens(64))
    assert {head.name for head in heads.values()} == {"broad"}
    assert min(head.mass for head in heads.values()) > 0.9
    for head in heads.values():
        assert all(abs(r.mass - r.uniform) < 0.1 for r in head.all.values() if r.tested)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("sharp", [1, 2, 6, 40])
def test_heads_of_chance_are_nothing_in_particular(sharp, causal):
    """From scores of spread 1, which is not uniform any more, to one key of 100 that takes all."""
    stream = torch.Generator().manual_seed(sharp)
    q, k = (torch.randn(1, 200, 100, 8, generator=stream) for _ in range(2))
    tokens = torch.randint(25, (1, 100), generator=stream)
    delimiters = torch.rand(1, 100, generator=stream) < 0.2
    call = (sharp * q, k, Rule(causal=causal), tokens, delimiters)
    heads = name_roles(found_by(clearhead.roles, *call))
    assert not any(head.untested for head in heads)
    assert {head.name for head in heads} == {"unclear"}


# Mutants: each of these must fail one of the checks above ----------------------------------------


def the_checks(m: ModuleType) -> None:
    hand_made_heads(m)
    cross_attention(m)
    rows_without_a_choice(m)
    for seed in range(3):
        for options in (
            {"causal", "offset", "padding", "tokens", "delimiters"},
            {"segments", "query_mask", "tokens", "delimiters"},
            {"mask", "sinks", "offsets", "tokens"},
            {"tokens"},
        ):
            agrees_with_a_dense_count(random_call(options, 2, 1, 2, 23, 29, seed), m)


def copy_of_roles(old="", new="") -> ModuleType:
    return copies(old, new, clearhead.rolekeys, clearhead.roles)[-1]


def test_an_unchanged_copy_passes():
    the_checks(copy_of_roles())


MUTANTS = {
    "next for previous": ('"previous token": 1}', '"previous token": -1}'),
    "upside down": ("x.unfold(-1, LAGS, 1)", "x.unfold(-1, LAGS, 1).flip(2)"),
    "first keys among the lags": ("& ~first & (counted", "& (counted"),
    "first keys among the local": ("& ~first[..., local].any(dim=-1)", ""),
    "window": ("slice(BAND - WINDOW, BAND", "slice(BAND - WINDOW + 1, BAND"),
    "lags without a choice": ("(share <= MOST)).unsq", "(share > 0)).unsq"),
    "no choice": ("return (share > 0) & (share <= MOST)", "return share > 0"),
    "hidden keys counted": (" & ~hidden", ""),
    "pads counted": ("self.counted &= bound", "_ = bound"),
    "the offset of another text": ("b.start if apart else 0", "0"),
    "the own key is the same token": ("at != stands", "at == at"),
    "induction on the next key": ("at <= stands", "at == at"),
    "documents": ("documents != documents.roll(1, dims=1)", "documents < 0"),
    "pads follow": ("masked_fill(~real.roll(1, dims=1)", "masked_fill(~real"),
    "queries that are pads": ("ids.masked_fill(~real, NOBODY)", "ids"),
    "the last token before the first": ("before[:, 0] = NO_KEY", ""),
    "same token as the first": (" | (first == mine)", ""),
    "same as before": ("(_at(ids, own - 1, NO_KEY) == mine)", "(mine < -9)"),
    "induction on previous": (" | (_at(before, own - 1, NO_KEY) == mine)", ""),
    "delimiters match": ("unfit |= _at(delimiters", "unfit &= _at(delimiters"),
    "first keys": (" & (bound.first_keys(everywhere) != everywhere)", ""),
    "delimiters at hand": ("masked_fill(near_one, NOBODY)", "int()"),
    "the first key is the own": ("(first == call.own) | ", ""),
    "the first key is the previous": ("| (first == call.own - 1)", ""),
    "the sink": ("call.visible + (bound.sinks is not None)", "call.visible"),
    "clear": ("mass - self.uniform >= CLEAR", "uniform - self.mass >= CLEAR"),
    "lags the wrong way": ("lag=BAND - best", "lag=best - BAND"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_copy_is_found(name):
    wrong = copy_of_roles(*MUTANTS[name])
    with pytest.raises(AssertionError):
        the_checks(wrong)
