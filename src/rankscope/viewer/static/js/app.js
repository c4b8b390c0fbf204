// The application: the run, the view, and the parts that draw it.

import { json, show } from "./api.js";
import { byId, announce } from "./dom.js";
import { time } from "./format.js";
import { Axis } from "./axis.js";
import { GROUPS, RANKS, SECOND, clamp, isFolded, groupsOf, naming, ordered, toggleFold, trackKey } from "./layout.js";
import { Marks } from "./marks.js";
import { Overview } from "./overview.js";
import { readPalette } from "./palette.js";
import { Panels } from "./panels/panels.js";
import { Search } from "./search.js";
import { EMPTY } from "./state.js";
import { LEAST_SHOWN, Timeline, sliceNumber } from "./timeline.js";
import { drawTwin } from "./twin.js";

/** @typedef {{ title: string, path: string, places: string[], ranks: number[], begin_ns: number, end_ns: number, kinds: string[], tile_width: number,
 *   titles?: string[], ends_ns?: number[], steps: import("./layout.js").Step[], second_steps?: import("./layout.js").Step[], clocks?: any, device?: string, world?: number,
 *   grid?: { title: string, ranks: number[], levels: { label: string, from: number, to: number }[][], stages: Record<string, number> },
 *   opens_on: Partial<import("./state.js").View> | null,
 *   reports: { name: string, question: string, by: string[] }[], renamed_reports: Record<string, string> }} Run opens_on: the tab of a run without a timeline
 * @typedef {{ ranks: number[], peers: number[], step: number | null, begin_ns: number, end_ns: number, groups: string[],
 *   slices: { rank: number, segment: number, id: number, track: number, depth: number }[], collective: import("./timeline.js").Collective | null,
 *   hot?: number[], passes?: { rank: number, start_ns: number, dur_ns: number, label: string }[], messages?: import("./timeline.js").Message[], bubbles?: any[],
 *   gap: { rank: number, span: [number, number], text: string } | null, headline: string, why: string }} Scene viewer/scenes.py */

export class App {
  /** @param {Run} run @param {import("./state.js").Store} store */
  constructor(run, store) {
    this.run = run;
    this.store = store;
    this.axis = new Axis(run);
    run.end_ns = this.axis.end; // what the page shows from now on are places on the axis
    if (run.titles) naming.first = "A ";
    this.scratch = document.createElement("canvas");
    this.palette = readPalette(run.kinds);
    /** @type {Map<string, Map<number, number>>} values by which ranks can be sorted */
    this.orders = new Map();
    /** @type {number | undefined} time under the pointer */
    this.pointerTime = undefined;
    /** @type {[number, number] | undefined} its place on the canvas of the tracks */
    this.pointer = undefined;
    /** @type {any[]} in the order of `stats`, each with its scene; empty until they are known */
    this.findings = [];
    /** @type {string[]} the reports that could be answered, and so were looked through */
    this.checked = [];
    /** @type {Promise<any[]> | undefined} */
    this.asked = undefined;
    /** @type {any} of two runs, what changed */
    this.diff = null;
    /** @type {Scene | null} of the finding that is shown */
    this.scene = null;
    /** @type {Set<number>} ranks that the others wait for, because of their host */
    this.late = new Set();
    /** @type {Map<number, Set<number>>} by rank, the slices that the shown finding is about */
    this.guilty = new Map();
    this.overview = new Overview(this);
    this.timeline = new Timeline(this);
    this.panels = new Panels(this);
    this.marks = new Marks(this);
    this.search = new Search(this);
    store.listen((view, changed) => {
      const order = ["finding", "sort", "pinned"].some((name) => changed.has(name));
      if (changed.has("finding")) this.setScene();
      if (!view.slice) this.timeline.forget();
      if (changed.has("open") || changed.has("pins")) this.timeline.loadTracks();
      if (order) this.overview.draw();
      else if (changed.has("begin") || changed.has("end")) this.overview.drawBrush();
      if (changed.has("open") || changed.has("folds") || order) drawTwin(this);
      this.timeline.redraw();
      this.panels.changed(changed);
    });
    new ResizeObserver(() => this.redraw()).observe(this.timeline.box);
  }

  /** Ranks in the order of the tracks: those of the shown finding are above the others, the other end of a message above the selected one. */
  get ranks() {
    const ranks = this.orderedBy(this.scene ? [...this.scene.ranks, ...this.scene.peers] : []);
    const beside = this.timeline?.peers?.beside ?? [];
    return ranks.flatMap((rank) => (rank === this.store.view.slice?.rank ? [...beside, rank] : beside.includes(rank) ? [] : [rank]));
  }

  /** A single rank: it is always expanded, with its host. */
  get isAlone() {
    return this.run.ranks.length === 1;
  }

  /** The groups that the tracks of many ranks are listed in, and the ranks that stand before them. */
  get rankGroups() {
    const { open, pinned, sort, slice } = this.store.view;
    const { ranks = [], peers = [] } = this.scene ?? {};
    const apart = new Set([...ranks, ...peers, ...(this.timeline?.peers?.beside ?? []), ...open, ...pinned, ...(slice ? [slice.rank] : [])]);
    return { groups: sort === "rank" ? groupsOf(this.run) : [], apart };
  }

