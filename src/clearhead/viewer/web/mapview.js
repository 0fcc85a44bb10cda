// One map on the screen: sizes, the moving view, the tiles it asks for, the cross-hair, what is said of it.
import { canvasColors } from "./colors.js";
import { drawCross } from "./crosshair.js";
import { calmly, el, perFrame, say } from "./dom.js";
import { axisLabels, drawAxisNames, drawLabels, figureLayout, mapRect } from "./figure.js";
import { listenTo, mapKeys } from "./gestures.js";
import { MapPainter, NUMBERS_FROM } from "./painter.js";
import { drawTracks } from "./track.js";
import { between, clampView, fitView, levelFor, nearView, panBy, pixelOf, scaleOf, seenPart, TILE, toToken, viewOfCell, zoomAbout } from "./zoom.js";

const GLIDE = 120; // milliseconds from one view to the next
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

export class MapView {
  // hooks: moved(view, how), crossed(cross or null), picked(cross), unpinned(), key(key) -> true if meant, failed(error)
  constructor(app, { label, tracks = true, hooks }) {
    Object.assign(this, { app, hooks, tracks, view: null, goal: null, fixed: null, pointer: null, cross: null, pin: null, follow: false, painter: null, curves: {}, scale: "log", dpr: 1 });
    this.base = el("canvas", { "aria-hidden": "true" });
    this.over = el("canvas", { "aria-hidden": "true" });
    this.words = el("span", null, "");
    this.bar = el("progress", { max: 1, value: 0, "aria-label": "how far it is" });
    this.stop = el("button", { type: "button", onclick: () => (this.halted ? this.resume() : this.halt()) }, "Cancel");
    this.veil = el("div.veil", { hidden: true, role: "status" }, this.words, this.bar, this.stop);
    this.pad = el("div.pad", { tabindex: 0, role: "application", "aria-roledescription": "attention map", "aria-label": label, "aria-describedby": "map-meaning" }, this.base, this.over);
    this.element = el("div.mapview", null, this.pad, this.veil);
    this.repaint = perFrame(() => this.paint());
    this.ask = calmly(() => this.wantNumbers(), 60);
    this.ahead = calmly(() => this.wantTiles(true), 250);
    this.watchSize = new ResizeObserver(() => this.resize());
    this.watchSize.observe(this.element);
    app.onTheme(() => this.repaint());
    listenTo(this.pad, {
      zoom: (px, py, factor, smooth) => this.zoomAt(px, py, factor, smooth),
      pan: (dx, dy) => { this.follow = false; this.moveTo(panBy(this.view, this.plot, dx, dy)); },
      hover: (px, py) => { this.pointer = px === null ? null : { px, py }; this.crossFromPointer(); this.repaint(); },
      pick: (px, py, touched) => {
        this.pointer = { px, py };
        this.crossFromPointer();
        const { cross } = this;
        if (touched) { this.pointer = null; this.setCross(null); } // a finger that is lifted points at nothing
        if (cross) this.hooks.picked?.(cross);
      },
      grab: (on) => this.pad.classList.toggle("grabbed", on),
    });
    this.pad.addEventListener("dblclick", (event) => this.zoomAt(event.offsetX, event.offsetY, event.shiftKey ? 0.4 : 2.5, true));
    this.pad.addEventListener("keydown", (event) => this.view && mapKeys(event, this.keys(), hooks.key));
  }

  get plot() { return this.layout.plot; }

  // What is shown: layers (one, or two for a difference), info { T, S, zmax }, text { query, key, at },
  // exact (ExactCells or null), curves { row, column } or {}. The view stays where the sizes are the same.
  setMap({ layers, info, text, exact }) {
    const same = this.info && this.info.T === info.T && this.info.S === info.S;
    const pictures = this.painter?.pictures;
    pictures?.clear();
    this.forget();
    Object.assign(this, { info, text, exact, curves: {}, cross: null, halted: false });
    if (!same) this.view = this.goal = null;
    this.sayHalt();
    this.painter = new MapPainter(this.app.tiles, layers, info);
    this.repaint();
    this.started = performance.now();
    this.wantTiles();
    this.watchProgress();
  }
  setCurves(curves) { Object.assign(this.curves, curves); this.repaint(); }
  setScale(scale) { this.scale = scale; this.repaint(); }
  setPin(pin) { this.pin = pin; this.repaint(); }
  forget() {
    if (this.painter) this.painter.layers.forEach((_, n) => this.app.tiles.forget(this.who(n)));
    clearTimeout(this.poll);
    this.ahead.cancel();
    this.veil.hidden = true;
  }
  who(n) { return `${n} ${this.id ??= Math.random()}`; }

