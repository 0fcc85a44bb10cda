"""Wrong copies of the native kernel: each is changed in one place, and breaks a law.

They have tiles of seven keys, so that the small cases of the laws cross many.
"""

import chance
import csrc
import engine_laws
import fuzz
import pytest
import torch
from test_engine import judged

from clearhead.engine import native

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native kernel is not built")

# name: what stands there, what stands in the wrong copy
COPIES = {
    "window one key too many": ("own - c->before)", "own - c->before - 1)"),
    "window one key too few": ("own - c->before)", "own - c->before + 1)"),
    "causal sees the next key": ("own + c->after + 1)", "own + c->after + 2)"),
    "causal hides itself": ("own + c->after + 1)", "own + c->after)"),
    "the first offset for all": ("c->offset[b]", "c->offset[0]"),
    "mask inverted": ("row[j * step] != 0", "row[j * step] == 0"),
    "one look at a mask's first key": (
        "step == 1 ? memchr(row, 0, n) != NULL",
        "step == 1 ? !*row",
    ),
    "key mask ignored": ("if (c->key_mask && memchr", "if (0 && memchr"),
    "documents ignored in a tile": ("== x->document[lane];", ">= 0;"),
    "documents looked for in one lane": ("if (x->document[lane] != x->document[0]) return 1;", ";"),
    "lowest bias not hidden": (
        "*(const double *)at <= -1.7976931348623157e308",
        "*(const double *)at < -1.7976931348623157e308",
    ),
    "softcap left out": ("tanh_(load(here) / cap) * cap", "load(here)"),
    "softcap after the bias": (
        "shape(c, x, j0, n, s);\n",
        "{\n"
        "    shape(c, x, j0, n, s);\n"
        "    if (c->softcap > 0)\n"
        "      for (int i = 0; i < n * LANES; i++) s[i] = c->softcap * tanh(s[i] / c->softcap);\n"
        "  }\n",
    ),
    "tanh near 0": ("every(-3.33332819422e-1f)", "every(-3.33e-1f)"),
    "ALiBi the other way": (
        "every((REAL)j) - load(back + at)",
        "load(back + at) - every((REAL)j)",
    ),
    "ALiBi within the tile": ("(REAL)(x->own[lane] - j0)", "(REAL)x->own[lane]"),
    "ALiBi of the block's first head": ("c->alibi[x->h[lane]]", "c->alibi[x->h[0]]"),
    "bias times scale": (
        "+= number_at(row + j * step, c->bias.dtype)",
        "+= (REAL)c->scale * number_at(row + j * step, c->bias.dtype)",
    ),
    "scale twice": ("* every(scale))", "* every(scale * scale))"),
    "the keys of another head": (
        "pack_keys(c, b, g, j0, j1, room->keys)",
        "pack_keys(c, b, (g + 1) % c->G, j0, j1, room->keys)",
    ),
    "the values of another head": (
        "pack_values(c, b, g, j0, j1, room->values)",
        "pack_values(c, b, (g + 1) % c->G, j0, j1, room->values)",
    ),
    "the first tile skipped": (
        "j0 = first / KEYS * KEYS;",
        "j0 = (first / KEYS + (last > KEYS)) * KEYS;",
    ),
    "tiles skip a key": ("least(j0 + KEYS, least", "least(j0 + KEYS - 1, least"),
    "values not skipped with their keys": ("if (values) values += skip * GROUP;", ""),
    "the last lane's first key for all": ("x->first = least(x->first, low);", "x->first = low;"),
    "nobody looks before the first key": ("x->all_from = most(x->all_from, low);", ""),
    "nobody looks behind the last key": ("x->all_to = least(x->all_to, high);", ""),
    "keys before the first are seen": (
        "if_iless(ievery(j), from, every(-INFINITY), shown)",
        "shown",
    ),
    "visible counts the hidden": ("seen[lane] += count;", "seen[lane] += n;"),
    "no rescale of the output": ("store(here, load(here) * load(factor + at));", ""),
    "no rescale of the sum": ("    rows->l[lane] *= f;\n", ""),
    "no rescale of the entropy": ("* rows->l[lane]) * f;", "* rows->l[lane]);"),
    "no rescale of the mean key": ("rows->c[lane] *= f;", ""),
    "no rescale of the distance": ("rows->a[lane] *= f;", ""),
    "entropy not shifted": ("(rows->u[lane] + d * rows->l[lane])", "(rows->u[lane])"),
    "entropy shifted the other way": ("rows->u[lane] + d * rows", "rows->u[lane] - d * rows"),
    "entropy not shifted to the sink": ("(u + d * l) * factor", "u * factor"),
    "rescaled where the first vector moves": ("moved |= find", "moved = at ? moved : find"),
    "a collapsed row is summed like others": (
        "rest += if_less(p, one, p, zero);\n    ones += if_less(p, one, zero, p);",
        "rest += p;",
    ),
    "the last of equal keys on top": (
        "if_less(m, here, (vec)ievery(j), (vec)top)",
        "if_less(here, m, (vec)top, (vec)ievery(j))",
    ),
    "top key within the tile": ("rows->top[at + i] = j0 + top[i]", "rows->top[at + i] = top[i]"),
    "sink left out": ("l = l * factor + sink;", "l = l * factor;"),
    "sink in the largest score": ("-INFINITY : rows->m[lane]", "-INFINITY : m"),
    "sink leaves the output whole": ("(REAL)(factor / some)", "(REAL)(factor / (some - sink))"),
    "sink in the distance": (
        "distance = l == 0 ? 0 : rows->a[lane] / l;",
        "distance = l == 0 ? 0 : rows->a[lane] / (l + (c->sinks ? 1 : 0));",
    ),
    "mean key within the tile": ("(double)j0 * l + t.c[lane]", "t.c[lane]"),
    "mean key not renormalized by the sink": ("key * factor / some", "key / some"),
    "distance with its sign": ("(j < own ? own - j : j - own)", "(own - j)"),
    "distance with its sign behind the tile": (
        "sum = t->c[lane] - (double)own * l",
        "sum = (double)own * l - t->c[lane]",
    ),
    "distance by the neighboring key": ("x->own[lane] - j0;  //", "x->own[lane] - j0 + 1;  //"),
    "the next key for the previous": ("{first, own - 1, own}", "{first, own + 1, own}"),
    "hidden keys are picked": (" && sees(c, x, lane, keys[p])", ""),
    "keys are picked from the neighboring lane": (
        "s[(keys[p] - j0) * LANES + lane]",
        "s[(keys[p] - j0) * LANES + (lane ? lane - 1 : 0)]",
    ),
    "lse in base 2": ("(REAL)(m + log_l)", "(REAL)(m + log_l * LOG2_E)"),
    "the rounding of lse is forgotten": ("(REAL)((m - lse) + log_l)", "0"),
    "an empty row is NaN": ("some = empty ? 1 : l", "some = l"),
    "a spoiled row is none": ("spoiled = l != l ||", "spoiled = 0 ||"),
    "all that is seen is -inf": ("|| (nothing && rows->seen[lane])", ""),
    "bad values go unnoticed": ("bad |= pack_values", "pack_values"),
    "the exponential of float32": ("every(4.999999404e-1f)", "every(4.9999e-1f)"),
    "the exponential of float64": ("every(1.0 / 5040.0)", "every(1.0 / 5041.0)"),
    "ln 2 in one part": ("every(-1.428606820309417e-6f)", "every(0)"),
    "no look at the last axis' stride": ("&& step == sizeof(REAL)", ""),
    "halves cut off": (" + 0xfff + (rest >> 13 & 1)", ""),
    "brain floats cut off": ("bits + 0x7fff + (bits >> 16 & 1)", "bits"),
    "small halves are zero": ("* 0x1p112f", "* 0x1p111f"),
    "no time left for the last units": ("return team.failed ? -1 : c->next < c->units", "return 0"),
}
QUICK = ("window one key too many", "no rescale of the output", "entropy not shifted",
         "keys are picked from the neighboring lane")  # fmt: skip


