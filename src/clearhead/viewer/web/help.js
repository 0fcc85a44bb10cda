// The help sheet: keys of each place, and what the numbers mean.
import { el, renew } from "./dom.js";
import { metricsOf } from "./heads.js";

const EVERYWHERE = [["?", "this sheet"], ["Tab", "to the next control"], ["Esc", "closes, unpins, gives up"]];
const KEYS = {
  model: ["The model", [["← → ↑ ↓", "from head to head, in the grid"], ["Enter", "opens the head"]]],
  head: ["A head", [["wheel | pinch | + −", "zoom about the pointer"], ["drag | ← → ↑ ↓", "move the map; with Shift the cross-hair"], ["0", "everything"], ["Home End", "start and end of the diagonal"],
    ["d", "along the diagonal"], ["click | Enter", "pins the cell under the cross-hair; Esc unpins"], ["[ ]", "previous and next head"], ["/", "search; n and N the next and the previous match"]]],
  token: ["A token", [["click | Enter", "reads from this token"], ["Shift click | Shift Enter", "a second token: the heads that link the two"], ["s", "the next click picks the second token"],
    ["← → ↑ ↓ | Page | Home End", "move in the text"], [", | .", "the token before, the token after"], ["w", "what it reads, who reads it"], ["l", "linear or logarithmic shades"],
    ["c", "back to the chosen token"], ["/", "search; n and N the next and the previous match"]]],
  compare: ["Two heads", [["as in a head", "both maps move together; x turns to A minus B and back; a click opens the cell in its head"]]],
};
const MEANINGS = [
  ["weight", "how much of a query's attention a key gets: exp(score − lse), after the softmax. The weights of a row sum to 1, or less beside a learned sink. Each is computed from the kept q and k when it is looked at: nothing is sampled."],
  ["score", "what the softmax is taken of: q · k, scaled, with all that the model adds to it."],
  ["rank", "1 if no other key of the row has more; equals share a rank."],
  ["× equal", "how many times the weight that equal attention over all visible keys would put there."],
  ["shades of the text", "the darkest is the largest weight, or 8 times an equal share where that is more: a head that reads all tokens alike stays pale. The numbers stand beside each head."],
  ["a pixel", "zoomed out it stands for many weights: the largest of them, or their mean, as you choose; what it is stands under the map."],
  ["hatched", "nobody may look there. A weight of zero is not hatched."],
  ["received", "the sum of the weights that a key gets from all queries."],
];

export function helpSheet(app) {
  const body = el("div.helpbody");
  const close = el("button.quiet.icon", { type: "button", "aria-label": "Close", onclick: () => element.close() }, "×");
  const element = el("dialog.help", { "aria-label": "Help" }, el("header", null, el("h1", null, "Keys and words"), close), body);
  element.addEventListener("click", (event) => { if (event.target === element) element.close(); });
  document.body.append(element);

  function keys(place) {
    const [title, list] = KEYS[place];
    return el("section", null, el("h2", null, title), el("dl.keylist", null, list.map(([key, what]) => [el("dt", null, key.split(" | ").map((each, n) => [n ? ", " : "", el("kbd", null, each)])), el("dd", null, what)])));
  }
  return {
    element,
    open(place = app.state.place) {
      const order = [place, ...Object.keys(KEYS).filter((each) => each !== place)];
      renew(body,
        el("p.caveat", null, app.about.caveat),
        el("div.keys", null, keys(order[0]), el("section", null, el("h2", null, "Everywhere"), el("dl.keylist", null, EVERYWHERE.map(([key, what]) => [el("dt", null, el("kbd", null, key)), el("dd", null, what)]))),
          order.slice(1).map(keys)),
        el("h2", null, "What the numbers mean"),
        el("dl.meanings", null, [...MEANINGS, ...metricsOf(app).map(({ label, meaning }) => [label, meaning ?? ""])].map(([term, words]) => [el("dt", null, term), el("dd", null, words)])),
        el("p.quietly", null, `clearhead ${app.about.version ?? ""}. Rows are queries, columns are keys. A head is called layer.head, both from 0.`));
      if (!element.open) element.showModal();
      body.scrollTop = 0;
      close.focus();
    },
    close() { element.close(); },
  };
}
