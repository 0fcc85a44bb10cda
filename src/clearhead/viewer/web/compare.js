// Two heads, of one run or of two, side by side with locked zoom; or their difference.
import { ExactCells, pixelWords } from "./crosshair.js";
import { noMapHere } from "./curves.js";
import { calmly, el, fileName, renew, saveFile, say, segmented } from "./dom.js";
import { Legend } from "./legend.js";
import { MapView } from "./mapview.js";
import { figureAs } from "./picture.js";
import { pixelMeaning } from "./readout.js";
import { searchBox } from "./search.js";
import { isAbort } from "./source.js";
import { grouped, longWeight, shownToken } from "./ticks.js";
import { tip } from "./tips.js";
import { cellAt } from "./zoom.js";

export function comparePlace(app) {
  return new ComparePlace(app);
}

const LABEL = "Arrows pan, plus and minus zoom, both maps move together.";

class ComparePlace {
  constructor(app) {
    this.app = app;
    this.sides = [];
    this.look = calmly((cross) => this.read(cross), 80);
    this.pool = segmented("A pixel shows", [["max", "max", "the largest weight of each pixel"], ["mean", "mean", "the mean weight of each pixel"]], "max", (pool) => app.go({ pool }, { push: false }));
    this.scale = segmented("Colors", [["linear", "linear"], ["log", "log"]], "log", (color) => app.go({ color }, { push: false }));
    this.way = segmented("Show", [["both", "side by side"], ["difference", "A minus B"]], "both", (show) => app.go({ show }));
    this.picks = [this.picker(0), this.picker(1)];
    this.maps = [this.mapOf(0), this.mapOf(1), this.mapOf(2)];
    this.titles = [0, 1, 2].map(() => el("h2"));
    this.figures = this.maps.map((map, n) => el("div.figure", null, this.titles[n], map.element));
    this.legend = new Legend();
    this.words = el("p.seen", { "data-field": "compared" });
    this.problem = el("p.without", { hidden: true });
    this.search = searchBox(app, { pick: (position) => { const { i, j } = cellAt(this.sides[0].info, position); this.shownMaps()[0].showCell(i, j); },
      size: () => Math.max(0, ...this.sides.map(({ info }) => info.S)) || Infinity });
    const save = (kind, words) => tip(el("button", { type: "button", onclick: () => this.save(kind.toLowerCase()) }, kind), words);
    const zoom = (words, sign, act) => tip(el("button.icon", { type: "button", "aria-label": words, onclick: () => act(this.shownMaps()[0].keys()) }, sign), words);
    this.element = el("div.compare-place", null,
      el("div.tools-row", { role: "toolbar", "aria-label": "The two maps" }, el("span.heads", null, el("b.letter", null, "A"), this.picks[0].run, this.picks[0].head), el("span.heads", null, el("b.letter", null, "B"), this.picks[1].run, this.picks[1].head),
        tip(el("button", { type: "button", onclick: () => this.swap() }, "swap"), "A becomes B"), this.search.element, el("span.push"), this.way.element, this.pool.element, this.scale.element,
        el("span.zooms", null, zoom("Closer (+)", "+", (k) => k.zoom(2)), zoom("Farther (-)", "−", (k) => k.zoom(0.5)), zoom("Everything (0)", "⤢", (k) => k.fit())),
        el("span.saves", { role: "group", "aria-label": "Save the present view" }, save("PNG", "The present view as pictures"), save("SVG", "The present view as drawings"), save("CSV", "The numbers of the present view"))),
      this.problem, this.pair = el("div.pair", null, this.figures), el("div.below", null, this.legend.element, this.words));
    app.onTheme(() => this.key && this.sayView());
  }

  picker(n) {
    const [tab, head] = n ? ["tab2", "head2"] : ["tab", "head"];
    return {
      run: el("select.pick", { "aria-label": `Run of ${"AB"[n]}`, onchange: (event) => this.app.go({ [tab]: event.target.value }) }),
      head: el("select.pick", { "aria-label": `Head ${"AB"[n]}`, onchange: (event) => this.app.go({ [head]: event.target.value }) }),
    };
  }
  mapOf(n) {
    return new MapView(this.app, {
      label: `${["Map of A.", "Map of B.", "A minus B."][n]} ${LABEL}`, tracks: false,
      hooks: {
        moved: (view, how) => this.moved(n, view, how),
        crossed: (cross) => this.crossed(n, cross),
        sized: () => this.sides.length && this.sayView(),
        picked: (cross) => { this.app.go({ place: "head", head: this.sides[n === 1 ? 1 : 0].head, tab: this.sides[n === 1 ? 1 : 0].tab.id, x: cross.j0, y: cross.i0, w: Math.min(this.maps[n].goal.w, 64), i: cross.i0, j: cross.j0 }); },
        failed: (error) => this.app.fail(error),
        key: (key) => key === "x" && (this.app.go({ show: this.app.state.show === "difference" ? "both" : "difference" }), true),
      },
    });
  }
  shownMaps() { return this.difference ? [this.maps[2]] : [this.maps[0], this.maps[1]]; }

