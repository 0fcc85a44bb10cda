// Search for a token, or jump to a position.
import { el } from "./dom.js";

export function searchBox(app, { pick }) {
  const input = el("input", { type: "search", placeholder: "token or position", "aria-label": "Search for a token or jump to a position" });
  input.addEventListener("change", () => { if (/^\d+$/.test(input.value)) pick(Number(input.value)); });
  return { element: el("span.search", null, input), show() {}, focus() { input.focus(); } };
}
