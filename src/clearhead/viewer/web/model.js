// The model: all heads of a run as a grid and as a table, and what the numbers and roles mean.
import { csvText } from "./csv.js";
import { gridDrawing } from "./drawing.js";
import { noMapElements } from "./curves.js";
import { choice, el, fileName, put, renew, saveFile, say } from "./dom.js";
import { figure, isNamed, measuredOn, metricOf, metricsOf, placeIn, rangeOf, roleColor, roleWords, sequenceChoice, shadeColors } from "./heads.js";
import { HeadGrid } from "./headgrid.js";
import { HeadPreview } from "./preview.js";
import { headOrder } from "./ranking.js";
import { sortTable } from "./table.js";
import { grouped } from "./ticks.js";
import { tip } from "./tips.js";

const CAPTIONS = {
  head: ["head", "layer.head, both from 0"], role: ["role", "what it reads, where that is clear"],
  role_mass: ["mass", "mean weight on what its role names; beside it what equal attention puts there"],
  role_text: ["text", "the same mass in this text"],
  normalized_entropy: ["entropy", "0: all weight on one token, 1: the same on each"],
  first_key: ["first", "mean weight on the first token; beside it what equal attention puts there"],
  previous: ["previous", "mean weight on the token just before"], self_mass: ["self", "mean weight on its own token"],
  distance: ["distance", "how far away it reads, in tokens"], max_score: ["max score", "the largest score before the softmax"],
};

export function modelPlace(app) { return new ModelPlace(app); }

class ModelPlace {
  constructor(app) {
    this.app = app;
    this.preview = new HeadPreview(app);
    this.grid = new HeadGrid(app, (head) => this.rest(head));
    this.table = sortTable({ label: "Heads", columns: this.columns(), sorted: ({ key, down }) => app.go({ sort: key, down: down ? "1" : undefined }, { push: false }),
      row: (line, head) => { line.addEventListener("pointerenter", () => this.rest(head.head)); line.addEventListener("focusin", () => this.rest(head.head)); } });
    const first = metricsOf(app)[0];
    this.metric = choice("Color by", metricsOf(app).map(({ key, label }) => [key, label]), first.key, (color) => app.go({ color: color === first.key ? undefined : color }, { push: false }));
    const save = (name, words, work) => tip(el("button", { type: "button", onclick: work }, name), words);
    this.filter = el("div.chips", { role: "group", "aria-label": "Show only heads with a role" });
    this.legend = el("div.gridlegend");
    this.title = el("h1");
    this.facts = el("p.facts");
    this.missing = el("div.missing", { hidden: true });
    this.words = el("section.words");
    this.none = el("p.quietly.below-table");
    this.element = el("section.model-place", null,
      el("header", null, this.title, this.facts), this.missing,
      el("div.controls", null, this.metric, this.filter, el("span.saves", { role: "group", "aria-label": "Save the present view" }, save("PNG", "The grid as a picture", () => this.picture("png")), save("SVG", "The grid as a drawing", () => this.picture("svg")),
        save("CSV", "All figures of all heads, as a table", () => this.save()))),
      this.two = el("div.two", null, el("div.left", null, this.legend, this.grid.element, this.preview.element), el("div.right", null, this.table.element, this.none)),
      this.words);
    app.onTheme(() => { if (this.heads) { this.paint(); this.grid.watch(); this.rest(this.resting); } });
  }
  leave() { this.grid.stop(); this.preview.stop(); this.shown = null; }

