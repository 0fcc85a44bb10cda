// Weights in order: the largest ones, a rank, shades of text. Pure.

export const TEXT_SHADES = 16; // shades above none
export const HIDDEN_SHADE = 255;
export const LEAST_TIMES = 8;
const SHADE_DECADES = 4; // of the logarithmic scale, below the largest

// The positions of the `most` largest weights above 0, the largest first, the earlier of equals first.
export function largest(weights, most) {
  const found = [];
  for (let n = 0; n < weights.length; n += 1) {
    const w = weights[n];
    if (!(w > 0) || (found.length === most && !(w > weights[found[most - 1]]))) continue;
    let at = found.length;
    while (at > 0 && weights[found[at - 1]] < w) at -= 1;
    found.splice(at, 0, n);
    if (found.length > most) found.pop();
  }
  return found;
}

// 1 for the largest; equals share a rank. null for a hidden one.
export function rankOf(weights, n) {
  const w = weights[n];
  if (!(w === w) || w === undefined) return null;
  let rank = 1;
  for (let m = 0; m < weights.length; m += 1) if (weights[m] > w) rank += 1;
  return rank;
}

// How many are seen (not NaN), and their sum.
export function totals(weights) {
  let seen = 0;
  let sum = 0;
  for (let n = 0; n < weights.length; n += 1) if (weights[n] === weights[n]) { seen += 1; sum += weights[n]; }
  return { seen, sum };
}

// The weight that gets the darkest shade: the largest one, or LEAST_TIMES an equal share where that is more (1 at
// most), so that a head that reads all tokens alike stays pale.
export function darkest(top, uniform) {
  return uniform > 0 ? Math.max(top, Math.min(1, LEAST_TIMES * uniform)) : top;
}

// The shade of a weight where `top` has the darkest: 0 none, 1..TEXT_SHADES, HIDDEN_SHADE for NaN.
export function shadeOf(weight, top, scale) {
  if (!(weight === weight)) return HIDDEN_SHADE;
  if (!(weight > 0) || !(top > 0)) return 0;
  const share = Math.min(1, weight / top);
  const at = scale === "log" ? 1 + Math.log10(share) / SHADE_DECADES : share;
  return Math.max(0, Math.round(TEXT_SHADES * at));
}

export function shadesOf(weights, top, scale) {
  const found = new Uint8Array(weights.length);
  for (let n = 0; n < weights.length; n += 1) found[n] = shadeOf(weights[n], top, scale);
  return found;
}

// The weight from which on a token has a shade at all.
export function leastShaded(top, scale) {
  const share = 0.5 / TEXT_SHADES;
  return scale === "log" ? top * 10 ** (SHADE_DECADES * (share - 1)) : top * share;
}

// Records sorted by what read(record) gives: numbers, or words from a to z; nothing (null, NaN) comes last
// either way, equals keep their order.
export function sortedBy(records, read, down) {
  const there = [];
  const nothing = [];
  for (const record of records) {
    const value = read(record);
    const none = value === null || value === undefined || (typeof value === "number" && Number.isNaN(value));
    if (none) nothing.push(record);
    else there.push([value, record]);
  }
  const turned = down ? -1 : 1;
  there.sort(([a], [b]) => turned * orderOfValues(a, b));
  return [...there.map(([, record]) => record), ...nothing];
}

function orderOfValues(a, b) {
  if (Array.isArray(a)) {
    for (let n = 0; n < a.length; n += 1) if (a[n] !== b[n]) return a[n] - b[n];
    return 0;
  }
  if (typeof a === "string") return a < b ? -1 : a > b ? 1 : 0;
  return a - b;
}

// "3.10" -> [3, 10], so that it comes after "3.9".
export function headOrder(head) { return head.split(".").map(Number); }
