"""The page in a real browser, from the server and from disk: what it shows, and what it loads."""

import csv
import re
import shutil
import time
from contextlib import ExitStack, contextmanager
from xml.etree import ElementTree

import pytest
import torch
from test_offline import EVIL, draw, run_of
from test_view_server import made

from clearhead import Rule
from clearhead.run import Call
from clearhead.viewer import offline
from clearhead.viewer.server import Server, listen
from clearhead.viewer.tabs import Tab
from clearhead.viewer.textbook import textbook

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

missing = [name for name, there in (("Chromium", CHROMIUM), ("playwright", sync_playwright))
           if there is None]  # fmt: skip
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"{' and '.join(missing)} not installed: nobody looked at the page"
)

MEANING = """(words) =>
    document.querySelector("[data-field=meaning]").textContent.includes(words)"""
N = 6000  # tokens: two levels are computed where somebody looks


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    return textbook(N, folder=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def evil():
    run = run_of(*draw(B=1, H=4, T=31, S=31), Rule(causal=True), texts=EVIL * 3)
    run.model, run.notes = EVIL[0], [EVIL[3]]
    return run


def without_maps(run):
    (call,) = run.calls
    kept = {name: x for name, x in call.tensors.items() if name not in ("q", "k")}
    return type(run)(**{
        **vars(run), "keep": "stats", "calls": [Call(**{**vars(call), "tensors": kept})],
    })  # fmt: skip


@pytest.fixture(scope="module")
def address(long, evil):
    tabs = [
        Tab.of("textbook", "textbook", long, ""),
        Tab.of("evil", EVIL[0], evil, EVIL[3]),
        Tab.of("bare", "bare", without_maps(evil), "the command that keeps them"),
    ]
    with Server(tabs, listen(None)) as server:
        yield server.address


@contextmanager
def opened(browser, address, place="", **settings):
    """A page, and at the end: nothing failed, and nothing came from elsewhere."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | settings)
    page = context.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}")
            if message.type in ("error", "warning") else None)  # fmt: skip
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: asked.append(request.url))
    page.on("response", lambda response: said.append(f"{response.status} {response.url}")
            if response.status >= 400 else None)  # fmt: skip
    page.on("dialog", lambda dialog: said.append(f"a dialog: {dialog.message}"))
    page.asked = asked
    try:
        page.goto(f"{address.rstrip('/')}{place}")
        yield page
        assert said == []
        own = (address.split("#")[0], "data:", "blob:")
        assert [url for url in asked if not url.startswith(own)] == []
    finally:
        context.close()


def until(page, holds, arg=None, seconds=15.0):
    """Wait until what a function says in the page holds. (Playwright's own way needs eval, which
    the page forbids.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(holds, arg):
        assert time.monotonic() < end, f"{seconds} s went by: {holds}"
        page.wait_for_timeout(30) if hasattr(page, "wait_for_timeout") else time.sleep(0.03)


def settled(page, n=1):
    """Wait until the maps in sight are drawn as finely as they will be."""
    until(page, """(n) => [...document.querySelectorAll(".mapview")].filter((map) =>
        map.offsetParent && map.dataset.settled === "true").length >= n""", n)  # fmt: skip


def at_address(page, part):
    until(page, "(part) => location.hash.includes(part)", part)


def field(page, name, panel="Pinned"):
    return page.locator(f"section[aria-label='{panel}'] [data-field='{name}']")


def number(locator):
    found = re.match(r"[\d.,e+-]+", locator.inner_text())
    return float(found[0].replace(",", ""))


def wait_for_words(page, locator):
    """Wait until dots have become numbers."""
    until(page, "(e) => !e.textContent.includes('…') && e.textContent", locator.element_handle())


# From the server ----------------------------------------------------------------------------------


def test_from_the_grid_to_one_weight(browser, address, long):
    with opened(browser, address) as page:
        page.locator("nav.places >> text=Model").wait_for()
        assert "1 call replayed, worst output difference" in page.inner_text(".proof")
        assert "Attention shows where a head reads" in page.inner_text(".proof")
        page.click("td a[href^='#/head/0.3'], th a[href^='#/head/0.3']")
        settled(page)
        assert page.evaluate("location.hash").startswith("#/head/0.3")
        meaning = page.locator("[data-field='meaning']").first
        assert "largest of" in meaning.inner_text()
        pad = page.locator(".pad").first
        box = pad.bounding_box()
        middle = box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.7
        page.mouse.move(*middle)
        for _ in range(40):  # to where each cell is one weight
            page.mouse.wheel(0, -300)
            if "one weight" in meaning.inner_text():
                break
            page.wait_for_timeout(30)
        until(page, MEANING, "one weight")
        settled(page)
        page.mouse.click(*middle)
        at_address(page, "&i=")
        i, j = (int(re.search(rf"[?&]{x}=(\d+)", page.evaluate("location.hash"))[1]) for x in "ij")
        wait_for_words(page, field(page, "weight"))
        amap = long.map("0.3")
        if j <= i:
            assert number(field(page, "weight")) == pytest.approx(float(amap[0, 0, i, j]), rel=1e-5)
            assert number(field(page, "score")) == pytest.approx(
                float(amap.scores[0, 0, i, j]), rel=1e-5
            )
        else:
            assert "hidden" in field(page, "weight").inner_text()


def test_a_deep_link_shows_the_very_weight_and_back_and_forward_work(browser, address, long):
    i = 4321
    j = int(long.map("0.3").top(1)[1][0, 0, i, 0])
    place = f"#/head/0.3?tab=textbook&x={j}&y={i}&w=24&i={i}&j={j}"
    with opened(browser, address, f"/{place}") as page:
        settled(page)
        wait_for_words(page, field(page, "rank"))
        amap = long.map("0.3")
        assert number(field(page, "weight")) == pytest.approx(float(amap[0, 0, i, j]), rel=1e-5)
        rank = 1 + int((amap.scores[0, 0, i] > amap.scores[0, 0, i, j]).sum())
        assert field(page, "rank").inner_text() == f"{rank} of {i + 1:,} keys"
        assert number(field(page, "uniform")) == pytest.approx(1 / (i + 1), rel=1e-2)
        assert f"{i:,}" in field(page, "query").inner_text()
        page.click("nav.places >> text=Token")
        at_address(page, "#/token/")
        page.go_back()
        at_address(page, "#/head/0.3")
        settled(page)
        page.go_forward()
        at_address(page, "#/token/")


def test_panning_pooling_and_keys(browser, address):
    with opened(browser, address, "/#/head/0.4?tab=textbook&x=3000&y=3000&w=200") as page:
        settled(page)
        page.focus(".pad")
        page.keyboard.press("ArrowRight")
        until(page, "() => Number(/[?&]x=([\\d.]+)/.exec(location.hash)?.[1]) > 3001")
        page.click("button[data-key='mean']")
        at_address(page, "pool=mean")
        page.focus(".pad")
        page.keyboard.press("0")
        until(page, MEANING, "mean of")
        settled(page)
        pad = page.locator(".pad").first.bounding_box()
        page.mouse.move(pad["x"] + 300, pad["y"] + 300)
        for _ in range(4):  # a wheel turns in notches
            page.mouse.wheel(0, -200)
            page.wait_for_timeout(50)
        at_address(page, "w=")
        settled(page)
        before = page.evaluate("location.hash")
        page.mouse.down()
        page.mouse.move(pad["x"] + 220, pad["y"] + 240, steps=4)
        page.mouse.up()
        until(page, "(before) => location.hash !== before", before)
        page.keyboard.press("]")
        at_address(page, "#/head/0.5")
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")


@pytest.mark.slow
def test_what_says_how_far_a_picture_is_does_not_stand_between_hand_and_map(browser, address):
    with opened(browser, address, "/#/head/0.0?tab=textbook") as page:
        settled(page)
        x, y = page.evaluate("""() => {
            const veil = document.querySelector(".veil");
            veil.hidden = false;
            const box = veil.getBoundingClientRect();
            return [box.x, box.y];
        }""")
        page.mouse.move(x + 4, y + 4)
        page.mouse.wheel(0, -800)
        at_address(page, "w=")
        settled(page)
        until(page, "() => document.querySelector('.veil').hidden")


@pytest.mark.slow
def test_a_page_that_changes_its_size_under_way_arrives_where_it_was_sent(browser, address):
    seen = "document.querySelector('[data-field=seen]').textContent"
    with opened(browser, address, "/#/head/0.0?tab=textbook&x=3000&y=3000&w=2000") as page:
        settled(page)
        page.focus(".pad")
        page.keyboard.press("End")
        page.evaluate("document.querySelector('.mapview').style.marginTop = '40px'")
        page.wait_for_timeout(300)
        settled(page)
        assert "keys 4,000–5,999 of" in page.evaluate(seen)


def test_a_token_and_what_it_reads(browser, address, long):
    i = 2500
    with opened(browser, address, f"/#/token/{i}?tab=textbook&heads=0.0,0.2") as page:
        page.wait_for_selector("aside table")
        texts = [long.pieces[n] for n in long.tokens[0][0].tolist()]
        assert f"{i}" in page.inner_text(".chosen") or f"{i:,}" in page.inner_text(".chosen")
        assert texts[i].strip() in page.inner_text(".chosen")
        first = page.locator("aside table").first.locator("tbody tr").first.inner_text()
        assert f"{i - 1:,}" in first  # the previous token, with all the weight
        page.click("text=Who reads it")
        at_address(page, "way=to")


@pytest.mark.slow
def test_two_heads_side_by_side_and_their_difference(browser, address):
    with opened(browser, address, "/#/compare/0.0/0.2?tab=textbook") as page:
        settled(page, 2)
        assert page.locator(".pad:visible").count() == 2
        page.click("text=A minus B")
        settled(page)
        assert page.locator(".pad:visible").count() == 1
        assert "A minus B" in page.inner_text("main")


def saved(page, kind):
    with page.expect_download() as download:
        page.click(f"button:text-is('{kind}'):visible")
    return download.value.path()


def table_of(path):
    """A CSV of the page: what it holds, which rows and columns, and its numbers, 0 if unseen."""
    (what, _, *keys), _, *rows = csv.reader(path.read_text("utf-8-sig").splitlines())
    numbers = [[float(x or 0) for x in row[2:]] for row in rows]
    at = slice(int(rows[0][0]), int(rows[-1][0]) + 1), slice(int(keys[0]), int(keys[-1]) + 1)
    return what, at, torch.tensor(numbers)


def test_what_is_saved_is_what_is_seen(browser, address, long):
    there = "tab=textbook&x=2499&y=2500&w=8"
    weights = lambda head, at: long.map(head)[0, 0, at[0], at[1]]  # noqa: E731
    with opened(browser, address, f"/#/head/0.0?{there}") as page:
        settled(page)
        what, at, found = table_of(saved(page, "CSV"))
        assert what == "weight of one key"
        assert found.shape == (8, 8)
        assert found.sum() > 5  # the diagonal
        torch.testing.assert_close(found, weights("0.0", at), atol=1e-6, rtol=1e-4)
        assert saved(page, "PNG").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(saved(page, "SVG")).getroot().tag.endswith("svg")
    with opened(browser, address, f"/#/compare/0.0/0.2?show=difference&{there}") as page:
        settled(page)
        what, at, found = table_of(saved(page, "CSV"))
        assert what == "A minus B, weight of one key"
        difference = weights("0.0", at) - weights("0.2", at)
        torch.testing.assert_close(found, difference, atol=1e-6, rtol=1e-4)
        assert saved(page, "PNG").read_bytes().startswith(b"\x89PNG")
        words = "".join(ElementTree.parse(saved(page, "SVG")).getroot().itertext())
        assert "0.0 minus" in words


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(360, "light"), (1920, "dark"), *(pytest.param(*both, marks=pytest.mark.slow)
                                       for both in ((360, "dark"), (1920, "light")))],
)  # fmt: skip
def test_light_and_dark_narrow_and_wide(browser, address, scheme, width):
    size = {"viewport": {"width": width, "height": 740}, "color_scheme": scheme}
    places = ["model", "head/0.2", "token/40?heads=0.2", "compare/0.1/0.2"]
    with opened(browser, address, "/#/model?tab=textbook", **size) as page:
        for place in places:
            page.goto(f"{address}#/{place}")
            page.wait_for_timeout(200)
            until(page, "() => document.querySelector('main').textContent.length > 20")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{place} is {wide} pixels wide"
            light = page.evaluate(
                "getComputedStyle(document.body).color.match(/\\d+/g).slice(0, 3)"
                ".reduce((a, b) => a + Number(b), 0) > 384"
            )  # letters, on dark paper
            assert light == (scheme == "dark")


