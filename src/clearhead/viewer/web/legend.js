// The legend of colors with its numbers, the hatched swatch of what is hidden, and what a pixel means.
import { diverging, ink, legendMarks, MOST_TIMES, pixel } from "./colors.js";
import { el, renew, say } from "./dom.js";

const WIDE = 180;

export class Legend {
  constructor() {
    this.meaning = el("p.meaning", { id: "map-meaning", "data-field": "meaning" });
    this.strip = el("canvas.ramp", { width: WIDE, height: 1, "aria-hidden": "true" });
    this.marks = el("div.ramp-marks", { "aria-hidden": "true" });
    this.hiddenKey = el("span.hidden-key", null, el("i"), "hidden");
    this.element = el("div.legend", null, this.meaning, el("div.ramp-box", { role: "img", "aria-label": "color scale" }, this.strip, this.marks), this.hiddenKey);
  }
  show({ scale, dark, meaning, difference }) {
    say(this.meaning, meaning);
    const look = `${scale} ${dark} ${difference}`;
    if (this.look === look) return;
    this.look = look;
    const ctx = this.strip.getContext("2d");
    const image = ctx.createImageData(WIDE, 1);
    const out = new Uint32Array(image.data.buffer);
    for (let n = 0; n < WIDE; n += 1) out[n] = pixel(difference ? diverging((2 * n) / (WIDE - 1) - 1, dark) : ink(n / (WIDE - 1), dark));
    ctx.putImageData(image, 0, 0);
    renew(this.marks, marksOf(scale, difference).map(([at, text]) => {
      const mark = el("span", null, text);
      mark.style.setProperty("--at", `${100 * at}%`);
      return mark;
    }));
    this.element.querySelector(".ramp-box").setAttribute("aria-label", `color scale, ${scale === "log" ? "logarithmic" : "linear"}`);
  }
}

function marksOf(scale, difference) {
  if (!difference) return legendMarks(scale);
  return scale === "log" ? [[0, `B ${MOST_TIMES}×`], [0.5, "equal"], [1, `A ${MOST_TIMES}×`]] : [[0, "−1"], [0.25, "−.5"], [0.5, "0"], [0.75, ".5"], [1, "1"]];
}
