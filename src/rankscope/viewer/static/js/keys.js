// Keyboard control. Everything can be done without a mouse.

import { json, show } from "./api.js";
import { byId, fill, h, announce } from "./dom.js";
import { time } from "./format.js";
import { AXIS, GUTTER, RANKS, trackKey, zoomed } from "./layout.js";

const HELP = [
  ["W / S", "zoom in / out (also + / -, Ctrl + wheel, pinch)"],
  ["A / D", "pan left / right (also arrow keys, Shift + wheel, Shift + drag)"],
  ["Up / Down", "scroll the tracks"],
  ["Home", "show everything: all ranks over the whole run"],
  ["F", "the whole time; the ranks stay as they are"],
  ["Z", "zoom to the selection"],
  ["drag", "select a time range, or a box of tracks; the panel sums it up"],
  ["click, Enter", "select a slice; the panel shows its details"],
  ["[ / ]", "previous / next hit of the search, or slice with the same name"],
  [", / .", "previous / next slice in the same row"],
  ["O", "expand or collapse the rank of the selection, or the first visible rank"],
  ["N / P", "next / previous finding"],
  ["K, Shift + K", "pin the track under the pointer, or its rank; click a track's label"],
  ["{ / }", "move the pinned track or rank under the pointer up / down"],
  ["G", "all flows of the selected op: arrows from each visible one to what it launches"],
  ["M, Shift + M", "make a mark under the pointer; list the marks"],
  ["/", "search; Enter goes to the first name that is listed, ] and [ to the next and previous"],
  ["1 – 9, 0", "tabs of the panel"],
  ["R", "times from the start of the run, or of the step"],
  ["C", "clocks: aligned by collectives, or the wall clock of each rank"],
  ["T", "light or dark theme"],
  ["Esc", "close, or clear the selection"],
];

/** @param {import("./app.js").App} app */
export function listenToKeys(app) {
  byId("help-button").addEventListener("click", help);
  byId("theme-button").addEventListener("click", () => app.toggleTheme());
  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    const { value } = /** @type {HTMLInputElement} */ (target);
    const typing = target.matches("input, textarea, select") && (event.key !== "Home" || (value !== "" && target.matches("[type=search], [type=text], textarea")));
    if (event.key === "Escape") return escape(app, target);
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return undefined;
    const action = ACTIONS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const inPanel = target.closest("aside") !== null;
    if (!action || (inPanel && event.key.startsWith("Arrow"))) return undefined;
    event.preventDefault();
    return action(app, event);
  });
}

/** @type {Record<string, (app: import("./app.js").App, event: KeyboardEvent) => void>} */
const ACTIONS = {
  w: (app) => zoom(app, 0.6), "+": (app) => zoom(app, 0.6), "=": (app) => zoom(app, 0.6),
  s: (app) => zoom(app, 1 / 0.6), "-": (app) => zoom(app, 1 / 0.6),
  a: (app) => pan(app, -0.25), ArrowLeft: (app) => pan(app, -0.25),
  d: (app) => pan(app, 0.25), ArrowRight: (app) => pan(app, 0.25),
  ArrowUp: (app) => app.timeline.box.scrollBy(0, -80),
  ArrowDown: (app) => app.timeline.box.scrollBy(0, 80),
  f: (app) => app.fit(),
  z: (app) => toSelection(app),
  "/": () => byId("search").focus(),
  "?": () => help(),
  c: (app) => app.store.set({ clocks: app.store.view.clocks === "raw" ? "" : "raw" }, { history: true }),
  r: (app) => fromStep(app),
  t: (app) => app.toggleTheme(),
  Home: (app) => app.home(),
  o: (app) => expand(app),
  k: (app, event) => pin(app, event.shiftKey),
  g: (app) => flows(app),
  m: (app, event) => (event.shiftKey ? app.marks.open() : app.marks.add()),
  "{": (app) => move(app, -1), "}": (app) => move(app, 1),
  n: (app) => app.walk(1),
  p: (app) => app.walk(-1),
  "]": (app) => app.search.step(1), "[": (app) => app.search.step(-1),
  ".": (app) => neighbour(app, 1), ",": (app) => neighbour(app, -1),
  ...Object.fromEntries(Array.from({ length: 10 }, (_, at) => [String((at + 1) % 10), (/** @type {any} */ app) => app.panels.choose(at)])),
};

/** @param {import("./app.js").App} app */
function fromStep(app) {
  app.store.set({ axis: app.store.view.axis === "step" ? "" : "step" });
  announce(`times from the start of the ${app.store.view.axis || "run"}`);
}