def test_tokens_that_look_like_markup_are_text(browser, address):
    with opened(browser, address, "/#/model?tab=evil") as page:
        for place in ("model", "head/0.1?i=12&j=3", "token/14?heads=0.1", "compare/0.0/0.1"):
            page.goto(f"{address}#/{place}{'&' if '?' in place else '?'}tab=evil")
            page.wait_for_timeout(300)
            assert (
                page.evaluate("document.querySelectorAll('img, main script, main b b').length") == 0
            )
            assert EVIL[0] in page.title()
        page.goto(f"{address}#/token/14?tab=evil&heads=0.1")
        page.wait_for_selector("aside table")
        assert "<img" in page.inner_text("main")


@pytest.mark.slow
def test_a_run_without_q_and_k_says_how_to_keep_them(browser, address):
    for place in ("model", "head/0.1", "token/3", "compare/0.0/0.1"):
        with opened(browser, address, f"/#/{place}?tab=bare") as page:
            until(page, "() => document.body.textContent.includes('the command that keeps them')")


@pytest.mark.slow
def test_addresses_that_mean_nothing_are_said_and_survived(browser, address):
    strange = "#/nowhere", "#/head/77.3?tab=textbook", "#/head/0.1?x=nan&w=-3", "#/token/99999999"
    for place in (*strange, "#/compare/%3Cscript%3E/0.1"):
        with opened(browser, address, f"/{place}") as page:
            page.wait_for_selector(".notice:not([hidden])")
            assert page.inner_text("main")


