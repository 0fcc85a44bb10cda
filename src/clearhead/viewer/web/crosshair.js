// What lies under the cross-hair, exactly: blocks of cells and whole rows, fetched and kept for one head;
// and the cross-hair itself, drawn over the map.
import { decodeCode, HIDDEN } from "./codes.js";
import { MONO } from "./figure.js";
import { rankOf, totals } from "./ranking.js";
import { grouped, shownToken } from "./ticks.js";
import { TILE, toPixel } from "./zoom.js";

const SIDE = 32; // cells of a block
const BLOCKS = 160;
const ROWS = 24;

export class ExactCells {
  constructor(source, layer, T, S) {
    Object.assign(this, { source, layer, T, S, where: { seq: layer.seq, batch: layer.batch }, blocks: new Map(), asked: new Map(), rows: new Map() });
  }
  // { weight, score } of a cell that was fetched, or null. The score of a hidden cell is -Infinity.
  at(i, j) {
    const block = this.blocks.get(`${Math.floor(i / SIDE)} ${Math.floor(j / SIDE)}`);
    if (!block) return null;
    const n = (i % SIDE) * block.width + (j % SIDE);
    return { weight: block.weights[n], score: block.scores[n] };
  }
  // Fetches the blocks of a part of the map; those of an earlier call that are wanted no more are given up.
  async need(i0, i1, j0, j1) {
    const wanted = new Map();
    for (let bi = Math.floor(i0 / SIDE); bi * SIDE < Math.min(i1, this.T); bi += 1) {
      for (let bj = Math.floor(j0 / SIDE); bj * SIDE < Math.min(j1, this.S); bj += 1) wanted.set(`${bi} ${bj}`, [bi, bj]);
    }
    for (const [key, { control }] of this.asked) if (!wanted.has(key)) { control.abort(); this.asked.delete(key); }
    await Promise.all([...wanted].filter(([key]) => !this.blocks.has(key)).map(([key, at]) => this.fetchBlock(key, at)));
  }
  fetchBlock(key, [bi, bj]) {
    const asked = this.asked.get(key);
    if (asked) return asked.promise;
    const control = new AbortController();
    const [i0, j0] = [bi * SIDE, bj * SIDE];
    const [i1, j1] = [Math.min(this.T, i0 + SIDE), Math.min(this.S, j0 + SIDE)];
    const promise = this.source.cells(this.layer.tab, this.layer.head, i0, i1, j0, j1, this.where, { signal: control.signal }).then((found) => {
      this.blocks.set(key, { ...found, width: j1 - j0 });
      if (this.blocks.size > BLOCKS) this.blocks.delete(this.blocks.keys().next().value);
    }).finally(() => { if (this.asked.get(key)?.control === control) this.asked.delete(key); });
    this.asked.set(key, { promise, control });
    return promise;
  }
  async row(i, signal) {
    if (!this.rows.has(i)) {
      const found = await this.source.row(this.layer.tab, this.layer.head, i, this.where, { signal });
      this.rows.set(i, found);
      if (this.rows.size > ROWS) this.rows.delete(this.rows.keys().next().value);
    }
    return this.rows.get(i);
  }

  // The strongest cell of a pixel { i0, i1, j0, j1 }; through finer tiles where the pixel is large.
  async strongest(block, z, tiles, signal) {
    let { i0, i1, j0, j1 } = block;
    for (let level = z; level > 6; level -= 1) {
      const n = 2 ** (level - 1);
      let best = null;
      for (const i of [i0, i0 + n]) {
        for (const j of [j0, j0 + n]) {
          if (i >= this.T || j >= this.S) continue;
          const [ty, tx] = [Math.floor(i / n / TILE), Math.floor(j / n / TILE)];
          const tile = await tiles.load({ ...this.layer, reduce: "max" }, level - 1, ty, tx, signal);
          const code = tile.codes[(Math.floor(i / n) % TILE) * TILE + (Math.floor(j / n) % TILE)];
          if (!best || code > best.code) best = { code, i, j };
        }
      }
      [i0, j0] = [best.i, best.j];
      [i1, j1] = [Math.min(this.T, i0 + n), Math.min(this.S, j0 + n)];
    }
    if ((i1 - i0) * (j1 - j0) <= SIDE * SIDE) {
      await this.need(i0, i1, j0, j1);
      return this.best(i0, i1, j0, j1, (i, j) => this.at(i, j) ?? { weight: 0, score: -Infinity });
    }
    const found = await this.source.cells(this.layer.tab, this.layer.head, i0, i1, j0, j1, this.where, { signal });
    return this.best(i0, i1, j0, j1, (i, j) => {
      const n = (i - i0) * (j1 - j0) + (j - j0);
      return { weight: found.weights[n], score: found.scores[n] };
    });
  }
  best(i0, i1, j0, j1, at) {
    let best = null;
    for (let i = i0; i < i1; i += 1) {
      for (let j = j0; j < j1; j += 1) {
        const cell = at(i, j);
        if (cell.score === -Infinity && best) continue;
        if (!best || best.score === -Infinity || cell.weight > best.weight) best = { i, j, ...cell };
      }
    }
    return best;
  }

