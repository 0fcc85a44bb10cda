// The frame of the page: runs, places, the checked line, the theme, and who is shown now.
import { el, put, renew, say } from "./dom.js";
import { checkedSource, isAbort } from "./source.js";
import { moved, readAddress, writeAddress } from "./state.js";
import { tip } from "./tips.js";
import { TextCache, TileCache } from "./cache.js";
import { modelPlace } from "./model.js";
import { headPlace } from "./head.js";
import { tokenPlace } from "./token.js";
import { comparePlace } from "./compare.js";
import { helpSheet } from "./help.js";

const NAMES = { model: "Model", head: "Head", token: "Token", compare: "Compare" };
const MAKERS = { model: modelPlace, head: headPlace, token: tokenPlace, compare: comparePlace };

export async function startApp(source, root = document.getElementById("app")) {
  const app = new App(checkedSource(source), root);
  app.setTheme(stored("theme") ?? "");
  try {
    app.about = await source.about({});
    if (!app.about.tabs?.length) throw new Error("there is no run to show");
  } catch (error) {
    renew(root, el("p.boot", { role: "alert" }, `This page cannot open: ${error.message}.`));
    return app;
  }
  app.build();
  addEventListener("popstate", () => app.read());
  app.read();
  return app;
}

class App {
  constructor(source, root) {
    this.source = source;
    this.root = root;
    this.about = null;
    this.state = { place: "model" };
    this.places = {};
    this.current = null;
    this.tiles = new TileCache(source);
    this.texts = new TextCache(source);
    this.answers = new Map();
    this.themeWatchers = new Set();
    this.timer = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.setTheme(this.theme));
  }

  // Which run, sequence and batch element is meant: what every request of the source takes.
  tab(id = this.state.tab) { return this.about.tabs.find((tab) => tab.id === id) ?? this.about.tabs[0]; }
  where(state = this.state) { return { seq: state.seq ?? this.tab(state.tab).sequences?.[0]?.seq, batch: state.batch ?? 0 }; }

  // The heads of a run, and what one head's map is: asked once.
  grid(tab) { return this.once(`grid\n${tab}`, () => this.source.grid(tab, {})); }
  headInfo(tab, head, where) {
    const { seq, batch } = where;
    return this.once(`head\n${tab}\n${head}\n${seq}\n${batch}`, () => this.source.head(tab, head, { seq, batch }, {}));
  }
  once(key, ask) {
    if (!this.answers.has(key)) {
      if (this.answers.size > 2000) this.answers.clear();
      const answer = ask();
      this.answers.set(key, answer);
      answer.catch(() => this.answers.delete(key));
    }
    return this.answers.get(key);
  }

  // Goes to another view: a new entry of the history, unless { push: false }.
  go(changes, { push = true } = {}) {
    clearTimeout(this.timer);
    if (push) this.notice("");
    this.state = moved(this.state, changes);
    this.write(push);
    this.show();
  }
  // The view moved under the hand (zoom, pan): the address follows calmly, nothing is shown anew.
  drift(changes) {
    this.state = { ...this.state, ...changes };
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.write(false), 250);
  }
  address(changes) { return writeAddress(moved(this.state, changes)); }

  write(push) {
    const address = writeAddress(this.state);
    if (address === location.hash) return;
    try { history[push ? "pushState" : "replaceState"](null, "", address); } catch { /* a very strict browser: the view is right, only the address lags */ }
    this.links();
  }
  read() {
    clearTimeout(this.timer);
    const { state, complaints } = readAddress(location.hash);
    if (state.tab !== undefined && !this.about.tabs.some((tab) => tab.id === state.tab)) {
      complaints.push(`there is no run "${state.tab.slice(0, 40)}": this is ${this.about.tabs[0].name}`);
      delete state.tab;
    }
    this.state = state;
    this.notice(complaints.join("; "));
    this.show();
  }

  show() {
    const place = this.state.place;
    const tab = this.tab();
    this.links();
    this.proof(tab);
    if (tab.ready === false) { this.waitFor(tab); return; }
    if (this.current && this.current !== this.places[place]) this.current.leave?.();
    this.places[place] ??= MAKERS[place](this);
    this.current = this.places[place];
    if (this.main.firstChild !== this.current.element || this.main.childNodes.length > 1) renew(this.main, this.current.element);
    document.title = [this.state.head && place !== "model" ? `head ${this.state.head}` : NAMES[place], tab.name, "clearhead"].join(" · ");
    try {
      Promise.resolve(this.current.show(this.state)).catch((error) => this.fail(error));
    } catch (error) { this.fail(error); }
  }

  // A run that is still being made: said, with how far it is, and shown when it is there.
  async waitFor(tab) {
    this.current?.leave?.();
    this.current = null;
    const bar = el("progress", { max: 1, value: tab.progress ?? 0, "aria-label": "how far it is" });
    const words = el("p", null, `${tab.name} is being made …`);
    renew(this.main, el("section.waiting", null, words, bar));
    while (this.tab().id === tab.id && this.current === null) {
      await new Promise((done) => setTimeout(done, 400));
      try { this.about = await this.source.about({}); } catch (error) { this.fail(error); return; }
      const now = this.about.tabs.find((each) => each.id === tab.id);
      bar.value = now?.progress ?? 0;
      if (now && now.ready !== false) { if (this.tab().id === tab.id) this.show(); return; }
      if (now?.error) { say(words, now.error); return; }
    }
  }

  // One line for people; an aborted request is no failure.
  fail(error) {
    if (isAbort(error)) return;
    this.notice(error.message);
    if (!(error instanceof Error) || error instanceof TypeError || error instanceof ReferenceError) console.error(error);
  }
  notice(text) {
    say(this.noticeText, text ? `${text[0].toUpperCase()}${text.slice(1)}` : "");
    this.noticeLine.hidden = !text;
  }
  // One more thing to say of the same address.
  also(text) { this.notice(this.noticeLine.hidden ? text : `${this.noticeText.textContent}; ${text}`); }
  // Said to screen readers only.
  announce(text) { say(this.live, text); }

  get dark() { return document.documentElement.dataset.theme === "dark"; }
  setTheme(theme) {
    this.theme = theme === "dark" || theme === "light" ? theme : "";
    const dark = this.theme ? this.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.themeWatchers.forEach((watch) => watch(dark));
  }
  onTheme(watch) { this.themeWatchers.add(watch); return () => this.themeWatchers.delete(watch); }

  build() {
    this.tabList = el("nav.runs", { "aria-label": "Runs" });
    this.placeList = el("nav.places", { "aria-label": "Places" });
    this.proofLine = el("div.proof");
    this.noticeText = el("span");
    this.noticeLine = el("p.notice", { role: "alert", hidden: true }, this.noticeText,
      el("button.quiet", { type: "button", "aria-label": "Dismiss", onclick: () => this.notice("") }, "×"));
    this.live = el("div.hush", { role: "status", "aria-live": "polite" });
    this.main = el("main", { id: "place", tabindex: -1 });
    this.help = helpSheet(this);
    const themes = tip(el("button.quiet.icon", { type: "button", "aria-label": "Light or dark", onclick: () => {
      this.setTheme(this.dark ? "light" : "dark");
      store("theme", this.theme);
    } }, "◐"), "Light or dark");
    const help = tip(el("button.quiet.icon", { type: "button", "aria-label": "Help: keys and words", onclick: () => this.help.open() }, "?"), "Keys and words (?)");
    renew(this.root,
      el("header.top", null,
        el("a.brand", { href: "#/model" }, "clearhead"), this.tabList, this.placeList, el("div.tools", null, themes, help)),
      el("div.under", null, this.proofLine, this.noticeLine), this.main, this.live);
    addEventListener("keydown", (event) => {
      if (event.key !== "?" || event.target.closest?.("input, textarea, select, dialog[open]")) return;
      event.preventDefault();
      this.help.open();
    });
  }
  links() {
    const now = this.tab();
    renew(this.tabList, this.about.tabs.map((tab) =>
      el("a", { href: this.runAddress(tab), "aria-current": tab.id === now.id ? "true" : null }, tab.name)));
    const head = this.state.head ?? this.lastHead ?? this.firstHead();
    const at = this.state.i ?? this.lastRow ?? 0;
    if (this.state.head) this.lastHead = this.state.head;
    if (this.state.i !== undefined) this.lastRow = this.state.i;
    const to = {
      model: {}, head: { head }, token: { i: at, heads: head ? [head] : undefined },
      compare: { head, head2: this.state.head2 ?? this.otherHead(head) },
    };
    renew(this.placeList, Object.keys(NAMES).map((place) => el("a", {
      href: place === this.state.place ? writeAddress(this.state) : this.address({ place, ...to[place] }),
      "aria-current": place === this.state.place ? "page" : null,
    }, NAMES[place])));
  }
  runAddress(tab) {
    if (tab.id === this.tab().id) return writeAddress(this.state);
    return writeAddress({ place: "model", tab: tab.id });
  }
  firstHead() { return this.tab().first ?? "0.0"; }
  otherHead(head) {
    const [layer, n] = (head ?? "0.0").split(".").map(Number);
    const { heads = 1, layers = 1 } = this.tab();  // of the whole run: some layer has several
    return `${layer}.${n > 0 ? n - 1 : Number(heads > layers)}`;
  }
  proof(tab) {
    renew(this.proofLine, el("span.checked", null, tab.checked ? `checked: ${tab.checked}` : "not checked"), " ", el("span.caveat", null, this.about.caveat));
    const notes = tab.notes ?? [];
    if (notes.length) put(this.proofLine, " ", el("details.notes", null, el("summary", null, notes.length === 1 ? "1 note" : `${notes.length} notes`), notes.map((line) => el("span.note", null, line))));
  }
}

function stored(name) {
  try { return localStorage.getItem(`clearhead.${name}`); } catch { return null; }
}
function store(name, value) {
  try { localStorage.setItem(`clearhead.${name}`, value); } catch { /* a file from disk may not keep anything */ }
}
