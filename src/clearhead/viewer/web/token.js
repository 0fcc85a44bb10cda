// A token: the text shaded by what this token reads, or by who reads it, for up to four heads side by side.
import { noMapElements } from "./curves.js";
import { el, fileName, put, renew, saveFile, say, segmented } from "./dom.js";
import { csvText } from "./csv.js";
import { textDrawing } from "./drawing.js";
import { isNamed, sequenceChoice, times } from "./heads.js";
import { exactly, keepingFocus, largestList, linkList, named } from "./lists.js";
import { darkest, largest, leastShaded, rankOf, shadesOf, totals } from "./ranking.js";
import { searchBox } from "./search.js";
import { isAbort } from "./source.js";
import { TextView } from "./text.js";
import { grouped, shownToken } from "./ticks.js";
import { tip } from "./tips.js";

const MOST_HEADS = 4;
const PATIENCE = 150; // milliseconds for which the shades of the token before may stay

export function tokenPlace(app) { return new TokenPlace(app); }

class TokenPlace {
  constructor(app) {
    Object.assign(this, { app, columns: new Map(), loaded: null, control: null, picking: false, panes: [], heads: [] });

    this.element = el("section.token-place");
    this.view = new TextView({ pick: (n, other) => this.pick(n, other), rest: (n, aloud) => this.rest(n, aloud), painted: this.element });
    this.title = el("h1.chosen");
    const step = (by) => el("button.icon", { type: "button", "aria-label": by < 0 ? "The token before" : "The token after", onclick: () => this.choose(this.i + by) }, by < 0 ? "‹" : "›");
    const save = (name, words, work) => tip(el("button", { type: "button", onclick: work }, name), words);
    this.way = segmented("Direction", [["from", "What it reads", "Each token is shaded by how much the chosen token reads it"],
      ["to", "Who reads it", "Each token is shaded by how much it reads the chosen token"]], "from", (way) => app.go({ way: way === "to" ? way : undefined }));
    this.scale = segmented("Shades", [["linear", "linear", "Shade in proportion to the weight"], ["log", "log", "A shade for every quarter of a decade: small weights are seen too"]], "linear",
      (color) => app.go({ color: color === "log" ? color : undefined }, { push: false }));
    this.search = searchBox(app, { pick: (n) => this.view.goTo(n, true), at: () => this.view.cursor, found: (all) => this.view.setFound(all), size: () => this.count ?? Infinity });
    this.other = tip(el("button", { type: "button", "aria-pressed": "false", onclick: () => this.setPicking(!this.picking) }, "Pick a second token"),
      "Then click it: the heads that link the two are listed (or Shift-click, or Shift and Enter)");
    this.places = el("span.sequences");
    this.heading = el("div.paneheads");
    this.readout = el("p.spoken");
    this.missing = el("div.missing", { hidden: true });
    this.link = el("section.linked", { hidden: true, "aria-label": "Heads that link two tokens" });
    this.lists = el("div.lists");
    put(this.element,
      el("div.controls", null, el("div.steps", null, step(-1), this.title, step(1)), this.way.element, this.scale.element, this.places, this.search.element, this.other,
        el("span.saves", { role: "group", "aria-label": "Save the present view" }, save("PNG", "The text in the window as a picture", () => this.picture("png")),
          save("SVG", "The text in the window as a drawing", () => this.picture("svg")), save("CSV", "All weights that are shown, as a table", () => this.save()))),
      this.missing,
      el("div.reading", null, el("div.texts", null, this.heading, this.view.element, this.readout), el("aside", { "aria-label": "Numbers" }, this.link, this.lists)));
    app.onTheme((dark) => this.view.setDark(dark));
    this.view.setDark(app.dark);
    this.keys = (event) => this.key(event);
  }

