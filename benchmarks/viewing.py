"""What walking through a map costs: the first picture, every zoom and pan, the server's memory.

    python benchmarks/viewing.py [--tokens 32768] [--head 0.3] [--steps 60] [--seconds 60]

Opens the textbook run in Chromium, from a server in a process of its own, and measures inside the
page: the first picture, from the click on a head until all of it is drawn as finely as the screen
shows it; an answer, from a turn of the wheel or a drag until the first frame that has moved, and
until every tile of the new view is drawn, first without motion and then with the page's own short
glide. Then it wanders for a minute and watches the memory of the server, once a tenth of a second.
"""

import argparse
import random
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from clearhead.viewer.textbook import textbook

FIRST = """async (head) => {
    const began = performance.now();
    document.querySelector(`td a[href^="#/head/${head}"], th a[href^="#/head/${head}"]`).click();
    while (document.querySelector(".head-place .mapview")?.dataset.settled !== "true")
        await new Promise(requestAnimationFrame);
    return performance.now() - began;
}"""
ACT = """async ({ kind, x, y, by }) => {
    const pad = document.querySelector(".head-place .pad");
    const map = document.querySelector(".head-place .mapview");
    const box = pad.getBoundingClientRect();
    const at = (dx, dy) => ({
        clientX: box.left + x * box.width + dx, clientY: box.top + y * box.height + dy,
        bubbles: true, cancelable: true, pointerId: 1, pointerType: "mouse", isPrimary: true });
    pad.setPointerCapture = () => {};
    const began = performance.now();
    if (kind === "zoom") pad.dispatchEvent(new WheelEvent("wheel", { ...at(0, 0), deltaY: by }));
    else {
        pad.dispatchEvent(new PointerEvent("pointerdown", at(0, 0)));
        pad.dispatchEvent(new PointerEvent("pointermove", at(by, by)));
        pad.dispatchEvent(new PointerEvent("pointerup", at(by, by)));
    }
    await new Promise(requestAnimationFrame);
    await new Promise((done) => setTimeout(done));
    const moved = performance.now() - began;
    while (map.dataset.settled !== "true") await new Promise(requestAnimationFrame);
    return [moved, performance.now() - began];
}"""


def answers(page: Page, steps: int, seed: int) -> list[tuple[float, float]]:
    """Walks in and out and about; of each step the ms to the first frame and to the last tile."""
    chance, found, depth = random.Random(seed), [], 0
    for _ in range(steps):
        kind = chance.choice(["zoom", "zoom", "pan"])
        by = chance.choice([-260, -180, 200]) if depth > 1 else -260
        if kind == "pan":
            by = chance.randint(-260, 260)
        elif by < 0:
            depth += 1
        else:
            depth -= 1
        if depth > 12:  # single weights: begin again from everything
            page.keyboard.press("0")
            page.wait_for_timeout(700)
            depth = 0
        x = chance.uniform(0.2, 0.6)  # where rows see something
        asked = {"kind": kind, "x": x, "y": chance.uniform(x, 0.9), "by": by}
        found.append(tuple(page.evaluate(ACT, asked)))
    return found


def said(name: str, times: list[float]) -> None:
    ordered = sorted(times)
    print(f"{name:44} median {statistics.median(times):5.0f} ms   "
          f"9 of 10 within {ordered[int(0.9 * len(ordered))]:5.0f} ms")  # fmt: skip


def memory(pid: int) -> tuple[float, float]:
    """Megabytes that a process holds: in all, and without the files that it reads."""
    words = Path(f"/proc/{pid}/status").read_text()
    found = [re.search(rf"{name}:\s+(\d+) kB", words) for name in ("VmRSS", "RssAnon")]
    whole, own = (int(x[1]) * 1024 / 1e6 if x else 0.0 for x in found)
    return whole, own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--head", default="0.3")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    run = textbook(arguments.tokens, lambda done, what: print(f"\r{done:4.0%} {what}", end=""))
    folder = getattr(run.calls[0], "folder", None)
    if folder is None:
        raise SystemExit("the textbook run could not be kept in the user's cache")
    command = [sys.executable, "-m", "clearhead", "view", str(folder), "--no-open"]
    server = subprocess.Popen([*command, "--port", str(arguments.port)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().decode().split()[0]
        print(f"\r{arguments.tokens:,} tokens, head {arguments.head}, at {address}")
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            for motion, name in (("reduce", "without motion"), ("no-preference", "gliding")):
                context = browser.new_context(reduced_motion=motion)
                page = context.new_page()
                page.goto(address)
                page.wait_for_selector("table a")
                page.wait_for_timeout(1500)  # the thumbnails of the grid
                print(f"{name}: the first picture, settled, after "
                      f"{page.evaluate(FIRST, arguments.head):,.0f} ms")  # fmt: skip
                page.focus(".head-place .pad")
                times = answers(page, arguments.steps, 0)
                said(f"{name}: the first frame that moved", [a for a, _ in times])
                said(f"{name}: every tile drawn", [b for _, b in times])
                if motion == "reduce":
                    context.close()
            print(f"memory of the server before: {memory(server.pid)[0]:,.0f} MB")
            end, seen, n = time.monotonic() + arguments.seconds, [], 0
            while time.monotonic() < end:
                n += 1
                times = answers(page, 5, n)
                seen.append(memory(server.pid))
            print(f"after wandering {arguments.seconds:.0f} s, {5 * n} steps: at most "
                  f"{max(a for a, _ in seen):,.0f} MB, {max(b for _, b in seen):,.0f} MB of them "
                  "its own and not the run's files")  # fmt: skip
            browser.close()
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
