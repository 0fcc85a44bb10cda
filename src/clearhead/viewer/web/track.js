// Curves that run along an axis and zoom with the map: the entropy of each query at the right, what each
// key receives below.
import { grouped } from "./ticks.js";
import { scaleOf } from "./zoom.js";
import { MONO, trackRects } from "./figure.js";

// How tall a value stands, 0..1. Received mass spans thousands and ones: its logarithm.
function entropyHeight() {
  return { label: "entropy", marks: ["0", "1"], of: (v) => Math.min(1, Math.max(0, v)) };
}
export function receivedHeight(values) {
  let most = 1;
  for (const v of values) if (v > most) most = v;
  const full = Math.log1p(most);
  return { label: "received", marks: ["0", most >= 100 ? grouped(Math.round(most)) : most.toPrecision(2).replace(/\.0$/, "")], of: (v) => Math.log1p(Math.max(0, v)) / full };
}

// Values from..to (fractions allowed) in `count` pixels: { low, mean, high } each Float32Array; NaN where empty.
export function binned(values, from, to, count) {
  const low = new Float32Array(count).fill(NaN);
  const mean = new Float32Array(count).fill(NaN);
  const high = new Float32Array(count).fill(NaN);
  const each = (to - from) / count;
  for (let p = 0; p < count; p += 1) {
    const a = Math.max(0, Math.floor(from + p * each + 1e-9));
    const b = Math.min(values.length, Math.max(a + 1, Math.floor(from + (p + 1) * each + 1e-9)));
    let sum = 0;
    let n = 0;
    for (let k = a; k < b; k += 1) {
      const v = values[k];
      if (Number.isNaN(v)) continue;
      sum += v;
      n += 1;
      if (!(low[p] <= v)) low[p] = v;
      if (!(high[p] >= v)) high[p] = v;
    }
    if (n) mean[p] = sum / n;
  }
  return { low, mean, high };
}

// The part of an axis that a rectangle shows, in tokens.
function shownPart(view, plot, rect, vertical) {
  const s = scaleOf(view, plot);
  const start = vertical ? view.y + (rect.y - plot.y - plot.height / 2) / s : view.x + (rect.x - plot.x - plot.width / 2) / s;
  return [start, start + (vertical ? rect.height : rect.width) / s];
}

function drawTrack(ctx, view, plot, rect, values, height, colors, vertical) {
  const length = Math.round(vertical ? rect.height : rect.width);
  const tall = vertical ? rect.width : rect.height;
  if (length < 2 || tall < 8) return;
  const base = vertical ? rect.x : rect.y;
  ctx.fillStyle = colors.line;
  if (vertical) ctx.fillRect(Math.round(base), rect.y, 1, rect.height);
  else ctx.fillRect(rect.x, Math.round(base), rect.width, 1);
  if (values) {
    const [from, to] = shownPart(view, plot, rect, vertical);
    const { mean, high } = binned(values, from, to, length);
    const bar = (p, a, b) => (vertical ? ctx.fillRect(rect.x + a, rect.y + p, b - a, 1) : ctx.fillRect(rect.x + p, rect.y + a, 1, b - a));
    ctx.fillStyle = colors.band;
    for (let p = 0; p < length; p += 1) if (high[p] >= 0) bar(p, 0, height.of(high[p]) * tall);
    ctx.fillStyle = colors.accent;
    let before = NaN;
    for (let p = 0; p < length; p += 1) {
      const at = height.of(mean[p]) * tall;
      if (Number.isNaN(at)) { before = NaN; continue; }
      const from0 = Number.isNaN(before) ? at : before;
      bar(p, Math.min(at, from0) - 0.5, Math.max(at, from0) + 0.5);
      before = at;
    }
  }
  drawTrackName(ctx, rect, height, colors, vertical, tall);
}

function drawTrackName(ctx, rect, height, colors, vertical, tall) {
  ctx.font = `10px ${MONO}`;
  ctx.fillStyle = colors.muted;
  ctx.textBaseline = "middle";
  const y = vertical ? rect.y - 10 : rect.y + tall + 9;
  if (vertical) {
    ctx.textAlign = "left";
    ctx.fillText(tall > 50 ? `${height.label} →` : "H →", rect.x, rect.y - 22);
    ctx.fillText(height.marks[0], rect.x, y);
    ctx.textAlign = "right";
    ctx.fillText(height.marks[1], rect.x + tall, y);
    ctx.fillStyle = colors.line;
    ctx.fillRect(Math.round(rect.x + tall), rect.y, 1, rect.height);
  } else {
    ctx.textAlign = "left";
    ctx.fillText(height.waiting ? `${height.label}: being added up …` : `${height.label} ↓  0 to ${height.marks[1]}, logarithmic`, rect.x, y);
    ctx.fillStyle = colors.line;
    ctx.fillRect(rect.x, Math.round(rect.y + tall), rect.width, 1);
  }
}

// Both curves of a figure: { row, column } are values or nothing yet.
export function drawTracks(ctx, view, layout, rect, { row, column, columnHeight }, colors) {
  const places = trackRects(layout, rect);
  drawTrack(ctx, view, layout.plot, places.row, row, entropyHeight(), colors, true);
  drawTrack(ctx, view, layout.plot, places.column, column, columnHeight ?? { ...receivedHeight([]), waiting: true }, colors, false);
}