def test_less_than_300_kb_before_the_first_picture(browser, address):
    with opened(browser, address, "/#/head/0.0?tab=textbook") as page:
        settled(page)
        sizes = page.evaluate(
            "performance.getEntriesByType('resource').concat(performance.getEntriesByType("
            "'navigation')).filter((e) => !e.name.includes('/api/')).map((e) => e.transferSize)"
        )
        assert len(sizes) > 10 and 0 < sum(sizes) < 300_000


# What each place lets one do ----------------------------------------------------------------------


def in_table(page):
    """The heads of the table beside the grid, from top to bottom."""
    return page.locator("table.sorted tbody th").all_inner_texts()


def test_the_grid_is_colored_sorted_and_filtered_and_the_link_says_how(browser, address, long):
    heads = long.heads()
    by_entropy = [h.head for h in sorted(heads, key=lambda h: h.normalized_entropy)]
    assert by_entropy not in (sorted(by_entropy), sorted(by_entropy)[::-1])
    with opened(browser, address, "/#/model?tab=textbook") as page:
        page.wait_for_selector("table.sorted tbody th")
        assert in_table(page) == [h.head for h in heads]
        for way, wanted in (("ascending", by_entropy), ("descending", by_entropy[::-1])):
            page.click("table.sorted button.sort:has-text('entropy')")
            page.wait_for_selector(f"th[aria-sort={way}]:has-text('entropy')")
            assert in_table(page) == wanted
        cell = page.locator(".headcell[data-head='0.5']")
        before = cell.evaluate("e => getComputedStyle(e).backgroundColor")
        page.get_by_label("Color by").select_option("distance")
        at_address(page, "color=distance")
        (farthest,) = [h.distance for h in heads if h.head == "0.5"]
        assert "distance" in cell.get_attribute("aria-label")
        assert number(cell.locator(".value")) == pytest.approx(farthest, rel=0.01)
        assert before != cell.evaluate("e => getComputedStyle(e).backgroundColor")
        page.click(".chip[data-role='induction']")
        at_address(page, "role=induction")
        until(page, "() => document.querySelectorAll('table.sorted tbody tr').length === 1")
        assert in_table(page) == ["0.3"]
        page.reload()
        page.wait_for_selector("table.sorted tbody th")
        assert in_table(page) == ["0.3"]
        assert page.get_by_label("Color by").input_value() == "distance"