/** @param {import("./app.js").App} app @param {number} factor */
function zoom(app, factor) {
  const { begin, end } = app.store.view;
  const at = app.pointerTime ?? (begin + end) / 2;
  app.show(...zoomed(begin, end, at, factor));
  announce(`${time(app.store.view.end - app.store.view.begin)} shown`);
}

/** @param {import("./app.js").App} app @param {number} share */
function pan(app, share) {
  const { begin, end } = app.store.view;
  const by = (end - begin) * share;
  app.show(begin + by, end + by);
}

/** @param {import("./app.js").App} app */
function currentRank(app) {
  const row = rowUnderPointer(app);
  return app.store.view.slice?.rank ?? (row && row.type !== "ranks" ? row.rank : app.ranks[0]);
}

/** @param {import("./app.js").App} app */
function expand(app) {
  const row = rowUnderPointer(app);
  if (row?.type === "ranks") app.fold(RANKS, row.number);
  else app.toggle(currentRank(app));
}

/** The row under the pointer; the first one where the pointer is elsewhere.
 * @param {import("./app.js").App} app */
function rowUnderPointer(app) {
  return app.timeline.at(...(app.pointer ?? [GUTTER + 1, AXIS + 1])).row;
}

/** @param {import("./app.js").App} app @param {boolean} wholeRank */
function pin(app, wholeRank) {
  const row = rowUnderPointer(app);
  if (!wholeRank && row?.type === "track") return app.pinTrack(trackKey(row.rank, row.track));
  const rank = currentRank(app);
  const { pinned } = app.store.view;
  return app.store.set({ pinned: pinned.includes(rank) ? pinned.filter((other) => other !== rank) : [...pinned, rank] });
}

/** @param {import("./app.js").App} app @param {number} by */
function move(app, by) {
  const row = rowUnderPointer(app);
  const { pins, pinned } = app.store.view;
  if (row?.type === "track" && row.pinned) return app.store.set({ pins: moved(pins, trackKey(row.rank, row.track), by) });
  const rank = currentRank(app);
  const order = moved(pinned.includes(rank) ? pinned : [...pinned, rank], rank, by);
  app.store.set({ pinned: order });
  return announce(`rank ${rank} is at position ${order.indexOf(rank) + 1}`);
}

/** @template T @param {T[]} list @param {T} item @param {number} by */
function moved(list, item, by) {
  const rest = list.filter((other) => other !== item);
  rest.splice(Math.min(Math.max(list.indexOf(item) + by, 0), rest.length), 0, item);
  return rest;
}

/** Arrows from every visible slice with the name of the selected one to what it launches; again: none.
 * @param {import("./app.js").App} app */
async function flows(app) {
  const { timeline, panels: { slice } } = app;
  if (!slice) return announce("select an op or a launch first");
  const shown = timeline.flows.length > 0;
  timeline.flows = [];
  timeline.redraw();
  if (shown) return announce("flows hidden");
  try {
    const [begin, end] = timeline.timesOf(slice.rank);
    const answer = await json("flows", { rank: slice.rank, name: slice.name, begin, end });
    timeline.flows = answer.flows;
    timeline.redraw();
    return announce(`${answer.flows.length} flows of ${slice.name}${answer.more ? ", the longest ones" : ""}`);
  } catch (error) {
    return show(error);
  }
}

/** @param {import("./app.js").App} app */
function toSelection(app) {
  const { area } = app.store.view;
  const slice = app.panels.slice;
  if (area) app.show(area[0], area[1], { history: true });
  else if (slice) app.goTo(slice, { zoom: true });
}

/** @param {import("./app.js").App} app @param {number} by */
async function neighbour(app, by) {
  const slice = app.panels.slice;
  if (!slice) return announce("select a slice first");
  try {
    const { found: neighbour } = await json("neighbour", { rank: slice.rank, segment: slice.segment, id: slice.id, by });
    return neighbour ? app.goTo(neighbour) : announce("no further slice in this row");
  } catch (error) {
    return show(error);
  }
}

/** @param {import("./app.js").App} app @param {HTMLElement} target */
function escape(app, target) {
  byId("message").hidden = true;
  app.search.close();
  app.search.walked = null;
  target.blur();
  if (!app.store.view.slice && !app.store.view.area) return;
  app.store.set({ slice: null, area: null, box: [] }, { history: true });
}

export function help() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  fill(dialog, h("h2", {}, "Keys"), h("dl", {}, HELP.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("p", { class: "quiet" }, "Back and Forward go through zooms, selections and tabs. Share has the command that opens this view for a colleague."),
    h("button", { class: "plain", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}
