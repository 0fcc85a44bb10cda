// The map on a canvas: tiles in their colors, the hatched part that nobody may see, lines between cells and
// the weights as numbers. Where a tile is missing, what is there of coarser and finer ones stands in.
import { colorTable, differencePixels, inkOn } from "./colors.js";
import { MONO } from "./figure.js";
import { shortWeight } from "./ticks.js";
import { levelFor, scaleOf, seenPart, TILE, tilesSeen, toPixel, withinAncestor } from "./zoom.js";

const PICTURES = 220; // colored tiles kept: 256 KB each
const GRID_FROM = 8; // pixels a cell
export const NUMBERS_FROM = 34;

export class MapPainter {
  // layers: one, or two whose difference is drawn; info: { T, S, zmax } of the map.
  constructor(tiles, layers, info) {
    Object.assign(this, { tiles, layers, info, pictures: new Map(), scale: "log", dark: false, hatch: null });
  }
  level(view, plot, dpr) { return Math.max(this.info.finest ?? 0, levelFor(view, plot, dpr, this.info.zmax)); }

  // The tiles that a view needs, most needed first: the whole map, of which every other view can be made for a
  // while, then those seen, nearest first. Where the seen ones need no pass over the head, they come first.
  needed(view, plot, dpr, around = 1) {
    const { T, S, zmax } = this.info;
    const z = this.level(view, plot, dpr);
    const seen = tilesSeen({ ...view, w: view.w * around }, { width: plot.width * around, height: plot.height * around }, T, S, z);
    const whole = { z: zmax, ty: 0, tx: 0 };
    return z === zmax ? seen : z < (this.info.base ?? 0) ? [...seen, whole] : [whole, ...seen];
  }

  // The colored tile, or null while its codes are not here.
  picture(z, ty, tx) {
    const found = this.layers.map((layer) => this.tiles.get(layer, z, ty, tx));
    if (found.some((tile) => !tile)) return null;
    const key = `${z}/${ty}/${tx}`;
    const look = `${this.scale} ${this.dark}`;
    let kept = this.pictures.get(key);
    if (kept && kept.look === look && kept.of.every((tile, n) => tile === found[n])) {
      this.pictures.delete(key);
      this.pictures.set(key, kept);
      return kept.canvas;
    }
    const canvas = kept?.canvas ?? Object.assign(document.createElement("canvas"), { width: TILE, height: TILE });
    const ctx = canvas.getContext("2d");
    const image = ctx.createImageData(TILE, TILE);
    const out = new Uint32Array(image.data.buffer);
    if (found.length === 2) differencePixels(found[0].codes, found[1].codes, this.scale, this.dark, out);
    else {
      const table = colorTable(this.scale, this.dark);
      const { codes } = found[0];
      for (let n = 0; n < out.length; n += 1) out[n] = table[codes[n]];
    }
    ctx.putImageData(image, 0, 0);
    kept = { canvas, look, of: found };
    this.pictures.set(key, kept);
    if (this.pictures.size > PICTURES) this.pictures.delete(this.pictures.keys().next().value);
    return canvas;
  }

  // Draws what is here; returns how many tiles of the wanted level are missing.
  paint(ctx, view, plot, rect, dpr, colors) {
    ctx.save();
    ctx.beginPath();
    ctx.rect(rect.x, rect.y, rect.width, rect.height);
    ctx.clip();
    this.paintHidden(ctx, view, plot, rect, colors);
    ctx.imageSmoothingEnabled = false;
    const z = this.level(view, plot, dpr);
    let missing = 0;
    for (const tile of tilesSeen(view, plot, this.info.T, this.info.S, z)) {
      const place = this.square(view, plot, dpr, z, tile.ty, tile.tx);
      const picture = this.picture(z, tile.ty, tile.tx);
      if (picture) ctx.drawImage(picture, ...place);
      else {
        missing += 1;
        this.standIn(ctx, view, plot, dpr, tile, colors.pending);
      }
    }
    ctx.restore();
    return missing;
  }

  // [x, y, width, height] of a tile, edges on whole pixels of the device so that no seam shows.
  square(view, plot, dpr, z, ty, tx) {
    const span = TILE * 2 ** z;
    const a = toPixel(view, plot, tx * span, ty * span);
    const b = toPixel(view, plot, (tx + 1) * span, (ty + 1) * span);
    const snap = (v) => Math.round(v * dpr) / dpr;
    const [x, y] = [snap(plot.x + a.px), snap(plot.y + a.py)];
    return [x, y, snap(plot.x + b.px) - x, snap(plot.y + b.py) - y];
  }

  // Quarter by quarter: a finer tile if it is here, else the square of the nearest coarser one, else plain
  // paper: not the hatch of what is hidden, for nobody knows that yet.
  standIn(ctx, view, plot, dpr, { z, ty, tx }, pending) {
    for (const [dy, dx] of [[0, 0], [0, 1], [1, 0], [1, 1]]) {
      if (z > 0) {
        const finer = this.picture(z - 1, 2 * ty + dy, 2 * tx + dx);
        if (finer) { ctx.drawImage(finer, ...this.square(view, plot, dpr, z - 1, 2 * ty + dy, 2 * tx + dx)); continue; }
      }
      const [x, y, width, height] = this.square(view, plot, dpr, z, ty, tx);
      let found = false;
      for (let up = z + 1; up <= this.info.zmax; up += 1) {
        const from = withinAncestor(z, ty, tx, up);
        const coarse = this.picture(up, from.ty, from.tx);
        if (!coarse) continue;
        const half = from.side / 2;
        ctx.drawImage(coarse, from.sx + dx * half, from.sy + dy * half, half, half, x + (dx * width) / 2, y + (dy * height) / 2, width / 2, height / 2);
        found = true;
        break;
      }
      if (found) continue;
      ctx.fillStyle = pending;
      ctx.fillRect(x + (dx * width) / 2, y + (dy * height) / 2, width / 2, height / 2);
    }
  }

