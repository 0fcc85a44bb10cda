// A head: its map, from everything down to single weights, with the exact numbers beside it.
import { figureAs } from "./picture.js";
import { ExactCells } from "./crosshair.js";
import { calmly, choice, el, fileName, renew, saveFile, say, segmented } from "./dom.js";
import { drawCurvesOnly } from "./curves.js";
import { figure, measuredOn, sequenceChoice } from "./heads.js";
import { Legend } from "./legend.js";
import { MapView } from "./mapview.js";
import { crossWords, pixelMeaning, Readout } from "./readout.js";
import { searchBox } from "./search.js";
import { isAbort } from "./source.js";
import { grouped, longWeight, shownToken } from "./ticks.js";
import { receivedHeight } from "./track.js";
import { tip } from "./tips.js";
import { cellAt, seenPart } from "./zoom.js";

export function headPlace(app) {
  return new HeadPlace(app);
}

class HeadPlace {
  constructor(app) {
    this.app = app;
    this.shown = null;
    this.control = new AbortController();
    this.look = calmly((cross, spoken) => this.readCross(cross, spoken), 70);
    this.map = new MapView(app, {
      label: "Attention map. Arrows pan, plus and minus zoom, shift and arrows move the cross-hair, Enter pins it.",
      hooks: {
        moved: (view) => { app.drift(view.w ? { x: view.x, y: view.y, w: this.map.wasFit ? undefined : view.w, ...(this.map.wasFit ? { x: undefined, y: undefined } : {}) } : {}); this.sayView(); },
        crossed: (cross, spoken) => this.crossed(cross, spoken),
        picked: (cross) => this.pinStrongest(cross),
        unpinned: () => this.unpin(),
        sized: () => this.sayView(),
        key: (key) => this.key(key),
        failed: (error) => app.fail(error),
      },
    });
    this.build();
    app.onTheme(() => this.shown && this.sayView());
  }

  build() {
    const { app } = this;
    this.pick = el("select.pick", { "aria-label": "Head", onchange: () => this.toHead(this.pick.value) });
    const step = (by, words, sign) => tip(el("button.quiet.icon", { type: "button", "aria-label": words, onclick: () => this.nextHead(by) }, sign), words);
    this.role = el("p.role");
    this.places = el("span.sequences");
    this.search = searchBox(app, { pick: (position) => this.jump(position), size: () => this.shown?.info.S ?? Infinity });
    this.pool = segmented("A pixel shows", [["max", "max", "the largest weight of each pixel"], ["mean", "mean", "the mean weight of each pixel"]], "max", (pool) => app.go({ pool }, { push: false }));
    this.scale = segmented("Colors", [["linear", "linear", "colors in step with the weight"], ["log", "log", "colors in step with the logarithm of the weight"]], "log", (color) => app.go({ color }, { push: false }));
    const zoom = (words, sign, act) => tip(el("button.icon", { type: "button", "aria-label": words, onclick: () => this.map.view && act(this.map.keys()) }, sign), words);
    const save = (words, about, act) => tip(el("button", { type: "button", onclick: () => this.save(act) }, words), about);
    this.tools = el("div.tools-row", { role: "toolbar", "aria-label": "The map" },
      el("span.heads", null, step(-1, "Previous head ([)", "‹"), this.pick, step(1, "Next head (])", "›")), this.places, this.search.element,
      el("span.push"), this.pool.element, this.scale.element,
      el("span.zooms", null, zoom("Closer (+)", "+", (k) => k.zoom(2)), zoom("Farther (-)", "−", (k) => k.zoom(0.5)), zoom("Everything (0)", "⤢", (k) => k.fit())),
      el("span.saves", { role: "group", "aria-label": "Save the present view" }, save("PNG", "The present view as a picture", "png"), save("SVG", "The present view as a drawing", "svg"), save("CSV", "The numbers of the present view", "csv")));
    this.legend = new Legend();
    this.seen = el("p.seen", { "data-field": "seen" });
    const links = (i, j) => ({ from: app.address({ place: "token", i, way: "from", heads: [this.shown.head], j: undefined }), to: app.address({ place: "token", i: j, way: "to", heads: [this.shown.head], j: undefined }) });
    this.now = new Readout(app, { title: "Under the cross-hair", links });
    this.pinned = new Readout(app, { title: "Pinned", links, unpin: () => this.unpin() });
    this.hint = el("p.hint", null, "Point at the map to read a weight; click to pin it. Scroll or pinch to zoom, drag to pan, ? for all keys.");
    this.side = el("aside.side", { "aria-label": "Numbers" }, this.pinned.element, this.now.element, this.hint);
    this.figure = el("div.figure", null, this.map.element, el("div.below", null, this.legend.element, this.seen));
    this.without = el("section.without", { hidden: true });
    this.element = el("div.head-place", null, this.tools, this.role, this.figure, this.side, this.without);
  }

