// Search for a token, or jump to a position: one field. "the" finds tokens, ":12345" or "12345" goes there.
import { el, say } from "./dom.js";
import { isAbort } from "./source.js";
import { grouped } from "./ticks.js";
import { tip } from "./tips.js";

// What was typed: { position } for a number or :number, { q } for words; nothing for nothing. Pure.
// "=12" searches for a token that is a number.
export function asked(given) {
  const jump = /^\s*:?\s*([\d,]{1,14})\s*$/.exec(given);
  if (jump) return { position: Number(jump[1].replaceAll(",", "")) };
  const q = given.startsWith("=") && given.length > 1 ? given.slice(1) : given;
  return q === "" ? {} : { q };
}

// The match after (step 1) or before (step -1) a position, going round; null where there is none. Pure.
export function matchFrom(positions, at, step) {
  if (!positions.length) return null;
  if (step > 0) return positions.find((n) => n > at) ?? positions[0];
  return positions.findLast((n) => n < at) ?? positions[positions.length - 1];
}

// pick(position) shows one; at() is the position shown now, by default the one gone to last;
// found(positions) is told all matches;
// size() is how many positions there are. `q` of the address is kept where `address` is true.
export function searchBox(app, { pick, at, found = () => {}, size = () => Infinity }) {
  let positions = [];
  let total = 0;
  let last = null;
  let control = null;
  let here = -1;
  const input = el("input", { type: "search", placeholder: "token or position", autocomplete: "off", spellcheck: "false", enterkeyhint: "search",
    "aria-label": "Search for a token, or go to a position" });
  const count = el("span.count", { role: "status" });
  const back = tip(el("button.icon", { type: "button", "aria-label": "Previous match", onclick: () => step(-1) }, "↑"), "Previous match");
  const on = tip(el("button.icon", { type: "button", "aria-label": "Next match", onclick: () => step(1) }, "↓"), "Next match");
  const element = el("form.search", { role: "search", onsubmit: (event) => { event.preventDefault(); ask(1); } }, input, back, on, count);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); ask(event.shiftKey ? -1 : 1); }
    if (event.key === "Escape") { input.value = ""; clear(); input.blur(); }
  });
  input.addEventListener("search", () => { if (input.value === "") clear(); });
  input.title = "A part of a token, or of several with spaces. A number goes to that position; =12 searches for a token with 12.";
  buttons();

  function buttons() { for (const button of [back, on]) button.hidden = !positions.length; }
  function clear() {
    control?.abort();
    [positions, total, last, here] = [[], 0, null, -1];
    say(count, "");
    buttons();
    found(positions);
  }
  function goTo(n) { here = n; pick(n); }
  function step(way) {
    const n = matchFrom(positions, at ? at() : here, way);
    if (n === null) return;
    const rank = positions.indexOf(n) + 1;
    say(count, `${grouped(rank)} of ${grouped(total)}`);
    goTo(n);
  }
  async function ask(way) {
    const { position, q } = asked(input.value);
    if (position !== undefined) {
      if (position >= size()) { say(count, `there are ${grouped(size())} positions, from 0`); return; }
      say(count, "");
      goTo(position);
      return;
    }
    if (q === undefined) { clear(); return; }
    const where = app.where();
    const key = JSON.stringify([app.tab().id, where, q]);
    if (key !== last) {
      control?.abort();
      control = new AbortController();
      say(count, "searching …");
      try {
        const answer = await app.source.search(app.tab().id, q, where, { signal: control.signal });
        ({ positions, total } = answer);
        last = key;
      } catch (error) {
        if (!isAbort(error)) say(count, error.message);
        return;
      }
      buttons();
      found(positions);
      if (!positions.length) say(count, "not in this text");
    }
    step(way);
  }
  return {
    element,
    show(state) { if (last && JSON.parse(last)[0] !== app.tab().id) { input.value = ""; clear(); } if (state?.q && !input.value) { input.value = state.q; ask(1); } },
    focus() { input.focus(); input.select(); },
    next: step,
  };
}
