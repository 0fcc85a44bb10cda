// Not built yet.
import { el } from "./dom.js";

export function comparePlace(app) {
  const element = el("section", null, "compare");
  return { element, show() {}, leave() {} };
}
