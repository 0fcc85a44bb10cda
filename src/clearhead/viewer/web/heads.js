// The heads of a run, and the words for their figures and roles. The words come from the run's source;
// what stands here are the colors, the columns and how a figure is written.
import { css, ink, readableOn } from "./colors.js";
import { choice } from "./dom.js";
import { grouped } from "./ticks.js";

const UNNAMED_ROLES = ["unclear", "untested"];

// Colors of roles, told apart by people who see fewer colors too (after Okabe and Ito), for light and dark.
const ROLE_COLORS = {
  "induction": ["#0b5c9e", "#6cb8f0"],
  "same token": ["#1a8fa8", "#5cc8dd"],
  "previous token": ["#c2410c", "#f59e6c"],
  "self": ["#8a5a00", "#dba83a"],
  "delimiter": ["#7c3f98", "#c79be0"],
  "first token": ["#a6205a", "#f08ab4"],
  "positional": ["#96660a", "#e8c468"],
  "local window": ["#0f766e", "#4fd1b5"],
  "broad": ["#64748b", "#94a3b8"],
};

export function isNamed(role) { return Boolean(role) && !UNNAMED_ROLES.includes(role); }

// "reads the token just before its own".
export function roleWords(app, role) { return app.about.roles?.[role] ?? ""; }

// "on random tokens that repeat": where its role was measured; nothing where that was the text itself.
export function measuredOn(app, head) { return app.about.sources?.[head?.role_source] ?? ""; }

export function roleColor(role, dark) { return ROLE_COLORS[role]?.[dark ? 1 : 0] ?? null; }

// The metrics that the grid can be colored by: [{ key, label, meaning, low, high }].
export function metricsOf(app) { return app.about.metrics ?? []; }
export function metricOf(app, key) {
  const all = metricsOf(app);
  return all.find((metric) => metric.key === key) ?? all[0];
}

// From where to where a metric goes on these heads: its own ends where it has any, else those of the heads.
export function rangeOf(metric, heads) {
  const seen = heads.map((head) => head[metric.key]).filter((x) => typeof x === "number" && Number.isFinite(x));
  const least = Math.min(...seen);
  const most = Math.max(...seen);
  const low = Number.isFinite(metric.low) ? metric.low : Math.min(0, Number.isFinite(least) ? least : 0);
  const high = Number.isFinite(metric.high) ? metric.high : Number.isFinite(most) ? most : 1;
  return high > low ? [low, high] : [low, low + 1];
}

// Where a figure stands between the ends, 0..1; null where there is none.
export function placeIn([low, high], x) {
  if (typeof x !== "number" || !Number.isFinite(x)) return null;
  return Math.min(1, Math.max(0, (x - low) / (high - low)));
}

// Background and text of a figure.
export function shadeColors(place, dark) {
  const rgb = ink(place, dark);
  return { back: css(rgb), text: readableOn(rgb) };
}

// Which sequence of a run is shown, under one name in every place; nothing where there is only one.
export function sequenceChoice(app, more = {}) {
  const sequences = app.tab().sequences ?? [];
  return sequences.length > 1 && choice("sequence", sequences.map(({ seq, T }) => [String(seq), `${seq} (${grouped(T)})`]), String(app.where().seq),
    (seq) => app.go({ seq: Number(seq), batch: undefined, ...more }), "A long text is read in windows, and several texts one after the other: each is a sequence, and no head looks from one into another (tokens of each in brackets)");
}

// A figure in few letters: shares .71, sizes 5.1, nothing as a dash.
export function figure(x) {
  if (typeof x !== "number" || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size < 0.0005) return x.toExponential(0);
  if (size < 1) return x.toFixed(size < 0.0095 ? 3 : 2).replace("0.", ".");
  if (size < 99.95) return x.toFixed(size < 10 ? 2 : 1);
  return size < 999999.5 ? (x < 0 ? "−" : "") + grouped(Math.round(size)) : x.toExponential(0);
}

// "9.3 x": how many times an equal share; nothing where there is none.
export function times(weight, uniform) {
  if (!(uniform > 0) || !(weight >= 0)) return "";
  const ratio = weight / uniform;
  if (ratio < 0.001) return "< .001 ×";
  return `${ratio < 10 ? ratio.toPrecision(2).replace(/^0/, "") : grouped(Math.round(ratio))} ×`;
}
