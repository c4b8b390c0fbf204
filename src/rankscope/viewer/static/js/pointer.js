// Mouse, wheel and touch on the tracks.

import { byId, fill, h } from "./dom.js";
import { time } from "./format.js";
import { GUTTER, RANKS, rankName, trackKey, zoomed } from "./layout.js";

const DRAG_PIXELS = 4;
const BOX_PIXELS = 14; // up or down: the drag is about the tracks that it touches
const HANDLE = 22; // width of the handle that folds a group, at the left of the gutter

/** @param {import("./app.js").App} app */
export function listenToPointer(app) {
  const { canvas, box } = app.timeline;
  const toTime = (/** @type {number} */ x) => app.store.view.begin + (x - GUTTER) * app.timeline.nsPerPixel;
  /** @type {{ x: number, y: number, begin: number, end: number, scrollTop: number, pans: boolean } | null} */
  let down = null;
  let dragging = false;
  /** @type {PointerEvent | undefined} */
  let last;
  app.timeline.drawn = () => { if (last && !byId("tooltip").hidden) tooltip(app, last); };
  const hide = () => {
    last = undefined;
    byId("tooltip").hidden = true;
  };

  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const { begin, end } = app.store.view;
    down = { x: event.offsetX, y: event.offsetY, begin, end, scrollTop: box.scrollTop, pans: event.shiftKey };
    dragging = false;
    hide();
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    app.pointerTime = event.offsetX > GUTTER ? toTime(event.offsetX) : undefined;
    app.pointer = [event.offsetX, event.offsetY];
    const moved = down ? Math.abs(event.offsetX - down.x) > DRAG_PIXELS || (down.pans && Math.abs(event.offsetY - down.y) > DRAG_PIXELS) : false;
    if (down?.pans && (moved || dragging)) {
      dragging = true;
      const by = (down.x - event.offsetX) * app.timeline.nsPerPixel;
      app.show(down.begin + by, down.end + by);
      box.scrollTop = down.scrollTop + down.y - event.offsetY;
    } else if (down && down.x > GUTTER && moved) {
      dragging = true;
      const [from, to] = [toTime(Math.min(down.x, event.offsetX)), toTime(Math.max(down.x, event.offsetX))];
      const box = Math.abs(event.offsetY - down.y) > BOX_PIXELS ? app.timeline.tracksBetween(down.y, event.offsetY) : [];
      app.store.set({ area: [Math.round(from), Math.round(to)], box });
    }
    if (!down) tooltip(app, last = event);
  });
  canvas.addEventListener("pointerup", (event) => {
    const [moved, panned] = [dragging, down?.pans];
    down = null;
    dragging = false;
    if (moved) return panned ? undefined : app.choose(app.store.view.area);
    return click(app, event);
  });
  canvas.addEventListener("pointercancel", () => { down = null; }); // a finger that scrolls
  canvas.addEventListener("pointerleave", () => {
    app.pointerTime = app.pointer = undefined;
    hide();
  });
  window.addEventListener("blur", hide);
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

/** What a click does besides selecting a slice, for the tooltip and the click.
 * @param {import("./app.js").App} app @param {PointerEvent} event @returns {{ text: string, act: () => void } | null} */
function actionAt(app, event) {
  const { row, hit } = app.timeline.at(event.offsetX, event.offsetY);
  if (!row || hit) return null;
  if (row.type === "ranks") return { text: `${row.open ? "fold" : "show"} the ${row.ranks.length} ranks of ${row.label}; the strip is their mean`, act: () => app.fold(RANKS, row.number) };
  if (row.type === "rank") return { text: `${row.open ? "collapse" : "expand"} ${rankName(row.rank)}`, act: () => app.toggle(row.rank) };
  const all = event.shiftKey ? "of all ranks" : `of ${rankName(row.rank)} (Shift: of all ranks)`;
  const rank = event.shiftKey ? undefined : row.rank;
  if (row.type === "group") return { text: `show ${row.group === "more" ? "these streams" : row.group} ${all}`, act: () => app.fold(row.group, rank) };
  if (event.offsetX < HANDLE && row.first) return { text: `fold ${row.group === "more" ? "these streams" : row.group} ${all}`, act: () => app.fold(row.group, rank) };
  if (event.offsetX < GUTTER && row.type === "track") {
    return { text: `${row.track.label}: ${row.pinned ? "unpin" : "pin above the others"}`, act: () => app.pinTrack(trackKey(row.rank, row.track)) };
  }
  return null;
}

/** @param {import("./app.js").App} app @param {PointerEvent} event */
function click(app, event) {
  const action = actionAt(app, event);
  if (action) return action.act();
  const { hit } = app.timeline.at(event.offsetX, event.offsetY);
  app.timeline.flows = [];
  if (!hit) return app.store.set({ area: null, box: [], slice: null });
  const { rank, segment, id } = hit;
  app.search.walked = null;
  app.store.set({ slice: { rank, segment, id }, area: null, box: [], tab: app.panels.tabOfSlice }, { history: true });
  app.panels.slice = { rank, segment, id, track: hit.track, depth: hit.row, name: hit.name, start_ns: app.axis.back(hit.start, rank), dur_ns: hit.duration }; // until its details are here
  return undefined;
}

/** @param {import("./app.js").App} app @param {import("./timeline.js").Hit} hit */
function whenOf({ timeline, axis }, { start, rank }) {
  const ns = axis.back(start, rank);
  return timeline.momentOf(ns, timeline.stepOf(ns, rank));
}

/** @param {import("./app.js").App} app @param {PointerEvent} event */
function tooltip(app, event) {
  const box = byId("tooltip");
  const { hit, row } = app.timeline.at(event.offsetX, event.offsetY);
  const action = actionAt(app, event);
  app.timeline.canvas.style.cursor = hit || action ? "pointer" : "default";
  box.hidden = !hit && !(action && (event.offsetX < GUTTER || row?.type === "ranks"));
  if (box.hidden) return;
  if (!hit) fill(box, h("span", {}, action?.text));
  else fill(box, h("b", {}, hit.name), h("span", {}, `${time(hit.duration)} at ${whenOf(app, hit)}${hit.count > 1 ? ` · longest of ${hit.count} slices in this pixel` : ""}`));
  const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
  const top = event.clientY + 18 + box.offsetHeight > window.innerHeight ? event.clientY - box.offsetHeight - 10 : event.clientY + 18;
  box.style.left = `${left}px`;
  box.style.top = `${top}px`;
}
