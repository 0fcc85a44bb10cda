// The help sheet: keys and words.
import { el } from "./dom.js";

export function helpSheet() {
  const element = el("dialog");
  document.body.append(element);
  return { open() { element.showModal(); }, close() { element.close(); } };
}