  async show(state) {
    this.control?.abort();
    const control = this.control = new AbortController();
    const { app } = this;
    const [tab, where] = [app.tab(), app.where()];
    removeEventListener("keydown", this.keys);
    addEventListener("keydown", this.keys);
    this.way.set(state.way ?? "from");
    this.scale.set(state.color ?? "linear");
    this.toward = state.way === "to";
    const [grid] = await Promise.all([app.grid(tab.id), this.load(tab, where, control.signal)]);
    if (control.signal.aborted) return;
    this.grid = grid;
    const mapped = grid.heads.filter((head) => head.hasMap !== false && tab.keep !== "stats");
    const known = new Set(mapped.map(({ head }) => head));
    const lacking = (state.heads ?? []).filter((head) => !known.has(head));
    if (lacking.length && mapped.length) app.notice(`head ${lacking.join(", ")} has no map in this run`);
    this.heads = [...new Set((state.heads ?? []).filter((head) => known.has(head)))];
    if (!this.heads.length && mapped.length) this.heads = [known.has(tab.first) ? tab.first : mapped[0].head];
    this.mapped = mapped;
    const infos = await Promise.all(this.heads.map((head) => app.headInfo(tab.id, head, where)));
    if (control.signal.aborted) return;
    this.infos = new Map(this.heads.map((head, n) => [head, infos[n]]));
    const unlike = this.heads.filter((head) => Boolean(this.infos.get(head).cross) !== Boolean(infos[0].cross));
    if (unlike.length) app.notice(`head ${unlike.join(", ")} reads another text than head ${this.heads[0]}: they do not stand side by side`);
    this.heads = this.heads.filter((head) => !unlike.includes(head));
    this.arrange(state);
    const moved = this.place !== `${this.key0}|${this.i}`;
    this.place = `${this.key0}|${this.i}`;
    this.view.setMarks({ chosen: this.side("chosen"), other: this.j });
    renew(this.places, sequenceChoice(app, { i: undefined, j: undefined }));
    this.head();
    this.asked = performance.now();
    this.shade();
    if (moved) this.view.goTo(this.cross ? this.j ?? 0 : this.i, this.fresh);
    this.fresh = false;
    this.search.show(state);
    this.lacks(tab);
    await Promise.all([this.weights(control.signal), this.links(control.signal)]);
  }
  leave() {
    this.control?.abort();
    removeEventListener("keydown", this.keys);
    this.place = null;
  }

  // Loading -----------------------------------------------------------------------------------------

  async load(tab, where, signal) {
    this.key0 = `${tab.id}|${where.seq}|${where.batch}`;
    if (this.loaded === this.key0) return;
    this.columns.clear();
    const text = this.app.texts.of(tab.id, where);
    say(this.readout, "Reading the text …");
    await text.need(0, 1);
    await text.need(0, text.total);
    if (signal.aborted) return;
    this.text = text;
    this.loaded = this.key0;
    this.fresh = true;
    this.textSide = null;
    say(this.readout, "");
  }
  // Which token is which. In self-attention rows and columns are places in one text, offset apart.
  arrange(state) {
    const info = this.infos.get(this.heads[0]) ?? {};
    this.cross = Boolean(info.cross);
    this.T = info.T ?? this.text.total;
    this.S = info.S ?? this.text.total;
    this.keysKnown = this.text.total > 0 && info.keyTexts !== false;
    this.queriesKnown = this.text.total > 0 && info.queryTexts !== false;
    const total = this.cross ? (this.toward ? this.S : this.T) : Math.max(this.S, this.text.total);
    this.count = this.cross ? (this.toward ? this.T : this.S) : total;
    this.chosenTotal = total;
    this.i = Math.min(state.i ?? 0, Math.max(0, total - 1));
    if (state.i !== undefined && state.i >= total) this.app.notice(`there is no token ${grouped(state.i)}: the last one is ${grouped(total - 1)}`);
    this.j = state.j !== undefined && state.j < this.count ? state.j : undefined;
    const side = this.cross && this.toward ? "queries" : "keys";
    if (this.textSide !== `${this.key0}|${side}|${this.count}`) {
      this.textSide = `${this.key0}|${side}|${this.count}`;
      this.view.setText(this.count, (n) => this.raw(n));
    }
  }
  rawKey(n) { return this.keysKnown ? this.text.token(n) ?? "" : `#${n}`; }
  rawQuery(n) { return this.queriesKnown ? this.text.token(n) ?? "" : `#${n}`; }
  raw(n) { return this.cross && this.toward ? this.rawQuery(n) : this.rawKey(n); }
  rawChosen(n) { return this.cross && !this.toward ? this.rawQuery(n) : this.rawKey(n); }
  side(which) { return which === "chosen" && !this.cross ? this.i : undefined; }
  // The row of a head that stands at a position, or -1.
  rowOf(head, position) {
    const { rowAt, T } = this.infos.get(head);
    if (rowAt) return rowAt.indexOf(position);
    return position < T ? position : -1;
  }