@pytest.mark.parametrize(
    "place",
    ["head/0.0", *(pytest.param(place, marks=pytest.mark.slow)
                   for place in ("compare/0.0/0.2", "token/0?heads=0.0"))],
)  # fmt: skip
def test_a_token_is_searched_for_and_a_position_gone_to(browser, address, long, place):
    texts = [long.pieces[n] for n in long.tokens[0][0].tolist()]
    starts = torch.tensor([0, *map(len, texts)]).cumsum(0)
    positions = [
        int(torch.searchsorted(starts, found.start(), right=True)) - 1
        for found in re.finditer("Senate", "".join(texts))
    ]
    assert len(positions) > 3
    first_seen = {
        "h": "document.querySelector('[data-field=seen]').textContent",
        "c": "location.hash",
        "t": "document.querySelector('.spoken').textContent",
    }[place[0]]

    def is_shown(n):
        """The view is about that position (or the cursor of the text is on it)."""
        until(page, f"""(n) => {{
            const said = {first_seen}.replaceAll(",", "");
            const [, a, b] = /queries (\\d+)–(\\d+)/.exec(said) ?? [];
            const y = /[?&]y=([\\d.]+)/.exec(said)?.[1];
            return a !== undefined ? a <= n && n <= b && b - a < 400
                : y !== undefined ? Math.abs(y - n) < 12 : said.includes(`[${{n}}]`);
        }}""", n)  # fmt: skip

    with opened(browser, address, f"/#/{place}{'&' if '?' in place else '?'}tab=textbook") as page:
        box = page.locator("input[type=search]:visible")
        box.wait_for()
        page.wait_for_selector("aside table") if place[0] == "t" else settled(page)
        count = page.locator(".search:visible .count")
        box.fill("Senate")
        for n in (0, 1, 2):
            page.keyboard.press("Enter") if n else box.press("Enter")
            said = f"{n + 1} of {len(positions)}"
            until(page, "([e, said]) => e.textContent === said", [count.element_handle(), said])
            if place[0] != "t":
                is_shown(positions[n])
        page.click("button[aria-label='Previous match']:visible")
        said = f"2 of {len(positions)}"
        until(page, "([e, said]) => e.textContent === said", [count.element_handle(), said])
        box.fill("4321")
        box.press("Enter")
        if place[0] != "t":
            is_shown(4321)
        box.fill(f"{N}")
        box.press("Enter")
        assert count.inner_text() == "there are 6,000 positions, from 0"