  columns() {
    const { app } = this;
    const pair = (mass, equal) => [figure(mass), typeof equal === "number" ? el("span.quietly", null, ` ${figure(equal)}`) : null];
    const plain = (key) => ({ key, label: CAPTIONS[key][0], title: CAPTIONS[key][1], number: true, read: (head) => head[key], cell: (head) => figure(head[key]) });
    return [
      { key: "head", label: CAPTIONS.head[0], title: CAPTIONS.head[1], rowHead: true, read: (head) => headOrder(head.head), cell: (head) => el("a.mono", { href: app.address({ place: "head", head: head.head }) }, head.head) },
      { key: "role", label: CAPTIONS.role[0], title: CAPTIONS.role[1], read: (head) => (isNamed(head.role) ? head.role : null),
        cell: (head) => el(isNamed(head.role) ? "span.rolename" : "span.quietly", null, isNamed(head.role) ? this.dot(head.role) : null, head.role ?? "–") },
      { ...plain("role_mass"), read: (head) => (head.role === "broad" ? null : head.role_mass), cell: (head) => (head.role === "broad" ? "–" : pair(head.role_mass, head.role_uniform)) },
      { ...plain("role_text"), when: (head) => Boolean(measuredOn(app, head)), read: (head) => (head.role === "broad" ? null : head.role_text), cell: (head) => (head.role === "broad" ? "–" : figure(head.role_text)) },
      { ...plain("normalized_entropy"), first: "up", cell: (head) => this.shaded(head.normalized_entropy) },
      { ...plain("first_key"), cell: (head) => pair(head.first_key, head.first_key_uniform) },
      plain("previous"), plain("self_mass"), plain("distance"), plain("max_score"),
    ];
  }
  dot(role) {
    const dot = el("span.dot", { "aria-hidden": "true" });
    dot.style.setProperty("--back", roleColor(role, this.app.dark) ?? "transparent");
    return dot;
  }
  shaded(x) {
    const place = placeIn([0, 1], x);
    if (place === null) return "–";
    const meter = el("span.meter", { "aria-hidden": "true" });
    meter.style.setProperty("--share", place);
    return [meter, figure(x)];
  }

  async show(state) {
    const { app } = this;
    const [tab, where] = [app.tab(), app.where()];
    const grid = await app.grid(tab.id);
    if (app.tab().id !== tab.id || app.state.place !== "model") return;
    this.heads = grid.heads;
    this.state = state;
    const key = `${tab.id} ${where.seq} ${where.batch}`;
    if (this.shown !== key) {
      this.shown = key;
      this.header(tab, where, grid);
      this.two.classList.toggle("wide", Math.max(...grid.heads.map(({ head }) => headOrder(head)[1])) >= 16);
      this.grid.show(tab, where, grid);
      this.explain(grid);
      const measured = this.elsewhere();
      say(this.none, `mass: mean weight on what the role names${measured && `, ${measured}`}. Gray: what equal attention would put there. ${measured && "text: the same mass in this text. "}Shares of 1; distance in tokens.`);
      this.resting = null;
    }
    this.paint();
    const still = grid.heads.find(({ head }) => head === (state.pick ?? this.resting));
    this.rest(still?.head ?? this.app.firstHead());
  }
  // Where roles were measured, in words; nothing where that was this text.
  elsewhere() { return [...new Set(this.heads.map((head) => measuredOn(this.app, head)))].filter(Boolean).join(", or "); }
  rest(head) {
    const found = this.heads?.find((each) => each.head === head);
    if (!found) return;
    this.resting = head;
    this.preview.show(this.app.tab(), this.app.where(), found);
  }

  header(tab, where, grid) {
    say(this.title, tab.model || tab.name);
    const layers = new Set(grid.heads.map(({ layer }) => layer)).size;
    const even = grid.heads.length % layers === 0;
    const facts = [even ? `${grouped(layers)} × ${grouped(grid.heads.length / layers)} heads` : `${grouped(grid.heads.length)} heads in ${grouped(layers)} layers`];
    if (tab.tokens) facts.push(`${grouped(tab.tokens)} tokens`);
    renew(this.facts, facts.join(", "));
    put(this.facts, " ", sequenceChoice(this.app) || null);
    const batches = tab.sequences?.find(({ seq }) => seq === where.seq)?.batches ?? 1;
    if (batches > 1) put(this.facts, " ", choice("of batch", Array.from({ length: batches }, (_, n) => [String(n), String(n)]), String(where.batch), (batch) => this.app.go({ batch: Number(batch) })));
    this.drawn = tab.keep !== "stats" && grid.heads.some(({ hasMap }) => hasMap !== false);
    const lacks = tab.keep === "stats" || grid.heads.every(({ hasMap }) => hasMap === false);
    this.missing.hidden = !lacks;
    if (lacks) renew(this.missing, noMapElements(tab, "This run kept the figures and curves of its heads, not their q and k: there are no maps to walk through."));
  }

