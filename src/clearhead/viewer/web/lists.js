// What stands beside the text: the largest weights of a head, and the heads that link two tokens.
import { el, renew } from "./dom.js";
import { grouped, longWeight, shortWeight, shownToken } from "./ticks.js";
import { largest, totals } from "./ranking.js";
import { times } from "./heads.js";

// The largest weights of one head as a table. side: { head, role, values, uniformOf(n), raw(n), pick(n), way, chosen, other, most }
export function largestList({ head, role, values, uniformOf, raw, pick, way, other, most }) {
  const found = largest(values, most);
  const { seen } = totals(values);
  const held = found.reduce((sum, n) => sum + values[n], 0);
  const top = found.length ? values[found[0]] : 0;
  const reads = way !== "to";
  const words = !seen ? (reads ? "sees no token" : "no token may see it")
    : reads ? `${found.length === seen ? `all ${grouped(seen)}` : `the ${grouped(found.length)} largest of ${grouped(seen)}`} hold ${heldWords(held, found.length === seen)} of the weight`
      : `the largest of ${grouped(seen)} tokens that may read it`;
  const table = el("table.largest", null,
    el("caption", null, el("b.mono", null, head), role ? ` ${role}` : "", el("span.quietly", null, words)),
    el("thead", null, el("tr", null, el("th.number", { scope: "col" }, "position"), el("th", { scope: "col" }, "token"),
      el("th.number", { scope: "col" }, "weight"), el("th.number", { scope: "col", title: "how many times the weight that equal attention would put there" }, "× equal"))),
    el("tbody", null, found.map((n) => {
      const bar = el("span.bar", { "aria-hidden": "true" });
      bar.style.setProperty("--share", top > 0 ? values[n] / top : 0);
      return el(n === other ? "tr.other" : "tr", null,
        el("td.number", null, grouped(n)),
        el("th", { scope: "row" }, el("button.token", { type: "button", "data-pick": n, "aria-label": `token ${n}, ${shownToken(raw(n), 40)}: which heads link it`,
          onclick: () => pick(n) }, shownToken(raw(n), 18))),
        el("td.number.weight", { title: longWeight(values[n]) }, bar, el("span", null, exactly(values[n]))),
        el("td.number", null, times(values[n], uniformOf(n))));
    })));
  return table;
}

// All tokens hold all of it, unless a learned sink has its part; a few never do, however near they come.
function heldWords(held, every) { return held < 0.995 ? shortWeight(held) : every ? "all" : "over .99"; }

// A weight with four digits: .4312, 3.214e-5.
export function exactly(p) {
  if (!(p > 0)) return Number.isNaN(p) ? "NaN" : "0";
  if (p >= 0.99995) return "1";
  return p >= 0.001 ? p.toFixed(4).replace(/^0/, "") : p.toExponential(2);
}

// The heads that link a query to a key. links: [{ head, weight, score, rank, uniform }]; address(head) of the
// map at that cell; shown: heads beside the text now; show(head) puts one there.
export function linkList(box, { links, heads, query, key, raw, rawQuery, address, shown, show, close, turned, refused }) {
  const seen = links.filter(({ weight }) => weight === weight && weight !== null);
  const role = new Map(heads.map((each) => [each.head, each.role]));
  const first = seen.slice(0, 12);
  const rest = seen.slice(12);
  const rows = (list) => list.map((link) => el("tr", null,
    el("th", { scope: "row" }, el("button.token", { type: "button", "aria-pressed": String(shown.includes(link.head)), title: "show this head beside the text", onclick: () => show(link.head) }, link.head)),
    el("td.does", null, role.get(link.head) ?? ""),
    el("td.number.weight", { title: longWeight(link.weight) }, shareBar(link.weight / (seen[0].weight || 1)), el("span", null, exactly(link.weight))),
    el("td.number", null, link.rank ? grouped(link.rank) : "–"),
    el("td.number", null, times(link.weight, link.uniform)),
    el("td", null, el("a", { href: address(link.head), "aria-label": `head ${link.head}: its map at this cell` }, "map"))));
  const body = el("tbody", null, rows(first));
  const more = rest.length ? el("button.more", { type: "button", onclick: () => { body.append(...rows(rest)); more.remove(); } }, `${grouped(rest.length)} more heads`) : null;
  renew(box,
    el("div.linkhead", null, el("h2", null, "Heads that link the two"), el("button.quiet.icon", { type: "button", "aria-label": "Close", onclick: close }, "×")),
    el("p.twotokens", null, named(query, rawQuery(query)), el("span", null, " reads "), named(key, raw(key)), turned ? el("span.quietly", null, "The other way round nobody may look.") : null),
    seen.length
      ? el("div.scroll", null, el("table.largest.links", null, el("thead", null, el("tr", null, el("th", { scope: "col" }, "head"), el("th", { scope: "col" }, "role"),
        el("th.number", { scope: "col" }, "weight"), el("th.number", { scope: "col", title: "1: no other key of this row has more" }, "rank"), el("th.number", { scope: "col" }, "× equal"), el("th", { scope: "col" }, el("span.hush", null, "map")))), body))
      : el("p.quietly", null, refused ? `${refused[0].toUpperCase()}${refused.slice(1)}.` : "No head lets either of the two see the other."),
    more);
}

export function named(n, raw) {
  return el("span.named", null, el("span.at", null, `[${grouped(n)}]`), " ", el("span.mono.rawtoken", null, shownToken(raw, 24)));
}

function shareBar(weight) {
  const bar = el("span.bar", { "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.min(1, weight));
  return bar;
}

// What is made anew keeps the focus where its label is the same.
export function keepingFocus(box, work) {
  const label = box.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  work();
  if (label) [...box.querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === label)?.focus({ preventScroll: true });
}
