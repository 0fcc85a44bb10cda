// The text itself, of any length, shaded: only the lines in the window exist. Up to four heads side by side
// share one arrangement of lines, so they scroll as one; a strip beside them shows all of the text at once.
import { calmly, el, perFrame } from "./dom.js";
import { canvasColors, css, ink, readableOn } from "./colors.js";
import { areApart, endsLine, lineAt, linesOf, linesSeen, overview, scrollFor, tokenParts } from "./arrange.js";
import { HIDDEN_SHADE, TEXT_SHADES, shadeOf } from "./ranking.js";

const LINE = 28; // pixels, as in places.css
const AROUND_TOKEN = 2; // pixels of its padding and margin
const AROUND_CODE = 5;
const APART = 4; // pixels between tokens that hold no spaces, as in places.css
const LOOKED_AT = 200; // tokens that tell whether they do
const PANE_SIDE = 20; // pixels of a pane's padding, both sides
const MORE = 6; // lines drawn above and below the window
const STRIP = 14; // pixels of the strip for each head
const MOST_WIDTHS = 60000;

// pick(n, other) a token was chosen; rest(n) the pointer or the cursor rests on it, null for none;
// painted is the element that gets the colors of the shades.
export class TextView {
  constructor({ pick, rest, painted }) {
    Object.assign(this, { pick, rest, painted, count: 0, raw: () => "", panes: [], marks: {}, cursor: 0, starts: Uint32Array.of(0), drawn: new Map(), widths: new Map(), room: 0, found: new Set() });
    this.sheet = el("div.sheet", { role: "none" });
    this.scroller = el("div.scroller", { role: "listbox", tabindex: 0, "aria-label": "The text, token by token", "aria-orientation": "horizontal" }, this.sheet);
    this.canvas = el("canvas.wholetext", { "aria-hidden": "true", title: "All of the text, the largest weight of each part: click to go there" });
    this.window = el("div.inwindow");
    this.stripBox = el("div.stripbox", { "aria-hidden": "true" }, this.canvas, this.window);
    this.element = el("div.textview", null, this.scroller, this.stripBox);
    this.draw = perFrame(() => this.drawNow());
    this.later = calmly(() => this.drawNow(), 120);
    this.drawnAt = 0;
    this.scroller.addEventListener("scroll", this.draw, { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.sheet.addEventListener("click", (event) => { const n = tokenOf(event); if (n !== null) { this.cursor = n; this.pick(n, event.shiftKey || event.altKey); } });
    this.sheet.addEventListener("mousedown", (event) => { if (event.shiftKey) event.preventDefault(); });
    this.sheet.addEventListener("pointerover", (event) => this.rest(tokenOf(event)));
    this.sheet.addEventListener("pointerleave", () => this.rest(null));
    this.watchStrip();
    this.watcher = new ResizeObserver(perFrame(() => this.resize()));
    this.watcher.observe(this.scroller);
  }

  // The text: count tokens, raw(n) the text of each.
  setText(count, raw) {
    Object.assign(this, { count, raw, room: 0 });
    const apart = areApart(Array.from({ length: Math.min(count, LOOKED_AT) }, (_, n) => raw(n)));
    if (apart !== this.apart) this.widths.clear();
    this.apart = apart;
    this.sheet.classList.toggle("apart", apart);
    this.scroller.setAttribute("aria-label", `The text, ${count} tokens: arrow keys move, Enter reads from a token, Shift and Enter picks the other one`);
    this.resize();
  }
  // panes: [{ values, shades, top, scale }] of count each; a pane without values is text alone.
  setPanes(panes) {
    const many = panes.length !== this.panes.length;
    this.panes = panes;
    this.element.style.setProperty("--panes", Math.max(1, panes.length));
    if (many) this.resize();
    else this.redraw();
  }
  // marks: { chosen, other } positions that are outlined.
  setMarks(marks) { this.marks = marks; this.redraw(); }
  setFound(positions) { this.found = new Set(positions); this.redraw(); }
  setDark(dark) {
    for (let n = 1; n <= TEXT_SHADES; n += 1) {
      const color = ink(n / TEXT_SHADES, dark);
      this.painted.style.setProperty(`--back${n}`, css(color));
      this.painted.style.setProperty(`--text${n}`, readableOn(color));
    }
    this.dark = dark;
    this.drawStrip();
  }
  goTo(n, always = false) {
    this.cursor = Math.max(0, Math.min(n, this.count - 1));
    this.scroller.scrollTop = scrollFor(lineAt(this.starts, this.cursor), this.scroller.scrollTop, this.scroller.clientHeight, LINE, this.lines, always);
    this.redraw();
  }
  get lines() { return this.starts.length - 1; }

  // Arrangement -------------------------------------------------------------------------------------

  resize() {
    const wide = this.scroller.clientWidth;
    if (!wide) return;
    const room = Math.floor(wide / Math.max(1, this.panes.length)) - PANE_SIDE;
    if (room !== this.room) {
      const kept = this.starts[linesSeen(this.scroller.scrollTop, 0, LINE, this.lines)[0]] ?? 0;
      const was = this.room;
      this.room = room;
      const ends = new Map();
      const end = (raw) => { let known = ends.get(raw); if (known === undefined) ends.set(raw, known = endsLine(raw)); return known; };
      this.starts = linesOf(this.count, (n) => this.widthOf(this.raw(n)), (n) => end(this.raw(n)), room);
      this.sheet.style.setProperty("height", `${this.lines * LINE + 8}px`);
      this.element.style.setProperty("--tall", `${Math.max(3, this.lines) * LINE + 10}px`);
      if (was) this.scroller.scrollTop = lineAt(this.starts, kept) * LINE;
    }
    this.redraw();
  }
  widthOf(raw) {
    let wide = this.widths.get(raw);
    if (wide !== undefined) return wide;
    if (this.widths.size > MOST_WIDTHS) this.widths.clear();
    if (!this.pen) {
      this.pen = document.createElement("canvas").getContext("2d");
      const style = getComputedStyle(this.scroller);
      this.fonts = { text: `${style.fontSize} ${style.fontFamily}`, code: `${parseFloat(style.fontSize) * 0.8}px ${style.getPropertyValue("--mono")}` };
    }
    wide = AROUND_TOKEN + (this.apart ? APART : 0);
    for (const { kind, text } of tokenParts(raw)) {
      this.pen.font = kind === "code" ? this.fonts.code : this.fonts.text;
      wide += this.pen.measureText(text).width + (kind === "code" ? AROUND_CODE : 0);
    }
    this.widths.set(raw, wide);
    return wide;
  }

  // Drawing -----------------------------------------------------------------------------------------

  redraw() {
    for (const line of this.drawn.values()) line.remove();
    this.drawn.clear();
    this.drawNow();
    this.drawStrip();
  }
  drawNow() {
    const { scrollTop, clientHeight } = this.scroller;
    const fast = Math.abs(scrollTop - this.drawnAt) > clientHeight; // flung: only what is seen, the rest when it rests
    this.drawnAt = scrollTop;
    if (fast) this.later();
    const [from, to] = linesSeen(scrollTop, clientHeight, LINE, this.lines, fast ? 1 : MORE);
    for (const [n, line] of this.drawn) if (n < from || n >= to) { line.remove(); this.drawn.delete(n); }
    const fresh = document.createDocumentFragment();
    for (let n = from; n < to; n += 1) {
      if (this.drawn.has(n)) continue;
      const line = this.line(n);
      this.drawn.set(n, line);
      fresh.append(line);
    }
    this.sheet.append(fresh);
    const active = `token-${this.cursor}`;
    if (this.scroller.getAttribute("aria-activedescendant") !== active) this.scroller.setAttribute("aria-activedescendant", active);
    this.moveWindow(scrollTop, clientHeight);
  }
  line(n) {
    const line = el("div.line", { role: "none" });
    line.style.setProperty("top", `${n * LINE + 4}px`);
    const panes = this.panes.length ? this.panes : [{}];
    panes.forEach((pane, p) => {
      const half = el("div.pane", { role: "none", "aria-hidden": p ? "true" : null });
      for (let t = this.starts[n]; t < this.starts[n + 1]; t += 1) half.append(this.token(t, pane, p === 0));
      line.append(half);
    });
    return line;
  }
  token(t, pane, first) {
    const shade = pane.shades ? pane.shades[t] : 0;
    let classes = shade === HIDDEN_SHADE ? "token unseen" : shade ? `token s${shade}` : "token";
    if (this.widths.get(this.raw(t)) > this.room) classes += " long";
    if (t === this.marks.chosen) classes += " chosen";
    if (t === this.marks.other) classes += " other";
    if (t === this.cursor) classes += " cursor";
    if (this.found.has(t)) classes += " found";
    const span = document.createElement("span");
    span.className = classes;
    span.dataset.n = t;
    if (first) {
      span.id = `token-${t}`;
      span.setAttribute("role", "option");
      span.setAttribute("aria-selected", t === this.marks.chosen || t === this.marks.other ? "true" : "false");
    }
    for (const { kind, text } of tokenParts(this.raw(t))) {
      if (kind === "text") { span.append(text); continue; }
      const part = document.createElement("i");
      part.className = kind;
      part.textContent = text;
      span.append(part);
    }
    return span;
  }

  // The lines in the window as data, for a picture: each a list of tokens with where and how they stand.
  inSight() {
    const { scrollTop, clientHeight, clientWidth } = this.scroller;
    const [from, to] = linesSeen(scrollTop + 4, Math.min(clientHeight, this.lines * LINE) - 8, LINE, this.lines);
    const lines = [];
    for (let n = from; n < to; n += 1) {
      const tokens = [];
      (this.panes.length ? this.panes : [{}]).forEach((pane, p) => {
        let x = 0;
        for (let t = this.starts[n]; t < this.starts[n + 1]; t += 1) {
          const width = Math.min(this.room, this.widthOf(this.raw(t)));
          const words = tokenParts(this.raw(t)).map(({ text }) => text).join("");
          const mark = t === this.marks.chosen ? "chosen" : t === this.marks.other ? "other" : null;
          tokens.push({ pane: p, x, width, words: words.slice(0, Math.ceil(width / 4)), shade: pane.shades?.[t] ?? 0, mark });
          x += width;
        }
      });
      lines.push(tokens);
    }
    return { lines, wide: Math.floor(clientWidth / Math.max(1, this.panes.length)), high: LINE };
  }

  // Strip -------------------------------------------------------------------------------------------

  drawStrip() {
    const high = this.stripBox.clientHeight;
    const panes = this.panes.filter((pane) => pane.values);
    const wide = STRIP * Math.max(1, panes.length);
    this.stripWide(wide);
    const dpr = Math.min(3, devicePixelRatio || 1);
    const rows = Math.round(high * dpr);
    if (!rows) return;
    Object.assign(this.canvas, { width: Math.round(wide * dpr), height: rows });
    const pen = this.canvas.getContext("2d");
    const colors = canvasColors(this.dark);
    if (!this.lines) return;
    panes.forEach((pane, p) => {
      const found = overview(pane.values, this.starts, rows);
      const [left, width] = [Math.round((p * STRIP + 1) * dpr), Math.round((STRIP - 2) * dpr)];
      const shades = Array.from(found, (value) => shadeOf(value, pane.top, pane.scale));
      for (let y = 0; y < rows; y += 1) if (shades[y] === HIDDEN_SHADE && y % Math.round(4 * dpr) < dpr) this.bar(pen, left, y, width, 1, colors.hatch);
      for (let level = 1; level <= TEXT_SHADES; level += 1) {
        pen.fillStyle = css(ink(level / TEXT_SHADES, this.dark));
        for (let y = 0; y < rows; y += 1) if (shades[y] === level) pen.fillRect(left, y - Math.floor(dpr / 2), width, Math.max(2, Math.round(2 * dpr)));
      }
    });
    for (const [n, color] of [[this.marks.other, this.dark ? "#f0b48a" : "#b4500f"], [this.marks.chosen, colors.accent]]) {
      if (n === undefined || n === null) continue;
      const y = Math.round(((lineAt(this.starts, n) + 0.5) / this.lines) * rows);
      this.bar(pen, 0, Math.min(rows - 2 * dpr, y - dpr), wide * dpr, 2 * dpr, color);
    }
  }
  stripWide(wide = STRIP * Math.max(1, this.panes.length)) { this.painted.style.setProperty("--strip", this.stripBox.hidden ? "0px" : `${wide}px`); }
  bar(pen, x, y, w, h, color) { pen.fillStyle = color; pen.fillRect(x, y, w, h); }
  moveWindow(scrollTop, clientHeight) {
    const scrollHeight = this.lines * LINE + 8;
    const high = clientHeight;
    const whole = scrollHeight <= clientHeight;
    if (this.stripBox.hidden !== whole) { this.stripBox.hidden = whole; this.stripWide(); }
    if (whole) return;
    const tall = Math.max(6, (clientHeight / scrollHeight) * high);
    this.window.style.setProperty("height", `${tall}px`);
    this.window.style.setProperty("transform", `translateY(${Math.min(high - tall, (scrollTop / scrollHeight) * high)}px)`);
  }
  watchStrip() {
    const go = (event) => {
      const box = this.stripBox.getBoundingClientRect();
      const { clientHeight, scrollHeight } = this.scroller;
      this.scroller.scrollTop = ((event.clientY - box.top) / box.height) * scrollHeight - clientHeight / 2;
    };
    this.stripBox.addEventListener("pointerdown", (event) => { this.stripBox.setPointerCapture(event.pointerId); go(event); event.preventDefault(); });
    this.stripBox.addEventListener("pointermove", (event) => { if (event.buttons) go(event); });
  }

  // Keys --------------------------------------------------------------------------------------------

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.count) return;
    const line = lineAt(this.starts, this.cursor);
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / LINE) - 2);
    const along = (lines) => {
      const goal = Math.max(0, Math.min(this.lines - 1, line + lines));
      const step = this.cursor - this.starts[line];
      return Math.min(this.starts[goal] + step, this.starts[goal + 1] - 1);
    };
    const to = {
      ArrowRight: () => this.cursor + 1, ArrowLeft: () => this.cursor - 1, ArrowDown: () => along(1), ArrowUp: () => along(-1),
      PageDown: () => along(page), PageUp: () => along(-page), Home: () => 0, End: () => this.count - 1,
    }[event.key];
    if (to) {
      this.goTo(to());
      this.rest(this.cursor, true);
    } else if (event.key === "Enter" || event.key === " ") this.pick(this.cursor, event.shiftKey);
    else return;
    event.preventDefault();
  }
}

function tokenOf(event) {
  const at = event.target.closest?.("[data-n]");
  return at ? Number(at.dataset.n) : null;
}
