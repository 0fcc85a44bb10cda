// A list of rectangles, words and images that becomes a drawing (SVG) or a picture (PNG); and those of the
// model and the token, as they are seen.
import { canvasColors, css, ink, readableOn } from "./colors.js";
import { pngOf, saveFile } from "./dom.js";
import { MONO } from "./figure.js";
import { escapeXml } from "./picture.js";
import { HIDDEN_SHADE, TEXT_SHADES } from "./ranking.js";
import { shownToken } from "./ticks.js";

const SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';
const SHARP = 2; // pixels of a picture for one of the page
const EDGE = 20;

export class Drawing {
  constructor(width, height, dark) {
    Object.assign(this, { width: Math.ceil(width), height: Math.ceil(height), colors: canvasColors(dark), parts: [] });
    this.rect(0, 0, this.width, this.height, this.colors.page);
  }
  rect(x, y, width, height, fill, { round = 0, stroke = null } = {}) { this.parts.push({ kind: "rect", x, y, width, height, fill, round, stroke }); }
  text(x, y, words, fill, { size = 13, mono = false, bold = false, anchor = "start" } = {}) { this.parts.push({ kind: "text", x, y, words, fill, size, mono, bold, anchor }); }
  image(x, y, width, height, canvas) { if (canvas?.width > 1) this.parts.push({ kind: "image", x, y, width, height, canvas }); }

  svg() {
    const n = (v) => String(Number(v.toFixed(2)));
    const drawn = this.parts.map((p) => {
      if (p.kind === "rect") return `<rect x="${n(p.x)}" y="${n(p.y)}" width="${n(p.width)}" height="${n(p.height)}" fill="${p.fill ?? "none"}"${p.round ? ` rx="${p.round}"` : ""}${p.stroke ? ` stroke="${p.stroke}" stroke-width="2"` : ""}/>`;
      if (p.kind === "image") return `<image x="${n(p.x)}" y="${n(p.y)}" width="${n(p.width)}" height="${n(p.height)}" href="${p.canvas.toDataURL("image/png")}"/>`;
      return `<text x="${n(p.x)}" y="${n(p.y)}" fill="${p.fill}" font-size="${p.size}"${p.mono ? ` font-family="${escapeXml(MONO)}"` : ""}${p.bold ? ' font-weight="600"' : ""}${p.anchor === "start" ? "" : ` text-anchor="${p.anchor}"`} xml:space="preserve">${escapeXml(p.words)}</text>`;
    });
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.height}" viewBox="0 0 ${this.width} ${this.height}" font-family="${escapeXml(SANS)}">\n${drawn.join("\n")}\n</svg>\n`;
  }
  png() {
    const canvas = Object.assign(document.createElement("canvas"), { width: this.width * SHARP, height: this.height * SHARP });
    const pen = canvas.getContext("2d");
    pen.scale(SHARP, SHARP);
    for (const p of this.parts) {
      if (p.kind === "rect") {
        pen.beginPath();
        pen.roundRect(p.x, p.y, p.width, p.height, p.round);
        if (p.fill) { pen.fillStyle = p.fill; pen.fill(); }
        if (p.stroke) { pen.strokeStyle = p.stroke; pen.lineWidth = 2; pen.stroke(); }
      } else if (p.kind === "image") pen.drawImage(p.canvas, p.x, p.y, p.width, p.height);
      else {
        pen.font = `${p.bold ? "600 " : ""}${p.size}px ${p.mono ? MONO : SANS}`;
        pen.textAlign = p.anchor === "middle" ? "center" : p.anchor;
        pen.fillStyle = p.fill;
        pen.fillText(p.words, p.x, p.y);
      }
    }
    return pngOf(canvas);
  }
  async save(name, kind) {
    saveFile(`${name}.${kind}`, kind === "svg" ? new Blob([this.svg()], { type: "image/svg+xml" }) : await this.png());
  }
}

