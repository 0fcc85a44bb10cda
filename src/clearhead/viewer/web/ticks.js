// Positions and labels along an axis, thinned so that they can be read; and tokens as people see them.

// The step of labels so that each has `room` pixels: 1, 2, 5, 10, 20, 50 ... tokens.
export function tickStep(pixelsPerToken, room) {
  const least = room / pixelsPerToken;
  if (least <= 1) return 1;
  const power = 10 ** Math.floor(Math.log10(least));
  for (const each of [1, 2, 5, 10]) if (each * power >= least - 1e-9) return each * power;
  return 10 * power;
}

// The positions to label between from and to (tokens, the end left out), at most `most`.
export function ticks(from, to, pixelsPerToken, room, total, most = 400) {
  const step = tickStep(pixelsPerToken, room);
  const found = [];
  for (let n = Math.max(0, Math.ceil(from / step) * step); n < Math.min(to, total) && found.length < most; n += step) found.push(n);
  return found;
}

// 12345 -> "12,345".
export function grouped(n) {
  return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Cs}\p{Zl}\p{Zp}\ufe00-\ufe0f\u034f\u115f\u1160\u2800\u3164\uffa0]|[\u{e0100}-\u{e01ef}]|(?! )\p{Zs}/gu;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// A token as one line of visible characters: "\n" as \n, other unseen ones as their code, spaces at the
// ends as ·, cut to `limit` characters. null is on its way, undefined is not known.
export function shownToken(raw, limit = 40) {
  if (raw === undefined) return "";
  if (raw === null) return "…";
  if (raw === "") return "∅";
  const spaced = raw.replace(/^ +| +$/g, (run) => "·".repeat(run.length));
  const seen = spaced.slice(0, 4 * limit + 8).replace(INVISIBLE, escapedCharacter);
  const letters = [...seen];
  return letters.length <= limit ? seen : `${letters.slice(0, limit - 1).join("")}…`;
}

export function escapedCharacter(char) {
  if (ESCAPES[char]) return ESCAPES[char];
  const code = char.codePointAt(0);
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
}

// A weight in at most five characters, for a cell: 1, .42, .037, 3e-7, 0.
export function shortWeight(p) {
  if (Number.isNaN(p)) return "NaN";
  if (p === 0) return "0";
  if (p >= 0.9995) return "1";
  if (p >= 0.0095) return p.toFixed(2).replace(/^0/, "");
  if (p >= 0.00095) return p.toFixed(3).replace(/^0/, "");
  return p.toExponential(0).replace("e-", "e-");
}

// A weight with the digits that float32 carries.
export function longWeight(p) {
  if (Number.isNaN(p)) return "no number";
  if (p === 0) return "0";
  return p >= 1e-4 ? p.toPrecision(6).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") : p.toExponential(4);
}
