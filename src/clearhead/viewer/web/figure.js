// Where the parts of a picture stand: the map in the middle, tokens left and above, curves right and below.
// Everything sticks to the edges of what is seen of the map. Pure, so that canvas, PNG and SVG agree.
import { seenPart, scaleOf, toPixel } from "./zoom.js";
import { grouped, shownToken, tickStep, ticks } from "./ticks.js";

export const MONO = 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", "Noto Sans Mono", monospace';
const LETTER = 6.7; // pixels of a letter of 11 px

export function figureLayout(width, height, { tracks = true } = {}) {
  const small = width < 520;
  const left = small ? 62 : 116;
  const top = small ? 58 : 76;
  const right = tracks ? (small ? 44 : 78) : 10;
  const bottom = tracks ? (small ? 44 : 60) : 10;
  const plot = { x: left, y: top, width: Math.max(40, width - left - right), height: Math.max(40, height - top - bottom) };
  return { width, height, small, tracks, plot, left, top, right, bottom };
}

// The part of the plot that the map covers, in pixels of the canvas.
export function mapRect(view, plot, T, S) {
  const a = toPixel(view, plot, 0, 0);
  const b = toPixel(view, plot, S, T);
  const x0 = Math.max(0, a.px);
  const y0 = Math.max(0, a.py);
  return { x: plot.x + x0, y: plot.y + y0, width: Math.max(0, Math.min(plot.width, b.px) - x0), height: Math.max(0, Math.min(plot.height, b.py) - y0) };
}

// The rectangles of the two curves beside the map.
export function trackRects(layout, map) {
  const gap = layout.small ? 6 : 10;
  return {
    row: { x: map.x + map.width + gap, y: map.y, width: layout.right - gap - (layout.small ? 6 : 12), height: map.height },
    column: { x: map.x, y: map.y + map.height + gap, width: map.width, height: layout.bottom - gap - (layout.small ? 16 : 22) },
  };
}

// Labels of both axes: { rows: [{ n, y, position, token }], columns: [{ n, x, position, token }], upright }.
// map = { T, S, query(i), key(j), at(i) }; at gives the position of a row in the text.
export function axisLabels(view, layout, rect, map) {
  const s = scaleOf(view, layout.plot);
  const part = seenPart(view, layout.plot, map.T, map.S);
  const rowRoom = tickStep(s, 15) === 1 ? 15 : 44;
  const each = s >= 13;
  const columnRoom = each ? 13 : layout.small ? 62 : 88;
  const rows = ticks(part.r0, part.r1, s, rowRoom, map.T)
    .map((n) => ({ n, y: layout.plot.y + toPixel(view, layout.plot, 0, n + 0.5).py }))
    .filter(({ y }) => y > rect.y - 1 && y < rect.y + rect.height + 1);
  const columns = ticks(part.c0, part.c1, s, columnRoom, map.S)
    .map((n) => ({ n, x: layout.plot.x + toPixel(view, layout.plot, n + 0.5, 0).px }))
    .filter(({ x }) => x > rect.x - 1 && x < rect.x + rect.width + 1)
    .filter(({ n, x }) => each || !layout.tracks || x + (grouped(n).length * LETTER) / 2 < rect.x + rect.width + 4); // clear of the curve's name
  const letters = Math.floor((layout.left - 14) / LETTER);
  for (const row of rows) {
    row.position = grouped(map.at ? map.at(row.n) : row.n);
    const rest = letters - row.position.length - 1;
    row.token = shownToken(map.query(row.n), layout.small && s >= 13 ? letters : Math.max(3, rest));
    if (layout.small) row[s >= 13 ? "position" : "token"] = "";
  }
  for (const column of columns) {
    column.position = grouped(column.n);
    column.token = shownToken(map.key(column.n), each ? Math.floor((layout.top - 12) / LETTER) : Math.floor((columnRoom - 8) / LETTER));
  }
  return { rows, columns, upright: !each };
}

// Draws the labels on a canvas context.
export function drawLabels(ctx, layout, rect, labels, colors) {
  ctx.font = `11px ${MONO}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  for (const { y, position, token } of labels.rows) {
    ctx.fillStyle = colors.ink;
    ctx.fillText(token, rect.x - 8, y);
    if (position) {
      ctx.fillStyle = colors.muted;
      const width = token ? ctx.measureText(token).width + 7 : 0;
      ctx.fillText(position, rect.x - 8 - width, y);
    }
    tickMark(ctx, rect.x - 5, y, 4, 0, colors.strong);
  }
  for (const { x, position, token } of labels.columns) {
    if (labels.upright) {
      // The first label begins where the map begins, so that it leaves the corner to the names of the axes.
      const first = x - rect.x < 30;
      ctx.textAlign = first ? "left" : "center";
      const left = first ? rect.x : x;
      ctx.fillStyle = colors.ink;
      ctx.fillText(token, left, rect.y - 13);
      ctx.fillStyle = colors.muted;
      ctx.fillText(position, left, rect.y - 27);
    } else {
      ctx.save();
      ctx.translate(x, rect.y - 8);
      ctx.rotate(-Math.PI / 2);
      ctx.textAlign = "left";
      ctx.fillStyle = colors.ink;
      ctx.fillText(token, 0, 0.5);
      ctx.restore();
    }
    tickMark(ctx, x, rect.y - 5, 0, 4, colors.strong);
  }
}

function tickMark(ctx, x, y, dx, dy, color) {
  ctx.fillStyle = color;
  ctx.fillRect(Math.round(x) - (dx ? 0 : 0.5), Math.round(y) - (dy ? 0 : 0.5), dx || 1, dy || 1);
}

// The names of the axes, in the corner above the rows and left of the columns.
export function drawAxisNames(ctx, layout, rect, colors) {
  ctx.font = `italic ${layout.small ? 9 : 11}px ${MONO}`;
  ctx.fillStyle = colors.muted;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  ctx.fillText("keys →", rect.x - 8, rect.y - 27);
  ctx.fillText("queries ↓", rect.x - 8, rect.y - 12);
}