  async weights(signal) {
    const { app, toward, i } = this;
    const shade = () => this.shade();
    shade();
    await Promise.all(this.heads.map(async (head) => {
      const key = `${head}|${toward}|${i}`;
      if (!this.columns.has(key)) {
        try {
          const values = await this.read(head, signal);
          this.columns.set(key, values);
          while (this.columns.size > 48) this.columns.delete(this.columns.keys().next().value);
        } catch (error) {
          if (isAbort(error)) return;
          this.columns.set(key, { refused: error.message });
        }
      }
      if (!signal.aborted) shade();
    }));
  }
  // One value for each token of the text; NaN where nobody may look.
  async read(head, signal) {
    const { app } = this;
    const [tab, where] = [app.tab().id, app.where()];
    if (this.toward) {
      const [column, rows] = await Promise.all([app.source.column(tab, head, this.i, where, { signal }),
        app.source.rows(tab, head, where, { signal }).catch((error) => { if (isAbort(error)) throw error; return null; })]);
      const { rowAt } = this.infos.get(head);
      const found = new Float32Array(this.count).fill(NaN);
      const seen = new Float32Array(this.count).fill(NaN);
      for (let n = 0; n < column.length; n += 1) {
        const at = rowAt ? rowAt[n] : n;
        if (at < found.length) { found[at] = column[n]; seen[at] = rows?.visible[n] ?? NaN; }
      }
      return { values: found, uniformOf: (n) => 1 / seen[n] };
    }
    const row = this.rowOf(head, this.i);
    if (row < 0) return { values: new Float32Array(this.count).fill(NaN), uniformOf: () => NaN, none: true };
    const values = await app.source.row(tab, head, row, where, { signal });
    const { seen } = totals(values);
    if (values.length === this.count) return { values, uniformOf: () => 1 / seen };
    const found = new Float32Array(this.count).fill(NaN);
    found.set(values.subarray(0, this.count));
    return { values: found, uniformOf: () => 1 / seen };
  }
  async links(signal) {
    const { app, i, j, toward, cross } = this;
    this.link.hidden = j === undefined || !this.heads.length;
    if (this.link.hidden) return;
    let [query, key] = toward ? [j, i] : [i, j];
    // Where rows see only what came before, the later of the two is the one that reads.
    const causal = !cross && this.heads.every((head) => this.infos.get(head).rule?.startsWith("causal"));
    let turned = causal && query < key;
    if (turned) [query, key] = [key, query];
    let refused = "";
    const ask = async () => {
      try { return await app.source.link(app.tab().id, query, key, app.where(), { signal }); } catch (error) {
        if (isAbort(error)) throw error;
        refused = error.message;
        return [];
      }
    };
    if (this.linkOf !== `${this.key0}|${query}|${key}`) renew(this.link, el("p.quietly", null, "Asking every head …"));
    try {
      let links = await ask();
      if (!links.length && !cross && !causal && query !== key) {
        [query, key, turned] = [key, query, true];
        links = await ask();
        if (!links.length) [query, key, turned] = [key, query, false];
      }
      if (signal.aborted) return;
      this.linkOf = `${this.key0}|${query}|${key}`;
      linkList(this.link, {
        links, heads: this.grid.heads, query, key, turned, refused, shown: this.heads,
        raw: (n) => this.rawKey(n), rawQuery: (n) => (cross ? this.rawQuery(n) : this.rawKey(n)),
        address: (head) => this.mapAt(head, query, key),
        show: (head) => this.toggle(head), close: () => app.go({ j: undefined }),
      });
    } catch (error) { app.fail(error); }
  }

