// The state of the view. All of it is in the URL, so a link shows the same view.

import { marksFrom, marksText } from "./marks.js";

/** @typedef {{ rank: number, segment: number, id: number }} SliceKey
 * @typedef {{ begin: number, end: number, open: number[], pinned: number[], slice: SliceKey | null,
 *   area: [number, number] | null, tab: string, report: string, by: string, sort: string, sql: string, theme: string, filter: string, clocks: string, axis: string,
 *   dock: string, size: number, finding: number, folds: string[], pins: string[], box: string[],
 *   marks: import("./marks.js").Mark[] }} View
 *   axis: "step": times count from the start of the step. size: of the panel, in px; 0: the default. finding: the one that is shown, from 0; -1: none. folds, pins: layout.js.
 *   box: the tracks that `area` is restricted to (layout.trackKey); none: all */

const WORDS = /** @type {const} */ (["tab", "report", "by", "sort", "sql", "theme", "filter", "clocks", "axis", "dock"]);

const MOVES = /** @type {(keyof View)[]} */ (["begin", "end", "slice", "area", "tab"]);
const RESTED = 400; // ms

/** @type {View} */
export const EMPTY = {
  begin: 0, end: 0, open: [], pinned: [], slice: null, area: null, tab: "findings", report: "breakdown", by: "", sort: "rank", sql: "",
  theme: "", filter: "", clocks: "", axis: "", dock: "bottom", size: 0, finding: -1, folds: ["more", "counters", "ranks"], pins: [], box: [], marks: [],
};

/** @param {View} view @returns {string} */
export function encode(view) {
  const words = new URLSearchParams();
  words.set("v", "1");
  words.set("t", `${Math.round(view.begin)}-${Math.round(view.end)}`);
  if (view.open.length) words.set("open", view.open.join(","));
  if (view.pinned.length) words.set("pin", view.pinned.join(","));
  if (view.slice) words.set("slice", `${view.slice.rank}.${view.slice.segment}.${view.slice.id}`);
  if (view.area) words.set("area", view.area.map(Math.round).join("-"));
  for (const name of WORDS) {
    if (view[name] && view[name] !== EMPTY[name]) words.set(name, view[name]);
  }
  if (view.size) words.set("size", String(view.size));
  if (view.finding >= 0) words.set("finding", String(view.finding + 1));
  if (view.folds.join() !== EMPTY.folds.join()) words.set("fold", view.folds.join(","));
  if (view.pins.length) words.set("tracks", view.pins.join(","));
  if (view.area && view.box.length) words.set("box", view.box.join(","));
  if (view.marks.length) words.set("marks", marksText(view.marks));
  return `#${words}`;
}

/** The state in a link; invalid parts get their defaults.
 * @param {string} hash @returns {Partial<View>} */
export function decode(hash) {
  const words = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {Partial<View>} */
  const view = {};
  const span = pair(words.get("t"));
  if (span) [view.begin, view.end] = span;
  view.open = numbers(words.get("open"));
  view.pinned = numbers(words.get("pin"));
  const key = (words.get("slice") ?? "").split(".").map(Number);
  view.slice = key.length === 3 && key.every(Number.isFinite) ? { rank: key[0], segment: key[1], id: key[2] } : null;
  view.area = pair(words.get("area"));
  for (const name of WORDS) {
    view[name] = words.get(name) ?? EMPTY[name];
  }
  view.size = numbers(words.get("size"))[0] ?? 0;
  view.finding = (numbers(words.get("finding"))[0] ?? 0) - 1;
  view.folds = words.has("fold") ? matching(words.get("fold"), /^(\d+:)?[a-z]+$/) : EMPTY.folds;
  view.pins = matching(words.get("tracks"), /^\d+\.\d+\.-?\d+$/);
  view.box = matching(words.get("box"), /^\d+\.\d+\.\d+$/);
  view.marks = marksFrom(words.get("marks"));
  return view;
}

/** @param {string | null} text @returns {[number, number] | null} */
function pair(text) {
  const match = /^(-?\d+)-(-?\d+)$/.exec(text ?? "");
  return match && Number(match[2]) > Number(match[1]) ? [Number(match[1]), Number(match[2])] : null;
}

/** @param {string | null} text */
function numbers(text) {
  return matching(text, /^\d+$/).map(Number);
}

/** @param {string | null} text @param {RegExp} valid */
function matching(text, valid) {
  return (text ?? "").split(",").filter((word) => valid.test(word));
}

/** The state and its listeners. */
export class Store {
  /** @param {View} view */
  constructor(view) {
    this.view = view;
    /** @type {((view: View, changed: Set<string>) => void)[]} */
    this.listeners = [];
    this.timer = 0;
    /** Whether the Back button is to undo what is not in the address yet. */
    this.moved = false;
  }

  /** @param {Partial<View>} change @param {{ history?: boolean }} [how] history: whether the Back button undoes it. Where nothing
   * is said it undoes zoom, selection and tab, once for all changes until the view rests: a wheel makes many. */
  set(change, how = {}) {
    const changed = new Set(Object.keys(change).filter((key) => /** @type {any} */ (change)[key] !== /** @type {any} */ (this.view)[key]));
    if (!changed.size) return;
    if (how.history) this.write();
    this.view = { ...this.view, ...change };
    this.moved ||= how.history ?? MOVES.some((name) => changed.has(name));
    clearTimeout(this.timer);
    if (how.history) this.write();
    else this.timer = window.setTimeout(() => this.write(), this.moved ? RESTED : 200);
    for (const listener of this.listeners) listener(this.view, changed);
  }

  /** Put the view into the address. */
  write() {
    clearTimeout(this.timer);
    const address = encode(this.view);
    if (address !== location.hash) history[this.moved ? "pushState" : "replaceState"](null, "", address);
    this.moved = false;
  }

  /** Show what the Back or Forward button has brought into the address; the frame stays as it is.
   * @param {Partial<View>} whole what is shown where the address says nothing */
  back(whole) {
    this.moved = false;
    const { theme, dock, size } = this.view;
    this.set({ ...EMPTY, ...whole, ...decode(location.hash), theme, dock, size }, { history: false });
  }

  /** @param {(view: View, changed: Set<string>) => void} listener */
  listen(listener) {
    this.listeners.push(listener);
  }
}
