// Running text of any length as lines of one height: where each token stands, and which lines are seen.
// Pure arithmetic; text.js draws it.
import { INVISIBLE, escapedCharacter } from "./ticks.js";

export const LONGEST_TOKEN = 160; // characters that are drawn of one token

// What a token shows, in parts of one kind: "text", "space" (at its ends), "line" (a line end), "tab", "code"
// (an invisible character, escaped), "empty". Nothing of it is markup.
export function tokenParts(raw) {
  if (raw === "") return [{ kind: "empty", text: "∅" }];
  const letters = [...raw.slice(0, 2 * LONGEST_TOKEN)];
  const text = letters.slice(0, LONGEST_TOKEN).join("");
  const parts = [];
  const add = (kind, piece) => {
    const last = parts[parts.length - 1];
    if (last && last.kind === kind) last.text += piece;
    else if (piece) parts.push({ kind, text: piece });
  };
  const start = text.length - text.trimStart().length;
  const end = text.trimEnd().length;
  let from = 0;
  const plain = (to) => {
    for (; from < to; from += 1) add(text[from] === " " && (from < start || from >= end) ? "space" : "text", text[from]);
  };
  for (const found of text.matchAll(INVISIBLE)) {
    plain(found.index);
    const kind = found[0] === "\n" ? "line" : found[0] === "\t" ? "tab" : "code";
    add(kind, kind === "line" ? "↵" : kind === "tab" ? "⇥" : escapedCharacter(found[0]));
    from = found.index + found[0].length;
  }
  plain(text.length);
  if (letters.length > LONGEST_TOKEN || raw.length > 2 * LONGEST_TOKEN) add("text", "…");
  return parts;
}

// Whether tokens are words and parts of words that say nothing of the spaces between them, as those of BERT:
// then a space is shown between them, or "the", "cat" would read as thecat.
export function areApart(tokens) {
  const known = tokens.filter((raw) => typeof raw === "string" && raw);
  return known.length > 1 && !known.some((raw) => /\s/.test(raw));
}

export function endsLine(raw) { return raw.includes("\n"); }

// Tokens 0..count packed into lines at most `room` wide: Uint32Array of where each line starts, and the
// count at its end. A token wider than the room has a line of its own; after a line end a new line starts.
export function linesOf(count, widthOf, endsAfter, room) {
  const starts = new Uint32Array(count + 1);
  let lines = 0;
  let used = 0;
  for (let n = 0; n < count; n += 1) {
    const wide = widthOf(n);
    if (n === 0 || used + wide > room || endsAfter(n - 1)) {
      starts[lines] = n;
      lines += 1;
      used = 0;
    }
    used += wide;
  }
  starts[lines] = count;
  return starts.slice(0, lines + 1);
}

// The line that token n stands on.
export function lineAt(starts, n) {
  let low = 0;
  let high = starts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= n) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

// Lines from..to (the end left out) that a window of `height` pixels shows, with `more` to either side.
export function linesSeen(top, height, lineHeight, total, more = 0) {
  const from = Math.floor(top / lineHeight) - more;
  const to = Math.ceil((top + height) / lineHeight) + more;
  return [Math.min(Math.max(0, from), total), Math.min(Math.max(0, to), total)];
}

// Where to scroll so that a line is seen: as it is if it is well inside, else a third from the top.
export function scrollFor(line, top, height, lineHeight, total, always = false) {
  const at = line * lineHeight;
  if (!always && at >= top + lineHeight && at + 2 * lineHeight <= top + height) return top;
  return Math.max(0, Math.min(at - height / 3, total * lineHeight - height));
}

// The largest value of each of `pixels` equal parts of the lines; NaN where all of them are hidden.
export function overview(values, starts, pixels) {
  const found = new Float32Array(pixels).fill(NaN);
  const lines = starts.length - 1;
  for (let y = 0; y < pixels; y += 1) {
    const first = Math.floor((y * lines) / pixels);
    const last = Math.max(first + 1, Math.floor(((y + 1) * lines) / pixels));
    for (let n = starts[first]; n < starts[Math.min(last, lines)]; n += 1) {
      if (!(values[n] <= found[y])) { if (values[n] === values[n]) found[y] = values[n]; }
    }
  }
  return found;
}
