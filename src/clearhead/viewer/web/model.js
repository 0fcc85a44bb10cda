// Not built yet.
import { el } from "./dom.js";

export function modelPlace(app) {
  const element = el("section", null, "model");
  return { element, show() {}, leave() {} };
}
