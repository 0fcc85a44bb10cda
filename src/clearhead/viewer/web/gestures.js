// Wheel, drag, pinch and keys over a picture, turned into a few calls:
//   zoom(px, py, factor)  pan(dx, dy)  hover(px, py) or hover(null)  pick(px, py, touched)  grab(on)
// Pixels are those of the element.

const STILL = 5; // pixels that a finger or a mouse may slip and yet mean a click

export function listenTo(element, { zoom, pan, hover, pick, grab }) {
  const fingers = new Map();
  let travelled = 0;
  let pinched = false;
  const at = (event) => {
    const box = element.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const middle = () => {
    const all = [...fingers.values()];
    const x = all.reduce((sum, f) => sum + f.x, 0) / all.length;
    const y = all.reduce((sum, f) => sum + f.y, 0) / all.length;
    return { x, y, apart: all.length > 1 ? Math.hypot(all[0].x - all[1].x, all[0].y - all[1].y) : 0 };
  };

  element.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 33 : event.deltaMode === 2 ? 400 : 1;
    const turn = Math.max(-400, Math.min(400, event.deltaY * lines));
    const { x, y } = at(event);
    if (event.shiftKey && !event.ctrlKey) pan(-(event.deltaX || event.deltaY) * lines, 0);
    else zoom(x, y, Math.exp(-turn * (event.ctrlKey ? 0.011 : 0.0024)), true);
  }, { passive: false });

  element.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    if (!fingers.size) { travelled = 0; pinched = false; }
    fingers.set(event.pointerId, at(event));
    if (fingers.size > 1) pinched = true;
    element.setPointerCapture(event.pointerId);
    grab?.(true);
  });
  element.addEventListener("pointermove", (event) => {
    const now = at(event);
    if (!fingers.has(event.pointerId)) {
      if (event.pointerType !== "touch") hover(now.x, now.y);
      return;
    }
    const before = middle();
    const old = fingers.get(event.pointerId);
    travelled += Math.hypot(now.x - old.x, now.y - old.y);
    fingers.set(event.pointerId, now);
    const after = middle();
    if (fingers.size > 1 && before.apart > 0) zoom(after.x, after.y, after.apart / before.apart, false);
    if (travelled > STILL || fingers.size > 1) pan(after.x - before.x, after.y - before.y);
    if (event.pointerType !== "touch") hover(now.x, now.y);
  });
  const lift = (event) => {
    if (!fingers.delete(event.pointerId) || fingers.size) return;
    grab?.(false);
    const { x, y } = at(event);
    if (event.type === "pointerup" && travelled <= STILL && !pinched) pick(x, y, event.pointerType === "touch");
  };
  element.addEventListener("pointerup", lift);
  element.addEventListener("pointercancel", lift);
  element.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hover(null); });
}

// Keys of a map. act = { pan(dx, dy), zoom(factor), fit(), end(which), step(di, dj), pin(), unpin(), follow() };
// what acts on more than the map comes through more(key) -> true if it was meant.
export function mapKeys(event, act, more) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const arrows = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const [dx, dy] = arrows[event.key] ?? [0, 0];
  if (dx || dy) { if (event.shiftKey) act.step(-dy, -dx); else act.pan(dx, dy); }
  else if (event.key === "+" || event.key === "=") act.zoom(1.6);
  else if (event.key === "-" || event.key === "_") act.zoom(1 / 1.6);
  else if (event.key === "0") act.fit();
  else if (event.key === "Home") act.end(0);
  else if (event.key === "End") act.end(1);
  else if (event.key === "Enter") act.pin();
  else if (event.key === "Escape") act.unpin();
  else if (event.key === "d") act.follow();
  else if (!more?.(event.key)) return;
  event.preventDefault();
}
