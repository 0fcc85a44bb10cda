// The present view as a picture (PNG), a drawing (SVG: the map as an image, words and lines as such) and numbers (CSV).
import { canvasColors, ink, css, legendMarks } from "./colors.js";
import { csvText } from "./csv.js";
import { decodeCode, HIDDEN } from "./codes.js";
import { pngOf } from "./dom.js";
import { mapRect, MONO } from "./figure.js";
import { seenPart, TILE, tilesSeen } from "./zoom.js";

const FOOT = 74; // pixels below the figure for words
const LEGEND = 180; // pixels that the color scale is wide
const MOST_CELLS = 250000; // exact cells in one CSV: beyond, the pixels are written
const CELLS_A_CALL = 4096;

// kind: "png", "svg" or "csv"; shown = { info, pool, text, exacts: one or, for a difference, two }.
export function figureAs(kind, map, caption, shown) {
  return kind === "png" ? figurePng(map, caption) : kind === "svg" ? figureSvg(map, caption) : csvOfView(map, shown);
}

async function figurePng(map, caption) {
  const { layout } = map;
  const ratio = Math.max(2, map.dpr);
  const canvas = Object.assign(document.createElement("canvas"), { width: layout.width * ratio, height: (layout.height + FOOT) * ratio });
  const ctx = canvas.getContext("2d");
  ctx.fillStyle = canvasColors(map.app.dark).page;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  map.render(ctx, ratio, map.dpr);
  const colors = canvasColors(map.app.dark);
  for (const line of captionLines(caption)) {
    ctx.fillStyle = line.strong ? colors.ink : colors.muted;
    ctx.font = `${line.strong ? "600 " : ""}11px ${MONO}`;
    ctx.textAlign = "left";
    ctx.fillText(line.text, 8, layout.height + line.y, layout.width - 16);
  }
  if (map.painter.layers.length === 1) drawLegend(ctx, map, caption.scale, colors);
  return pngOf(canvas);
}

function drawLegend(ctx, { layout, app }, scale, colors) {
  const left = layout.width - LEGEND - 8;
  for (let n = 0; n < LEGEND; n += 1) {
    ctx.fillStyle = css(ink(n / (LEGEND - 1), app.dark));
    ctx.fillRect(left + n, layout.height + 4, 1.5, 9);
  }
  ctx.fillStyle = colors.muted;
  ctx.font = `11px ${MONO}`;
  for (const [at, words] of legendMarks(scale)) {
    ctx.textAlign = at === 0 ? "left" : at === 1 ? "right" : "center";
    ctx.fillText(words, left + LEGEND * at, layout.height + 22);
  }
}

function captionLines({ title, meaning, seen, proof, scale }) {
  return [
    { text: title, y: 10, strong: true },
    { text: `${meaning} ${scale === "log" ? "Logarithmic" : "Linear"} colors. ${seen}`, y: 42 },
    { text: `${proof} · clearhead`, y: 58 },
  ];
}

async function figureSvg(map, caption) {
  const { layout, view, info } = map;
  const colors = canvasColors(map.app.dark);
  const rect = mapRect(view, layout.plot, info.T, info.S);
  const ratio = Math.max(2, map.dpr);
  const whole = Object.assign(document.createElement("canvas"), { width: layout.width * ratio, height: layout.height * ratio });
  map.render(whole.getContext("2d"), ratio, map.dpr);
  const part = document.createElement("canvas");
  // The curves stay with the map as pixels; labels become text.
  const cut = { x: rect.x - 1, y: rect.y - 1, width: layout.width - rect.x + 1, height: layout.height - rect.y + 1 };
  part.width = Math.round(cut.width * ratio);
  part.height = Math.round(cut.height * ratio);
  part.getContext("2d").drawImage(whole, -cut.x * ratio, -cut.y * ratio);
  const labels = map.labels(rect);
  const out = [];
  const text = (x, y, words, fill, more = "") => out.push(`<text x="${r(x)}" y="${r(y)}" fill="${fill}"${more}>${escapeXml(words)}</text>`);
  for (const { y, position, token } of labels.rows) {
    text(rect.x - 8, y + 4, `${position} ${token}`.trim(), colors.ink, ' text-anchor="end"');
  }
  for (const { x, position, token } of labels.columns) {
    if (labels.upright) {
      text(x, rect.y - 9, token, colors.ink, ' text-anchor="middle"');
      text(x, rect.y - 23, position, colors.muted, ' text-anchor="middle"');
    } else text(0, 0, token, colors.ink, ` transform="translate(${r(x + 4)} ${r(rect.y - 8)}) rotate(-90)"`);
  }
  text(rect.x - 8, rect.y - 23, "keys →", colors.muted, ' text-anchor="end" font-style="italic"');
  text(rect.x - 8, rect.y - 8, "queries ↓", colors.muted, ' text-anchor="end" font-style="italic"');
  if (layout.tracks) text(rect.x + rect.width + 10, rect.y - 10, layout.small ? "H →" : "entropy →", colors.muted);
  for (const line of captionLines(caption)) text(8, layout.height + line.y + 4, line.text, line.strong ? colors.ink : colors.muted);
  const ramp = Array.from({ length: 24 }, (_, n) => `<stop offset="${r(n / 23)}" stop-color="${css(ink(n / 23, map.app.dark))}"/>`).join("");
  const marks = legendMarks(caption.scale).map(([at, words]) => `<text x="${r(layout.width - 188 + 180 * at)}" y="${layout.height + 26}" text-anchor="${at === 0 ? "start" : at === 1 ? "end" : "middle"}" fill="${colors.muted}">${escapeXml(words)}</text>`).join("");
  const legend = map.painter.layers.length > 1 ? "" : `<defs><linearGradient id="weights">${ramp}</linearGradient></defs><rect x="${layout.width - 188}" y="${layout.height + 2}" width="180" height="9" fill="url(#weights)"/>${marks}`;
  return new Blob([`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${layout.width} ${layout.height + FOOT}" font-family="${escapeXml(MONO)}" font-size="11">`
    + `<title>${escapeXml(caption.title)}</title><desc>${escapeXml(`${caption.meaning} ${caption.seen} ${caption.proof}`)}</desc>`
    + `<rect width="100%" height="100%" fill="${colors.page}"/>`
    + `<image x="${r(cut.x)}" y="${r(cut.y)}" width="${r(cut.width)}" height="${r(cut.height)}" href="${part.toDataURL("image/png")}"/>`
    + `${out.join("")}${legend}</svg>\n`], { type: "image/svg+xml" });
}

