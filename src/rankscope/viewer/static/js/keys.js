// Keyboard control. Everything can be done without a mouse.

import { json, show } from "./api.js";
import { byId, fill, h, announce } from "./dom.js";
import { time } from "./format.js";
import { zoomed } from "./layout.js";

const HELP = [
  ["W / S", "zoom in / out (also + / -, Ctrl + wheel, pinch)"],
  ["A / D", "pan left / right (also arrow keys, Shift + wheel)"],
  ["Up / Down", "scroll the tracks"],
  ["F", "show the whole run"],
  ["Z", "zoom to the selection"],
  ["drag", "select a time range; the panel shows what runs in it"],
  ["click, Enter", "select a slice; the panel shows its details"],
  ["[ / ]", "previous / next slice with the same name"],
  [", / .", "previous / next slice in the same row"],
  ["O", "expand or collapse the rank of the selection, or the first visible rank"],
  ["P", "pin or unpin this rank"],
  ["{ / }", "move a pinned rank up / down"],
  ["N", "next finding"],
  ["/", "search; Enter goes to the first result, ] to the next"],
  ["1 – 8", "tabs of the panel"],
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
    const typing = target.matches("input, textarea, select");
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
  t: (app) => app.toggleTheme(),
  o: (app) => app.toggle(currentRank(app)),
  p: (app) => pin(app),
  "{": (app) => move(app, -1), "}": (app) => move(app, 1),
  n: (app) => app.panels.nextFinding(),
  "]": (app) => sameName(app, "next"), "[": (app) => sameName(app, "previous"),
  ".": (app) => neighbour(app, 1), ",": (app) => neighbour(app, -1),
  ...Object.fromEntries(Array.from({ length: 9 }, (_, at) => [String(at + 1), (/** @type {any} */ app) => app.panels.choose(at)])),
};

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
  return app.store.view.slice?.rank ?? app.timeline.at(200, 40).rank ?? app.ranks[0];
}

/** @param {import("./app.js").App} app */
function pin(app) {
  const rank = currentRank(app);
  const { pinned } = app.store.view;
  app.store.set({ pinned: pinned.includes(rank) ? pinned.filter((other) => other !== rank) : [...pinned, rank] });
}

/** @param {import("./app.js").App} app @param {number} by */
function move(app, by) {
  const rank = currentRank(app);
  const pinned = app.store.view.pinned.includes(rank) ? [...app.store.view.pinned] : [...app.store.view.pinned, rank];
  const from = pinned.indexOf(rank);
  const to = Math.min(Math.max(from + by, 0), pinned.length - 1);
  pinned.splice(to, 0, ...pinned.splice(from, 1));
  app.store.set({ pinned });
  announce(`rank ${rank} is at position ${to + 1}`);
}

/** @param {import("./app.js").App} app */
function toSelection(app) {
  const { area } = app.store.view;
  const slice = app.panels.slice;
  if (area) app.show(area[0], area[1], { history: true });
  else if (slice) app.goTo(slice, { zoom: true });
}

/** @param {import("./app.js").App} app @param {"next" | "previous"} direction */
async function sameName(app, direction) {
  const name = app.panels.slice?.name ?? app.searched;
  if (!name) return announce("select a slice first");
  const at = app.panels.slice?.start_ns ?? app.store.view.begin;
  try {
    const { found } = await json("find", { name, at: Math.round(at), direction, rank: app.panels.slice?.rank });
    return found ? app.goTo(found) : announce(`no ${direction} ${name}`);
  } catch (error) {
    return show(error);
  }
}

/** @param {import("./app.js").App} app @param {number} by */
async function neighbour(app, by) {
  const slice = app.panels.slice;
  if (!slice) return announce("select a slice first");
  try {
    const { found } = await json("neighbour", { rank: slice.rank, segment: slice.segment, id: slice.id, by });
    return found ? app.goTo(found) : announce("no further slice in this row");
  } catch (error) {
    return show(error);
  }
}

/** @param {import("./app.js").App} app @param {HTMLElement} target */
function escape(app, target) {
  byId("message").hidden = true;
  byId("found").hidden = true;
  target.blur();
  if (!app.store.view.slice && !app.store.view.area) return;
  app.timeline.marks = [];
  app.timeline.arrows = [];
  app.store.set({ slice: null, area: null }, { history: true });
}

export function help() {
  const dialog = /** @type {HTMLDialogElement} */ (byId("help"));
  fill(dialog, h("h2", {}, "Keys"), h("dl", {}, HELP.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
    h("p", { class: "quiet" }, "The address contains the state of the page: share it to show the same view."),
    h("button", { class: "plain", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}
