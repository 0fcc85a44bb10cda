// One head in a card: what it does in words, its map, its figures and the entropy of its rows.
import { canvasColors } from "./colors.js";
import { el, renew } from "./dom.js";
import { figure, isNamed, measuredOn, roleWords } from "./heads.js";
import { paintThumbnail } from "./painter.js";
import { grouped } from "./ticks.js";
import { binned } from "./track.js";

export class HeadPreview {
  constructor(app) {
    Object.assign(this, { app, control: null, head: null });
    this.element = el("article.preview");
  }
  stop() { this.control?.abort(); this.head = null; }

  async show(tab, where, head) {
    const key = `${tab.id} ${where.seq} ${where.batch} ${head.head} ${this.app.dark}`;
    if (this.head === key) return;
    this.stop();
    this.head = key;
    const { signal } = this.control = new AbortController();
    const mapped = head.hasMap !== false && tab.keep !== "stats";
    const map = mapped ? el("canvas.map", { role: "img", "aria-label": `the map of head ${head.head}, the largest weights of each part` }) : null;
    const curve = el("canvas.smallcurve", { role: "img", "aria-label": `normalized entropy of the rows of head ${head.head}, first to last` });
    const words = roleWords(this.app, head.role);
    renew(this.element,
      map ? el("a.mapbox", { href: this.app.address({ place: "head", head: head.head }), tabindex: -1, "aria-hidden": "true" }, map) : null,
      el("div.about", null,
        el("h2", null, el("span.mono", null, head.head), " ", el("span.does", null, isNamed(head.role) ? head.role : head.role ?? "")),
        el("p", null, words ? `${words[0].toUpperCase()}${words.slice(1)}.` : "",
          isNamed(head.role) && typeof head.role_mass === "number" && head.role !== "broad" ? ` ${massWords(this.app, head)}` : ""),
        head.module ? el("p.quietly.mono", null, head.module) : null,
        el("figure", null, el("figcaption", null, "entropy of each row, first to last (0 all on one token, 1 the same on each)"), curve),
        el("p.ways", null, el("a", { href: this.app.address({ place: "head", head: head.head }) }, mapped ? "Open its map" : "Open its curves"),
          mapped ? el("a", { href: this.app.address({ place: "token", i: this.app.lastRow ?? 0, heads: [head.head] }) }, "See it in the text") : null)));
    try {
      await Promise.all([map ? this.drawMap(map, tab, where, head, signal) : null, this.drawRows(curve, tab, where, head, signal)]);
    } catch (error) {
      if (!signal.aborted) this.app.fail(error);
    }
  }
  async drawRows(canvas, tab, where, head, signal) {
    const rows = await this.app.source.rows(tab.id, head.head, where, { signal });
    if (!signal.aborted) drawSmallCurve(canvas, rows.normalized, this.app.dark);
  }
  async drawMap(canvas, tab, where, head, signal) {
    const side = Math.round(168 * Math.min(2, devicePixelRatio || 1));
    Object.assign(canvas, { width: side, height: side });
    await paintThumbnail(this.app, canvas, { tab: tab.id, head: head.head, reduce: "max", ...where }, { scale: "log", signal });
  }
}

// "On random tokens that repeat .95 of its weight lies there, where equal attention would put .03; in this text .38."
function massWords(app, head) {
  const where = measuredOn(app, head);
  const there = `${figure(head.role_mass)} of its weight lies there`;
  if (!where) return `${there}; equal attention would put ${figure(head.role_uniform)}.`;
  const here = typeof head.role_text === "number" ? `; in this text ${figure(head.role_text)}` : "";
  return `${where[0].toUpperCase()}${where.slice(1)} ${there}, where equal attention would put ${figure(head.role_uniform)}${here}.`;
}

function drawSmallCurve(canvas, values, dark) {
  const box = canvas.getBoundingClientRect();
  const dpr = Math.min(3, devicePixelRatio || 1);
  const [wide, high] = [Math.max(1, Math.round(box.width)), Math.max(1, Math.round(box.height))];
  Object.assign(canvas, { width: wide * dpr, height: high * dpr });
  const pen = canvas.getContext("2d");
  pen.scale(dpr, dpr);
  const colors = canvasColors(dark);
  const y = (v) => 2 + (high - 4) * (1 - Math.min(1, Math.max(0, v)));
  pen.fillStyle = colors.line;
  for (const mark of [0, 1]) pen.fillRect(0, Math.round(y(mark)), wide, 1);
  const { low, mean, high: top } = binned(values, 0, values.length, wide);
  pen.fillStyle = colors.band;
  for (let x = 0; x < wide; x += 1) if (top[x] >= 0) pen.fillRect(x, y(top[x]), 1, Math.max(1, y(low[x]) - y(top[x])));
  pen.strokeStyle = colors.accent;
  pen.lineWidth = 1.3;
  pen.beginPath();
  for (let x = 0; x < wide; x += 1) if (!Number.isNaN(mean[x])) pen.lineTo(x + 0.5, y(mean[x]));
  pen.stroke();
  canvas.setAttribute("aria-label", `${canvas.getAttribute("aria-label")}, ${grouped(values.length)} rows`);
}
