// Not built yet.
import { el } from "./dom.js";

export function headPlace(app) {
  const element = el("section", null, "head");
  return { element, show() {}, leave() {} };
}