  /** Ranks in the order of the map: those of a stage or group side by side. */
  get mapRanks() {
    const { grid, ranks } = this.run;
    const { sort, pinned } = this.store.view;
    return grid && sort === "rank" && !pinned.length && grid.ranks.length === ranks.length ? grid.ranks : this.orderedBy([]);
  }

  /** @param {number[]} leading */
  orderedBy(leading) {
    const { sort, pinned } = this.store.view;
    return ordered(this.run.ranks, pinned, sort === "rank" ? null : this.orders.get(sort) ?? null, leading);
  }

  /** What stands where there is no finding. */
  get checkedText() {
    return this.checked.length ? `No finding in: ${this.checked.join(", ")}.` : "No report can be answered from this recording.";
  }

  /** The finding that the headline is about: that of the address, or the first that is no limit; -1: none. An old address may name one that is gone. */
  get shownFinding() {
    const { finding } = this.store.view;
    return this.findings[finding] ? finding : this.firstProblem;
  }

  /** The number of the first fault, or of what else is wrong; limits come after them. -1: none. */
  get firstProblem() {
    return this.findings.findIndex(({ kind }) => kind !== "limit");
  }

  /** Whether the shown finding is a problem; information and limits are not coloured as one. */
  get isAlarming() {
    return !["info", "limit"].includes(this.findings[this.store.view.finding]?.severity);
  }

  /** The colour of what the shown finding points at. */
  get blame() {
    return this.palette.text[this.isAlarming ? "bad" : "accent"];
  }

  /** Whether the shown finding is about a rank. @param {number} rank */
  isHot(rank) {
    return (this.scene?.hot ?? this.scene?.ranks)?.includes(rank) ?? false;
  }

  /** The findings, requested once. @returns {Promise<any[]>} */
  loadFindings() {
    this.asked ??= json(this.run.titles ? "diff" : "findings").then((answer) => {
      if (this.run.titles) answer = differences(this, this.diff = answer);
      this.findings = answer.findings;
      this.checked = answer.facts.checked;
      this.late = new Set(this.findings.filter(({ kind, scene }) => kind === "fault" && scene.groups.includes("host")).flatMap(({ ranks }) => ranks));
      byId("late-key").hidden = !this.late.size;
      this.setScene();
      this.panels.countFindings();
      this.redraw();
      return this.findings;
    });
    return this.asked;
  }

  /** The colour of a time in which a rank runs nothing: in a step, a rank that the others wait for because of its host spends it by itself.
   * @param {number} rank @param {number} begin @param {number} end of the columns @param {number} columns */
  restOf(rank, begin, end, columns) {
    const [first, last] = [this.run.steps[0], this.run.steps[this.run.steps.length - 1]];
    if (!this.late.has(rank) || !first) return undefined;
    return (/** @type {number} */ at) => {
      const ns = begin + ((at + 0.5) * (end - begin)) / columns;
      return ns >= first.start_ns && ns < last.start_ns + last.dur_ns ? this.palette.late : this.palette.idle;
    };
  }

  setScene() {
    const { finding } = this.store.view;
    this.scene = this.findings[finding]?.scene ?? null;
    this.guilty = new Map();
    for (const { rank, segment, id } of this.scene?.slices ?? []) {
      if (!this.guilty.has(rank)) this.guilty.set(rank, new Set());
      this.guilty.get(rank)?.add(sliceNumber(segment, id));
    }
  }

  /** Show where a finding is seen: its ranks, step and slices.
   * @param {number} at @param {{ history?: boolean }} [how] */
  async showFinding(at, how = { history: true }) {
    if (!this.findings.length) return announce("no findings");
    if (!this.findings[at]) at = 0;
    const finding = this.findings[at];
    /** @type {Scene} */
    const scene = finding.scene;
    this.store.set({
      finding: at, begin: scene.begin_ns, end: scene.end_ns, open: scene.ranks, slice: null, area: null, tab: this.run.titles ? "diff" : "findings", filter: "",
      folds: [...GROUPS.filter((group) => !scene.groups.includes(group) && !(group === "host" && this.isAlone)), RANKS],
    }, how);
    this.timeline.box.scrollTop = 0;
    await this.timeline.loadTracks();
    const evidence = scene.slices.find((slice) => scene.ranks.includes(slice.rank));
    if (evidence) this.unfold(evidence.rank, evidence);
    if (evidence) this.timeline.scrollTo(evidence.rank, evidence);
    this.timeline.redraw();
    return announce(`finding ${at + 1} of ${this.findings.length}: ${finding.title}`);
  }

  /** The next or previous finding. @param {number} by */
  walk(by) {
    const count = this.findings.length;
    const { finding } = this.store.view;
    this.showFinding(count ? (finding < 0 && by < 0 ? count - 1 : (finding + by + count) % count) : -1).catch(show);
  }