  // All that the readout says of one cell.
  async read(i, j, signal) {
    await this.need(i, i + 1, j, j + 1);
    const cell = this.at(i, j);
    if (!cell) return null;
    const row = await this.row(i, signal);
    return { i, j, ...cell, ...standing(row, j) };
  }
}

// The rank of key j within its row and how many keys the query may see. NaN = hidden.
export function standing(row, j) {
  const visible = totals(row).seen;
  return { rank: rankOf(row, j), visible, uniform: visible ? 1 / visible : 0 };
}

// What the picture itself says of a pixel: "hidden", or its weight to three digits.
export function pixelWords(code) {
  if (code === undefined) return "";
  if (code === HIDDEN) return "hidden";
  const p = decodeCode(code);
  return Number.isNaN(p) ? "no number" : p === 0 ? "0" : p.toPrecision(3);
}

// Lines through a pixel of the map, its outline, and its two tokens at the axes.
export function drawCross(ctx, view, layout, rect, block, colors, text, pinned) {
  const { plot } = layout;
  const a = toPixel(view, plot, block.j0, block.i0);
  const b = toPixel(view, plot, block.j1, block.i1);
  const [x0, y0, x1, y1] = [plot.x + a.px, plot.y + a.py, plot.x + b.px, plot.y + b.py];
  const x = (x0 + x1) / 2;
  const y = (y0 + y1) / 2;
  const inside = x >= rect.x && x <= rect.x + rect.width && y >= rect.y && y <= rect.y + rect.height;
  const color = pinned ? colors.cross : colors.ink;
  if (!inside) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(rect.x - 1, rect.y - 1, rect.width + 2 + layout.right, rect.height + 2 + layout.bottom);
  ctx.clip();
  ctx.fillStyle = color;
  ctx.globalAlpha = pinned ? 0.75 : 0.4;
  const wide = Math.max(1, x1 - x0);
  if (wide < 8) {
    ctx.fillRect(Math.round(x) - 0.5, rect.y, 1, rect.height + layout.bottom - 22);
    ctx.fillRect(rect.x, Math.round(y) - 0.5, rect.width + layout.right - 12, 1);
  } else {
    ctx.globalAlpha *= 0.55;
    for (const edge of [x0, x1]) ctx.fillRect(Math.round(edge) - 0.5, rect.y, 1, rect.height + layout.bottom - 22);
    for (const edge of [y0, y1]) ctx.fillRect(rect.x, Math.round(edge) - 0.5, rect.width + layout.right - 12, 1);
  }
  ctx.globalAlpha = 1;
  const least = Math.max(wide, 7);
  // Two lines, so that one of them is seen on any color.
  for (const [stroke, width] of [[colors.page, pinned ? 5 : 4], [color, pinned ? 2.5 : 1.5]]) {
    ctx.strokeStyle = stroke;
    ctx.lineWidth = width;
    ctx.strokeRect(x - least / 2 - 1, y - least / 2 - 1, least + 2, least + 2);
  }
  ctx.restore();
  if (text) drawAxisChips(ctx, layout, rect, x, y, text, color, colors, wide);
}

function drawAxisChips(ctx, layout, rect, x, y, text, color, colors, wide) {
  ctx.font = `600 11px ${MONO}`;
  ctx.textBaseline = "middle";
  const letters = Math.floor((layout.left - 14) / 6.7);
  const chip = (words, cx, cy, align) => {
    const width = ctx.measureText(words).width + 10;
    const left = align === "right" ? cx - width : Math.min(Math.max(2, cx - width / 2), layout.width - width - 2);
    ctx.fillStyle = color;
    ctx.fillRect(left, cy - 8.5, width, 17);
    ctx.fillStyle = colors.page;
    ctx.textAlign = "left";
    ctx.fillText(words, left + 5, cy + 0.5);
  };
  if (wide >= 13) { // the upright label that the chip would cover in part
    ctx.fillStyle = colors.page;
    ctx.fillRect(x - Math.min(9, wide / 2), rect.y - layout.top + 2, Math.min(18, wide), layout.top - 6);
  }
  // A pixel of many cells is named by the tokens it covers.
  const span = (a, b) => (letters > 14 ? `${grouped(a)}–${grouped(b - 1)}` : `${grouped(a)} …`);
  const row = text.i === undefined ? span(text.i0, text.i1) : grouped(text.i);
  chip(text.i === undefined ? row : `${row} ${shownToken(text.query, Math.max(3, letters - row.length - 1))}`, rect.x - 3, y, "right");
  chip(text.i === undefined ? span(text.j0, text.j1) : `${grouped(text.j)} ${shownToken(text.key, 18)}`, x, rect.y - 13, "center");
}
