// Layers down, heads across: each head a link, colored by a metric, with a small picture of its map.
import { el, renew } from "./dom.js";
import { figure, isNamed, placeIn, roleColor, shadeColors } from "./heads.js";
import { paintThumbnail } from "./painter.js";

const GAP = 4;
const SMALL = 62; // pixels: cells below have no picture
const TINY = 38; // and below have no figure
const LARGEST = 116;
const AUTOMATIC = 3e10; // cells of all maps together of which pictures are made unasked

export class HeadGrid {
  // rest(head) the pointer or the keyboard rests on a head.
  constructor(app, rest) {
    Object.assign(this, { app, rest, cells: new Map(), heads: [], control: null, queue: [], drawing: 0 });
    this.table = el("table.headgrid");
    this.element = el("div.gridbox", null, this.table);
    this.sizer = new ResizeObserver(() => this.size());
    this.sizer.observe(this.element);
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.table.addEventListener("pointerover", (event) => this.over(event));
    this.table.addEventListener("focusin", (event) => this.over(event));
    this.watcher = typeof IntersectionObserver === "undefined" ? null : new IntersectionObserver((seen) => {
      for (const { isIntersecting, target } of seen) if (isIntersecting) this.want(target.dataset.head);
    }, { rootMargin: "120px" });
  }
  over(event) {
    const head = event.target.closest?.("[data-head]")?.dataset.head;
    if (head) this.rest(head);
  }

  show(tab, where, grid) {
    this.stop();
    this.heads = grid.heads;
    this.layer = { tab: tab.id, ...where };
    this.cells.clear();
    const layers = [...new Set(grid.heads.map(({ layer }) => layer))].sort((a, b) => a - b);
    this.rows = layers.map((layer) => grid.heads.filter((head) => head.layer === layer));
    this.across = Math.max(1, ...this.rows.map((row) => row.length));
    const tokens = tab.sequences?.find(({ seq }) => seq === where.seq)?.T ?? tab.tokens ?? 0;
    this.long = tokens > 4096; // then one picture is a long pass over its head
    this.automatic = grid.heads.length * tokens * tokens <= AUTOMATIC;
    renew(this.table,
      el("caption.hush", null, "Layers down, heads across. Arrow keys move, Enter opens a head."),
      el("thead", null, el("tr", null, el("td", { "aria-hidden": "true" }), Array.from({ length: this.across }, (_, n) => el("th", { scope: "col" }, el("span.hush", null, "head "), n)))),
      el("tbody", null, this.rows.map((row, r) => el("tr", null, el("th", { scope: "row" }, el("span.hush", null, "layer "), layers[r]),
        row.map((head, c) => el("td", null, this.cell(head, r, c)))))));
    this.current = this.rows[0]?.[0]?.head;
    this.size();
  }
  cell(head, r, c) {
    const canvas = head.hasMap === false ? null : el("canvas", { width: 1, height: 1, "aria-hidden": "true" });
    const value = el("span.value");
    const name = el("span.name", { "aria-hidden": "true" }, head.head);
    const link = el("a.headcell", { href: this.app.address({ place: "head", head: head.head }), "data-head": head.head, tabindex: r || c ? -1 : 0 }, name, canvas ?? el("span.nomap"), value);
    this.cells.set(head.head, { head, link, canvas, value, r, c, drawn: "" });
    return link;
  }

  // Colors, labels, and which heads stand back.
  color(metric, range, role) {
    const { dark } = this.app;
    this.table.classList.toggle("roles", metric.key === "role");
    for (const { head, link, value } of this.cells.values()) {
      const words = isNamed(head.role) ? head.role : head.role ?? "role not known";
      const said = metric.key === "role" ? words : figure(head[metric.key]);
      const hue = metric.key === "role" ? roleColor(head.role, dark) : null;
      const place = metric.key === "role" ? null : placeIn(range, head[metric.key]);
      const colors = hue ? { back: hue, text: dark ? "#10161a" : "#fff" } : place === null ? null : shadeColors(place, dark);
      link.style.setProperty("--back", colors?.back ?? "var(--wash)");
      link.style.setProperty("--front", colors?.text ?? "var(--muted)");
      link.classList.toggle("none", !colors);
      value.textContent = metric.key === "role" ? (isNamed(head.role) ? head.role : head.role ?? "–") : said;
      link.classList.toggle("back", Boolean(role) && head.role !== role);
      const label = `head ${head.head}: ${metric.key === "role" ? words : `${metric.label} ${said}, ${words}`}`;
      link.setAttribute("aria-label", label);
      link.title = label;
    }
  }

  // For a picture: each cell with its colors as they are.
  asData() {
    return [...this.cells.values()].map(({ head, link, canvas, value, r, c }) => {
      const style = getComputedStyle(link);
      return { r, c, layer: head.layer, value: value.textContent, back: style.backgroundColor, front: style.color, canvas: link.classList.contains("drawn") && this.each >= SMALL ? canvas : null };
    });
  }

  size() {
    const room = this.element.clientWidth;
    if (!room || !this.rows) return;
    const each = Math.max(22, Math.min(LARGEST, Math.floor((room - 30) / this.across) - GAP));
    if (each === this.each) return this.watch();
    this.each = each;
    this.table.style.setProperty("--cell", `${each}px`);
    this.table.classList.toggle("small", each < SMALL);
    this.table.classList.toggle("tiny", each < TINY);
    this.watch();
  }

  // Pictures, of what is in sight, a few at a time.
  watch() {
    this.watcher?.disconnect();
    if (this.each < SMALL || !this.automatic) return;
    for (const { link, canvas, drawn } of this.cells.values()) if (canvas && drawn !== this.look()) this.watcher?.observe(link);
  }
  look() { return `${this.each} ${this.app.dark}`; }
  want(head) {
    const cell = this.cells.get(head);
    if (!cell?.canvas || cell.drawn === this.look() || this.queue.includes(head)) return;
    this.queue.push(head);
    this.next();
  }
  async next() {
    if (this.drawing >= (this.long ? 1 : 3) || !this.queue.length) return;
    const head = this.queue.shift();
    const cell = this.cells.get(head);
    this.control ??= new AbortController();
    const { signal } = this.control;
    this.drawing += 1;
    try {
      const side = Math.round(Math.max(16, this.each - 6) * Math.min(2, devicePixelRatio || 1));
      Object.assign(cell.canvas, { width: side, height: side });
      const look = this.look();
      if (await paintThumbnail(this.app, cell.canvas, { ...this.layer, head, reduce: "max" }, { scale: "log", signal })) {
        cell.drawn = look;
        cell.link.classList.add("drawn");
      }
    } catch (error) {
      if (!signal.aborted) this.app.fail(error);
    } finally {
      this.drawing -= 1;
      if (!signal.aborted) this.next();
    }
  }
  stop() {
    this.control?.abort();
    this.control = null;
    this.queue = [];
    this.watcher?.disconnect();
  }

  key(event) {
    const at = this.cells.get(event.target.dataset?.head);
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -1e9], End: [0, 1e9] }[event.key];
    if (!at || !by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const row = this.rows[Math.max(0, Math.min(this.rows.length - 1, at.r + by[0]))];
    const to = this.cells.get(row[Math.max(0, Math.min(row.length - 1, at.c + by[1]))].head);
    at.link.tabIndex = -1;
    to.link.tabIndex = 0;
    to.link.focus();
  }
}
