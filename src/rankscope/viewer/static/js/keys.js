// The keyboard alone is enough for everything.

import { json, show } from "./api.js";
import { byId, fill, h, speak } from "./dom.js";
import { time } from "./format.js";
import { zoomed } from "./layout.js";

const HELP = [
  ["W / S", "zoom in, out (also + and -, wheel with Ctrl, pinch)"],
  ["A / D", "earlier, later (also arrow left, right, wheel with Shift)"],
  ["arrows up, down", "scroll the tracks"],
  ["F", "the whole run"],
  ["Z", "zoom to the selection"],
  ["drag", "choose a stretch of time: what fills it stands on the right"],
  ["click, Enter", "a slice: its arguments, its launch and op, how it compares"],
  ["[ and ]", "previous, next slice of the same name"],
  [", and .", "neighbours on the same row"],
  ["O", "open or close the rank of the selection, or the first in view"],
  ["P", "pin its rank to the top"],
  ["{ and }", "move a pinned rank up, down"],
  ["N", "next finding"],
  ["/", "search; Enter goes to the first, then ] to the next"],
  ["1 – 9", "the panels on the right"],
  ["C", "clocks: aligned by the collectives, or every rank's own"],
  ["T", "light or dark"],
  ["Esc", "close, or drop the selection"],
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
  o: (app) => app.toggle(rankInHand(app)),
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
  speak(`${time(app.store.view.end - app.store.view.begin)} in view`);
}

/** @param {import("./app.js").App} app @param {number} share */
function pan(app, share) {
  const { begin, end } = app.store.view;
  const by = (end - begin) * share;
  app.show(begin + by, end + by);
}

/** @param {import("./app.js").App} app */
function rankInHand(app) {
  return app.store.view.slice?.rank ?? app.timeline.at(200, 40).rank ?? app.ranks[0];
}

/** @param {import("./app.js").App} app */
function pin(app) {
  const rank = rankInHand(app);
  const { pinned } = app.store.view;
  app.store.set({ pinned: pinned.includes(rank) ? pinned.filter((other) => other !== rank) : [...pinned, rank] });
}

/** @param {import("./app.js").App} app @param {number} by */
function move(app, by) {
  const rank = rankInHand(app);
  const pinned = app.store.view.pinned.includes(rank) ? [...app.store.view.pinned] : [...app.store.view.pinned, rank];
  const from = pinned.indexOf(rank);
  const to = Math.min(Math.max(from + by, 0), pinned.length - 1);
  pinned.splice(to, 0, ...pinned.splice(from, 1));
  app.store.set({ pinned });
  speak(`rank ${rank} is number ${to + 1}`);
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
  if (!name) return speak("choose a slice first");
  const at = app.panels.slice?.start_ns ?? app.store.view.begin;
  try {
    const { found } = await json("find", { name, at: Math.round(at), direction, rank: app.panels.slice?.rank });
    return found ? app.goTo(found) : speak(`no ${direction} ${name}`);
  } catch (error) {
    return show(error);
  }
}

/** @param {import("./app.js").App} app @param {number} by */
async function neighbour(app, by) {
  const slice = app.panels.slice;
  if (!slice) return speak("choose a slice first");
  try {
    const { found } = await json("neighbour", { rank: slice.rank, segment: slice.segment, id: slice.id, by });
    return found ? app.goTo(found) : speak("no neighbour on this row");
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
    h("p", { class: "quiet" }, "Every picture is in the address: copy it to show somebody the same."),
    h("button", { class: "plain", onclick: () => dialog.close() }, "Close"));
  dialog.showModal();
}
