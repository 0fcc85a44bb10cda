"""The server of the viewer: every answer against dense float64, every refusal, and who may ask."""

import http.client
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import dense
import numpy as np
import pytest
import torch
from programs import ROOT
from test_run import CUTS, GENERATIONS, call_of, randn, run_of, steps

from clearhead.engine import attention
from clearhead.rule import Rule
from clearhead.run import Call, Check, Run, load
from clearhead.stats import HeadStats
from clearhead.viewer import endpoints, pyramid, server
from clearhead.viewer.codes import HIDDEN, SMALLEST, decode
from clearhead.viewer.tabs import Tab

L = 310
TEXT = ["<b>", "&amp;", " the", "Ġword", "▁Word", "\ud800", "\n", "the", "</script>", "é"]
PADDED = torch.arange(L) >= torch.tensor([[0], [41]])
RULES = {  # B, H, G, T, S, rule, more of the call
    "plain": (1, 4, 2, L, L, Rule(causal=True), {}),
    "padded": (2, 2, 1, L, L, Rule(causal=True, key_mask=PADDED, query_mask=PADDED), {}),
    "encoder": (2, 2, 2, L, L, Rule(), {}),
    "cross": (1, 2, 2, 37, 270, Rule(), {"cross": True}),
    "odd": (
        1, 2, 2, L, L,
        Rule(causal=True, window=50, sinks=randn(2), softcap=2.0, alibi=randn(2).abs(), scale=0.9),
        {},
    ),
    "sampled": (1, 2, 1, L, L, Rule(causal=True), {"rows": torch.arange(3, L, 7)}),
    "one": (1, 1, 1, 1, 1, Rule(causal=True), {}),
    "some heads": (1, 4, 2, L, L, Rule(causal=True), {"heads": (1, 2)}),
}  # fmt: skip


def inputs(name, layer=0, dtype=torch.float32):
    B, H, G, T, S, rule, _ = RULES[name]
    q = randn(B, H, T, 8, seed=10 + layer, dtype=dtype)
    return q, randn(B, G, S, 8, seed=20 + layer, dtype=dtype), rule


def made(name, keep=True) -> Run:
    """Two layers of heads over one sequence; the second sequence of "plain" is shorter."""
    B, _, _, _, S, _, more = RULES[name]
    calls, stats = [], {}
    for layer in range(2):
        q, k, rule = inputs(name, layer)
        place = {"module": f"layers.{layer}.attn", "layer": layer}
        calls.append(call_of(q, k, rule, keep=keep, **place, **more))
        stats[layer] = HeadStats.of(attention(q, k, None, rule, distance=True))
        if name == "plain":
            q, k = q[:, :, :20], k[:, :, :20]
            calls.append(call_of(q, k, rule, keep=keep, number=1, sequence=1, **place))
    stream = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(TEXT), (B, S), generator=stream)
    run = run_of(
        calls, stats=stats, tokens={0: tokens, 1: tokens[:, :20]}, pieces=dict(enumerate(TEXT))
    )
    run.keep = "qk" if keep else "stats"
    return run


def truth(name, layer, where=None):
    q, k, rule = inputs(name, layer, torch.float64)
    found = dense.attend(q, k, None, rule)
    rows = RULES[name][6].get("rows")
    if rows is not None:
        for part in ("p", "s", "entropy", "visible", "max_score", "lse"):
            setattr(found, part, getattr(found, part)[:, :, rows])
        found.received = found.p.sum(dim=2)
    return found


@contextmanager
def serving(tabs, **more) -> Iterator[server.Server]:
    with server.Server(tabs, server.listen(0), **more) as running:
        yield running


@pytest.fixture(scope="module")
def running():
    tabs = [Tab.of(name.replace(" ", "-"), name, made(name), "keep it") for name in RULES]
    tabs.append(Tab.of("stats", "stats", made("plain", keep=False), "clearhead inspect --keep qk"))
    tabs.append(Tab.of("empty", "empty", Run("nothing", []), "look at it"))
    with serving(tabs) as found:
        yield found


