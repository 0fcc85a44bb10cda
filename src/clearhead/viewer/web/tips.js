// One small note beside what the pointer or the keyboard rests on. Its text is also the
// element's description, so that a screen reader says it.
import { el, say } from "./dom.js";

let note = null;
let timer = 0;

// about: a text, or a function that gives one (called when the note is shown).
export function tip(element, about) {
  const show = () => { clearTimeout(timer); timer = setTimeout(() => showTip(element, typeof about === "function" ? about() : about), 250); };
  element.addEventListener("pointerenter", show);
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("focus", show);
  element.addEventListener("blur", hideTip);
  element.addEventListener("click", hideTip);
  if (typeof about === "string" && !element.hasAttribute("aria-label")) element.setAttribute("aria-description", about);
  return element;
}

function showTip(element, text) {
  if (!text || !element.isConnected) return;
  if (!note) {
    note = el("div.tip", { "aria-hidden": "true" });
    document.body.append(note);
    addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
    addEventListener("scroll", hideTip, { capture: true, passive: true });
  }
  say(note, text);
  note.classList.add("shown");
  const box = element.getBoundingClientRect();
  const own = note.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
  const below = box.bottom + 8 + own.height < innerHeight;
  note.style.setProperty("left", `${left}px`);
  note.style.setProperty("top", `${below ? box.bottom + 6 : Math.max(4, box.top - own.height - 6)}px`);
}

function hideTip() {
  clearTimeout(timer);
  note?.classList.remove("shown");
}