  paint() {
    const { app, state, heads } = this;
    const metric = metricOf(app, state.color);
    const role = heads.some((head) => head.role === state.role) ? state.role : "";
    this.metric.querySelector("select").value = metric.key;
    const range = rangeOf(metric, heads);
    this.grid.color(metric, range, role);
    this.drawLegend(metric, range);
    this.chips(role);
    const rows = role ? heads.filter((head) => head.role === role) : heads;
    const known = new Set(this.columns().map(({ key }) => key));
    this.table.show(rows, { key: known.has(state.sort) ? state.sort : "head", down: state.down === "1" });
  }
  drawLegend(metric, [low, high]) {
    const { dark } = this.app;
    if (metric.key === "role") {
      const roles = [...new Set(this.heads.map(({ role }) => role))].filter(isNamed);
      renew(this.legend, el("p", null, el("b", null, "role"), `: ${metric.meaning}`), el("p.keys", null, roles.map((role) => el("span.rolename", null, this.dot(role), role))));
      return;
    }
    const steps = Array.from({ length: 24 }, (_, n) => { const step = el("i"); step.style.setProperty("--back", shadeColors(n / 23, dark).back); return step; });
    renew(this.legend, el("p", null, el("b", null, metric.label), metric.meaning ? `: ${metric.meaning}` : ""),
      el("p.metricscale", null, el("span", null, endOf(low)), el("span.steps24", { "aria-hidden": "true" }, steps), el("span", null, endOf(high))), this.drawn ? el("p.quietly.mapsnote", null, "the maps: largest weights of each part, logarithmic") : null);
  }
  chips(chosen) {
    const counts = new Map();
    for (const { role } of this.heads) counts.set(role ?? "", (counts.get(role ?? "") ?? 0) + 1);
    const named = [...counts.keys()].filter((role) => role).sort((a, b) => isNamed(b) - isNamed(a) || counts.get(b) - counts.get(a));
    const chip = (role, label, count) => {
      const button = el("button.chip", { type: "button", "aria-pressed": String(chosen === role), "data-role": role, onclick: () => this.app.go({ role: role === chosen ? undefined : role || undefined }, { push: false }) },
        isNamed(role) ? this.dot(role) : null, label, el("span.quietly", null, ` ${grouped(count)}`));
      if (role) tip(button, () => roleWords(this.app, role));
      return button;
    };
    const focused = this.filter.contains(document.activeElement) ? document.activeElement.dataset.role : null;
    renew(this.filter, chip("", "all", this.heads.length), named.map((role) => chip(role, role, counts.get(role))));
    if (focused !== null) [...this.filter.children].find((each) => each.dataset.role === focused)?.focus();
  }
  explain(grid) {
    const roles = [...new Set(grid.heads.map(({ role }) => role))].filter((role) => role && roleWords(this.app, role));
    const where = this.elsewhere();
    const list = (pairs) => el("dl", null, pairs.map(([term, words]) => [el("dt", null, term), el("dd", null, words)]));
    renew(this.words,
      el("div", null, el("h2", null, "The numbers"), list(metricsOf(this.app).map(({ label, meaning }) => [label, `${meaning ?? ""}.`]))),
      roles.length ? el("div", null, el("h2", null, "The roles"), where ? el("p", null, `Named from what the heads do ${where}, and not from this text.`) : null, list(roles.map((role) => [role, `${roleWords(this.app, role)}.`])) ) : null,
      el("p.caveat", null, this.app.about.caveat));
  }
  picture(kind) {
    const metric = metricOf(this.app, this.state.color);
    const [low, high] = rangeOf(metric, this.heads);
    const legend = metric.key === "role" ? `role: ${metric.meaning}` : `${metric.label}, ${endOf(low)} to ${endOf(high)}: ${metric.meaning}`;
    gridDrawing(this.app, `${this.app.tab().model || this.app.tab().name}: ${this.facts.firstChild?.textContent ?? ""}`, legend, this.grid.asData(), this.grid.each ?? 40)
      .save(fileName(this.app.tab().name, "heads"), kind).catch((error) => this.app.fail(error));
  }
  save() {
    const fields = Object.keys(this.heads[0] ?? {});
    saveFile(`${fileName(this.app.tab().name, "heads")}.csv`, new Blob([csvText([fields, ...this.heads.map((head) => fields.map((name) => (typeof head[name] === "boolean" ? String(head[name]) : head[name])))])], { type: "text/csv" }));
  }
}

function endOf(x) { return Number.isInteger(x) ? grouped(x) : figure(x); }