  paintHidden(ctx, view, plot, rect, colors) {
    ctx.fillStyle = colors.hidden;
    ctx.fillRect(rect.x, rect.y, rect.width, rect.height);
    if (this.hatch?.color !== colors.hatch) {
      const made = Object.assign(document.createElement("canvas"), { width: 16, height: 16 });
      const pen = made.getContext("2d");
      pen.strokeStyle = colors.hatch;
      pen.lineWidth = 1.6;
      for (const shift of [-16, 0, 16]) { pen.moveTo(shift, 16); pen.lineTo(shift + 16, 0); }
      pen.moveTo(-8, 8); pen.lineTo(8, -8);
      pen.stroke();
      this.hatch = { color: colors.hatch, pattern: ctx.createPattern(made, "repeat") };
    }
    const origin = toPixel(view, plot, 0, 0);
    ctx.save();
    const [dx, dy] = [(plot.x + origin.px) % 8, (plot.y + origin.py) % 8];
    ctx.translate(dx, dy);
    ctx.scale(0.5, 0.5);
    ctx.fillStyle = this.hatch.pattern;
    ctx.fillRect((rect.x - dx) * 2, (rect.y - dy) * 2, rect.width * 2, rect.height * 2);
    ctx.restore();
  }

  // Lines between cells, once cells are large; over hidden cells too, so that rows can be followed.
  paintGrid(ctx, view, plot, rect, colors) {
    const s = scaleOf(view, plot);
    if (s < GRID_FROM) return;
    const part = seenPart(view, plot, this.info.T, this.info.S);
    ctx.fillStyle = colors.page;
    ctx.globalAlpha = Math.min(0.55, 0.08 + (s - GRID_FROM) / 40);
    for (let j = part.c0; j <= part.c1; j += 1) {
      const x = Math.round(plot.x + toPixel(view, plot, j, 0).px);
      if (x > rect.x && x < rect.x + rect.width) ctx.fillRect(x - 0.5, rect.y, 1, rect.height);
    }
    for (let i = part.r0; i <= part.r1; i += 1) {
      const y = Math.round(plot.y + toPixel(view, plot, 0, i).py);
      if (y > rect.y && y < rect.y + rect.height) ctx.fillRect(rect.x, y - 0.5, rect.width, 1);
    }
    ctx.globalAlpha = 1;
  }

  // The weight of each cell as a number; value(i, j) gives { weight, hidden } or null.
  paintNumbers(ctx, view, plot, rect, value) {
    const s = scaleOf(view, plot);
    if (s < NUMBERS_FROM || this.layers.length > 1) return;
    const part = seenPart(view, plot, this.info.T, this.info.S);
    ctx.save();
    ctx.beginPath();
    ctx.rect(rect.x, rect.y, rect.width, rect.height);
    ctx.clip();
    ctx.font = `${Math.min(15, Math.max(9, Math.round(s / 3.9)))}px ${MONO}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (let i = part.r0; i < part.r1; i += 1) {
      for (let j = part.c0; j < part.c1; j += 1) {
        const cell = value(i, j);
        if (!cell || cell.score === -Infinity) continue;
        const at = toPixel(view, plot, j + 0.5, i + 0.5);
        ctx.fillStyle = inkOn(cell.weight, { scale: this.scale, dark: this.dark });
        ctx.globalAlpha = cell.weight < 1e-4 ? 0.55 : 1; // there, but not what one reads first
        const [words, x, y] = [shortWeight(cell.weight), plot.x + at.px, plot.y + at.py + 0.5];
        const half = ctx.measureText(words).width / 2;
        if (x - half < rect.x || x + half > rect.x + rect.width) continue; // half of 6e-20 would read as -20
        ctx.fillText(words, x, y);
      }
    }
    ctx.restore();
  }
}

// A small picture of a whole head for the grid of heads: one tile, drawn to fit the canvas.
export async function paintThumbnail(app, canvas, layer, { scale = "log", signal } = {}) {
  const info = await app.headInfo(layer.tab, layer.head, layer);
  if (!info.hasMap) return false;
  const painter = new MapPainter(app.tiles, [{ reduce: "max", ...layer }], info);
  await app.tiles.load(painter.layers[0], info.zmax, 0, 0, signal);
  painter.scale = scale;
  painter.dark = app.dark;
  const picture = painter.picture(info.zmax, 0, 0);
  const ctx = canvas.getContext("2d");
  const n = 2 ** info.zmax;
  const [w, h] = [Math.ceil(info.S / n), Math.ceil(info.T / n)];
  const share = Math.min(canvas.width / w, canvas.height / h);
  ctx.clearRect(0, 0, canvas.width, canvas.height);
  ctx.imageSmoothingEnabled = share < 1;
  ctx.drawImage(picture, 0, 0, w, h, (canvas.width - w * share) / 2, (canvas.height - h * share) / 2, w * share, h * share);
  return true;
}