  async show(state) {
    const { app } = this;
    const tabs = [app.tab(state.tab), app.tab(state.tab2 ?? state.tab)];
    const wheres = [app.where(state), { seq: state.seq2 ?? (state.tab2 && state.tab2 !== state.tab ? tabs[1].sequences?.[0]?.seq : app.where(state).seq), batch: state.batch2 ?? state.batch ?? 0 }];
    const grids = await Promise.all(tabs.map((tab) => app.grid(tab.id)));
    const wanted = [state.head, state.head2 ?? state.head];
    const heads = grids.map((grid, n) => (grid.heads.some((h) => h.head === wanted[n]) ? wanted[n] : this.instead(tabs[n], grid, wanted[n])));
    const infos = await Promise.all([0, 1].map((n) => app.headInfo(tabs[n].id, heads[n], wheres[n])));
    if (app.current !== this) return;
    this.sides = [0, 1].map((n) => ({ tab: tabs[n], head: heads[n], where: wheres[n], info: infos[n], grid: grids[n] }));
    this.fill();
    const reduce = state.pool ?? "max";
    this.difference = state.show === "difference";
    this.color = state.color ?? (Math.max(infos[0].S, infos[1].S) > 512 ? "log" : "linear");
    this.pool.set(reduce);
    this.scale.set(this.color);
    this.way.set(this.difference ? "difference" : "both");
    if (!this.possible()) return;
    const key = JSON.stringify([this.sides.map(({ tab, head, where }) => [tab.id, head, where]), reduce, this.difference]);
    const goal = { x: state.x, y: state.y, w: state.w };
    const given = Object.fromEntries(Object.entries(goal).filter(([, v]) => v !== undefined));
    if (this.key !== key) {
      this.key = key;
      this.layers = this.sides.map(({ tab, head, where }) => ({ tab: tab.id, head, reduce, ...where }));
      this.open();
    }
    for (const map of this.shownMaps()) {
      map.setScale(this.color);
      if (state.w !== undefined) map.setView(given, { quiet: true });
    }
    this.sayView();
  }
  instead(tab, grid, head) {
    const found = (grid.heads.find((h) => h.hasMap) ?? grid.heads[0]).head;
    if (head !== undefined) this.app.also(`${tab.name} has no head ${head}: this is head ${found}`);
    return found;
  }

  // Maps can be laid over each other only if both can be computed, and subtracted only if they are of one size.
  possible() {
    const [a, b] = this.sides;
    const bare = this.sides.find(({ info }) => !info.hasMap);
    const unlike = a.info.T !== b.info.T || a.info.S !== b.info.S;
    const why = bare && noMapHere(bare.tab, `${bare.tab.name} kept no q and k: there is no map of head ${bare.head} to compare.`);
    const words = bare ? `${why.words}${bare.tab.command ? ` ${why.brings} ${bare.tab.command}` : ""}`
      : this.difference && unlike ? `A has ${grouped(a.info.T)} × ${grouped(a.info.S)} weights and B ${grouped(b.info.T)} × ${grouped(b.info.S)}: a difference needs two maps of one size. Side by side works.` : "";
    say(this.problem, words);
    this.problem.hidden = !words;
    this.pair.hidden = this.legend.element.hidden = Boolean(words);
    if (words) { this.maps.forEach((map) => map.forget()); this.key = null; }
    return !words;
  }

  open() {
    const names = this.sides.map(({ tab, head, grid }) => [tab.id !== this.sides[0].tab.id || this.sides[0].tab.id !== this.sides[1].tab.id ? `${tab.name} ` : "", head, roleOf(grid, head)].join(" ").trim());
    say(this.titles[0], `A  ${names[0]}`);
    say(this.titles[1], `B  ${names[1]}`);
    say(this.titles[2], `A minus B  ${names[0]} − ${names[1]}`);
    this.exacts = this.sides.map(({ info }, n) => new ExactCells(this.app.source, this.layers[n], info.T, info.S));
    this.figures.forEach((figure, n) => { figure.hidden = (n === 2) !== this.difference; });
    this.pair.classList.toggle("one", this.difference);
    this.maps.forEach((map) => map.forget());
    this.unwatch?.forEach((stop) => stop());
    this.texts = this.sides.map(({ tab, where, info }) => this.app.texts.alongAxes(tab.id, where, info));
    this.unwatch = this.texts.map((text) => text.watch(() => this.shownMaps().forEach((map) => map.repaint())));
    if (this.difference) this.maps[2].setMap({ layers: this.layers, info: this.sides[0].info, text: this.texts[0], exact: null });
    else [0, 1].forEach((n) => this.maps[n].setMap({ layers: [this.layers[n]], info: this.sides[n].info, text: this.texts[n], exact: this.exacts[n] }));
  }

