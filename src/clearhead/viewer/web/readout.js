// The words beside a map: which two tokens, which weight, exactly, and how it stands in its row.
import { el, renew, say } from "./dom.js";
import { grouped, longWeight, shownToken } from "./ticks.js";
import { areApart } from "./arrange.js";
import { pixelWords } from "./crosshair.js";

const AROUND = 9; // tokens of context on either side

// text = { query, key, at }; links(i, j) -> { from, to } addresses of the token place.
export class Readout {
  constructor(app, { title, links, unpin }) {
    Object.assign(this, { app, links });
    const field = (name) => el("dd", { "data-field": name }, "");
    this.fields = Object.fromEntries(["weight", "score", "rank", "uniform", "entropy", "received"].map((name) => [name, field(name)]));
    this.query = el("p.around", { "data-field": "query", dir: "auto" });
    this.key = el("p.around", { "data-field": "key", dir: "auto" });
    this.pixel = el("p.pixel", { "data-field": "pixel" });
    this.go = el("p.go");
    this.element = el("section.cell-readout", { "aria-label": title, hidden: true },
      el("h2", null, title, unpin && el("button.quiet.icon", { type: "button", "aria-label": "Unpin (Esc)", title: "Unpin (Esc)", onclick: unpin }, "×")),
      el("h3", null, "query"), this.query, el("h3", null, "key"), this.key,
      el("dl.figures", null,
        el("dt", null, "weight"), this.fields.weight, el("dt", null, "score"), this.fields.score,
        el("dt", null, "rank"), this.fields.rank, el("dt", null, "equal"), this.fields.uniform,
        el("dt", null, "entropy"), this.fields.entropy, el("dt", null, "received"), this.fields.received),
      this.pixel, this.go);
  }
  hide() { this.element.hidden = true; this.shown = null; }

  // curves = { row, column }: the entropy of each query and what each key receives, where known.
  // cell = { i, j, weight?, score?, rank?, visible?, uniform? }; what is not known yet shows as dots.
  show(cell, text, pixel = "", { row, column } = {}) {
    this.element.hidden = false;
    const where = `${cell.i} ${cell.j}`;
    if (this.shown !== where || this.partly) {
      this.shown = where;
      this.partly = [text.query(cell.i), text.key(cell.j)].includes(null);
      this.around(this.query, cell.i, (n) => text.query(n), text.at);
      this.around(this.key, cell.j, (n) => text.key(n));
      const to = this.links?.(cell.i, cell.j);
      renew(this.go, to && [el("a", { href: to.from }, "this query in the text"), " · ", el("a", { href: to.to }, "who attends to this key")]);
    }
    const hidden = cell.score === -Infinity;
    const wait = cell.weight === undefined;
    const words = {
      weight: wait ? "…" : hidden ? "hidden: this query may not see this key" : longWeight(cell.weight),
      score: wait ? "…" : hidden ? "–" : Number(cell.score.toPrecision(6)).toString(),
      rank: hidden ? "–" : cell.rank === undefined ? "…" : `${grouped(cell.rank)} of ${grouped(cell.visible)} keys`,
      uniform: cell.rank === undefined ? (hidden ? "–" : "…") : `${Number(cell.uniform.toPrecision(3))}${timesUniform(cell)}`,
    };
    words.entropy = row ? `${row[cell.i].toFixed(3)} of 1, of this query` : "…";
    words.received = column ? `${Number(column[cell.j].toPrecision(4))} in all, by this key` : "…";
    for (const [name, word] of Object.entries(words)) say(this.fields[name], word);
    this.fields.weight.classList.toggle("long", hidden);
    say(this.pixel, pixel);
    this.pixel.hidden = !pixel;
  }
  around(line, n, token, at) {
    const before = [];
    const after = [];
    for (let k = Math.max(0, n - AROUND); k < n; k += 1) before.push(token(k));
    for (let k = n + 1; k <= n + AROUND; k += 1) after.push(token(k));
    const gap = areApart([...before, token(n), ...after]) ? " " : "";
    const words = (tokens) => tokens.map(inText).filter((each) => each).join(gap);
    renew(line, el("span.position", null, grouped(at ? at(n) : n)), el("span.rest.before", null, (words(before) + gap).slice(-34)),
      el("mark", null, shownToken(token(n), 32)), el("span.rest", null, (gap + words(after)).slice(0, 34)));
  }
}

// Running text: line ends as a mark, other unseen characters as their codes.
function inText(raw) {
  return raw === null || raw === undefined ? "" : raw === " " ? " " : raw.split(/( +)/).map((part) => (/^ *$/.test(part) ? part : shownToken(part, 60))).join("");
}
function timesUniform({ weight, uniform }) {
  if (!(weight > 0) || !(uniform > 0)) return "";
  const times = weight / uniform;
  return times >= 1.05 ? ` · ${times >= 100 ? grouped(Math.round(times)) : times.toPrecision(2)} times that` : "";
}

// What a pixel is, in words, and which part of the map is seen.
export function pixelMeaning(z, reduce) {
  const n = 2 ** z;
  if (n === 1) return "Each cell: one weight.";
  return reduce === "mean" ? `Each pixel: the mean of ${n} × ${n} weights.` : `Each pixel: the largest of ${n} × ${n} weights.`;
}
export function crossWords(cross, reduce) {
  const n = 2 ** cross.z;
  if (n === 1) return "";
  const what = reduce === "mean" ? "mean" : "largest";
  return `Under the pointer: queries ${grouped(cross.i0)} to ${grouped(cross.i1 - 1)}, keys ${grouped(cross.j0)} to ${grouped(cross.j1 - 1)}; ${what} ${pixelWords(cross.code) || "…"}. Above: the largest of them.`;
}
