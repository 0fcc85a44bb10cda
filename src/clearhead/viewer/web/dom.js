// Elements made in one line. Text is always text: nothing here, or anywhere, parses markup.

// el("button.quiet", { type: "button", "aria-label": "Zoom in", onclick: f }, "text", child, ...)
export function el(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length) made.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else made.setAttribute(key, String(value));
  }
  put(made, ...children);
  return made;
}

// Appends; strings and numbers become text, nothing becomes nothing, lists are flattened.
export function put(parent, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
  return parent;
}

export function renew(parent, ...children) {
  parent.replaceChildren();
  return put(parent, ...children);
}

// Sets text only where it changed, so that readers of live regions are not told twice.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A labeled choice: choices are [value, label, meaning]; choose(value) is called on change.
export function choice(label, choices, value, choose, title) {
  const select = el("select", { "aria-label": label, title, onchange: () => choose(select.value) });
  for (const [key, text] of choices) select.append(el("option", { value: key }, text));
  select.value = value;
  return el("label.choice", null, el("span", null, label), select);
}

// Two or three exclusive buttons in one frame; returns { element, set(value) }.
export function segmented(label, choices, value, choose) {
  const buttons = choices.map(([key, text, title]) =>
    el("button", { type: "button", title, "data-key": key, onclick: () => { set(key); choose(key); } }, text));
  const set = (key) => buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.key === key)));
  set(value);
  return { element: el("div.segmented", { role: "group", "aria-label": label }, buttons), set };
}

export function saveFile(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export function pngOf(canvas) {
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("this picture is too large for the browser"))), "image/png"));
}

// A file name that every system takes.
export function fileName(...parts) {
  return parts.join("-").replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[._]+/, "").slice(0, 120);
}

// Calls at most once a frame, with the latest arguments.
export function perFrame(work) {
  let waiting = 0;
  let latest = [];
  const run = () => { waiting = 0; work(...latest); };
  const ask = (...args) => { latest = args; waiting ||= requestAnimationFrame(run); };
  ask.cancel = () => { cancelAnimationFrame(waiting); waiting = 0; };
  return ask;
}

// Calls once, when nothing was asked for ms milliseconds; .now() does it at once if something waits.
export function calmly(work, ms) {
  let timer = 0;
  let latest = null;
  const run = () => { clearTimeout(timer); timer = 0; const args = latest; latest = null; if (args) work(...args); };
  const ask = (...args) => { latest = args; clearTimeout(timer); timer = setTimeout(run, ms); };
  ask.now = run;
  ask.cancel = () => { clearTimeout(timer); timer = 0; latest = null; };
  return ask;
}
