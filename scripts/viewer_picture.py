"""Draws docs/images/viewer.png: the viewer on the textbook run, from the whole map to one weight.

    python scripts/viewer_picture.py

Wants Chromium, and playwright, which `make test` brings; Pillow comes with matplotlib. Three views
of head 0.3 as the page shows them: all of the map; 60 tokens of it, where a speech begins with the
words of an earlier one; and few enough that each weight is a number, with one pinned and what the
page says of it.
"""

import base64
import io
import re
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from clearhead.viewer.server import Server, listen
from clearhead.viewer.tabs import Tab
from clearhead.viewer.textbook import textbook

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "viewer.png"
HEAD, QUERY, KEY = "0.3", 11_241, 2_151  # "Fellow-", and the "C" that followed it before
WIDTH, FINE, COLORS = 420, 2, 255  # of a page, in pixels of CSS; of the screen to one of CSS
VIEWS = (
    ("32,768 tokens", "", "All of a map: 537 million weights, without the matrix."),
    ("zoomed to 60", "x=2152&y=11242&w=60",
     "A speech begins like an earlier one: each token reads what followed it there."),
    ("and to one weight", f"x={KEY - 1.5}&y={QUERY - 1.5}&w=7&i={QUERY}&j={KEY}", ""),
)  # fmt: skip
DRAWN = """() => document.querySelector(".head-place .mapview")?.dataset.settled === "true" &&
    !document.querySelector("[aria-label=Pinned]").textContent.includes("…")"""
PAGE = """<style>
    body {{ margin: 16px; display: flex; gap: 20px;
           font: 18px/1.4 system-ui, sans-serif; color: #1b2a34 }}
    h1 {{ font-size: 21px; margin: 0 0 4px 12px }} p {{ margin: 22px 8px; width: 350px }}
    img {{ display: block }}
</style>{}"""
FIGURE = "<div><h1>{}</h1>{}<p>{}</p></div>"


def shown(page: Page, parts: list[str]) -> str:
    """What the page shows of some of its parts, under each other, as markup."""
    found = ""
    for part in parts:
        png = base64.b64encode(page.locator(part).screenshot()).decode()
        found += f'<img width="{WIDTH - 24}" src="data:image/png;base64,{png}">'
    return found


def view(browser: Browser, address: str, asked: str) -> str:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": 1300}, device_scale_factor=FINE, color_scheme="light"
    )
    page = context.new_page()
    with page.expect_response(re.compile("/received")):  # what is asked for last
        page.goto(f"{address.rstrip('/')}/#/head/{HEAD}?tab=textbook&{asked}")
    while not page.evaluate(DRAWN):
        page.wait_for_timeout(100)
    page.wait_for_timeout(500)  # it is drawn
    pinned = "i=" in asked
    found = shown(page, [".mapview", "[aria-label=Pinned]" if pinned else ".below"])
    context.close()
    return found


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    tab = Tab.of("textbook", "textbook", textbook(), "")
    with sync_playwright() as playwright, Server([tab], listen(None)) as server:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        figures = [FIGURE.format(name, view(browser, server.address, asked), words)
                   for name, asked, words in VIEWS]  # fmt: skip
        page = browser.new_page(
            viewport={"width": 3 * WIDTH, "height": 100}, device_scale_factor=FINE
        )
        page.set_content(PAGE.format("".join(figures)))
        png = page.screenshot(full_page=True)
        browser.close()
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, kmeans=5)
    picture.save(PICTURE, optimize=True)
    print(f"{PICTURE}: {picture.width} x {picture.height}, {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