  async show(state) {
    const { app } = this;
    const tab = app.tab(state.tab);
    const where = app.where(state);
    this.search.show?.(state);
    const grid = await app.grid(tab.id);
    if (app.current !== this) return;
    const heads = grid.heads;
    let head = state.head;
    if (!heads.some((h) => h.head === head)) {
      if (head !== undefined) app.also(`${tab.name} has no head ${head}: this is head ${heads[0].head}`);
      head = (heads.find((h) => h.hasMap) ?? heads[0]).head;
      app.drift({ head });
    }
    this.fillHeads(tab, grid, head);
    this.fillPlaces(tab, state);
    const pool = state.pool ?? "max";
    const key = [tab.id, head, where.seq, where.batch].join("\n");
    const fresh = this.shown?.key !== key;
    if (fresh) {
      const info = await app.headInfo(tab.id, head, where);
      if (app.current !== this || app.state.head && app.state.head !== head) return;
      await this.open(key, tab, head, where, info, pool);
    } else if (this.shown.pool !== pool && this.shown.info.hasMap) {
      this.shown.pool = pool;
      this.setMap();
    }
    if (!this.shown.info.hasMap) return;
    this.pool.set(pool);
    this.color = state.color ?? (this.shown.info.S > 512 ? "log" : "linear");
    this.scale.set(this.color);
    this.map.setScale(this.color);
    this.showView(state, fresh);
    this.showPin(state);
    this.sayView();
  }

  async open(key, tab, head, where, info, pool) {
    this.control.abort();
    this.control = new AbortController();
    const text = this.app.texts.alongAxes(tab.id, where, info);
    this.shown = { key, tab, head, where, info, pool, text };
    this.now.hide();
    this.pinned.hide();
    this.figure.hidden = this.side.hidden = !info.hasMap;
    this.without.hidden = info.hasMap;
    this.tools.classList.toggle("bare", !info.hasMap);
    this.unwatch?.();
    this.unwatch = text.watch(() => { this.map.repaint(); this.refreshReadouts(); });
    if (!info.hasMap) {
      this.map.forget();
      drawCurvesOnly(this.app, this.without, this.shown, this.control.signal).catch((error) => this.app.fail(error));
      return;
    }
    this.exact = new ExactCells(this.app.source, { tab: tab.id, head, ...where }, info.T, info.S);
    this.setMap();
    const { source } = this.app;
    const { signal } = this.control;
    source.rows(tab.id, head, where, { signal }).then((rows) => { this.map.setCurves({ row: rows.normalized }); this.refreshReadouts(); }, (error) => this.app.fail(error));
    // The received mass is a second pass over the head: after the picture, so as not to slow it.
    this.whenDrawn(signal).then(() => source.received(tab.id, head, where, { signal }))
      .then((column) => { this.map.setCurves({ column, columnHeight: receivedHeight(column) }); this.refreshReadouts(); }, (error) => this.app.fail(error));
  }
  setMap() {
    const { tab, head, where, info, text, pool } = this.shown;
    const curves = this.map.curves;
    this.map.setMap({ layers: [{ tab: tab.id, head, reduce: pool, ...where }], info, text, exact: this.exact });
    if (this.map.drawnFor === this.shown.key) this.map.setCurves(curves);
    this.map.drawnFor = this.shown.key;
  }
  async whenDrawn(signal) {
    const { info } = this.shown;
    while (!signal.aborted) {
      const layer = this.map.painter.layers[0];
      if (this.app.tiles.has(layer, info.zmax, 0, 0) && this.map.element.dataset.settled === "true") return;
      await new Promise((done) => setTimeout(done, 60));
    }
    throw new DOMException("given up", "AbortError");
  }

