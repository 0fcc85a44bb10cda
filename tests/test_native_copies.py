"""Wrong copies of the native kernel: each is changed in one place, and breaks a law.

They have tiles of seven keys, so that the small cases of the laws cross many.
"""

import chance
import csrc
import fuzz
import fuzz_back
import native_laws
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
    "documents ignored in a tile": ("== q->document;", ">= 0;"),
    "documents looked for in one lane": ("if (q[i].document != q[0].document) return 1;", ";"),
    "lowest bias not hidden": (
        "*(const double *)at <= -1.7976931348623157e308",
        "*(const double *)at < -1.7976931348623157e308",
    ),
    "softcap left out": ("store(here, t * cap);", ""),
    "softcap after the bias": (
        "shape(c, x, j0, n, s, slope);\n",
        "{\n"
        "    shape(c, x, j0, n, s, slope);\n"
        "    if (c->softcap > 0)\n"
        "      for (int i = 0; i < n * LANES; i++) s[i] = c->softcap * tanh(s[i] / c->softcap);\n"
        "  }\n",
    ),
    "tanh near 0": ("every(-3.33332819422e-1f)", "every(-3.33e-1f)"),
    "ALiBi the other way": (
        "every((REAL)j) - load(back + at)",
        "load(back + at) - every((REAL)j)",
    ),
    "ALiBi within the tile": ("(REAL)(x->q[lane].own - j0)", "(REAL)x->q[lane].own"),
    "ALiBi of the block's first head": ("c->alibi[x->q[lane].h]", "c->alibi[x->q[0].h]"),
    "bias times scale": (
        "+= number_at(row + j * step, c->bias.dtype)",
        "+= (REAL)c->scale * number_at(row + j * step, c->bias.dtype)",
    ),
    "scale twice": (
        "load(to + d * LANES) * every(factor)",
        "load(to + d * LANES) * every(factor * factor)",
    ),
    "the keys of another head": (
        "pack_key_rows(c, b, g, j0, j1 - j0",
        "pack_key_rows(c, b, (g + 1) % c->G, j0, j1 - j0",
    ),
    "the values of another head": (
        "pack_columns(&c->v, b, g, j0, j1 - j0",
        "pack_columns(&c->v, b, (g + 1) % c->G, j0, j1 - j0",
    ),
    "the first tile skipped": (
        "first / KEYS * KEYS; j0 < last; j0 += KEYS) {\n    int64_t",
        "(first / KEYS + (last > KEYS)) * KEYS; j0 < last; j0 += KEYS) {\n    int64_t",
    ),
    "tiles skip a key": ("least(j0 + KEYS, least", "least(j0 + KEYS - 1, least"),
    "values not skipped with their keys": (
        "if (values.at) values = columns_from(values, share.skip);",
        "",
    ),
    "the last lane's first key for all": (
        "reach->first = least(reach->first, q->low);",
        "reach->first = q->low;",
    ),
    "nobody looks before the first key": ("reach->all_from = most(reach->all_from, q->low);", ""),
    "nobody looks behind the last key": ("reach->all_to = least(reach->all_to, q->high);", ""),
    "keys before the first are seen": (
        "if_iless(ievery(j), from, every(-INFINITY), shown)",
        "shown",
    ),
    "visible counts the hidden": ("return count;", "return n;"),
    "no rescale of the output": (
        "1,\n               a->moved ? a->factors : NULL",
        "1, NULL",
    ),
    "no rescale of the sum": ("    rows->l[lane] *= f;\n", ""),
    "no rescale of the entropy": ("* rows->l[lane]) * f;", "* rows->l[lane]);"),
    "no rescale of the mean key": ("rows->c[lane] *= f;", ""),
    "no rescale of the distance": ("rows->a[lane] *= f;", ""),
    "entropy not shifted": ("(rows->u[lane] + d * rows->l[lane])", "(rows->u[lane])"),
    "entropy shifted the other way": ("rows->u[lane] + d * rows", "rows->u[lane] - d * rows"),
    "entropy not shifted to the sink": ("(u + d * l) * factor", "u * factor"),
    "rescaled where the first vector moves": ("moved |= here;", "moved = x ? moved : here;"),
    "a collapsed row is summed like others": (
        "sums->rest = add_if_less(p, every(1), sums->rest, p);",
        "sums->rest += p;",
    ),
    "the last of equal keys on top": (
        "for (INT e = 7; e >= 0; e--)",
        "for (INT e = 0; e < 8; e++)",
    ),
    "the first of eight keys on top": ("== m[x][i] ? key : at;", "== m[x][i] ? at : at;"),
    "top key within the tile": ("] : j0 + at;", "] : at;"),
    "top key of another tile": ("top[x][i] < 0 ? rows->top[x * W + i] : j0 + at", "j0 + at"),
    "sink left out": ("l = l * factor + sink;", "l = l * factor;"),
    "sink in the largest score": ("-INFINITY : rows->m[lane]", "-INFINITY : m"),
    "sink leaves the output whole": ("(REAL)(factor / some)", "(REAL)(factor / (some - sink))"),
    "sink in the distance": (
        "distance = l == 0 ? 0 : rows->a[lane] / l;",
        "distance = l == 0 ? 0 : rows->a[lane] / (l + (c->sinks ? 1 : 0));",
    ),
    "mean key within the tile": ("(double)j0 * l + t.c[lane]", "t.c[lane]"),
    "mean key not renormalized by the sink": ("key * factor / some", "key / some"),
    "distance with its sign": ("greatest(lag, -lag)", "lag"),
    "distance with its sign beside the tile": ("at > 0 ? -ahead : ahead", "ahead"),
    "distance by the neighboring key": ("].own - j0;  //", "].own - j0 + 1;  //"),
    "the next key for the previous": ("q->own - 1, q->own}", "q->own + 1, q->own}"),
    "hidden keys are picked": (" && sees(c, x->b, q, keys[p])", ""),
    "keys are picked from the neighboring lane": (
        "s[(keys[p] - j0) * LANES + lane]",
        "s[(keys[p] - j0) * LANES + (lane ? lane - 1 : 0)]",
    ),
    "lse in base 2": ("(REAL)(m + log_l)", "(REAL)(m + log_l * LOG2_E)"),
    "the rounding of lse is forgotten": ("(REAL)((m - lse) + log_l)", "0"),
    "an empty row is NaN": ("some = empty ? 1 : l", "some = l"),
    "a spoiled row is none": ("spoiled = l != l ||", "spoiled = 0 ||"),
    "all that is seen is -inf": ("|| (nothing && rows->seen[lane])", ""),
    "bad values go unnoticed": (
        "if (c->out) note(c, pack_columns(",
        "if (c->out) ((void)pack_columns(",
    ),
    "the exponential of float32": ("every(4.999999404e-1f)", "every(4.9999e-1f)"),
    "the exponential of float64": ("every(1.0 / 5040.0)", "every(1.0 / 5041.0)"),
    "ln 2 in one part": ("every(-1.428606820309417e-6f)", "every(0)"),
    "no look at the last axis' stride": ("&& step == sizeof(REAL)", ""),
    "halves cut off": (" + 0xfff + (rest >> 13 & 1)", ""),
    "brain floats cut off": ("bits + 0x7fff + (bits >> 16 & 1)", "bits"),
    "small halves are zero": ("* 0x1p112f", "* 0x1p111f"),
    "no time left for the last units": ("return c->next < c->units", "return 0"),
    # Keys in the lanes
    "no ALiBi in a column": ("fma_(factor, load(key) - back, load(row + at))", "load(row + at)"),
    "ALiBi within a column": ("(REAL)(t->q[i].own - x->j0)", "(REAL)t->q[i].own"),
    "no bias in a column": ("row[j] += number_at(bias + j * step, c->bias.dtype);", ";"),
    "nothing is hidden in a column": (
        "s[i * LANES + j] = shown[j] ? s[i * LANES + j] : -INFINITY;",
        ";",
    ),
    "columns ask the first query what is hidden": (
        "t->q + span.from, n, x->j0, x->n)",
        "t->q + span.from, 1, x->j0, x->n)",
    ),
    "columns ask for no position": (
        "x->j0 >= t->reach.all_from && x->j0 + x->n <= t->reach.all_to &&",
        "",
    ),
    "no softcap in a column": (
        "if (c->softcap > 0)\n    cap(c, span.to",
        "if (0)\n    cap(c, span.to",
    ),
    "the slopes of other queries": ("slope ? slope + span.from * LANES : NULL", "slope"),
    "a span begins a group late": ("to : from / STEP * STEP", "to : (from + 1) / STEP * STEP"),
    "a span ends a query early": (", to};", ", to - (to - from > 1)};"),
    "no scale in a column": (
        "t->n, c->depth, factor_of_queries(c),",
        "t->n, c->depth, 1,",
    ),
    "a weight by lse alone": ("s - high - low)", "s - high)"),
    # What a key receives
    "padding gives too": ("if (c->query_mask && !c->query_mask[b * c->T + i0 + i]) continue;", ""),
    "the last tile alone gives": ("sums[r][at + j] += sum[j]", "sums[r][at + j] = sum[j]"),
    "the received of another head": ("int64_t g = h / (c->H / c->G)", "int64_t g = h % c->G"),
    "a unit looks at its first keys alone": (
        "t.reach.first >= first + (int64_t)n * LANES",
        "t.reach.first >= first + 1",
    ),
    # Gradients
    "q without the slope of the softcap": ("load(room->slope + j * LANES + at) :", "every(1) :"),
    "k without the slope of the softcap": ("load(room->slope + i * LANES + at) :", "every(1) :"),
    "the sign of the entropy": ("fma_(entropy, log_p, fixed)", "fma_(-entropy, log_p, fixed)"),
    "nothing comes back into the entropy": (
        "back->entropy[at] = c->d_entropy ?",
        "back->entropy[at] = 0 ?",
    ),
    "g . out left out": ("load(rows->back.fixed + at) + sum", "load(rows->back.fixed + at)"),
    "g . out for q alone": (
        "((REAL *)c->total)[rows->number[lane]] = rows->back.fixed[lane];",
        ";",
    ),
    "the first tile of queries skipped": (
        "h++)\n    for (int64_t i0 = 0;",
        "h++)\n    for (int64_t i0 = c->T > QUERIES ? QUERIES : 0;",
    ),
    "hidden keys of a spoiled row have a gradient": (
        "return if_less(s, every(FINITE_MIN), (vec){0}, *p * (gv",
        "return (*p * (gv",
    ),
    "hidden keys of a spoiled row have a weight": (
        "return if_less(s, every(FINITE_MIN), (vec){0}, exp_(*log_p))",
        "return exp_(*log_p)",
    ),
    "a spoiled query goes into a sum": (
        "scale, 3, spoiled, &room->query_columns",
        "scale, 3, NULL, &room->query_columns",
    ),
    "what comes back into a spoiled row goes into a sum": (
        "1, 3, spoiled, &room->g_columns",
        "1, 3, NULL, &room->g_columns",
    ),
    "k and v scaled again": ("one[lane] = 1;", "one[lane] = (REAL)c->scale;"),
    "q not scaled": ("scale[lane] = (REAL)c->scale;", "scale[lane] = 1;"),
    "v by what comes back into another head": (
        "pack_columns(&c->g, t->b, t->h,",
        "pack_columns(&c->g, t->b, (t->h + 1) % c->H,",
    ),
    "k by what comes back into another head": (
        "pack_rows(&c->g, t->b, t->h,",
        "pack_rows(&c->g, t->b, (t->h + 1) % c->H,",
    ),
    "q by the values of another head": (
        "pack_rows(&c->v, b, g,",
        "pack_rows(&c->v, b, (g + 1) % c->G,",
    ),
    "one head of a group": ("h < (g + 1) * group", "h < g * group + 1"),
    "q by values out of step": ("rows_from(room->values, skip, c->Dv)", "room->values"),
    "q by keys out of step": ("columns_from(room->columns, skip)", "room->columns"),
    "k by queries out of step": (
        "columns_from(room->query_columns, from)",
        "room->query_columns",
    ),
    "v by g out of step": ("columns_from(room->g_columns, from)", "room->g_columns"),
    "k by g out of step": ("rows_from(room->g, from, c->Dv)", "room->g"),
    "the lse of another tile": (
        "row = (t->b * c->H + t->h) * c->T + t->i0;",
        "row = (t->b * c->H + t->h) * c->T;",
    ),
    # Cells
    "cells by the lse of other rows": ("c->lse)[row0 + i]", "c->lse)[i]"),
    "cells by the last digits of other rows": ("c->lse_low)[row0 + i]", "c->lse_low)[i]"),
    "cells of the first queries": (
        "begin_tile(c, b, h, i0, c->i1,",
        "begin_tile(c, b, h, i0 - c->i0, c->i1 - c->i0,",
    ),
    "cells of the first keys": (
        "keys_from(b, g, j0, c->j1)",
        "keys_from(b, g, j0 - c->j0, c->j1 - c->j0)",
    ),
    "hidden scores are 0": ("c->lse ? 0 : -INFINITY", "0"),
    "hidden cells of a spoiled row": ("row[j] = shown[j] ? NAN : 0", "row[j] = NAN"),
    "rows behind a span": ("i < span.from || i >= span.to", "i < span.from"),
    "columns at the end": ("else memcpy(to, row, sizeof(REAL) * x.n);", ""),
    "rows of the map below each other": ("to += wide", "to += x.n"),
}
# Of the products by tiles of bfloat16, for machines that have them
COPIES_OF_TILES = {
    "rows without their last part": (
        "{k + 2, k, BOTH}, {k + 1, k, ROWS}",
        "{k + 1, k, BOTH}, {k + 1, k, ROWS}",
    ),
    "scores without their last pair": ("parts > 1 ? 5 : 0", "parts > 1 ? 4 : 0"),
    "outputs without their last pair": ("parts > 1 ? 5 : 2", "parts > 1 ? 4 : 2"),
    "two parts of a weight for values of bfloat16": ("parts > 1 ? 5 : 2", "parts > 1 ? 5 : 1"),
    "a pair has one half twice": ("(__m512i)high_x, 16)", "(__m512i)high_y, 16)"),
    "no rescale of the output": (
        "a->rows->x.n_vecs, a->moved ? a->factors : NULL",
        "a->rows->x.n_vecs, NULL",
    ),
    "the scores of the next block over these": (
        "next_share, room->s[1 - turn], &products)",
        "next_share, room->s[turn], &products)",
    ),
    "the weights of the block before": (
        "values.at ? room->weights[turn] : NULL",
        "values.at ? room->weights[0] : NULL",
    ),
    "the block before is left unfinished": ("finish_adding(call, before, room);", ""),
    "the last block is left unfinished": ("finish_adding(c, &adding, room);", ""),
    "nothing is left for the next part": (
        "if (!last) x -= top_digits(high_x), y -= top_digits(high_y);",
        "",
    ),
    "nothing is lifted": ("size >= -40 && size < 55", "1"),
    "small numbers are not lifted": ("size >= -40 && size < 55", "size < 55"),
    "large numbers are not lifted": ("size >= -40 && size < 55", "size >= -40"),
    "sums keep their powers of two": ("i < p->n_sums && p->up", "0"),
    "the power of the lanes is forgotten": (".up = rows.up + lanes.up", ".up = rows.up"),
    "rows are not lifted": ("if (to->up) split_rows", "if (0) split_rows"),
    "columns are not lifted": ("if (to->up) split_columns", "if (0) split_columns"),
    "lanes are not lifted": ("all = (REAL)ldexp(factor, to->up);", ""),
    "gradients of scores are not lifted": ("if (up) split_lanes", "if (0) split_lanes"),
    "the second group of rows is the first": ("(5, rows + p->below", "(5, rows"),
    "the second vector of lanes is the first": ("(7, lanes + TILE", "(7, lanes"),
    "queries of bfloat16 are not scaled": ("if (SPLIT && c->pairs && c->scale != 1)", "if (0)"),
    "a step of 16 keys": ("STEP = 2 * GROUP", "STEP = GROUP"),
    "g . out of the first query": ("sums[i * LANES + lane + i]", "sums[lane + i]"),
}
LARGER = {"the first of eight keys on top": 20, "a step of 16 keys": 96}  # tiles that show it
QUICK = (
    "keys are picked from the neighboring lane",
    "a weight by lse alone",
    "one head of a group",
    "cells by the lse of other rows",
)