  /** Everything: all ranks over the whole run. */
  home() {
    const { begin_ns: begin, end_ns: end } = this.run;
    this.store.set({ begin, end, open: this.isAlone ? this.run.ranks : [], finding: -1, slice: null, area: null, filter: "", folds: EMPTY.folds }, { history: true });
    announce(`all ranks, whole run, ${time(end - begin)}`);
  }

  /** Where a slice begins on the axis. @param {{ start_ns: number, rank: number } | null} slice */
  placeOf(slice) {
    return slice ? this.axis.of(slice.start_ns, slice.rank) : undefined;
  }

  /** Fold or unfold a group of tracks, of one rank or of all.
   * @param {string} group @param {number} [rank] */
  fold(group, rank) {
    this.store.set({ folds: toggleFold(this.store.view.folds, group, rank) });
    announce(`${group} ${isFolded(this.store.view.folds, rank ?? -1, group) ? "folded" : "unfolded"}${rank === undefined ? " on all ranks" : ""}`);
  }

  /** Pin a track above the others, or let it go. @param {string} key layout.trackKey */
  pinTrack(key) {
    const { pins } = this.store.view;
    this.store.set({ pins: pins.includes(key) ? pins.filter((other) => other !== key) : [...pins, key] });
    announce(`track ${pins.includes(key) ? "unpinned" : "pinned"}`);
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
    this.store.set(this.window(begin, end), how);
  }

  /** A time range inside the run, in whole ns, as the address holds them. @param {number} begin @param {number} end */
  window(begin, end) {
    const [from, to] = clamp(begin, end, this.run.begin_ns, this.run.end_ns).map(Math.round);
    return { begin: from, end: to };
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
   * @param {{ zoom?: boolean, stay?: boolean }} [how] stay: the tab of the panel stays */
  async goTo(slice, how = {}) {
    const { begin, end, open } = this.store.view;
    const place = this.placeOf(slice) ?? begin;
    const inside = place >= begin && place + slice.dur_ns <= end && slice.dur_ns > (end - begin) * LEAST_SHOWN;
    const margin = Math.max(slice.dur_ns * 4, 1000);
    this.store.set({
      ...(how.zoom || !inside ? this.window(place - margin, place + slice.dur_ns + margin) : {}), ...(open.includes(slice.rank) ? {} : { open: [...open, slice.rank] }),
      slice: { rank: slice.rank, segment: slice.segment, id: slice.id }, tab: how.stay ? this.panels.tab : this.panels.tabOfSlice,
    }, { history: true });
    this.panels.slice = slice; // keys that are pressed before its details arrive apply to it
    await this.timeline.loadTracks();
    this.unfold(slice.rank, slice);
    if (!this.timeline.scrollTo(slice.rank, slice) && this.store.view.filter) { // which leaves the slice's track out
      this.store.set({ filter: "" });
      this.timeline.scrollTo(slice.rank, slice);
    }
  }

  /** Unfold the group of a track. @param {number} rank @param {{ segment: number, track: number }} track */
  unfold(rank, track) {
    const match = this.timeline.tracks.get(rank)?.find((one) => trackKey(rank, one) === trackKey(rank, track));
    if (match && isFolded(this.store.view.folds, rank, match.group)) this.fold(match.group, rank);
  }

  /** @param {[number, number] | null} area */
  choose(area) {
    this.store.set({ area, ...(area ? { slice: null, tab: this.panels.tabOfArea } : { box: [] }) });
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

/** What changed between two runs, as findings that can be walked through: each is seen in a step of both, its ranks first. @param {App} app @param {any} diff */
function differences({ axis, run }, diff) {
  const at = axis.at.length >> 1;
  const margin = (axis.durations[at] ?? 0) * 0.01;
  const window = axis.at.length ? [axis.at[at] - margin, axis.at[at] + axis.durations[at] + margin].map(Math.round) : [run.begin_ns, run.end_ns];
  const findings = diff.findings.map((/** @type {any} */ finding) => {
    const peers = finding.ranks.flatMap((/** @type {number} */ rank) => [rank, rank + SECOND]).filter((/** @type {number} */ rank) => run.ranks.includes(rank));
    return { ...finding, scene: {
      ranks: [], peers, hot: peers, step: null, begin_ns: window[0], end_ns: window[1], groups: GROUPS.filter((group) => group !== "more" && group !== "counters"), slices: [], collective: null, gap: null,
      headline: finding.title, why: "",
    } };
  });
  return { findings, facts: { checked: ["diff"] } };
}

/** @param {Run} run */
export function describe(run) {
  if (run.titles) {
    byId("title").textContent = `A: ${run.titles[0]}  ·  B: ${run.titles[1]}  ·  aligned by step`;
    document.title = `${run.title} – rankscope`;
    return;
  }
  const of = run.world && run.world > run.ranks.length ? ` of ${run.world}` : "";
  const ranks = `${run.ranks.length}${of} rank${run.ranks.length === 1 && !of ? "" : "s"}`;
  const steps = run.steps.length ? `steps ${run.steps[0].step}–${run.steps[run.steps.length - 1].step}` : "no steps";
  byId("title").textContent = [run.title, ranks, steps, run.device, run.clocks?.text].filter(Boolean).join("  ·  ");
  document.title = `${run.title} – rankscope`;
}