  showView(state, fresh) {
    const { x, y, w } = state;
    if (w === undefined && x === undefined && y === undefined) {
      if (!fresh && this.map.view && !this.map.wasFit) this.map.setView(this.map.fit(), { glide: true, quiet: true });
      return;
    }
    const goal = this.map.goal;
    if (goal && Math.abs((goal.x ?? 0) - (x ?? goal.x)) < 0.06 && Math.abs(goal.y - (y ?? goal.y)) < 0.06 && Math.abs(goal.w - (w ?? goal.w)) < 0.06 * Math.max(1, goal.w / 100)) return;
    this.map.setView(Object.fromEntries(Object.entries({ x, y, w }).filter(([, v]) => v !== undefined)), { glide: !fresh, quiet: true });
  }

  leave() {
    this.map.forget();
    this.control.abort();
    this.unwatch?.();
    this.shown = this.pin = null;
  }

  // Readouts
  crossed(cross, spoken) {
    this.hint.hidden = Boolean(cross) || Boolean(this.pin);
    if (!cross) { this.look.cancel(); this.now.hide(); this.cross = null; return; }
    this.cross = cross;
    const { text, pool } = this.shown;
    if (cross.z === 0 && this.pin?.i === cross.i0 && this.pin?.j === cross.j0) { this.look.cancel(); this.now.hide(); return; } // it stands above
    if (cross.z === 0) {
      const known = this.exact.at(cross.i0, cross.j0);
      this.now.show({ i: cross.i0, j: cross.j0, ...known }, text, "", this.map.curves);
    } else if (this.now.element.hidden) this.now.show({ i: cross.i0, j: cross.j0 }, text, crossWords(cross, pool), this.map.curves);
    else say(this.now.pixel, crossWords(cross, pool));
    this.look(cross, spoken);
  }
  async readCross(cross, spoken) {
    this.reading?.abort();
    const { signal } = this.reading = new AbortController();
    const { text, pool } = this.shown ?? {};
    try {
      const at = cross.z === 0 ? { i: cross.i0, j: cross.j0 } : await this.exact.strongest(cross, cross.z, this.app.tiles, signal);
      if (signal.aborted || this.cross !== cross || !this.shown) return;
      const pixel = cross.z === 0 ? "" : crossWords(cross, pool);
      this.now.show(at, text, pixel, this.map.curves);
      const full = await this.exact.read(at.i, at.j, signal);
      if (signal.aborted || this.cross !== cross || !full) return;
      this.now.show(this.last = full, text, pixel, this.map.curves);
      if (spoken) this.app.announce(this.spoken(full));
    } catch (error) { if (!isAbort(error)) this.app.fail(error); }
  }
  spoken({ i, j, weight, score, rank, visible }) {
    const { text } = this.shown;
    const pair = `query ${i} ${shownToken(text.query(i))}, key ${j} ${shownToken(text.key(j))}`;
    return score === -Infinity ? `${pair}: hidden` : `${pair}: weight ${longWeight(weight)}, rank ${rank} of ${visible}`;
  }
  refreshReadouts() {
    if (this.last && !this.now.element.hidden && this.now.partly) this.now.show(this.last, this.shown.text, "", this.map.curves);
    if (this.pin && !this.pinned.element.hidden) this.pinned.show(this.pin, this.shown.text, "", this.map.curves);
  }
  async pinStrongest(cross) {
    try {
      const at = cross.z === 0 ? { i: cross.i0, j: cross.j0 } : await this.exact.strongest(cross, cross.z, this.app.tiles);
      if (this.pin?.i === at.i && this.pin?.j === at.j) { this.unpin(); return; }
      this.app.go({ i: at.i, j: at.j });
    } catch (error) { this.app.fail(error); }
  }
  unpin() { if (this.pin) this.app.go({ i: undefined, j: undefined }); }
  async showPin({ i, j }) {
    const { info, text } = this.shown;
    if (i === undefined || j === undefined || i >= info.T || j >= info.S) {
      if (i >= info.T || j >= info.S) {
        this.app.also(`this head has ${grouped(info.T)} queries and ${grouped(info.S)} keys: there is no cell ${i}, ${j}`);
        this.app.drift({ i: undefined, j: undefined });
      }
      this.pin = null;
      this.pinned.hide();
      this.map.setPin(null);
      return;
    }
    if (this.pin?.i === i && this.pin?.j === j && this.pin.key === this.shown.key) return;
    const key = this.shown.key;
    this.pin = { i, j, key };
    this.hint.hidden = true;
    this.map.setPin(this.pin);
    this.pinned.show(this.pin, text, "", this.map.curves);
    if (this.cross?.z === 0 && this.cross.i0 === i && this.cross.j0 === j) { this.look.cancel(); this.now.hide(); }
    const full = await this.exact.read(i, j, this.control.signal).catch((error) => this.app.fail(error));
    if (this.shown?.key !== key || this.pin?.i !== i || this.pin?.j !== j || !full) return;
    Object.assign(this.pin, full);
    this.pinned.show(this.pin, text, "", this.map.curves);
    this.app.announce(`pinned: ${this.spoken(full)}`);
  }

