// The address: all that is seen, as a hash, so that a link shows the same view. Pure functions.

const PLACES = ["model", "head", "token", "compare"];

const whole = (text) => {
  const n = Number(text);
  return /^\d{1,10}$/.test(text) && Number.isSafeInteger(n) ? n : undefined;
};
const number = (text) => {
  const n = Number(text);
  return /^-?\d{1,10}(\.\d{1,12})?$/.test(text) && Number.isFinite(n) ? n : undefined;
};
const span = (text) => { const n = number(text); return n > 0 ? n : undefined; };
const oneOf = (...words) => (text) => (words.includes(text) ? text : undefined);
const text = (given) => (given.length <= 300 ? given : undefined);
const word = (given) => (/^[\w.-]{1,60}$/.test(given) ? given : undefined);
const headName = (given) => (/^\d{1,5}\.\d{1,5}$/.test(given) ? given : undefined);
const headNames = (given) => {
  const names = given.split(",");
  return names.length <= 4 && names.every(headName) ? names : undefined;
};

const WHERE = { tab: text, seq: whole, batch: whole };
const VIEW = { x: number, y: number, w: span, pool: oneOf("max", "mean"), color: oneOf("linear", "log") };
const FIELDS = {
  model: { ...WHERE, color: word, sort: word, down: oneOf("1"), role: text, pick: headName },
  head: { ...WHERE, ...VIEW, i: whole, j: whole },
  token: { ...WHERE, heads: headNames, way: oneOf("from", "to"), j: whole, q: text, pool: VIEW.pool, color: VIEW.color },
  compare: { ...WHERE, tab2: text, seq2: whole, batch2: whole, ...VIEW, show: oneOf("both", "difference"), i: whole, j: whole },
};
const PATHS = {
  model: [],
  head: [["head", headName]],
  token: [["i", whole]],
  compare: [["head", headName], ["head2", headName]],
};

// "#/head/3.5?x=10" -> { state: { place: "head", head: "3.5", x: 10 }, complaints: [] }.
// What cannot be read is left out, and said in one line each.
export function readAddress(hash) {
  const complaints = [];
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean);
  const place = parts[0] ?? "model";
  if (!PLACES.includes(place)) {
    return { state: { place: "model" }, complaints: [`there is no place ${quoted(place)}: this is the model`] };
  }
  const state = { place };
  PATHS[place].forEach(([name, read], n) => {
    const given = decoded(parts[n + 1] ?? "");
    if (given === "") return;
    const value = read(given);
    if (value === undefined) complaints.push(`${quoted(given)} is no ${name === "i" ? "position" : "head (such as 3.5)"}`);
    else state[name] = value;
  });
  for (const [name, given] of new URLSearchParams(query)) {
    const read = Object.hasOwn(FIELDS[place], name) ? FIELDS[place][name] : null;
    const value = read?.(given);
    if (value === undefined) complaints.push(`the address says ${quoted(`${name}=${given}`)}, which means nothing here`);
    else if (given !== "") state[name] = value;
  }
  return { state, complaints };
}

export function writeAddress(state) {
  const place = PLACES.includes(state.place) ? state.place : "model";
  const path = [place];
  for (const [name] of PATHS[place]) {
    if (state[name] === undefined || state[name] === null) break;
    path.push(encodeURIComponent(String(state[name])));
  }
  const query = [];
  for (const name of Object.keys(FIELDS[place])) {
    const value = state[name];
    if (value === undefined || value === null || value === "") continue;
    if (Array.isArray(value) && !value.length) continue;
    query.push(`${name}=${encodeURIComponent(shortNumber(value)).replace(/%2C/g, ",").replace(/%20/g, "+")}`);
  }
  return `#/${path.join("/")}${query.length ? `?${query.join("&")}` : ""}`;
}

// What stays the same when one goes to another place: the run, the sequence, and what fits there.
export function moved(state, changes) {
  if (!changes.place || changes.place === state.place) return { ...state, ...changes };
  const next = {};
  const known = [...Object.keys(WHERE), ...(changes.place === "head" || changes.place === "compare" ? ["head", "pool"] : [])];
  if (state.place !== "model" && changes.place !== "model") known.push("color");
  for (const name of known) if (state[name] !== undefined) next[name] = state[name];
  return { ...next, ...changes };
}

function shortNumber(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toFixed(Math.abs(value) < 100 ? 4 : 1)));
}
function decoded(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}
function quoted(given) {
  return `"${given.length > 40 ? `${given.slice(0, 39)}…` : given}"`;
}
