// A table whose columns sort: real table markup, the sort in aria-sort, buttons in the heads.
import { el, renew } from "./dom.js";
import { grouped } from "./ticks.js";
import { sortedBy } from "./ranking.js";

const AT_FIRST = 200; // rows; the others on request

// columns: [{ key, label, title, read(record) -> what sorts, cell(record) -> nodes or text, number, first: "down"|"up", rowHead,
//   when(record) -> whether it says something of a record; of none, the column is not shown }]
// sorted({ key, down }) is called when a head is pressed; row(tr, record) may add to each row.
export function sortTable({ label, columns, sorted, row }) {
  const body = el("tbody");
  const more = el("button.more", { type: "button", hidden: true, onclick: () => { all = true; fill(); } });
  const heads = new Map();
  let records = [];
  let order = { key: null, down: false };
  let all = false;

  const labelLine = el("caption.hush", null, label);
  const top = el("tr", null, columns.map((column) => {
    const arrow = el("span.arrow", { "aria-hidden": "true" });
    const button = el("button.sort", { type: "button", title: column.title, onclick: () => press(column) }, el("span", null, column.label), arrow);
    const cell = el(column.number ? "th.number" : "th", { scope: "col" }, button);
    heads.set(column.key, { cell, arrow });
    return cell;
  }));
  const table = el("table.sorted", null, labelLine, el("thead", null, top), body);
  const element = el("div.tabled", null, el("div.scroll", { role: "region", "aria-label": label, tabindex: 0 }, table), more);

  function press(column) {
    const down = order.key === column.key ? !order.down : column.first ? column.first === "down" : Boolean(column.number);
    sorted({ key: column.key, down });
  }
  function fill() {
    const column = columns.find((each) => each.key === order.key);
    const ordered = column ? sortedBy(records, column.read, order.down) : records;
    const shown = all ? ordered : ordered.slice(0, AT_FIRST);
    const said = columns.filter(({ when }) => !when || records.some(when));
    for (const each of columns) heads.get(each.key).cell.hidden = !said.includes(each);
    renew(body, shown.map((record) => {
      const line = el("tr", null, said.map((each) =>
        el(each.rowHead ? "th" : each.number ? "td.number" : "td", each.rowHead ? { scope: "row" } : null, each.cell(record))));
      row?.(line, record);
      return line;
    }));
    more.hidden = shown.length === ordered.length;
    more.textContent = `Show all ${grouped(ordered.length)}`;
  }
  return {
    element,
    // Shows these records in this order.
    show(found, { key, down }) {
      records = found;
      order = { key, down };
      for (const [name, { cell, arrow }] of heads) {
        const here = name === key;
        if (here) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
        arrow.textContent = here ? (down ? "▾" : "▴") : "";
      }
      fill();
    },
  };
}
