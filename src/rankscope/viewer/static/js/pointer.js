// Mouse, wheel and touch on the tracks.

import { byId, fill, h } from "./dom.js";
import { moment, time } from "./format.js";
import { GUTTER, zoomed } from "./layout.js";

const DRAG_PIXELS = 4;

/** @param {import("./app.js").App} app */
export function listenToPointer(app) {
  const { canvas, box } = app.timeline;
  const toTime = (/** @type {number} */ x) => app.store.view.begin + (x - GUTTER) * app.timeline.nsPerPixel;
  /** @type {{ x: number, y: number } | null} */
  let down = null;
  let dragging = false;

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    down = { x: event.offsetX, y: event.offsetY };
    dragging = false;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    app.pointerTime = event.offsetX > GUTTER ? toTime(event.offsetX) : undefined;
    if (down && down.x > GUTTER && Math.abs(event.offsetX - down.x) > DRAG_PIXELS) {
      dragging = true;
      const [from, to] = [toTime(Math.min(down.x, event.offsetX)), toTime(Math.max(down.x, event.offsetX))];
      app.store.set({ area: [Math.round(from), Math.round(to)] });
    }
    if (!down) tooltip(app, event);
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = dragging;
    down = null;
    dragging = false;
    if (moved) return app.choose(app.store.view.area);
    return click(app, event);
  });
  canvas.addEventListener("pointerleave", () => {
    app.pointerTime = undefined;
    byId("tooltip").hidden = true;
  });
  canvas.addEventListener("dblclick", (event) => {
    const { hit } = app.timeline.at(event.offsetX, event.offsetY);
    if (hit) app.show(hit.start - hit.duration * 0.1, hit.start + hit.duration * 1.1, { history: true });
  });
  box.addEventListener("wheel", (event) => {
    const { begin, end } = app.store.view;
    if (event.ctrlKey || event.metaKey) { // browsers report a pinch on a touchpad like this
      event.preventDefault();
      app.show(...zoomed(begin, end, toTime(event.offsetX), Math.exp(event.deltaY * 0.004)));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = (event.deltaX || event.deltaY) * app.timeline.nsPerPixel;
      app.show(begin + by, end + by);
    }
  }, { passive: false });
}

/** @param {import("./app.js").App} app @param {PointerEvent} event */
function click(app, event) {
  const found = app.timeline.at(event.offsetX, event.offsetY);
  if (found.header && found.rank !== undefined) return app.toggle(found.rank);
  if (!found.hit) return app.store.set({ area: null, slice: null });
  const { rank, segment, id } = found.hit;
  app.timeline.marks = [];
  return app.store.set({ slice: { rank, segment, id }, area: null, tab: "selection" }, { history: true });
}

/** @param {import("./app.js").App} app @param {PointerEvent} event */
function tooltip(app, event) {
  const box = byId("tooltip");
  const { hit } = app.timeline.at(event.offsetX, event.offsetY);
  app.timeline.canvas.style.cursor = hit ? "pointer" : "default";
  box.hidden = !hit;
  if (!hit) return;
  const { begin, end } = app.store.view;
  fill(box, h("b", {}, hit.name),
    h("span", {}, `${time(hit.duration)} at ${moment(hit.start, end - begin)}${hit.count > 1 ? ` · longest of ${hit.count} slices in this pixel` : ""}`));
  const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const top = event.clientY + 18 + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}