  resize() {
    const box = this.element.getBoundingClientRect();
    if (box.width < 20 || box.height < 20) return;
    this.dpr = Math.min(4, devicePixelRatio || 1);
    const before = this.layout?.plot.width;
    this.layout = figureLayout(Math.floor(box.width), Math.floor(box.height), { tracks: this.tracks });
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.layout.width * this.dpr);
      canvas.height = Math.round(this.layout.height * this.dpr);
    }
    if (this.view && before) this.view = this.goal = this.clamp(this.wasFit ? this.fit() : this.goal);
    this.paint();
    this.wantTiles();
    this.hooks.sized?.();
  }
  fit() { return fitView(this.plot, this.info.T, this.info.S); }
  clamp(view) { return clampView(view, this.plot, this.info.T, this.info.S); }

  // Goes to a view: at once, or gliding. fixed = { px, py, col, row }: what stays under its pixel.
  setView(view, { glide = false, fixed = null, quiet = false } = {}) {
    if (!this.layout || !this.info) { this.later = view; return; }
    this.goal = this.clamp({ ...this.fit(), ...view });
    this.wasFit = nearView(this.goal, this.fit());
    Object.assign(this, { fixed, from: this.view, begun: performance.now() });
    if (!glide || CALM.matches || !this.view) this.view = this.goal;
    if (!quiet) this.hooks.moved?.(this.goal, { glide, fixed });
    this.wantTiles();
    this.repaint();
  }
  moveTo(view) { this.setView(view); }
  zoomAt(px, py, factor, smooth) {
    if (!this.view) return;
    const [x, y] = [px - this.plot.x, py - this.plot.y];
    const from = smooth ? this.goal : this.view;
    const goal = this.clamp(zoomAbout(from, this.plot, x, y, factor));
    const at = toToken(this.view, this.plot, x, y);
    this.setView(goal, { glide: smooth, fixed: { px: x, py: y, col: at.col, row: at.row } });
  }
  showCell(i, j, across = Math.min(this.goal?.w ?? 60, Math.max(12, this.plot.width / 22))) {
    this.setView(viewOfCell(i, j, across), { glide: true });
  }

  keys() {
    const { plot } = this;
    return {
      pan: (dx, dy) => {
        const step = Math.min(plot.width, plot.height) * 0.2;
        const along = this.follow ? dx + dy : 0;
        this.setView(panBy(this.goal, plot, (along || dx) * step, (along || dy) * step), { glide: true });
      },
      zoom: (factor) => this.zoomAt(plot.x + plot.width / 2, plot.y + plot.height / 2, factor, true),
      fit: () => this.setView(this.fit(), { glide: true }),
      end: (last) => this.setView({ x: last * this.info.S, y: last * this.info.T, w: this.goal.w }, { glide: true }),
      step: (di, dj) => this.step(di, dj),
      pin: () => { this.cross ??= this.crossAt(this.view.y, this.view.x); this.hooks.picked?.(this.cross); },
      unpin: () => this.hooks.unpinned?.(),
      follow: () => {
        this.follow = !this.follow;
        this.app.announce(this.follow ? "Following the diagonal: left and right walk along it" : "No longer following the diagonal");
        if (this.follow) this.setView({ ...this.goal, x: this.goal.y + (this.info.S - this.info.T) }, { glide: true });
      },
    };
  }
  // The cross-hair goes by pixels of the picture, for those who use keys.
  step(di, dj) {
    const n = 2 ** this.level();
    const from = this.cross ?? this.crossAt(this.view.y, this.view.x);
    const i = Math.min(this.info.T - 1, Math.max(0, from.i0 + di * n));
    const j = Math.min(this.info.S - 1, Math.max(0, from.j0 + dj * n));
    this.pointer = null;
    this.setCross(this.crossAt(i, j), true);
    const part = seenPart(this.goal, this.plot, this.info.T, this.info.S);
    if (i < part.r0 || i >= part.r1 || j < part.c0 || j >= part.c1) this.setView({ x: j + 0.5, y: i + 0.5, w: this.goal.w }, { glide: true });
  }

  level(view = this.view) { return Math.max(this.info.finest ?? 0, levelFor(view, this.plot, this.dpr, this.info.zmax)); }
  crossAt(row, col) {
    const z = this.level();
    const block = pixelOf(z, Math.min(this.info.T - 1, Math.max(0, Math.floor(row))), Math.min(this.info.S - 1, Math.max(0, Math.floor(col))), this.info.T, this.info.S);
    const n = 2 ** z;
    const codes = this.painter.layers.map((layer) => this.app.tiles.get(layer, z, Math.floor(block.i0 / n / TILE), Math.floor(block.j0 / n / TILE))
      ?.codes[(Math.floor(block.i0 / n) % TILE) * TILE + (Math.floor(block.j0 / n) % TILE)]);
    return { ...block, z, code: codes[0], codes };
  }
  crossFromPointer() {
    if (!this.view || !this.info) return;
    if (!this.pointer) { this.setCross(null); return; }
    const { col, row } = toToken(this.view, this.plot, this.pointer.px - this.plot.x, this.pointer.py - this.plot.y);
    const { T, S } = this.info;
    this.setCross(row >= 0 && col >= 0 && row < T && col < S ? this.crossAt(row, col) : null);
  }
  setCross(cross, spoken = false) {
    const was = this.cross;
    this.cross = cross;
    const same = was && cross && was.i0 === cross.i0 && was.j0 === cross.j0 && was.z === cross.z && was.code === cross.code;
    if (!same && (was || cross)) this.hooks.crossed?.(cross, spoken);
    this.repaint();
  }
  // A cross-hair that another map, locked to this one, gives.
  showCross(cross) { this.cross = cross && { ...cross }; this.repaint(); }

  // ahead: those around what is seen as well, for the next step.
  wantTiles(ahead = false) {
    if (!this.painter || !this.layout || !this.info || this.halted) return;
    if (!this.view) {
      this.view = this.goal = this.clamp({ ...this.fit(), ...this.later });
      this.wasFit = nearView(this.goal, this.fit());
      this.later = null;
    }
    const list = this.painter.needed(this.goal, this.plot, this.dpr, ahead ? 1.5 : 1);
    this.painter.layers.forEach((layer, n) => this.app.tiles.want(this.who(n), layer, list, () => this.repaint(), (error) => this.tileFailed(error)));
  }
  tileFailed(error) {
    this.hooks.failed?.(error);
    clearTimeout(this.again);
    this.again = setTimeout(() => this.element.isConnected && this.wantTiles(), 3100);
  }
  wantNumbers() {
    if (!this.exact || !this.view || scaleOf(this.view, this.plot) < NUMBERS_FROM) return;
    const part = seenPart(this.view, this.plot, this.info.T, this.info.S);
    this.exact.need(part.r0, part.r1, part.c0, part.c1).then(() => this.repaint(), (error) => this.hooks.failed?.(error));
  }

  // While the first picture is being computed: what is done and how far it is, after a moment.
  watchProgress() {
    clearTimeout(this.poll);
    this.poll = setTimeout(async () => {
      const { zmax } = this.info;
      const late = this.painter.layers.find((layer) => !this.app.tiles.has(layer, zmax, 0, 0));
      if (!late || this.halted) { this.veil.hidden = !this.halted; return; }
      if (!this.missing) { this.veil.hidden = true; this.watchProgress(); return; }
      try {
        const { done, what } = await this.app.source.progress(late.tab, late.head, late.reduce, { seq: late.seq, batch: late.batch }, {});
        say(this.words, what || "computing the picture");
        this.bar.value = done ?? 0;
        this.veil.hidden = !this.missing || this.app.tiles.has(late, zmax, 0, 0);
      } catch { /* the tile's own failure is said */ }
      if (this.element.isConnected) this.watchProgress();
    }, performance.now() - this.started < 280 ? 300 : 200);
  }
  halt() {
    this.forget();
    this.halted = true;
    this.veil.hidden = false;
    this.sayHalt();
  }
  resume() {
    this.halted = false;
    this.started = performance.now();
    this.sayHalt();
    this.wantTiles();
    this.watchProgress();
  }
  sayHalt() {
    this.bar.hidden = this.halted;
    say(this.stop, this.halted ? "Compute it" : "Cancel");
    say(this.words, this.halted ? "cancelled: the picture is not computed" : "");
  }

  // One frame.
  paint() {
    this.repaint.cancel();
    if (!this.painter || !this.layout || !this.view) return;
    const now = performance.now();
    if (this.view !== this.goal) {
      const left = 1 - Math.min(1, (now - this.begun + 8) / GLIDE);
      this.view = left <= 0 || nearView(this.view, this.goal) ? this.goal : this.clamp(between(this.from, this.goal, 1 - left ** 3, this.plot, this.fixed));
      if (this.view !== this.goal) this.repaint();
      if (this.pointer) this.crossFromPointer();
    }
    this.missing = this.render(this.base.getContext("2d"), this.dpr);
    this.element.dataset.settled = String(this.missing === 0 && this.view === this.goal);
    this.paintOver();
    if (this.exact) this.ask();
    if (this.missing === 0) {
      this.veil.hidden = !this.halted;
      this.ahead();
    }
  }

  // The picture without the cross-hair, on any context, `ratio` of its pixels to one of the page; the level of
  // detail is that of the screen (`detail`), whose tiles are here.
  render(ctx, ratio, detail = ratio) {
    const { layout, view, info } = this;
    const colors = canvasColors(this.app.dark);
    const rect = mapRect(view, layout.plot, info.T, info.S);
    Object.assign(this.painter, { scale: this.scale, dark: this.app.dark });
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = colors.page;
    ctx.fillRect(0, 0, layout.width, layout.height);
    const missing = this.painter.paint(ctx, view, layout.plot, rect, detail, colors);
    this.painter.paintGrid(ctx, view, layout.plot, rect, colors);
    if (this.exact) this.painter.paintNumbers(ctx, view, layout.plot, rect, (i, j) => this.exact.at(i, j));
    ctx.strokeStyle = colors.strong;
    ctx.lineWidth = 1;
    ctx.strokeRect(Math.round(rect.x) - 0.5, Math.round(rect.y) - 0.5, Math.round(rect.width) + 1, Math.round(rect.height) + 1);
    drawLabels(ctx, layout, rect, this.labels(rect), colors);
    drawAxisNames(ctx, layout, rect, colors);
    if (this.tracks) drawTracks(ctx, view, layout, rect, this.curves, colors);
    return missing;
  }
  labels(rect) {
    const { text, info } = this;
    return axisLabels(this.view, this.layout, rect, { T: info.T, S: info.S, query: (i) => text.query(i), key: (j) => text.key(j), at: text.at });
  }
  paintOver() {
    const ctx = this.over.getContext("2d");
    const { layout, view, info, text } = this;
    const colors = canvasColors(this.app.dark);
    const rect = mapRect(view, layout.plot, info.T, info.S);
    ctx.setTransform(this.dpr, 0, 0, this.dpr, 0, 0);
    ctx.clearRect(0, 0, layout.width, layout.height);
    const names = (i, j) => ({ i: text.at ? text.at(i) : i, j, query: text.query(i), key: text.key(j) });
    if (this.pin) drawCross(ctx, view, layout, rect, { i0: this.pin.i, i1: this.pin.i + 1, j0: this.pin.j, j1: this.pin.j + 1 }, colors, names(this.pin.i, this.pin.j), true);
    if (this.cross) drawCross(ctx, view, layout, rect, this.cross, colors, this.cross.z === 0 ? names(this.cross.i0, this.cross.j0) : this.cross, false);
  }
}