@pytest.mark.slow
def test_from_a_weight_to_the_text_and_who_links_two_tokens(browser, address, long):
    i, j = 2500, 2499
    exact = {h.head: float(long.map(h.head)[0, 0, i, j]) for h in long.heads()}
    ranked = sorted(exact, key=exact.get, reverse=True)
    with opened(browser, address, f"/#/head/0.0?tab=textbook&i={i}&j={j}&w=20") as page:
        settled(page)
        page.click("section[aria-label=Pinned] >> text=who attends to this key")
        at_address(page, f"#/token/{j}")
        at_address(page, "way=to")
        page.go_back()
        settled(page)
        page.click("section[aria-label=Pinned] >> text=this query in the text")
        at_address(page, f"#/token/{i}")
        page.wait_for_selector("aside table")
        page.locator(f".scroller [data-n='{j}']").click(modifiers=["Shift"])
        at_address(page, f"j={j}")
        page.wait_for_selector("table.links tbody tr")
        rows = page.locator("table.links tbody tr")
        found = [
            (row.locator("th").inner_text(), float(row.locator("td.weight").get_attribute("title")))
            for row in rows.all()
        ]
        assert [head for head, _ in found[:2]] == ranked[:2]
        assert dict(found) == pytest.approx(exact, rel=1e-4, abs=1e-9)


PICTURE = """(n) => {  // the middle of a map: the curves beside it come when they come
    const canvas = [...document.querySelectorAll(".pad")]
        .filter((pad) => pad.offsetParent)[n].querySelector("canvas");
    const part = document.createElement("canvas");
    [part.width, part.height] = [canvas.width >> 2, canvas.height >> 2];
    part.getContext("2d").drawImage(canvas, -part.width, -part.height);
    return part.toDataURL();
}"""