  // Words below the map
  sayView() {
    if (!this.shown?.info.hasMap || !this.map.goal || !this.map.layout) return;
    const { T, S } = this.shown.info;
    this.legend.show({ scale: this.color, dark: this.app.dark, meaning: pixelMeaning(this.map.level(this.map.goal), this.shown.pool) });
    const part = seenPart(this.map.goal, this.map.plot, T, S);
    const range = (a, b, n) => `${grouped(a)}–${grouped(b - 1)} of ${grouped(n)}`;
    say(this.seen, `queries ${range(part.r0, part.r1, T)}, keys ${range(part.c0, part.c1, S)}${this.shown.info.rule ? ` · ${this.shown.info.rule}` : ""}`);
  }

  // Going elsewhere
  fillHeads(tab, grid, head) {
    if (this.filled !== `${tab.id}\n${grid.heads.length}`) {
      this.filled = `${tab.id}\n${grid.heads.length}`;
      this.heads = grid.heads;
      renew(this.pick, grid.heads.map((h) => el("option", { value: h.head }, h.role ? `${h.head}  ${h.role}` : h.head)));
    }
    this.pick.value = head;
    const now = grid.heads.find((h) => h.head === head);
    const where = measuredOn(this.app, now);
    const here = where && typeof now.role_text === "number" ? `; in this text ${figure(now.role_text)}` : "";
    say(this.role, now?.role_mass !== undefined && now.role_mass !== null ? `mass ${figure(now.role_mass)}, equal ${figure(now.role_uniform)}${where && ` ${where}`}${here}` : "");
  }
  fillPlaces(tab, state) {
    const sequences = tab.sequences ?? [];
    const batches = sequences.find((s) => s.seq === this.app.where(state).seq)?.batches ?? 1;
    const key = `${tab.id} ${state.seq} ${state.batch} ${batches}`;
    if (this.placesKey === key) return;
    this.placesKey = key;
    renew(this.places,
      sequenceChoice(this.app, { x: undefined, y: undefined, w: undefined, i: undefined, j: undefined }),
      batches > 1 && choice("batch", Array.from({ length: batches }, (_, n) => [String(n), String(n)]), String(state.batch ?? 0), (batch) => this.app.go({ batch: Number(batch) })));
  }
  toHead(head) { this.app.go({ head }); }
  nextHead(by) {
    const at = this.heads.findIndex((h) => h.head === this.pick.value);
    const next = this.heads[(at + by + this.heads.length) % this.heads.length];
    this.toHead(next.head);
  }
  key(key) {
    if (key === "[" || key === "]") { this.nextHead(key === "[" ? -1 : 1); return true; }
    if (key === "/") { this.search.focus(); return true; }
    return false;
  }
  jump(position) {
    const { i, j } = cellAt(this.shown.info, position);
    this.map.showCell(i, j);
  }

  async save(kind) {
    if (!this.map.view || !this.shown?.info.hasMap) return;
    const { tab, head, pool } = this.shown;
    const caption = { title: `${tab.name}, head ${head}`, meaning: pixelMeaning(this.map.level(), pool), seen: this.seen.textContent, proof: tab.checked ? `checked: ${tab.checked}` : "not checked", scale: this.color };
    try {
      saveFile(`${fileName(tab.name, "head", head)}.${kind}`, await figureAs(kind, this.map, caption, { ...this.shown, exacts: [this.exact] }));
    } catch (error) { this.app.fail(error); }
  }
}
