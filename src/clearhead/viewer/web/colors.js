// Colors of weights. One path through OKLab from paper to ink, lightness always changing the same way, so
// that order is seen by everyone, also in gray; mirrored for dark pages. Differences: orange - paper - blue.
import { HIDDEN, NO_NUMBER, ONE, STEPS_PER_OCTAVE, decodeTable } from "./codes.js";

export const LOG_FLOOR = 1e-6; // the weight with the lowest color of the logarithmic scale
export const MOST_TIMES = 1024; // differences on the logarithmic scale end at so many times

// [lightness, chroma, hue] at equal distances.
const INK = {
  light: [[0.972, 0.014, 95], [0.885, 0.075, 135], [0.775, 0.1, 180], [0.64, 0.115, 225], [0.48, 0.13, 258], [0.34, 0.115, 275], [0.2, 0.06, 290]],
  dark: [[0.27, 0.022, 262], [0.37, 0.075, 268], [0.48, 0.125, 260], [0.61, 0.12, 228], [0.74, 0.11, 185], [0.865, 0.105, 135], [0.975, 0.055, 100]],
};
const DIVERGING = {
  light: [[0.42, 0.125, 45], [0.62, 0.145, 55], [0.81, 0.09, 70], [0.965, 0.006, 90], [0.81, 0.075, 235], [0.6, 0.125, 248], [0.4, 0.125, 260]],
  dark: [[0.86, 0.1, 75], [0.7, 0.14, 60], [0.5, 0.105, 50], [0.27, 0.006, 262], [0.47, 0.105, 255], [0.67, 0.125, 240], [0.86, 0.075, 225]],
};
const BROKEN = { light: [196, 32, 112], dark: [255, 122, 178] }; // no number

// OKLab (Ottosson 2020) to sRGB, each 0..255.
function rgbOf(L, a, b) {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((linear) => {
    const c = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055));
  });
}

function along(path, t) {
  const at = Math.min(1, Math.max(0, t)) * (path.length - 1);
  const n = Math.min(path.length - 2, Math.floor(at));
  const part = at - n;
  const lab = ([L, C, h]) => [L, C * Math.cos((h * Math.PI) / 180), C * Math.sin((h * Math.PI) / 180)];
  const one = lab(path[n]);
  const other = lab(path[n + 1]);
  return rgbOf(...one.map((v, k) => v + (other[k] - v) * part));
}

// 0..1 -> [r, g, b].
export function ink(t, dark) { return along(dark ? INK.dark : INK.light, t); }
// -1 (B larger) .. 1 (A larger) -> [r, g, b].
export function diverging(t, dark) { return along(dark ? DIVERGING.dark : DIVERGING.light, (t + 1) / 2); }

// Where a weight stands on its scale, 0..1.
export function placeOf(p, scale) {
  if (scale !== "log") return Math.min(1, Math.max(0, p));
  return p <= LOG_FLOOR ? 0 : Math.min(1, 1 - Math.log(p) / Math.log(LOG_FLOOR));
}

const SHADES = 1024;
const shadeTables = new Map();

function shades(kind, dark) {
  const key = `${kind} ${dark}`;
  if (!shadeTables.has(key)) {
    const packed = new Uint32Array(SHADES + 1);
    for (let n = 0; n <= SHADES; n += 1) packed[n] = pixel(kind === "ink" ? ink(n / SHADES, dark) : diverging((2 * n) / SHADES - 1, dark));
    shadeTables.set(key, packed);
  }
  return shadeTables.get(key);
}

// Bytes r, g, b, a as one number, as little-endian memory holds them.
export function pixel([r, g, b], alpha = 255) {
  return ((alpha << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

const tables = new Map();

// Code -> pixel, for all 65536 codes: Uint32Array. Hidden is transparent: the hatched paper shows.
export function colorTable(scale, dark) {
  const key = `${scale} ${dark}`;
  let table = tables.get(key);
  if (!table) {
    table = new Uint32Array(65536);
    const weights = decodeTable();
    const shade = shades("ink", dark);
    for (let code = 1; code < 65535; code += 1) table[code] = shade[Math.round(SHADES * placeOf(weights[code], scale))];
    table[HIDDEN] = 0;
    table[NO_NUMBER] = pixel(dark ? BROKEN.dark : BROKEN.light);
    tables.set(key, table);
  }
  return table;
}

// The pixels of "A minus B, of what each pixel shows", from the codes of both.
// Linear: the difference of weights. Logarithmic: how many times as large, up to MOST_TIMES.
export function differencePixels(a, b, scale, dark, out = new Uint32Array(a.length)) {
  const shade = shades("difference", dark);
  const weights = decodeTable();
  const broken = pixel(dark ? BROKEN.dark : BROKEN.light);
  const half = SHADES / 2;
  const least = Math.round(ONE + Math.log2(LOG_FLOOR) * STEPS_PER_OCTAVE);
  const range = Math.log2(MOST_TIMES) * STEPS_PER_OCTAVE;
  for (let n = 0; n < a.length; n += 1) {
    const p = a[n];
    const q = b[n];
    if (p === HIDDEN && q === HIDDEN) out[n] = 0;
    else if (p === NO_NUMBER || q === NO_NUMBER) out[n] = broken;
    else {
      const t = scale === "log" ? (Math.max(p, least) - Math.max(q, least)) / range : weights[p] - weights[q];
      out[n] = shade[Math.round(half + half * Math.min(1, Math.max(-1, t)))];
    }
  }
  return out;
}

export function css([r, g, b]) { return `rgb(${r} ${g} ${b})`; }

// Black or white, whichever reads better on the color of this weight.
export function inkOn(p, { scale = "linear", dark = false } = {}) {
  const rgb = Number.isNaN(p) ? (dark ? BROKEN.dark : BROKEN.light) : ink(placeOf(p, scale), dark);
  return readableOn(rgb);
}
export function readableOn(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.05 ? "#fff" : "#000";
}

// The numbers that stand beside the legend: [place 0..1, text].
export function legendMarks(scale) {
  if (scale !== "log") return [[0, "0"], [0.25, ".25"], [0.5, ".5"], [0.75, ".75"], [1, "1"]];
  return [[0, "≤ 1e-6"], [1 / 3, "1e-4"], [2 / 3, ".01"], [1, "1"]];
}

// Colors that the canvas needs of its own.
export function canvasColors(dark) {
  return dark
    ? { page: "#14191d", ink: "#e6eaec", muted: "#a3afb7", line: "#2d373e", strong: "#4c5962", hatch: "#3b454c", hidden: "#191f24", pending: "#1e252a", accent: "#8ccdf2", cross: "#ffd166", band: "#2a5068" }
    : { page: "#ffffff", ink: "#1b2a34", muted: "#5a6872", line: "#dfe3e6", strong: "#b9c1c7", hatch: "#d5d2c9", hidden: "#fdfcfa", pending: "#f4f3ee", accent: "#0b4f7d", cross: "#c2410c", band: "#c3dcec" };
}