@pytest.mark.slow
def test_colors_are_linear_or_logarithmic_and_say_which(browser, address):
    with opened(browser, address, "/#/head/0.4?tab=textbook&x=3000&y=3000&w=200") as page:
        settled(page)
        seen = {}
        for scale, said in (("log", "logarithmic"), ("linear", "linear"), ("log", "logarithmic")):
            page.click(f"button[data-key={scale}]:visible")
            page.wait_for_selector(f".ramp-box[aria-label='color scale, {said}']:visible")
            at_address(page, f"color={scale}")
            settled(page)
            page.wait_for_timeout(200)
            seen.setdefault(scale, []).append(page.evaluate(PICTURE, 0))
        assert seen["log"][0] == seen["log"][1] != seen["linear"][0]


@pytest.mark.slow
def test_two_fingers_zoom_about_what_is_between_them(browser, address):
    with opened(
        browser, address, "/#/head/0.0?tab=textbook&x=3000&y=3000&w=2000", has_touch=True
    ) as page:
        settled(page)
        pad = page.locator(".pad").first.bounding_box()
        x, y = pad["x"] + pad["width"] / 2, pad["y"] + pad["height"] / 2
        send = page.context.new_cdp_session(page).send
        for kind, apart in (("Start", 40), ("Move", 80), ("Move", 160), ("End", None)):
            points = [] if apart is None else [
                {"x": x + side * apart, "y": y, "id": n} for n, side in enumerate((-1, 1))
            ]  # fmt: skip
            send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        until(page, """() => { const w = Number(/[?&]w=([\\d.]+)/.exec(location.hash)?.[1]);
            return w > 450 && w < 550; }""")  # fmt: skip
        assert "&i=" not in page.evaluate("location.hash")  # no finger meant a click


def test_two_runs_side_by_side_and_their_zoom_is_locked(browser, address):
    with opened(browser, address, "/#/compare/0.0/0.1?tab=textbook&tab2=evil") as page:
        settled(page, 2)
        assert page.get_by_label("Run of B").input_value() == "evil"
        page.click("text=A minus B")
        until(page, "() => document.querySelector('main').textContent.includes("
                    "'a difference needs two maps of one size')")  # fmt: skip
        page.click("button[data-key=both]")
        page.get_by_label("Run of B").select_option("textbook")
        at_address(page, "tab2=textbook")
        settled(page, 2)
        page.wait_for_timeout(200)
        before = [page.evaluate(PICTURE, n) for n in (0, 1)]
        box = page.locator(".pad:visible").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        for _ in range(8):
            page.mouse.wheel(0, -300)
            page.wait_for_timeout(30)
        at_address(page, "w=")
        settled(page, 2)
        for n in (0, 1):
            assert before[n] != page.evaluate(PICTURE, n)


@pytest.mark.slow
def test_a_long_picture_can_be_cancelled_and_asked_for_again(browser, address):
    with opened(browser, address, "/#/token/9?tab=textbook&heads=0.0") as page:
        page.wait_for_selector(".chosen")  # a place without pictures: none is there yet
        held, given_up = [], []
        page.route("**/tile/**", lambda route: held.append(route))  # an answer that takes its time
        page.on("requestfailed", lambda request: given_up.append(request.url))
        page.evaluate("location.hash = '#/head/0.1?tab=textbook'")
        page.wait_for_selector(".veil:visible >> text=Cancel")
        page.click(".veil:visible >> text=Cancel")
        page.wait_for_selector(".veil:visible >> text=cancelled: the picture is not computed")
        page.wait_for_timeout(200)
        assert held and {route.request.url for route in held} <= set(given_up)
        page.unroute("**/tile/**")
        page.click(".veil:visible >> text=Compute it")
        settled(page)
        assert page.locator(".veil:visible").count() == 0