  fill() {
    this.sides.forEach(({ tab, head, grid }, n) => {
      renew(this.picks[n].run, this.app.about.tabs.map((each) => el("option", { value: each.id }, each.name)));
      this.picks[n].run.value = tab.id;
      this.picks[n].run.hidden = this.app.about.tabs.length < 2;
      renew(this.picks[n].head, grid.heads.map((h) => el("option", { value: h.head }, h.role ? `${h.head}  ${h.role}` : h.head)));
      this.picks[n].head.value = head;
    });
  }
  swap() {
    const [a, b] = this.sides;
    this.app.go({ tab: b.tab.id, head: b.head, seq: b.where.seq, batch: b.where.batch, tab2: a.tab.id, head2: a.head, seq2: a.where.seq, batch2: a.where.batch });
  }

  moved(n, view, how) {
    if (n < 2 && !this.difference && this.maps[1 - n].view) this.maps[1 - n].setView({ ...view }, { ...how, quiet: true });
    this.app.drift({ x: view.x, y: view.y, w: view.w });
    this.sayView();
  }
  crossed(n, cross) {
    if (n < 2 && !this.difference) {
      const { info } = this.sides[1 - n];
      this.maps[1 - n].showCross(cross && cross.i0 < info.T && cross.j0 < info.S ? cross : null);
    }
    this.cross = cross;
    if (!cross) { say(this.words, ""); this.look.cancel(); return; }
    this.sayCross(cross, null);
    this.look(cross);
  }
  // Both numbers of the cell, or of the pixel where it holds many.
  sayCross(cross, exact) {
    const [text] = this.texts;
    const n = 2 ** cross.z;
    const where = n === 1 ? `${shownToken(text.query(cross.i0), 14)} [${grouped(text.at ? text.at(cross.i0) : cross.i0)}] → ${shownToken(text.key(cross.j0), 14)} [${grouped(cross.j0)}]`
      : `queries ${grouped(cross.i0)}–${grouped(cross.i1 - 1)}, keys ${grouped(cross.j0)}–${grouped(cross.j1 - 1)}`;
    const of = (m) => {
      if (exact) return exact[m] === null ? "–" : exact[m].score === -Infinity ? "hidden" : longWeight(exact[m].weight);
      const map = this.difference ? this.maps[2] : this.maps[m];
      const seen = this.difference ? cross.codes?.[m] : map.crossAt(cross.i0, cross.j0).code;
      return pixelWords(seen) || "…";
    };
    say(this.words, `${where}: A ${of(0)}, B ${of(1)}${exact && exact[0] && exact[1] && exact[0].score !== -Infinity && exact[1].score !== -Infinity ? `, A minus B ${longSigned(exact[0].weight - exact[1].weight)}` : ""}`);
  }
  async read(cross) {
    if (cross.z !== 0 || !this.exacts) return;
    try {
      const cells = await Promise.all(this.exacts.map(async (exact) => {
        if (cross.i0 >= exact.T || cross.j0 >= exact.S) return null;
        await exact.need(cross.i0, cross.i1, cross.j0, cross.j1);
        return exact.at(cross.i0, cross.j0);
      }));
      if (this.cross === cross) this.sayCross(cross, cells);
    } catch (error) { if (!isAbort(error)) this.app.fail(error); }
  }

  sayView() {
    const map = this.shownMaps()[0];
    if (!map?.goal || !map.layout) return;
    const words = this.shownMaps().map((each) => (each.goal && each.layout ? pixelMeaning(each.level(each.goal), this.app.state.pool ?? "max") : ""));
    const each = words.length < 2 || words[0] === words[1] || !words[1] ? words[0] : `A: ${words[0]} B: ${words[1]}`;
    const meaning = this.difference ? `A minus B, of what each pixel shows. ${each}${this.color === "log" ? " Colors: how many times as large." : ""}` : each;
    this.legend.show({ scale: this.color, dark: this.app.dark, meaning, difference: this.difference });
  }
  async save(kind) {
    if (!this.key) return;
    try {
      const names = this.sides.map(({ tab, head }) => `${tab.name} ${head}`);
      const maps = this.shownMaps();
      for (const [n, map] of maps.entries()) {
        const title = this.difference ? `${names[0]} minus ${names[1]}` : names[n];
        const caption = { title, meaning: this.legend.meaning.textContent, seen: "", proof: this.sides.map(({ tab }) => tab.checked ?? "not checked").join(" / "), scale: this.color };
        const side = { info: this.sides[n].info, pool: this.app.state.pool ?? "max", text: this.texts[n] };
        saveFile(`${fileName(title)}.${kind}`, await figureAs(kind, map, caption, { ...side, exacts: this.difference ? this.exacts : [this.exacts[n]] }));
      }
    } catch (error) { this.app.fail(error); }
  }
  leave() {
    this.maps.forEach((map) => map.forget());
    this.unwatch?.forEach((stop) => stop());
    this.key = null;
  }
}

function roleOf(grid, head) { return grid.heads.find((h) => h.head === head)?.role ?? ""; }
function longSigned(v) { return `${v < 0 ? "−" : "+"}${longWeight(Math.abs(v))}`; }
