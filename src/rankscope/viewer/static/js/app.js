// The application: the run, the view, and the parts that draw it.

import { byId, announce } from "./dom.js";
import { time } from "./format.js";
import { clamp, ordered } from "./layout.js";
import { Overview } from "./overview.js";
import { readPalette } from "./palette.js";
import { Panels } from "./panels/panels.js";
import { Timeline } from "./timeline.js";
import { drawTwin } from "./twin.js";

/** @typedef {{ title: string, ranks: number[], begin_ns: number, end_ns: number, kinds: string[], tile_width: number,
 *   titles?: string[], steps: { step: number, start_ns: number, dur_ns: number }[], clocks?: any,
 *   reports: { name: string, question: string, by: string[] }[] }} Run */

export class App {
  /** @param {Run} run @param {import("./state.js").Store} store */
  constructor(run, store) {
    this.run = run;
    this.store = store;
    this.scratch = document.createElement("canvas");
    this.palette = readPalette(run.kinds);
    /** @type {Map<string, Map<number, number>>} values by which ranks can be sorted */
    this.orders = new Map();
    /** @type {number | undefined} time under the pointer */
    this.pointerTime = undefined;
    this.searched = "";
    this.overview = new Overview(this);
    this.timeline = new Timeline(this);
    this.panels = new Panels(this);
    store.listen((view, changed) => {
      if (changed.has("open")) this.timeline.loadTracks();
      if (changed.has("begin") || changed.has("sort") || changed.has("pinned")) this.overview.draw();
      if (changed.has("open") || changed.has("sort") || changed.has("pinned")) drawTwin(this);
      this.timeline.redraw();
      this.panels.changed(changed);
    });
    new ResizeObserver(() => this.redraw()).observe(this.timeline.box);
  }

  /** Ranks in display order. */
  get ranks() {
    const { sort, pinned } = this.store.view;
    return ordered(this.run.ranks, pinned, sort === "rank" ? null : this.orders.get(sort) ?? null);
  }

  redraw() {
    this.overview.draw();
    this.timeline.redraw();
  }

  /** Read the colours again, after a change of theme. */
  recolor() {
    this.palette = readPalette(this.run.kinds);
    this.redraw();
  }

  /** Clear a canvas and set its size for the screen's resolution.
   * @param {HTMLCanvasElement} canvas @param {number} height */
  prepare(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.imageSmoothingEnabled = false;
    g.clearRect(0, 0, width, height);
    return g;
  }

  /** An image on a canvas, so that it can be drawn enlarged; valid until the next call.
   * @param {ImageData} image */
  picture(image) {
    const { scratch } = this;
    if (scratch.width < image.width) scratch.width = image.width;
    if (scratch.height < image.height) scratch.height = image.height;
    const g = /** @type {CanvasRenderingContext2D} */ (scratch.getContext("2d", { willReadFrequently: true }));
    g.putImageData(image, 0, 0);
    return scratch;
  }

  /** Show a time range.
   * @param {number} begin @param {number} end @param {{ history?: boolean }} [how] */
  show(begin, end, how) {
    const [from, to] = clamp(begin, end, this.run.begin_ns, this.run.end_ns);
    this.store.set({ begin: Math.round(from), end: Math.round(to) }, how); // the URL holds whole ns
  }

  fit() {
    this.show(this.run.begin_ns, this.run.end_ns, { history: true });
    announce(`whole run, ${time(this.run.end_ns - this.run.begin_ns)}`);
  }

  /** Expand a rank and scroll to it.
   * @param {number} rank */
  reveal(rank) {
    const { open } = this.store.view;
    if (!open.includes(rank)) this.store.set({ open: [...open, rank] });
    this.timeline.scrollTo(rank);
  }

  /** @param {number} rank */
  toggle(rank) {
    const { open } = this.store.view;
    this.store.set({ open: open.includes(rank) ? open.filter((other) => other !== rank) : [...open, rank] });
    announce(`rank ${rank} ${open.includes(rank) ? "collapsed" : "expanded"}`);
  }

  /** Select a slice and show it with some time around it.
   * @param {{ rank: number, segment: number, id: number, track: number, depth?: number, start_ns: number, dur_ns: number }} slice
   * @param {{ zoom?: boolean }} [how] */
  async goTo(slice, how = {}) {
    const { begin, end, open } = this.store.view;
    const inside = slice.start_ns >= begin && slice.start_ns + slice.dur_ns <= end && slice.dur_ns > (end - begin) / 400;
    if (how.zoom || !inside) {
      const margin = Math.max(slice.dur_ns * 4, 1000);
      this.show(slice.start_ns - margin, slice.start_ns + slice.dur_ns + margin, { history: true });
    }
    if (!open.includes(slice.rank)) this.store.set({ open: [...open, slice.rank] });
    this.store.set({ slice: { rank: slice.rank, segment: slice.segment, id: slice.id }, tab: "selection" }, { history: true });
    this.panels.slice = slice; // keys that are pressed before its details arrive apply to it
    await this.timeline.loadTracks();
    this.timeline.scrollTo(slice.rank, slice);
  }

  /** @param {[number, number] | null} area */
  choose(area) {
    this.store.set({ area, ...(area ? { slice: null, tab: "selection" } : {}) }, { history: Boolean(area) });
  }

  /** @param {string} theme */
  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    this.store.set({ theme });
    this.recolor();
  }

  toggleTheme() {
    this.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    announce(`${document.documentElement.dataset.theme} theme`);
  }
}

/** @param {string} requested */
export function startTheme(requested) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = requested || (dark ? "dark" : "light");
}

/** @param {Run} run */
export function describe(run) {
  if (run.titles) {
    byId("title").textContent = `A: ${run.titles[0]}  ·  B: ${run.titles[1]}  ·  first steps aligned`;
    document.title = `${run.title} – rankscope`;
    return;
  }
  const ranks = `${run.ranks.length} rank${run.ranks.length === 1 ? "" : "s"}`;
  const steps = run.steps.length ? `steps ${run.steps[0].step}–${run.steps[run.steps.length - 1].step}` : "no steps";
  byId("title").textContent = [run.title, ranks, steps, run.clocks?.text].filter(Boolean).join("  ·  ");
  document.title = `${run.title} – rankscope`;
}