// What was checked, and what attention does not say, under a picture.
function foot(drawing, app, y) {
  const checked = app.tab().checked;
  drawing.text(EDGE, y, `${checked ? `checked: ${checked}` : "not checked"} · clearhead`, drawing.colors.muted, { size: 11 });
  drawing.text(EDGE, y + 16, app.about.caveat, drawing.colors.muted, { size: 11 });
}

// The lines of text that are in the window, of every head beside each other.
export function textDrawing(app, view, title, heads) {
  const { lines, wide, high } = view.inSight();
  const { dark } = app;
  const panes = Math.max(1, heads.length);
  const drawing = new Drawing(Math.max(560, panes * wide + 2 * EDGE), lines.length * high + 130, dark);
  const { colors } = drawing;
  const shades = Array.from({ length: TEXT_SHADES + 1 }, (_, n) => ink(n / TEXT_SHADES, dark));
  drawing.text(EDGE, 32, shownToken(title, 200), colors.ink, { size: 17, bold: true });
  heads.forEach(({ head, role, least, most }, p) => {
    const x = EDGE + p * wide;
    drawing.text(x, 58, `${head} ${role ?? ""}`.trim(), colors.ink, { bold: true });
    if (most) drawing.text(x + wide - 24, 58, `${least} to ${most}`, colors.muted, { size: 11, anchor: "end" });
  });
  lines.forEach((tokens, n) => {
    const y = 72 + n * high;
    for (const { pane, x, width, words, shade, mark } of tokens) {
      const left = EDGE + pane * wide + x;
      const seen = shade !== HIDDEN_SHADE;
      if (seen && shade) drawing.rect(left, y + 2, width, high - 4, css(shades[shade]), { round: 3 });
      if (mark) drawing.rect(left + 1, y + 3, width - 2, high - 6, null, { round: 3, stroke: mark === "chosen" ? colors.accent : colors.cross });
      drawing.text(left + 1, y + 19, words, !seen ? colors.muted : shade ? readableOn(shades[shade]) : colors.ink, { size: 15 });
    }
  });
  foot(drawing, app, 72 + lines.length * high + 26);
  return drawing;
}

// The grid of heads with its maps, colors and figures: cells = [{ r, c, name, value, back, front, canvas, faint }].
export function gridDrawing(app, title, legend, cells, each) {
  const rows = Math.max(...cells.map(({ r }) => r)) + 1;
  const across = Math.max(...cells.map(({ c }) => c)) + 1;
  const pictures = cells.some(({ canvas }) => canvas?.width > 1);
  const [wide, high] = [Math.max(each, 34), pictures ? Math.max(each, 34) + 18 : Math.min(Math.max(each, 24), 40)];
  const drawing = new Drawing(Math.max(560, across * (wide + 4) + 60, legend.length * 6.6 + 2 * EDGE), rows * (high + 4) + 150, app.dark);
  const { colors } = drawing;
  drawing.text(EDGE, 32, shownToken(title, 200), colors.ink, { size: 17, bold: true });
  drawing.text(EDGE, 54, legend, colors.muted, { size: 12 });
  const [left, top] = [EDGE + 24, 88];
  for (let c = 0; c < across; c += 1) drawing.text(left + c * (wide + 4) + wide / 2, top - 6, String(c), colors.muted, { size: 11, anchor: "middle" });
  for (const { r, c, layer, value, back, front, canvas } of cells) {
    const [x, y] = [left + c * (wide + 4), top + r * (high + 4)];
    if (c === 0) drawing.text(left - 7, y + high / 2 + 4, String(layer), colors.muted, { size: 11, anchor: "end" });
    drawing.rect(x, y, wide, high, back, { round: 4 });
    if (canvas?.width > 1) {
      drawing.rect(x + 3, y + 3, wide - 6, wide - 6, colors.page, { round: 3 });
      drawing.image(x + 3, y + 3, wide - 6, wide - 6, canvas);
    }
    drawing.text(x + wide / 2, pictures ? y + high - 5 : y + high / 2 + 4, value, front, { size: wide < 60 || value.length > 9 ? 9 : 12, anchor: "middle" });
  }
  foot(drawing, app, top + rows * (high + 4) + 24);
  return drawing;
}
