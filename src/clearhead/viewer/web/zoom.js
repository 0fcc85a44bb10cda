// The arithmetic of looking at a part of a map. A view is { x, y, w }: the column and row (in tokens, with
// fractions) at the middle of the picture and how many tokens its width shows. A size is { width, height }
// of the picture in pixels. A map has T rows and S columns. Cells are square on the screen.

export const TILE = 256;
export const LARGEST_CELL = 128; // pixels

export function scaleOf(view, size) {
  return size.width / view.w; // pixels a token
}

export function toPixel(view, size, col, row) {
  const s = scaleOf(view, size);
  return { px: size.width / 2 + (col - view.x) * s, py: size.height / 2 + (row - view.y) * s };
}

export function toToken(view, size, px, py) {
  const s = scaleOf(view, size);
  return { col: view.x + (px - size.width / 2) / s, row: view.y + (py - size.height / 2) / s };
}

// The view in which all of the map is seen, in the middle.
export function fitView(size, T, S) {
  const s = Math.min(size.width / S, size.height / T, LARGEST_CELL);
  return { x: S / 2, y: T / 2, w: size.width / s };
}

// The nearest allowed view: no wider than everything, no cell above LARGEST_CELL, no empty room beyond an edge.
export function clampView(view, size, T, S) {
  const fit = fitView(size, T, S);
  const given = Number.isFinite(view.w) ? view.w : fit.w;
  const w = Math.min(fit.w, Math.max(given, size.width / LARGEST_CELL));
  const tall = (w * size.height) / size.width;
  return { x: within(view.x, w, S), y: within(view.y, tall, T), w };
}

function within(center, seen, count) {
  if (seen >= count || !Number.isFinite(center)) return count / 2;
  return Math.min(count - seen / 2, Math.max(seen / 2, center));
}

// factor > 1 goes closer; the token under (px, py) stays there.
export function zoomAbout(view, size, px, py, factor) {
  const at = toToken(view, size, px, py);
  const w = view.w / factor;
  const s = size.width / w;
  return { x: at.col - (px - size.width / 2) / s, y: at.row - (py - size.height / 2) / s, w };
}

export function panBy(view, size, dx, dy) {
  const s = scaleOf(view, size);
  return { x: view.x - dx / s, y: view.y - dy / s, w: view.w };
}

// The level whose pixels are no smaller than a pixel of the device, so that none is dropped.
export function levelFor(view, size, dpr, zmax) {
  const tokens = 1 / (scaleOf(view, size) * dpr);
  return Math.min(zmax, Math.max(0, Math.ceil(Math.log2(tokens) - 0.02)));
}

// The part of the map that is seen, in tokens, ends left out: { c0, c1, r0, r1 }.
export function seenPart(view, size, T, S) {
  const a = toToken(view, size, 0, 0);
  const b = toToken(view, size, size.width, size.height);
  const low = (v, n) => Math.min(n, Math.max(0, Math.floor(v + 1e-9)));
  const high = (v, n) => Math.min(n, Math.max(0, Math.ceil(v - 1e-9)));
  return { c0: low(a.col, S), c1: high(b.col, S), r0: low(a.row, T), r1: high(b.row, T) };
}

// The tiles of one level that are seen, those nearest to the middle first.
export function tilesSeen(view, size, T, S, z) {
  const part = seenPart(view, size, T, S);
  const span = TILE * 2 ** z;
  const found = [];
  for (let ty = Math.floor(part.r0 / span); ty * span < part.r1; ty += 1) {
    for (let tx = Math.floor(part.c0 / span); tx * span < part.c1; tx += 1) found.push({ z, ty, tx });
  }
  const away = ({ ty, tx }) => Math.hypot((tx + 0.5) * span - view.x, (ty + 0.5) * span - view.y);
  return found.sort((a, b) => away(a) - away(b));
}

// Where tile (z, ty, tx) lies within its ancestor at level up: the ancestor and the square inside it, in its pixels.
export function withinAncestor(z, ty, tx, up) {
  const n = 2 ** (up - z);
  const side = TILE / n;
  return { ty: Math.floor(ty / n), tx: Math.floor(tx / n), sx: (tx % n) * side, sy: (ty % n) * side, side };
}

// The pixel of level z that holds a cell, as the cells it covers, ends left out.
export function pixelOf(z, row, col, T, S) {
  const n = 2 ** z;
  const i0 = Math.floor(row / n) * n;
  const j0 = Math.floor(col / n) * n;
  return { i0, i1: Math.min(T, i0 + n), j0, j1: Math.min(S, j0 + n) };
}

// The cell in which a position of the text meets itself: its own row, or the last kept one before it, and its key.
export function cellAt({ T, S, rowAt }, position) {
  const i = rowAt ? rowAt.findLastIndex((at) => at <= position) : position;
  return { i: Math.min(T - 1, Math.max(0, i)), j: Math.min(S - 1, Math.max(0, position)) };
}

// A view about one cell that shows `across` tokens.
export function viewOfCell(i, j, across) {
  return { x: j + 0.5, y: i + 0.5, w: across };
}

// The next view on the way to a goal: a share of the way, in the logarithm of the width, so that zooming
// has one speed at every depth. fixed = { px, py, col, row } stays under its pixel if given.
export function between(view, goal, share, size, fixed) {
  const w = Math.exp(Math.log(view.w) + (Math.log(goal.w) - Math.log(view.w)) * share);
  if (fixed) {
    const s = size.width / w;
    return { x: fixed.col - (fixed.px - size.width / 2) / s, y: fixed.row - (fixed.py - size.height / 2) / s, w };
  }
  // Straight in the space of (x, y, w), which looks like one camera move.
  const part = Math.abs(goal.w - view.w) > 1e-9 * goal.w ? (w - view.w) / (goal.w - view.w) : share;
  return { x: view.x + (goal.x - view.x) * part, y: view.y + (goal.y - view.y) * part, w };
}

export function nearView(a, b) {
  return Math.abs(Math.log(a.w / b.w)) < 5e-4 && Math.hypot(a.x - b.x, a.y - b.y) < 1e-3 * b.w;
}