  mapAt(head, query, key) {
    const row = this.infos.has(head) ? this.rowOf(head, query) : query;
    return this.app.address({ place: "head", head, i: row, j: key, x: key + 0.5, y: row + 0.5, w: 40 });
  }

  // Showing -----------------------------------------------------------------------------------------

  head() {
    renew(this.title, named(this.i, this.rawChosen(this.i)));
    const options = () => this.mapped.map(({ head, role }) => el("option", { value: head }, isNamed(role) ? `${head} ${role}` : head));
    this.heading.classList.toggle("several", this.heads.length > 1);
    this.legends = this.heads.map(() => el("span.shadekey", { title: "The darkest shade: the largest weight, or 8 times an equal share where that is more" }));
    this.element.style.setProperty("--panes", Math.max(1, this.heads.length));
    const spare = this.mapped.find(({ head }) => !this.heads.includes(head));
    keepingFocus(this.heading, () => renew(this.heading, this.heads.map((head, n) => {
      const select = el("select", { "aria-label": `Head of column ${n + 1}`, onchange: () => this.app.go({ heads: this.heads.map((each, m) => (m === n ? select.value : each)) }) }, options());
      select.value = head;
      return el("div.panehead", null, el("div", null, select,
        this.heads.length > 1 ? el("button.quiet.icon", { type: "button", "aria-label": `Take head ${head} away`, onclick: () => this.toggle(head) }, "×") : null,
        n === this.heads.length - 1 && n + 1 < MOST_HEADS && spare
          ? tip(el("button.quiet.icon", { type: "button", "aria-label": "Another head beside it", onclick: () => this.toggle(spare.head) }, "+"), "Another head beside it") : null),
      this.legends[n]);
    })));
  }
  shade() {
    if (this.app.state.place !== "token") return;
    const scale = this.app.state.color ?? "linear";
    this.panes = this.heads.map((head) => {
      const read = this.columns.get(`${head}|${this.toward}|${this.i}`);
      const before = this.panes.find((pane) => pane.head === head && pane.values?.length === this.count);
      if (!read && before && performance.now() - this.asked < PATIENCE) { setTimeout(() => this.shade(), PATIENCE); return before; }
      if (!read || read.refused) return { head, refused: read?.refused };
      const [first] = largest(read.values, 1);
      if (first === undefined) return { head, ...read, top: 0, most: 0, scale, shades: shadesOf(read.values, 0, scale) };
      const most = read.values[first];
      const top = darkest(most, read.uniformOf(first));
      return { head, ...read, top, most, scale, shades: shadesOf(read.values, top, scale) };
    });
    this.view.setPanes(this.panes);
    this.panes.forEach((pane, n) => {
      renew(this.legends[n], pane.refused ? el("span.refused", null, pane.refused) : !pane.values ? "reading …" : pane.top > 0
        ? [el("span", null, scale === "log" ? `≤ ${exactly(leastShaded(pane.top, scale))}` : "0"), el("span.ramp", { "aria-hidden": "true" }), el("span", null, exactly(pane.top))]
        : pane.none ? "no query of it stands here" : this.toward ? "nobody may read it" : "it sees no token");
    });
    const most = this.heads.length > 1 ? 8 : 16;
    keepingFocus(this.lists, () => renew(this.lists, this.panes.filter((pane) => pane.values && pane.top > 0).map((pane) => largestList({
      head: pane.head, role: this.roleOf(pane.head), values: pane.values, uniformOf: pane.uniformOf, raw: (n) => this.raw(n),
      pick: (n) => { this.view.goTo(n); this.app.go({ j: n }); }, way: this.toward ? "to" : "from", other: this.j, most,
    }))));
  }
  roleOf(head) {
    const role = this.grid.heads.find((each) => each.head === head)?.role;
    return isNamed(role) ? role : "";
  }
  lacks(tab) {
    this.missing.hidden = this.mapped.length > 0;
    if (this.mapped.length) return;
    renew(this.missing, noMapElements(tab, "This run kept the figures of its heads, not their q and k: which token reads which cannot be said."));
  }
  rest(n, aloud) {
    const at = n ?? (aloud ? this.view.cursor : null);
    if (at === null || at >= this.count) { renew(this.readout, this.hint()); return; }
    const parts = this.panes.filter((pane) => pane.values).map((pane) => {
      const w = pane.values[at];
      const words = Number.isNaN(w) ? "not seen" : `${exactly(w)}, rank ${grouped(rankOf(pane.values, at))}${times(w, pane.uniformOf(at)) ? `, ${times(w, pane.uniformOf(at))} equal` : ""}`;
      return el("span.reads", null, el("b.mono", null, pane.head), " ", words);
    });
    renew(this.readout, named(at, this.raw(at)), " ", parts);
    if (aloud) this.app.announce(this.readout.textContent);
  }
  hint() {
    const click = this.cross ? "Click a token to pair it." : "Click a token to choose it, Shift-click for a second one.";
    return this.heads.length ? el("span.quietly", null, click) : "";
  }