def broken(*shares: float) -> str:
    """What the library in use breaks: a law, or a random call; empty if it is nothing."""
    ours = judged(impl="native")
    for share in shares:
        chance.LONGER = share
        for law in native_laws.LAWS:
            try:
                law(ours)
            except Exception:
                return law.__name__
        try:
            fuzz.judge_collapsed()
        except AssertionError as why:
            return str(why)
        judges = (
            fuzz_back.judge_back,
            fuzz.judge,
            fuzz.judge_hostile,
            fuzz_back.judge_hostile_back,
        )
        for judge in judges:
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
        for law in native_laws.LAWS:
            law(judged(impl="native"))


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in COPIES
])  # fmt: skip
def test_a_wrong_copy_breaks_a_law(name, tmp_path, monkeypatch):
    old, new = COPIES[name]
    made = csrc.build(tmp_path, "-O1", old=old, new=new, keys=LARGER.get(name, 7))
    csrc.use(monkeypatch, made)
    assert broken(0.1, 1.0), f"no law rejects the kernel with {name}"


@pytest.mark.slow
@pytest.mark.skipif(4 not in csrc.sets(), reason="the chip has no tiles of bfloat16")
@pytest.mark.parametrize("name", COPIES_OF_TILES)
def test_a_wrong_copy_of_the_tiles_breaks_a_law(name, tmp_path, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: 4)
    old, new = COPIES_OF_TILES[name]
    made = csrc.build(tmp_path, "-O1", old=old, new=new, keys=LARGER.get(name, 7), number=4)
    csrc.use(monkeypatch, made)
    assert broken(0.1, 1.0), f"no law rejects the kernel with {name}"


@pytest.mark.skipif(4 not in csrc.sets(), reason="the chip has no tiles of bfloat16")
def test_a_true_copy_of_the_tiles_breaks_no_law(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "instruction_set", lambda: 4)
    csrc.use(monkeypatch, csrc.build(tmp_path, "-O1", keys=7, number=4))
    assert broken(0.1) == ""
