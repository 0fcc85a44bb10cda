// A head without q and k: no map, but the curves of its rows, and the command that would keep the map.
import { canvasColors } from "./colors.js";
import { el, renew } from "./dom.js";
import { MONO } from "./figure.js";
import { grouped } from "./ticks.js";
import { binned } from "./track.js";

const CURVES = [
  ["normalized", "entropy", "0: one key has all; 1: all keys alike"],
  ["maxProb", "largest weight", "of each query's row"],
];

// Why there is no map, and the command that brings it: the run kept no q and k (kept says what it did keep), or
// it did and the file had no room for them (crowded).
export function noMapHere(tab, kept) {
  const words = tab.crowded ? "This file has the figures and curves of the heads. The run kept q and k as well: they, and the maps that they make, found no room here." : kept;
  return { words, brings: tab.crowded ? "This shows them:" : "This keeps them:" };
}
export function noMapElements(tab, kept) {
  const { words, brings } = noMapHere(tab, kept);
  return [el("p", null, `${words} ${tab.command ? brings : ""}`), tab.command ? el("pre.command", { tabindex: 0 }, tab.command) : null];
}

export async function drawCurvesOnly(app, place, { tab, head, where, info }, signal) {
  renew(place, el("h1", null, `Head ${head}`),
    noMapElements(tab, "This run kept the figures of every query, but not q and k: its weights cannot be computed again, so there is no map to walk through."));
  const rows = await app.source.rows(tab.id, head, where, { signal });
  for (const [name, label, meaning] of CURVES) {
    const canvas = el("canvas.curve", { role: "img", "aria-label": `${label} of ${grouped(info.T)} queries: ${spread(rows[name])}` });
    addCurve(place, label, meaning, canvas, rows[name]);
    draw(canvas, rows[name], app.dark);
    const stop = app.onTheme((dark) => (canvas.isConnected ? draw(canvas, rows[name], dark) : stop()));
  }
}

function addCurve(place, label, meaning, canvas, values) {
  place.append(el("figure", null, el("figcaption", null, el("b", null, label), ` ${meaning} · ${spread(values)}`), canvas));
}

function spread(values) {
  const sorted = [...values].filter((v) => !Number.isNaN(v)).sort((a, b) => a - b);
  if (!sorted.length) return "no rows";
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))].toFixed(3);
  return `median ${at(0.5)}, from ${at(0)} to ${at(1)}`;
}

function draw(canvas, values, dark) {
  const colors = canvasColors(dark);
  const box = canvas.getBoundingClientRect();
  const dpr = devicePixelRatio || 1;
  canvas.width = Math.round(box.width * dpr);
  canvas.height = Math.round(box.height * dpr);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  const left = 30;
  const width = Math.max(1, Math.floor(box.width - left - 4));
  const tall = box.height - 24;
  const y = (v) => 6 + tall * (1 - Math.min(1, Math.max(0, v)));
  ctx.font = `11px ${MONO}`;
  ctx.textBaseline = "middle";
  for (const mark of [0, 0.5, 1]) {
    ctx.fillStyle = colors.line;
    ctx.fillRect(left, Math.round(y(mark)), width, 1);
    ctx.fillStyle = colors.muted;
    ctx.textAlign = "right";
    ctx.fillText(String(mark).replace("0.", "."), left - 6, y(mark));
  }
  const { low, mean, high } = binned(values, 0, values.length, width);
  ctx.fillStyle = colors.band;
  for (let p = 0; p < width; p += 1) if (high[p] >= 0) ctx.fillRect(left + p, y(high[p]), 1, Math.max(1, y(low[p]) - y(high[p])));
  ctx.strokeStyle = colors.accent;
  ctx.lineWidth = 1.3;
  ctx.beginPath();
  for (let p = 0; p < width; p += 1) if (!Number.isNaN(mean[p])) ctx.lineTo(left + p + 0.5, y(mean[p]));
  ctx.stroke();
  ctx.fillStyle = colors.muted;
  ctx.textAlign = "left";
  ctx.fillText("query 0", left, box.height - 6);
  ctx.textAlign = "right";
  ctx.fillText(grouped(values.length - 1), left + width, box.height - 6);
}