  // Doing -------------------------------------------------------------------------------------------

  pick(n, other) {
    if (other || this.picking || this.cross) {
      this.setPicking(false);
      this.app.go({ j: n });
    } else this.choose(n);
  }
  choose(n) {
    if (n < 0 || n >= this.chosenTotal || n === this.i) return;
    this.app.go({ i: n, j: undefined });
  }
  toggle(head) {
    const there = this.heads.includes(head);
    if (!there && this.heads.length >= MOST_HEADS) this.app.go({ heads: [...this.heads.slice(0, MOST_HEADS - 1), head] });
    else if (!there || this.heads.length > 1) this.app.go({ heads: there ? this.heads.filter((each) => each !== head) : [...this.heads, head] });
  }
  setPicking(on) {
    this.picking = on;
    this.other.setAttribute("aria-pressed", String(on));
    this.view.element.classList.toggle("picking", on);
  }
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea, dialog[open]")) return;
    const does = {
      "/": () => this.search.focus(), n: () => this.search.next(1), N: () => this.search.next(-1), ",": () => this.choose(this.i - 1), ".": () => this.choose(this.i + 1),
      w: () => this.app.go({ way: this.toward ? undefined : "to" }), l: () => this.app.go({ color: this.app.state.color === "log" ? undefined : "log" }, { push: false }),
      s: () => this.setPicking(!this.picking), c: () => this.view.goTo(this.cross ? this.j ?? 0 : this.i, true),
      Escape: () => { if (this.picking) this.setPicking(false); else if (this.j !== undefined) this.app.go({ j: undefined }); },
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }
  picture(kind) {
    const panes = this.panes.filter((pane) => pane.values);
    const scale = this.app.state.color ?? "linear";
    const title = `[${grouped(this.i)}] ${shownToken(this.rawChosen(this.i), 24)}: ${this.toward ? "who reads it" : "what it reads"}, ${this.app.tab().name}`;
    textDrawing(this.app, this.view, title, panes.map(({ head, top }) => ({ head, role: this.roleOf(head), least: scale === "log" ? exactly(leastShaded(top, scale)) : "0", most: exactly(top) })))
      .save(fileName(this.app.tab().name, "token", String(this.i)), kind).catch((error) => this.app.fail(error));
  }
  save() {
    const panes = this.panes.filter((pane) => pane.values);
    const rows = [["position", "token", ...panes.map(({ head }) => `head ${head}`)]];
    for (let n = 0; n < this.count; n += 1) if (panes.some(({ values }) => values[n] === values[n])) rows.push([n, this.raw(n), ...panes.map(({ values }) => values[n])]);
    saveFile(`${fileName(this.app.tab().name, "token", String(this.i), this.toward ? "read-by" : "reads")}.csv`, new Blob([csvText(rows)], { type: "text/csv" }));
  }
}
