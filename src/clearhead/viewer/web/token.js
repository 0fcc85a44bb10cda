// Not built yet.
import { el } from "./dom.js";

export function tokenPlace(app) {
  const element = el("section", null, "token");
  return { element, show() {}, leave() {} };
}