const r = (v) => Number(v.toFixed(2));

// Token text in a drawing: data, whatever it holds. Characters that XML cannot hold become U+FFFD.
export function escapeXml(text) {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

// A matrix: keys across, queries down, with their tokens; one weight a cell, or one pixel a cell, as on the screen.
async function csvOfView(map, { info, pool, text, exacts }) {
  const part = seenPart(map.view, map.plot, info.T, info.S);
  const cells = (part.r1 - part.r0) * (part.c1 - part.c0);
  const z = map.level();
  const tables = z === 0 && cells <= MOST_CELLS ? await Promise.all(exacts.map((exact) => exactRows(exact, part, text)))
    : map.painter.layers.map((layer) => pixelRows(map, layer, info, part, z, pool, text));
  const rows = tables.length === 1 ? tables[0] : difference(...tables);
  return new Blob(["\ufeff", csvText(rows)], { type: "text/csv;charset=utf-8" });
}

function difference(a, b) {
  const head = [[`A minus B, ${a[0][0]}`, ...a[0].slice(1)], a[1]];
  return [...head, ...a.slice(2).map((row, n) => row.map((own, k) => {
    const other = b[n + 2][k];
    return k < 2 ? own : own === null || other === null ? null : own - other;
  }))];
}

async function exactRows(exact, { r0, r1, c0, c1 }, text) {
  const head = header("weight of one key", range(c0, c1), text);
  const high = Math.max(1, Math.floor(CELLS_A_CALL / Math.min(CELLS_A_CALL, c1 - c0)));
  const rows = [];
  for (let i = r0; i < r1; i += high) {
    const end = Math.min(r1, i + high);
    const band = Array.from({ length: end - i }, () => []);
    for (let j = c0; j < c1; j += CELLS_A_CALL) {
      const right = Math.min(c1, j + CELLS_A_CALL);
      const { weights, scores } = await exact.source.cells(exact.layer.tab, exact.layer.head, i, end, j, right, exact.where, {});
      const wide = right - j;
      band.forEach((row, n) => { for (let k = 0; k < wide; k += 1) row.push(scores[n * wide + k] === -Infinity ? null : weights[n * wide + k]); });
    }
    band.forEach((row, n) => rows.push([rowPlace(text, i + n), text.query(i + n) ?? "", ...row]));
  }
  return [...head, ...rows];
}

function pixelRows(map, layer, info, part, z, pool, text) {
  const n = 2 ** z;
  const [p0, p1, q0, q1] = [Math.floor(part.r0 / n), Math.ceil(part.r1 / n), Math.floor(part.c0 / n), Math.ceil(part.c1 / n)];
  const { tiles } = map.app;
  const missing = tilesSeen(map.view, map.plot, info.T, info.S, z).some((t) => !tiles.has(layer, z, t.ty, t.tx));
  if (missing) throw new Error("the picture is still being computed: save its numbers when it stands");
  const head = header(`${pool === "mean" ? "mean" : "largest"} of ${n} x ${n} weights, by first key`, range(q0, q1).map((q) => q * n), text);
  const rows = range(p0, p1).map((p) => [rowPlace(text, p * n), text.query(p * n) ?? "", ...range(q0, q1).map((q) => {
    const code = tiles.get(layer, z, Math.floor(p / TILE), Math.floor(q / TILE)).codes[(p % TILE) * TILE + (q % TILE)];
    return code === HIDDEN ? null : Number(decodeCode(code).toPrecision(4));
  })]);
  return [...head, ...rows];
}

function header(what, keys, text) {
  return [[what, "key", ...keys], ["query", "token", ...keys.map((j) => text.key(j) ?? "")]];
}
function range(a, b) { return Array.from({ length: b - a }, (_, n) => a + n); }
function rowPlace(text, i) { return text.at ? text.at(i) : i; }