def ask(running, path, method="GET", **headers):
    """status, headers and body; a header given as None is left out."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    try:
        given = {
            "Host": f"127.0.0.1:{running.port}",
            **{n.replace("_", "-"): v for n, v in headers.items()},
        }
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            for one in value if isinstance(value, list) else [value]:
                if one is not None:
                    connection.putheader(name, one)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def record(running, path):
    status, headers, body = ask(running, path)
    assert status == 200, body
    assert headers["content-type"] == "application/json"
    return json.loads(body)


def array(running, path, dtype="<f4"):
    status, headers, body = ask(running, path)
    assert status == 200, body
    shape = tuple(map(int, headers["X-Shape" if "X-Shape" in headers else "x-shape"].split(",")))
    return np.frombuffer(body, dtype).reshape(shape)


def close(got, wanted, tolerance=1e-5):
    np.testing.assert_allclose(got, np.asarray(wanted), atol=tolerance, rtol=1e-5)


def where_of(name):
    return [(b, f"?batch={b}&seq=0") for b in range(RULES[name][0])]


def heads_of(name):
    return RULES[name][6].get("heads", range(RULES[name][1]))


# Answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_rows_columns_cells_and_figures_are_the_dense_truth(running, name):
    tab = name.replace(" ", "-")
    for layer in range(2):
        wanted = truth(name, layer)
        for b, where in where_of(name):
            for h in heads_of(name):
                p, s = wanted.p[b, h], wanted.s[b, h]
                T, S = p.shape
                shown = p.masked_fill(s == -math.inf, math.nan)
                head = f"/api/{tab}/{layer}.{h}"
                for i in {0, T // 2, T - 1}:
                    close(array(running, f"{head}/row/{i}{where}"), shown[i])
                for j in {0, S // 2, S - 1}:
                    close(array(running, f"{head}/column/{j}{where}"), shown[:, j])
                i0, j0 = max(T - 64, 0), max(S - 64, 0)
                both = array(running, f"{head}/cells{where}&i0={i0}&i1={T}&j0={j0}&j1={S}")
                close(both[0], p[i0:, j0:])
                close(both[1], s[i0:, j0:], 1e-4)
                entropy, normalized, largest, visible = array(running, f"{head}/rows{where}")
                close(entropy, wanted.entropy[b, h], 1e-4)
                close(visible, wanted.visible[b, h])
                close(largest, p.amax(dim=-1))
                n = wanted.visible[b, h] + (RULES[name][5].sinks is not None)
                close(normalized[n > 1], (wanted.entropy[b, h] / n.log())[n > 1], 1e-4)
                close(array(running, f"{head}/received{where}"), wanted.received[b, h], 1e-4)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_tiles_are_the_dense_truth(running, name, reduce):
    tab = name.replace(" ", "-")
    wanted = truth(name, 1)
    for b, where in where_of(name):
        h = heads_of(name)[-1]
        p, sees = wanted.p[b, h], wanted.s[b, h] > -math.inf
        head = f"/api/{tab}/1.{h}"
        info = record(running, f"{head}{where}")
        assert (info["T"], info["S"]) == p.shape
        for z in range(info["zmax"] + 1):
            for ty in range(-(-info["T"] // (256 << z))):
                for tx in range(-(-info["S"] // (256 << z))):
                    codes = array(running, f"{head}/tile/{reduce}/{z}/{ty}/{tx}{where}", "<u2")
                    assert codes.shape == (256, 256)
                    for y, x in ((0, 0), (3, 17), (17, 3), (60, 54), (255, 255)):
                        rows, cols = ((t * 256 + n) << z for t, n in ((ty, y), (tx, x)))
                        here = slice(rows, rows + (1 << z)), slice(cols, cols + (1 << z))
                        if not sees[here].any():
                            assert codes[y, x] == HIDDEN
                            continue
                        weight = p[here].max() if reduce == "max" else p[here].mean()
                        off = abs(decode(codes[y : y + 1, x])[0] - weight)
                        assert off <= 4e-4 * weight + 2 * SMALLEST


@pytest.mark.parametrize("what", GENERATIONS)
def test_steps_of_a_generation_are_one_head(what):
    rule, keys_of, said = GENERATIONS[what]
    q, k = randn(2, 4, 11, 3), randn(2, 2, 11, 3, seed=1)
    calls = steps(q, k, rule, CUTS, keys_of, said)
    stats = HeadStats.of(attention(q, k, None, rule))
    run = run_of(calls, stats={0: stats}, tokens={0: torch.zeros(2, 11, dtype=torch.int64)})
    wanted = dense.attend(q.double(), k.double(), None, rule)
    with serving([Tab.of("steps", "steps", run, "")]) as running:
        assert record(running, "/api/about")["tabs"][0]["sequences"] == [
            {"seq": 0, "batches": 2, "T": 11}
        ]
        head = "/api/steps/0.3"
        info = record(running, f"{head}?batch=1")
        assert (info["T"], info["S"], info["rowAt"]) == (11, 11, None)
        both = array(running, f"{head}/cells?batch=1&i0=0&i1=11&j0=0&j1=11")
        close(both[0], wanted.p[1, 3])
        entropy, _, largest, visible = array(running, f"{head}/rows?batch=1")
        close(entropy, wanted.entropy[1, 3], 1e-4)
        close(largest, wanted.p[1, 3].amax(dim=-1))
        close(visible, wanted.visible[1, 3])


def test_links_are_ranked_over_all_heads(running):
    i, j = 200, 17
    found = record(running, f"/api/plain/link?i={i}&j={j}")
    assert [one["head"] for one in found] == sorted(
        (one["head"] for one in found),
        key=lambda head: -next(one["weight"] for one in found if one["head"] == head),
    )
    assert {one["head"] for one in found} == {f"{a}.{b}" for a in range(2) for b in range(4)}
    for one in found:
        layer, h = map(int, one["head"].split("."))
        wanted = truth("plain", layer)
        close(one["weight"], wanted.p[0, h, i, j])
        close(one["score"], wanted.s[0, h, i, j], 1e-4)
        assert one["rank"] == 1 + int((wanted.s[0, h, i] > wanted.s[0, h, i, j]).sum())
        close(one["uniform"], 1 / (i + 1))
    sampled = record(running, "/api/sampled/link?i=10&j=2")  # by its place in the text
    close(sampled[0]["uniform"], 1 / 11)
    assert ask(running, "/api/sampled/link?i=11&j=2")[0] == 404  # that row was not kept
    assert ask(running, "/api/plain/link?i=17&j=200")[0] == 404  # nobody may
    assert ask(running, "/api/cross/link?i=1&j=2")[0] == 409  # its keys are elsewhere


def test_about_and_grid_say_what_there_is(running):
    about = record(running, "/api/about")
    tabs = {tab["id"]: tab for tab in about["tabs"]}
    assert list(tabs)[:2] == ["plain", "padded"]
    plain = tabs["plain"]
    assert (plain["model"], plain["layers"], plain["heads"]) == ("a model", 2, 8)
    assert (plain["keep"], plain["ready"], plain["tokens"]) == ("qk", True, L + 20)
    assert plain["checked"].startswith("4 calls replayed, worst output difference 1e-07")
    assert plain["sequences"] == [
        {"seq": 0, "batches": 1, "T": L},
        {"seq": 1, "batches": 1, "T": 20},
    ]
    assert tabs["padded"]["sequences"][0]["batches"] == 2
    assert tabs["stats"]["keep"] == "stats"
    assert tabs["empty"]["first"] is None
    assert {"normalized_entropy", "first_key", "distance", "role", "max_score"} <= {
        metric["key"] for metric in about["metrics"]
    }
    assert about["roles"]["induction"].startswith("reads what followed its own token earlier")
    assert about["sources"]["probe"] == "on random tokens that repeat"
    assert about["caveat"] == "Attention shows where a head reads, not why the model answers."
    grid = record(running, "/api/plain/grid")
    for row in grid["heads"]:
        wanted = truth("plain", row["layer"]).entropy[0, int(row["head"].split(".")[1])]
        close(row["entropy"], wanted.mean(), 1e-4)
        assert row["hasMap"]
    assert [row["hasMap"] for row in record(running, "/api/some-heads/grid")["heads"]] == [
        False, True, True, False] * 2  # fmt: skip
    assert record(running, "/api/empty/grid")["heads"] == []


def test_a_head_says_its_rule_and_where_its_rows_stand(running):
    plain = record(running, "/api/plain/0.1")
    assert plain["rule"] == "causal"
    assert (plain["zmax"], plain["base"], plain["rowAt"]) == (1, 0, None)
    assert (plain["hasMap"], plain["queryTexts"], plain["keyTexts"]) == (True, True, True)
    sampled = record(running, "/api/sampled/0.1")
    assert sampled["rowAt"] == list(range(3, L, 7))
    assert sampled["rule"] == "causal"
    odd = record(running, "/api/odd/0.1")
    assert odd["rule"] == "causal, window 50, ALiBi, a learned sink, softcap 2"
    cross = record(running, "/api/cross/0.1")
    assert (cross["cross"], cross["T"], cross["S"]) == (True, 37, 270)
    assert record(running, "/api/plain/1.0?seq=1")["T"] == 20
    stats = record(running, "/api/stats/1.0")
    assert (stats["hasMap"], stats["T"], stats["S"]) == (False, L, L)
    assert stats["command"] == "clearhead inspect --keep qk"


def test_tokens_are_the_raw_texts_in_pages(running):
    ids = made("plain").tokens[0][0].tolist()
    texts = [TEXT[n].encode("utf-8", "backslashreplace").decode() for n in ids]
    found = record(running, "/api/plain/tokens?from=5&to=300")
    assert found["texts"] == texts[5:300]
    assert (found["from"], found["to"], found["total"]) == (5, 300, L)
    assert record(running, "/api/plain/tokens")["texts"] == texts
    assert record(running, "/api/plain/tokens?from=300&to=999")["to"] == L
    assert record(running, f"/api/plain/tokens?from={L}")["texts"] == []
    second = [TEXT[n] for n in made("padded").tokens[0][1].tolist()]
    found = record(running, "/api/padded/tokens?batch=1")["texts"]
    assert found == [text.encode("utf-8", "backslashreplace").decode() for text in second]
    assert ask(running, "/api/empty/tokens")[0] == 404


def test_search_finds_tokens_and_what_runs_over_several(running):
    ids = made("plain").tokens[0][0].tolist()
    text = [TEXT[n] for n in ids]

    def places(q):
        return record(running, f"/api/plain/search?q={q}")["positions"]

    assert places("the") == [n for n, t in enumerate(text) if "the" in t]
    assert places("word") == [n for n, t in enumerate(text) if t[1:].lower() == "word"]
    assert places("Word") == [n for n, t in enumerate(text) if t[1:] == "Word"]
    assert places("%3Cb%3E") == [n for n, t in enumerate(text) if t == "<b>"]
    assert places("%C3%A9") == [n for n, t in enumerate(text) if t == "é"]
    over = [n for n in range(L - 1) if text[n : n + 2] == ["the", "</script>"]
            or text[n : n + 2] == [" the", "</script>"]]  # fmt: skip
    assert places("the%3C/script") == over
    assert places("\\ud800") == [n for n, t in enumerate(text) if t == "\ud800"]  # as it is shown
    assert places("nowhere") == []


def test_a_run_without_q_and_k_has_curves_and_the_command_that_would_keep_them(running):
    entropy = array(running, "/api/stats/0.1/rows")[0]
    close(entropy, truth("plain", 0).entropy[0, 1], 1e-4)
    for path in ("tile/max/0/0/0", "row/3", "column/3", "received", "cells?i0=0&i1=1&j0=0&j1=1"):
        status, _, body = ask(running, f"/api/stats/0.1/{path}")
        assert status == 409
        assert "clearhead inspect --keep qk" in json.loads(body)["error"]
    assert ask(running, "/api/stats/link?i=3&j=2")[0] == 409
    assert ask(running, "/api/some-heads/0.0/row/1")[0] == 409
    assert array(running, "/api/some-heads/0.0/rows").shape == (4, L)


# Refusals ---------------------------------------------------------------------------------------


WRONG = """
/api /api/ /api/nowhere/grid /api/plain/9.9 /api/plain/0.4 /api/plain/2.0 /api/plain/x /api/plain/1
/api/plain/1.-1 /api/plain/01.1 /api/plain/1.1.1 /api/plain/99999999999.0 /api/plain/1.1/nothing
/api/plain/%2e%2e/grid /api/plain/1.1/tile/max/0/0 /api/plain/1.1/tile/min/0/0/0
/api/plain/1.1/tile/max/2/0/0 /api/plain/1.1/tile/max/-1/0/0 /api/plain/1.1/tile/max/0/2/0
/api/plain/1.1/tile/max/0/0/2 /api/plain/1.1/tile/max/1/1/0 /api/plain/1.1/tile/max/0/-1/0
/api/plain/1.1/tile/max/1e3/0/0 /api/plain/1.1/tile/max/99999999999999999999/0/0
/api/plain/1.1/tile/max/0/0/0?batch=1 /api/plain/1.1/tile/max/0/0/0?batch=-1
/api/plain/1.1/tile/max/0/0/0?seq=2 /api/plain/1.1/tile/max/0/0/0?seq=x
/api/plain/1.1/tile/max/0/0/0?seq=0&seq=0 /api/plain/1.1/tile/max/0/0/0?sequence=0
/api/plain/1.1/row/310 /api/plain/1.1/row/-1 /api/plain/1.1/row/x /api/plain/1.1/row/1.0
/api/plain/1.1/column/310 /api/plain/1.1/column/99999999999999 /api/plain/1.1/row/%D9%A3
/api/plain/1.1/cells /api/plain/1.1/cells?i0=0&i1=65&j0=0&j1=64
/api/plain/1.1/cells?i0=0&i1=0&j0=0&j1=1
/api/plain/1.1/cells?i0=5&i1=4&j0=0&j1=1 /api/plain/1.1/cells?i0=0&i1=311&j0=0&j1=1
/api/plain/1.1/cells?i0=0&i1=1&j0=310&j1=311 /api/plain/1.1/cells?i0=&i1=1&j0=0&j1=1
/api/plain/1.1/cells?i0=0&i1=1&j0=0&j1=999999999999 /api/plain/1.1/cells?i0=0&i1=1&j0=-1&j1=1
/api/plain/tokens?from=311 /api/plain/tokens?from=9&to=3 /api/plain/tokens?from=0&to=8193
/api/plain/tokens?from=-1 /api/plain/tokens?to=nan /api/plain/search /api/plain/search?q=
/api/plain/search?q=%s /api/plain/link /api/plain/link?i=1 /api/plain/link?i=1&j=x
/api/plain/link?i=310&j=0 /api/plain/link?i=3&j=310 /api/plain/link?i=-3&j=0
/api/plain/1.1/progress/min /api/plain/grid?x=1 /api/about?tab=plain /api/empty/0.0
/api/empty/0.0/rows /api/empty/link?i=0&j=0 /api/plain/1.1/rows?batch=7 /nothing /a/b
""".replace("%s", "x" * 201).split()


@pytest.mark.parametrize("path", WRONG)
def test_what_is_wrong_is_refused_in_one_line(running, path):
    status, headers, body = ask(running, path)
    assert 400 <= status < 500, (status, body)
    said = json.loads(body)
    assert list(said) == ["error"]
    assert said["error"] == " ".join(said["error"].split()) != ""
    assert len(said["error"]) < 300
    assert headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_can_be_changed(running, method):
    status, headers, body = ask(running, "/api/about", method)
    assert status == 405
    assert "GET" in json.loads(body)["error"]
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_bug_of_ours_is_one_line_too_and_harms_nobody_else(running, monkeypatch, capsys):
    def bug(*_):
        raise RuntimeError("inside\nof it")

    with monkeypatch.context() as patch:
        patch.setattr("clearhead.viewer.places.Atlas.row", bug)
        status, _, body = ask(running, "/api/plain/1.1/row/3")
    assert (status, json.loads(body)["error"]) == (500, "RuntimeError: inside of it")
    assert "/api/plain/1.1/row/3: RuntimeError: inside of it\n" in capsys.readouterr().err
    assert ask(running, "/api/plain/1.1/row/3")[0] == 200


# Who may ask ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/about", "/api/plain/1.1/tile/max/0/0/0", "/nothing",
                                  "/api/plain/7.7", "/base.css", "/boot.js"])  # fmt: skip
def test_every_answer_says_what_a_browser_may_do_with_it(running, path):
    for extra in ({}, {"Host": "evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        _, headers, _ = ask(running, path, **extra)
        headers = {name.lower(): value for name, value in headers.items()}
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control")]


def test_only_its_own_names_are_answered(running):
    port = running.port
    for good in ("127.0.0.1", "localhost", "LOCALHOST", "[::1]"):
        assert ask(running, "/api/about", Host=f"{good}:{port}")[0] == 200
    for bad in (
        f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"localhost.:{port}",
        f"127.0.0.1.evil.example:{port}", f"127.0.0.2:{port}", "", f"[::1]:{port}x",
        f"evil@localhost:{port}", f"localhost:{port}@evil", f"192.168.1.7:{port}",
    ):  # fmt: skip
        status, _, _ = ask(running, "/api/about", Host=bad)
        assert status in (400, 421), bad
    for bad in (None, [f"localhost:{port}", f"localhost:{port}"]):
        assert ask(running, "/api/about", Host=bad)[0] in (400, 421)


def test_a_request_with_two_hosts_or_none_is_refused_whatever_the_protocol_lets_through():
    guard = server.Guard(None, "127.0.0.1", 8000)
    scope = {"method": "GET", "path": "/api/about"}
    good = (b"host", b"localhost:8000")
    assert guard.refusal({**scope, "headers": [good]}) is None
    for headers in ([], [good, good], [good, (b"host", b"evil.example:8000")]):
        assert guard.refusal({**scope, "headers": headers}).status_code == 421


def test_names_where_others_may_come_too():
    anywhere = server.Guard(None, "0.0.0.0", 8000)
    for good in ("192.168.1.7:8000", "[fe80::1]:8000", "localhost:8000"):
        assert anywhere.is_ours(good)
    for bad in ("evil.example:8000", "192.168.1.7:8001", "1.2.3.4.evil:8000", ":8000", "[]:8000"):
        assert not anywhere.is_ours(bad)
    one = server.Guard(None, "192.168.1.7", 80)
    assert one.is_ours("192.168.1.7")
    assert one.is_ours("192.168.1.7:80")
    assert not one.is_ours("192.168.1.8:80")


def test_other_sites_read_nothing(running):
    port = running.port
    for headers in (
        {"Sec_Fetch_Site": "cross-site"}, {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"}, {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}", "Sec_Fetch_Site": "same-origin"},
    ):  # fmt: skip
        status, _, body = ask(running, "/api/plain/1.1/row/3", **headers)
        assert status == 403, headers
        assert "another site" in json.loads(body)["error"]
    for headers in ({"Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "none"},
                    {"Origin": f"http://127.0.0.1:{port}"}):  # fmt: skip
        assert ask(running, "/api/plain/1.1/row/3", **headers)[0] == 200
    assert ask(running, "/", Sec_Fetch_Site="cross-site")[0] == 200  # a link may lead here


def test_files_of_the_page_and_no_others(running, tmp_path, monkeypatch):
    status, headers, body = ask(running, "/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert ask(running, "/index.html")[2] == body
    assert ask(running, "/boot.js")[1]["content-type"] == "text/javascript; charset=utf-8"
    for path in (
        "/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "/%2e%2e%2fserver.py", "/.", "/..",
        "//etc/passwd", "/etc/passwd", "/%2fetc%2fpasswd", "/server.py", "/web/boot.js",
        "/package.json", "/boot.js%00", "/boot.js/", "/./boot.js/..", "/..%5cserver.py",
    ):  # fmt: skip
        assert ask(running, path)[0] == 404, path
    (tmp_path / "web").mkdir()
    (tmp_path / "secret.js").write_text("a secret")
    (tmp_path / "web" / "a.js").symlink_to(tmp_path / "secret.js")
    (tmp_path / "web" / "b.js").write_text("fine")
    monkeypatch.setattr(server, "WEB", tmp_path / "web")
    assert ask(running, "/a.js")[0] == 404
    assert ask(running, "/b.js")[2] == b"fine"


# Many, large, slow ------------------------------------------------------------------------------


def test_fifty_clients_at_once_lose_nothing(running):
    paths = [
        f"/api/plain/{a}.{b}/{what}"
        for a in range(2)
        for b in range(4)
        for what in ("row/300", "tile/mean/1/0/0", "tile/max/0/1/0", "received", "rows")
    ]
    wanted = {path: ask(running, path)[2] for path in paths}
    running.endpoints.cache = type(running.endpoints.cache)(running.endpoints.cache.budget)
    wrong, gate = [], threading.Barrier(50)

    def client(n):
        gate.wait()
        for m in range(len(paths)):
            path = paths[(n + m) % len(paths)]
            status, _, body = ask(running, path)
            if status != 200 or body != wanted[path]:
                wrong.append((path, status))

    threads = [threading.Thread(target=client, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_wandering_stays_within_the_budget_of_bytes():
    budget = 3 << 20
    with serving([Tab.of("plain", "plain", long_run(6000, 2), "")], budget=budget) as running:
        cache, seen = running.endpoints.cache, set()
        for h in range(2):
            for z in range(4):
                for ty in range(-(-6000 // (256 << z))):
                    path = f"/api/plain/0.{h}/tile/max/{z}/{ty}/{max(0, ty - 1)}"
                    status, _, body = ask(running, path)
                    assert (status, len(body)) == (200, 1 << 17)
                    seen.add(body)
                    assert cache.nbytes <= budget
        assert cache.nbytes == sum(array.nbytes for array in cache._held.values())
        assert len(cache) < len(seen)


def long_run(T, H, D=8) -> Run:
    """One layer of H heads over T tokens; its lse is made up, for times and sizes alone."""
    q, k = randn(1, H, T, D), randn(1, H, T, D, seed=1)
    none = torch.zeros(1, H, T)
    names = ("lse_low", "entropy", "max_score", "mean_key", "sink_mass")
    tensors = dict.fromkeys(names, none)
    tensors |= {
        "q": q,
        "k": k,
        "lse": none + 9.0,
        "visible": torch.arange(1.0, T + 1).expand(1, H, T),
    }
    call = Call(
        module="attn", index=0, layer=0, number=0, entry="sdpa", shape=(1, H, H, T, T, D), Dv=D,
        rule=Rule(causal=True), tensors=tensors, check=Check(1, 0.0, 1.0),
    )  # fmt: skip
    return Run("long", [("attn", 0)], 1, [call], stats={0: HeadStats.empty(H)}, keep="qk")


@pytest.mark.slow
def test_a_pass_over_100000_tokens_blocks_nobody_and_ends_when_all_have_gone():
    with serving([Tab.of("long", "long", long_run(100_000, 2), "")]) as running:
        running.endpoints.workers.grace = 0.3
        waiting = []
        for _ in range(3):  # three who want the same
            connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
            connection.request("GET", "/api/long/0.0/tile/max/9/0/0")
            waiting.append(connection)
        times, done = [], []
        for n in range(30):
            began = time.monotonic()
            assert ask(running, f"/api/long/0.1/row/{90_000 + n}")[0] == 200
            assert ask(running, f"/api/long/0.1/tile/max/1/{n}/{n}")[0] == 200
            times.append((time.monotonic() - began) / 2)
            done.append(record(running, "/api/long/0.0/progress/max"))
        assert median(times) < 0.15
        assert len(running.endpoints.workers._jobs) == 1
        assert done[-1]["what"] == "reading 100,000 rows"
        for connection in waiting[:-1]:
            connection.close()
        time.sleep(1.0)
        before = record(running, "/api/long/0.0/progress/max")["done"]
        assert 0 < before < 0.9  # one of them still waits, and it goes on
        waiting[-1].close()
        began = time.monotonic()
        while running.endpoints.workers._jobs and time.monotonic() - began < 10:
            time.sleep(0.02)
        assert running.endpoints.workers._jobs == {}
        assert record(running, "/api/long/0.0/progress/max")["done"] == 1.0
        spent = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - spent < 0.2  # nothing computes any more


@pytest.mark.slow
def test_whoever_comes_back_in_time_finds_the_work_that_was_done(monkeypatch):
    pixels = pyramid._pixels

    def slowly(*given):
        time.sleep(0.1)
        return pixels(*given)

    monkeypatch.setattr(pyramid, "_pixels", slowly)
    with serving([Tab.of("long", "long", long_run(30_000, 1), "")]) as running:
        workers = running.endpoints.workers
        workers.grace = 20
        first = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        first.request("GET", "/api/long/0.0/tile/max/7/0/0")
        while not (found := [job for job in workers._jobs.values() if job.slow and job.done > 0.1]):
            time.sleep(0.001)
        first.close()
        while found[0].waiting:
            time.sleep(0.001)
        stands = -1.0
        while stands < found[0].done:  # the bands that were begun
            stands = found[0].done
            time.sleep(1.0)
        assert stands < 0.9  # nobody waits: it stands still
        assert ask(running, "/api/long/0.0/tile/max/6/0/0")[0] == 200
        assert len(found[0].future.result()) == 5  # the same work, and it was not begun again


def test_a_tab_that_is_on_its_way_says_how_far_it_is():
    go = threading.Event()

    def load(progress):
        progress(0.4, "reading")
        go.wait()
        return made("one")

    def fail(progress):
        raise ValueError("no\nluck")

    with serving([Tab("slow", "slow", load, ""), Tab("bad", "bad", fail, "")]) as running:
        while record(running, "/api/about")["tabs"][0]["progress"] < 0.4:
            time.sleep(0.01)
        said = record(running, "/api/about")["tabs"]
        assert (said[0]["ready"], said[0]["what"]) == (False, "reading")
        status, _, body = ask(running, "/api/slow/grid")
        assert (status, json.loads(body)["error"]) == (503, "slow is being prepared: 40%")
        while "error" not in record(running, "/api/about")["tabs"][1]:
            time.sleep(0.01)
        assert "ValueError: no luck" in json.loads(ask(running, "/api/bad/grid")[2])["error"]
        go.set()
        while not record(running, "/api/about")["tabs"][0]["ready"]:
            time.sleep(0.01)
        assert ask(running, "/api/slow/grid")[0] == 200


def test_names_of_tabs_are_plain_and_no_two_alike():
    names = ["runs/a", "runs/a", "é", "", "..", "about", "a" * 100, "a b"]
    assert server.ids_of(names) == [
        "runs-a", "runs-a-2", "run", "run-2", "run-3", "about-2", "a" * 60, "a-b",
    ]  # fmt: skip


def test_the_page_lists_every_address_of_the_server_and_no_other():
    page = (ROOT / "docs" / "viewer.md").read_text("utf-8")
    listed = set()
    for line in re.findall(r"^\| (`/.*?`) \|", page, re.M):
        first, *more = (name.split("?")[0] for name in re.findall(r"`([^`]+)`", line))
        listed |= {first, *(first[: first.index("/row/")] + name for name in more)}
    known = {"tab": "RUN", "head": "3.5", "reduce": "max", "z": "Z", "ty": "TY", "tx": "TX",
             "i": "I", "j": "J"}  # fmt: skip
    assert listed == {route.path.format_map(known) for route in endpoints.Endpoints([]).routes()}


def test_a_run_whose_files_are_damaged_while_it_is_open_leaves_the_others_as_they_are(tmp_path):
    for name in ("whole", "hurt"):
        made("plain").save(tmp_path / name)
    tabs = [Tab.of(name, name, load(tmp_path / name), "") for name in ("whole", "hurt")]
    with serving(tabs) as running:
        for path in (tmp_path / "hurt").rglob("*.safetensors"):
            path.write_bytes(b"")
        whole, hurt = record(running, "/api/about")["tabs"]
        assert whole["ready"] and whole["tokens"] == L + 20
        assert not hurt["ready"] and "damaged" in hurt["error"]
        assert ask(running, "/api/whole/0.0/row/3")[0] == 200