def broken(*shares: float) -> str:
    """What the library in use breaks: a law, or a random call; empty if it is nothing."""
    ours = judged(impl="native")
    for share in shares:
        chance.LONGER = share
        for law in engine_laws.LAWS:
            try:
                law(ours)
            except Exception:
                return law.__name__
        try:
            fuzz.judge_collapsed()
        except AssertionError as why:
            return str(why)
        for judge in (fuzz.judge, fuzz.judge_hostile):
            for seed in range(int(300 * share)):
                try:
                    judge(seed)
                except AssertionError as why:
                    return str(why)
    return ""


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    monkeypatch.setattr(chance, "LONGER", 0.1)
    monkeypatch.setattr(native, "instruction_set", lambda: 0)
    monkeypatch.setattr(native, "SLICE", 0.0)  # the kernel comes back after every unit
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # where threads would wait for others


def test_a_true_copy_breaks_no_law(tmp_path, monkeypatch):
    """Else a copy could break one by being a copy, or by its small tiles."""
    csrc.use(monkeypatch, csrc.build(tmp_path, "-O1", keys=7))
    assert broken(0.1) == ""


@pytest.mark.slow
def test_small_tiles_break_no_law_in_any_instruction_set(tmp_path, monkeypatch):
    csrc.use(monkeypatch, csrc.build(tmp_path, "-O2", keys=7, every=True))
    monkeypatch.setattr(chance, "LONGER", 1.0)
    for number in csrc.sets():
        monkeypatch.setattr(native, "instruction_set", lambda number=number: number)
        for law in engine_laws.LAWS:
            law(judged(impl="native"))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in COPIES
])  # fmt: skip
def test_a_wrong_copy_breaks_a_law(name, tmp_path, monkeypatch):
    old, new = COPIES[name]
    csrc.use(monkeypatch, csrc.build(tmp_path, "-O1", old=old, new=new, keys=7))
    assert broken(0.1, 1.0), f"no law rejects the kernel with {name}"