NAMELESS = """() => [...document.querySelectorAll(
        "a[href], button, input, select, summary, [tabindex='0'], [role=img], canvas, dialog")]
    .filter((e) => e.offsetParent && !e.closest("[aria-hidden=true]"))
    .filter((e) => ![e.getAttribute("aria-label"), e.textContent, e.labels?.[0]?.textContent,
                     document.getElementById(e.getAttribute("aria-labelledby"))?.textContent]
        .some((words) => words?.trim()))
    .map((e) => e.outerHTML.slice(0, 200))"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["model", "head/0.2?i=9&j=3", "token/40?j=7", "compare/0.1/0.2"])
def test_everything_that_acts_has_a_name_and_the_keyboard_gets_there(browser, address, place):
    with opened(browser, address, f"/#/{place}{'&' if '?' in place else '?'}tab=textbook") as page:
        page.wait_for_selector("main h1:visible, main .pad:visible")
        page.wait_for_timeout(300)
        assert page.evaluate(NAMELESS) == []
        assert page.evaluate("document.documentElement.lang") == "en"
        wanted = {"m": ".headcell", "h": ".pad", "t": ".scroller", "c": ".pad"}[place[0]]
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("(s) => document.activeElement.matches(s)", wanted):
                break
        assert page.evaluate("(s) => document.activeElement.matches(s)", wanted)


# From disk ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["probe", "text"])
@pytest.mark.parametrize("kind", ["served", "disk"])
def test_figures_of_a_probe_are_not_passed_off_as_the_text_s(browser, tmp_path, source, kind):
    run = run_of(*draw(B=1, T=31, S=31), Rule(causal=True))
    run.roles["0.1"] = {
        "role": "induction", "mass": 0.95, "uniform": 0.03, "source": source, "text_mass": 0.38,
    }  # fmt: skip
    with ExitStack() as stack:
        if kind == "served":
            address = stack.enter_context(Server([Tab.of("a", "a", run, "")], listen(None))).address
        else:
            offline.write_page(offline.make_page(run, "a", ""), tmp_path / "page.html")
            address = (tmp_path / "page.html").as_uri()
        place = "/#/model?pick=0.1" if kind == "served" else "#/model?pick=0.1"
        page = stack.enter_context(opened(browser, address, place))
        probed = source == "probe"
        until(page, "() => document.querySelector('.preview .about')?.textContent.includes('.95')")
        assert ("On random tokens that repeat .95" in page.inner_text(".preview")) == probed
        assert ("; in this text .38." in page.inner_text(".preview")) == probed
        assert ("on random tokens that repeat" in page.inner_text(".below-table")) == probed
        assert ("and not from this text" in page.inner_text(".words")) == probed
        columns = page.locator("table.sorted thead th:visible").all_inner_texts()
        assert ("text" in [name.strip() for name in columns]) == probed
        assert len(columns) == page.locator("table.sorted tbody tr").first.locator("th, td").count()
        page.click(".preview .ways a >> nth=0")
        settled(page)
        more = " on random tokens that repeat; in this text .38" if probed else ""
        assert page.inner_text(".role") == f"mass .95, equal .03{more}"


def test_the_same_page_from_disk_with_the_network_off(browser, tmp_path):
    run = run_of(*draw(B=2, T=60, S=60), Rule(causal=True, window=40))
    file = tmp_path / "page.html"
    offline.write_page(offline.make_page(run, "mine", ""), file)
    amap = run.map("0.2")
    places = "#/head/0.2?batch=1&i=33&j=20&w=12&x=20&y=33"
    with opened(browser, file.as_uri(), places, offline=True) as page:
        settled(page)
        wait_for_words(page, field(page, "rank"))
        assert number(field(page, "weight")) == pytest.approx(float(amap[1, 0, 33, 20]), abs=1e-5)
        for place in ("Model", "Token", "Compare"):
            page.click(f"nav.places >> text={place}")
            page.wait_for_timeout(200)
            assert page.inner_text("main")
        assert page.asked[0].startswith("file:")


@pytest.mark.slow
def test_from_disk_tokens_are_text_and_links_lead_back(browser, evil, tmp_path):
    file = tmp_path / "page.html"
    offline.write_page(offline.make_page(evil, EVIL[0], EVIL[3]), file)
    with opened(browser, file.as_uri(), "#/token/14?heads=0.1", offline=True) as page:
        page.wait_for_selector("aside table")
        assert "<img" in page.inner_text("main")
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0
        page.click("nav.places >> text=Head")
        settled(page)
        page.go_back()
        page.wait_for_selector("aside table")


@pytest.mark.slow
def test_from_disk_pooled_maps_stop_at_their_pixels(browser, long, tmp_path):
    file = tmp_path / "page.html"
    page_of = offline.make_page(long, "long", "clearhead view long", 24 << 20)
    assert page_of.kind == "pooled"
    offline.write_page(page_of, file)
    with opened(browser, file.as_uri(), "#/head/0.0?w=30&x=2000&y=2000", offline=True) as page:
        settled(page)
        until(page, MEANING, "largest of 16 × 16")


@pytest.mark.slow
def test_from_disk_without_room_for_maps_nobody_says_that_the_run_kept_none(browser, tmp_path):
    run = run_of(*draw(B=2, H=4, T=400, S=400), Rule(causal=True))
    file = tmp_path / "page.html"
    small = offline.make_page(run, "mine", "clearhead view mine", 400_000)
    assert small.kind == "curves"
    offline.write_page(small, file)
    for place in ("model", "head/0.1", "token/3", "compare/0.0/0.1"):
        with opened(browser, file.as_uri(), f"#/{place}", offline=True) as page:
            until(page, "() => document.body.textContent.includes('found no room here')")
            words = page.inner_text("main")
            assert "clearhead view mine" in words and "This keeps them" not in words, place


@pytest.mark.slow
def test_words_that_hold_no_space_do_not_run_together(browser, tmp_path):
    file = tmp_path / "page.html"
    words = ["[CLS]", "the", "cat", "##s", "sat"] * 4
    run = run_of(*draw(T=20, S=20), Rule(), texts=words)
    offline.write_page(offline.make_page(run, "mine", ""), file)
    with opened(browser, file.as_uri(), "#/head/0.0?i=7&j=12", offline=True) as page:
        wait_for_words(page, field(page, "rank"))
        assert "the cat ##s sat" in page.inner_text("[aria-label=Pinned] [data-field=key]")
    with opened(browser, file.as_uri(), "#/token/7?heads=0.0", offline=True) as page:
        page.wait_for_selector("aside table")
        first, second = (page.locator(f"#token-{n}").bounding_box() for n in (1, 2))
        assert second["x"] - first["x"] - first["width"] >= 4


def test_in_a_notebook_links_stay_in_the_frame(browser, tmp_path):
    run = run_of(*draw(B=1, T=40, S=40), Rule(causal=True))
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{run._repr_html_()}", "utf-8")
    with opened(browser, file.as_uri()) as page:
        frame = page.frames[1]
        for place in ("Head", "Token", "Model"):
            frame.click(f"nav.places >> text={place}")
            at_address(frame, f"#/{place.lower()}")
        assert torch.is_tensor(run.tokens[0]) and len(page.frames) == 2


@pytest.mark.slow
def test_the_colors_are_printed(browser, address):
    """A browser leaves backgrounds out of what it prints, and here they are the figures."""
    with opened(browser, address, "/#/model?tab=textbook") as page:
        page.wait_for_selector("table a")
        page.emulate_media(media="print")
        kept = page.locator("main *").evaluate_all(
            "all => all.map((e) => getComputedStyle(e).printColorAdjust)"
        )
        assert set(kept) == {"exact"}


def test_the_report_fits_a_phone(browser, tmp_path):
    """Words for the ear alone, too, stay within the table that is scrolled."""
    page_of = tmp_path / "report.html"
    run_of(*draw(B=1, H=12, T=9, S=9), Rule(causal=True)).report(page_of)
    with opened(browser, page_of.as_uri(), viewport={"width": 360, "height": 740}) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.slow
def test_who_goes_on_while_a_pinned_weight_is_read_has_done_nothing_wrong(browser, address):
    with opened(browser, address, "#/head/0.0?tab=textbook") as page:
        settled(page)
        asked = []
        page.route("**/0.2/row/*", lambda route: asked.append(route))  # it never comes
        page.evaluate("location.hash = '#/head/0.2?tab=textbook&i=5&j=3'")
        end = time.monotonic() + 15
        while not asked:
            assert time.monotonic() < end
            page.wait_for_timeout(30)
        page.evaluate("location.hash = '#/head/0.1?tab=textbook'")
        page.wait_for_timeout(200)
        settled(page)


@pytest.mark.slow
def test_the_last_head_of_a_layer_is_offered_beside_one_that_is_there(browser):
    tabs = [Tab.of("plain", "plain", made("plain"), "")]
    with Server(tabs, listen(None)) as own, opened(browser, own.address, "#/head/0.3") as page:
        settled(page)
        link = page.locator("a[href^='#/compare/']").first.get_attribute("href")
        assert link.startswith("#/compare/0.3/0.2")
