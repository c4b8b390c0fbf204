// The tracks: each rank as a strip of its activity, expanded ranks with their streams and threads.

import { columns, json, show } from "./api.js";
import { drawArrows, drawCollective, drawGap, drawMessages } from "./arrows.js";
import { Counters } from "./counters.js";
import { byId } from "./dom.js";
import { cut, moment, percent, ticks, time } from "./format.js";
import { Labels } from "./labels.js";
import { AXIS, COMMUNICATION, GAP, GUTTER, HAS_NOTES, HEADER, LABEL_CHARACTERS, LANE, RIGHT, SECOND, rankName, rowsOf, stepAt, trackKey, visible } from "./layout.js";
import { MONO, SANS, hatch, paintShares, stretches } from "./palette.js";
import { paint, repeat } from "./raster.js";
import { Tiles } from "./tiles.js";

const STRIP_COLUMNS = 1200;
const STRIP = HEADER - 6; // height
const GROUP_CHARACTERS = 12; // of the name of a group of ranks
const NAME_PIXELS = 34; // narrower slices have no name
export const LEAST_SHOWN = 1 / 400; // of the window: calls that are shorter get no row of their own
const WAIT_PIXELS = 95; // nor shorter waits

/** @typedef {{ rank: number, segment: number, track: number, id: number, name: string, start: number, duration: number,
 *   count: number, kind: number, row: number, x: number, y: number, width: number }} Hit
 * @typedef {{ rank: number, segment: number, track: number, row: number, start: number }} Point
 * @typedef {{ title: string, last: number | null, rows: { rank: number, segment: number, id: number, start_ns: number, dur_ns: number, arrives_ns: number, wait_ns: number | null }[], messages: Message[],
 *   beside?: number[] }} Collective beside: its ranks that are shown above the selected one
 * @typedef {{ from: number, to: number, start_ns: number, end_ns: number }} Message ranks, and when it is transferred
 * @typedef {{ begin: number, end: number, shares: import("./palette.js").Shares }} Strip */

export class Timeline {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.box = byId("tracks");
    this.spacer = byId("spacer");
    this.canvas = /** @type {HTMLCanvasElement} */ (byId("canvas"));
    this.tiles = new Tiles(app.run.tile_width, app.axis, () => this.redraw());
    /** @type {Map<number, import("./layout.js").Track[]>} */
    this.tracks = new Map();
    /** @type {Map<number, Promise<void>>} */
    this.loading = new Map();
    this.counters = new Counters(app, () => this.redraw());
    /** @type {Map<number, { tile: import("./tiles.js").Tile, at: number, from: number, until: number }[]>} by collapsed rank, the longest first, in px */
    this.waits = new Map();
    /** @type {Map<string, number>} rows of host tracks that are drawn */
    this.depths = new Map();
    /** @type {Map<number, Strip>} the activity of ranks in the window */
    this.strips = new Map();
    this.wantedStrips = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.stripTimer = undefined;
    this.pending = false;
    /** @type {Point[]} a chain of calls */
    this.arrows = [];
    /** @type {Point[][]} pairs of caller and launched activity */
    this.flows = [];
    /** @type {Collective | null} the selected one, on all its ranks */
    this.peers = null;
    /** @type {Set<number>} ranks */
    this.inView = new Set();
    this.frames = /** @type {number[]} */ ([]);
    /** @type {ImageData | null} */
    this.image = null;
    this.lanes = new Uint32Array(0);
    this.labels = new Labels();
    this.drawn = () => {}; // called after each picture: what is under the pointer may be another slice
    this.box.addEventListener("scroll", () => this.redraw());
  }

  /** Nothing is selected: nothing is drawn of it. */
  forget() {
    this.arrows = [];
    this.flows = [];
    this.peers = null;
  }

  get width() {
    return Math.max(this.canvas.clientWidth - GUTTER - RIGHT, 50);
  }

  get nsPerPixel() {
    const { begin, end } = this.app.store.view;
    return (end - begin) / this.width;
  }

  /** The times of a rank in the window: whole ns, one at least. @param {number} rank @param {[number, number]} [places] @returns {[number, number]} */
  timesOf(rank, places = [this.app.store.view.begin, this.app.store.view.end]) {
    const [begin, end] = places.map((place) => Math.round(this.app.axis.back(place, rank)));
    return [begin, Math.max(end, begin + 1)];
  }

  /** The place of a time on the canvas. @param {number} ns @param {number} rank */
  x(ns, rank) {
    return GUTTER + (this.app.axis.of(ns, rank) - this.app.store.view.begin) / this.nsPerPixel;
  }

  /** Draw in the next animation frame, once for any number of calls. */
  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      const before = performance.now();
      this.draw();
      this.frames.push(performance.now() - before);
      if (this.frames.length > 1000) this.frames.shift();
    });
  }

  /** When the first tiles have arrived. */
  async begun() {
    do await new Promise((done) => { this.redraw(); requestAnimationFrame(done); }); while (this.tiles.busy && !this.tiles.kept.size);
  }

  /** The tracks of the expanded and pinned ranks; each is asked for once, and who asks again waits for the same answer. */
  async loadTracks() {
    const { open, pins } = this.app.store.view;
    for (const rank of [...open, ...pins.map((key) => Number(key.split(".")[0]))]) {
      if (!this.loading.has(rank)) this.loading.set(rank, this.loadRank(rank));
    }
    await Promise.all(this.loading.values());
  }

  /** @param {number} rank */
  async loadRank(rank) {
    try {
      const [{ tracks }] = await Promise.all([json("tracks", { rank }), this.counters.load(rank)]);
      this.tracks.set(rank, tracks);
      this.redraw();
    } catch (error) {
      this.loading.delete(rank);
      show(error);
    }
  }

  /** When a slice begins, also from the start of its step on its own rank, where that is known.
   * @param {number} ns @param {{ rank: number, step?: number | null, step_start_ns?: number | null }} slice */
  momentOf(ns, { rank, step, step_start_ns: start }) {
    const span = this.app.store.view.end - this.app.store.view.begin;
    return `${moment(this.app.axis.of(ns, rank), span)}${typeof start === "number" ? `, ${moment(ns - start, span)} into step ${step}` : ""}`;
  }

  /** The step that a time of the first rank of a run is in: of the others the page does not know them. @param {number} ns @param {number} rank */
  stepOf(ns, rank) {
    const { run } = this.app;
    const steps = rank === run.ranks[0] ? run.steps : rank === run.ranks.find((each) => each >= SECOND) ? run.second_steps ?? [] : [];
    const step = stepAt(steps, ns);
    return step && ns < step.start_ns + step.dur_ns ? { rank, step: step.step, step_start_ns: step.start_ns } : { rank };
  }

  layout() {
    const { view } = this.app.store;
    return rowsOf({
      ranks: this.app.ranks, open: new Set(view.open), pinned: view.pinned, pins: view.pins, folds: view.folds, filter: view.filter,
      tracks: this.tracks, counters: this.counters.known, depths: this.depths, ...this.app.rankGroups,
    });
  }

  /** The rows, with as much room to scroll as they need. */
  sized() {
    const layout = this.layout();
    this.spacer.style.height = `${Math.max(layout.height + AXIS + layout.pinsHeight + 40, this.box.clientHeight)}px`;
    return layout;
  }

  draw() {
    const { app, canvas, box } = this;
    const { rows, pins, pinsHeight } = this.sized();
    const g = app.prepare(canvas, box.clientHeight);
    const top = box.scrollTop;
    const shown = visible(rows, top, top + box.clientHeight - AXIS - pinsHeight);
    this.inView = new Set(shown.map((row) => row.rank));
    this.tiles.begin();
    this.labels.boxes = [];
    this.drawGrid(g, box.clientHeight);
    this.drawSlices(g, shown, pinsHeight - top, pins, pinsHeight);
    this.within(g, AXIS, AXIS + pinsHeight, 0, () => pins.forEach((row) => this.drawTrack(g, row)));
    this.within(g, AXIS + pinsHeight, box.clientHeight, pinsHeight - top, () => {
      for (const row of shown) this.drawRow(g, row);
      drawArrows(g, this, rows);
      drawGap(g, this, rows);
      drawCollective(g, this, rows);
      drawMessages(g, this, rows);
    });
    if (pins.length) {
      g.fillStyle = app.palette.text["ink-3"];
      g.fillRect(0, AXIS + pinsHeight - 2, canvas.clientWidth, 1);
    }
    this.drawSelection(g, box.clientHeight);
    app.marks.draw(g, box.clientHeight);
    this.tiles.fetch();
    this.loadStrips(shown.flatMap((row) => (row.type === "rank" ? [row.rank] : [])));
    canvas.dataset.busy = String(this.tiles.busy);
    this.drawn();
  }

  /** Draw between two heights of the canvas, with the origin moved down by `by` from the axis.
   * @param {CanvasRenderingContext2D} g @param {number} top @param {number} bottom @param {number} by @param {() => void} draw */
  within(g, top, bottom, by, draw) {
    g.save();
    g.beginPath();
    g.rect(0, top, this.canvas.clientWidth, bottom - top);
    g.clip();
    g.translate(0, AXIS + by);
    draw();
    g.restore();
  }

  /** @param {CanvasRenderingContext2D} g @param {import("./layout.js").Row} row */
  drawRow(g, row) {
    if (row.type === "track") this.drawTrack(g, row);
    else if (row.type === "rank") this.drawRank(g, row);
    else if (row.type === "group") this.drawGroup(g, row);
    else if (row.type === "ranks") this.drawRanks(g, row);
    else {
      this.counters.draw(g, row, this.width);
      this.drawHandle(g, row);
    }
  }

  /** @param {CanvasRenderingContext2D} g @param {number} height */
  drawGrid(g, height) {
    const { view } = this.app.store;
    const { text } = this.app.palette;
    g.font = MONO;
    g.textBaseline = "middle";
    g.textAlign = "left";
    const step = view.axis === "step" ? stepAt(this.app.run.steps, this.app.axis.back((view.begin + view.end) / 2, 0)) : undefined;
    const zero = step ? this.app.axis.of(step.start_ns, 0) : 0;
    let before = step ? `step ${step.step} ` : ""; // of the first tick
    for (const at of ticks(view.begin - zero, view.end - zero, this.width / 110)) {
      const x = Math.round(GUTTER + (at + zero - view.begin) / this.nsPerPixel);
      g.fillStyle = text.line;
      g.fillRect(x, 0, 1, height);
      g.fillStyle = text["ink-3"];
      if (x < GUTTER + this.width - 40) g.fillText(`${before}${step && at > 0 ? "+" : ""}${moment(at, view.end - view.begin)}`, x + 4, AXIS / 2);
      before = "";
    }
    g.fillStyle = text.line;
    g.fillRect(GUTTER - 1, 0, 1, height);
  }

  /** All slices of the visible tracks and the strips of the ranks as one picture: one copy to the canvas, however many there are.
   * @param {CanvasRenderingContext2D} g @param {import("./layout.js").Row[]} shown @param {number} by added to their heights
   * @param {import("./layout.js").TrackRow[]} pins @param {number} pinsHeight */
  drawSlices(g, shown, by, pins, pinsHeight) {
    const [width, height] = [Math.ceil(this.width), Math.max(this.box.clientHeight - AXIS, 1)];
    if (!this.image || this.image.width !== width || this.image.height !== height) this.image = new ImageData(width, height);
    const picture = new Uint32Array(this.image.data.buffer);
    picture.fill(0);
    for (const row of pins) this.paintTrack(picture, width, row, 0, 0, pinsHeight);
    for (const row of shown) {
      if (row.type === "track") this.paintTrack(picture, width, row, by, pinsHeight, height);
      else if (row.type === "ranks" || (row.type === "rank" && !row.open)) this.paintStrip(picture, width, row, by, pinsHeight, height);
    }
    g.drawImage(this.app.picture(this.image), 0, 0, width, height, GUTTER, AXIS, width, height);
  }

  /** @param {Uint32Array} picture @param {number} width @param {import("./layout.js").TrackRow} row @param {number} by
   * @param {number} top @param {number} bottom */
  paintTrack(picture, width, row, by, top, bottom) {
    const tiles = this.tilesOf(row.rank, row.track);
    if (!tiles.length) return;
    if (row.group === "host") this.measure(row, tiles);
    const size = width * row.lanes;
    if (this.lanes.length < size) this.lanes = new Uint32Array(size);
    this.lanes.fill(0, 0, size);
    paint(this.lanes, width, row.lanes, tiles, this.app.store.view.begin, this.nsPerPixel, this.app.palette);
    repeat(picture, this.lanes, width, row.lanes, LANE, Math.round(row.y + by), top, bottom);
  }

  /** How deep the calls are that can be seen in the window: deeper ones have rows when one zooms in.
   * @param {import("./layout.js").TrackRow} row @param {import("./tiles.js").Tile[]} tiles */
  measure(row, tiles) {
    const { begin, end, slice } = this.app.store.view;
    const [from, least, key] = [begin, (end - begin) * LEAST_SHOWN, trackKey(row.rank, row.track)];
    const guilty = this.app.guilty.get(row.rank);
    let rows = 1;
    for (const { start, duration, row: depth, id, segment } of tiles) {
      for (let at = 0; at < start.length; at++) {
        if (depth[at] < rows || start[at] >= from + end - begin || start[at] + duration[at] <= from) continue;
        const isMeant = guilty?.has(sliceNumber(segment[at], id[at])) || (slice?.id === id[at] && slice.rank === row.rank && slice.segment === segment[at]);
        if (isMeant || duration[at] >= least) rows = depth[at] + 1;
      }
    }
    if (this.depths.get(key) === rows) return;
    this.depths.set(key, rows);
    this.redraw();
  }

  /** The mean of the ranks of a group, as the map has it. @param {import("./layout.js").RanksRow} row */
  stripOf({ number, ranks }) {
    const shares = this.app.overview.meanOf(number, ranks);
    return shares && { begin: this.app.axis.begin, end: this.app.axis.end, shares };
  }

  /** @param {Uint32Array} picture @param {number} width @param {import("./layout.js").RankRow | import("./layout.js").RanksRow} row @param {number} by
   * @param {number} top @param {number} bottom */
  paintStrip(picture, width, row, by, top, bottom) {
    const strip = row.type === "ranks" ? this.stripOf(row) : this.strips.get(row.rank);
    if (!strip) return;
    const known = new Uint32Array(strip.shares.compute.length);
    paintShares(known, strip.shares, this.app.palette, this.app.restOf(row.rank, strip.begin, strip.end, known.length));
    if (this.lanes.length < width) this.lanes = new Uint32Array(width);
    const scale = known.length / (strip.end - strip.begin);
    const { begin } = this.app.store.view;
    for (let x = 0; x < width; x++) {
      const at = Math.floor((begin + (x + 0.5) * this.nsPerPixel - strip.begin) * scale);
      this.lanes[x] = at >= 0 && at < known.length ? known[at] : 0;
    }
    repeat(picture, this.lanes, width, 1, STRIP, Math.round(row.y + by + 3), top, bottom);
  }

  /** @param {number} rank @param {{ segment: number, track: number }} track */
  tilesOf(rank, { segment, track }) {
    const { begin, end } = this.app.store.view;
    return this.tiles.of({ rank, segment, track }, begin, end, this.nsPerPixel);
  }

  /** The lane of a collective in the track of its rank. @param {{ rank: number, segment: number, id: number }} slice */
  laneOf({ rank, segment, id }) {
    for (const tile of this.tilesOf(rank, COMMUNICATION)) {
      const at = tile.id.findIndex((each, index) => each === id && tile.segment[index] === segment);
      if (at >= 0) return tile.row[at];
    }
    return 0;
  }

  /** @param {CanvasRenderingContext2D} g @param {import("./layout.js").RankRow} row */
  drawRank(g, row) {
    const { text } = this.app.palette;
    const hot = this.app.isHot(row.rank);
    if (row.open) {
      g.fillStyle = hot && this.app.isAlarming ? text.hot : text.panel;
      g.fillRect(GUTTER, row.y + 2, this.width, HEADER - 4);
    }
    g.font = `600 ${MONO}`;
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = hot ? this.app.blame : text.ink;
    g.fillText(`${row.pinned ? "• " : ""}${row.open ? "▾" : "▸"} ${rankName(row.rank)}`, GUTTER - 10, row.y + HEADER / 2);
    const stage = this.app.run.grid?.stages[row.rank];
    if (stage !== undefined && HAS_NOTES) {
      g.font = MONO;
      g.textAlign = "left";
      g.fillStyle = text["ink-3"];
      g.fillText(`stage ${stage}`, 8, row.y + HEADER / 2);
    }
    if (row.open) return this.drawShares(g, row);
    this.drawBubbles(g, this.strips.get(row.rank), row.y + 3, STRIP - 1);
    this.drawPasses(g, row);
    return this.drawWaits(g, row);
  }

  /** A group of ranks. @param {CanvasRenderingContext2D} g @param {import("./layout.js").RanksRow} row */
  drawRanks(g, row) {
    const { text } = this.app.palette;
    const { label, ranks, open, y } = row;
    this.drawBubbles(g, this.stripOf(row), y + 3, STRIP - 1);
    g.textBaseline = "middle";
    g.font = MONO;
    g.textAlign = "left";
    g.fillStyle = text["ink-3"];
    if (HAS_NOTES) g.fillText(`${ranks.length} ranks`, 8, y + HEADER / 2);
    g.font = `600 ${MONO}`;
    g.textAlign = "right";
    g.fillStyle = text.ink;
    g.fillText(cut(`${open ? "▾" : "▸"} ${label}`, GROUP_CHARACTERS), GUTTER - 10, y + HEADER / 2);
  }

  /** Whether something is hatched between two times. @param {number} rank @param {number} begin @param {number} end */
  hasBubble(rank, begin, end) {
    const strip = this.strips.get(rank);
    if (!strip) return false;
    const [from, to] = [begin, end].map((ns) => ((ns - strip.begin) / (strip.end - strip.begin)) * strip.shares.bubble.length);
    return strip.shares.bubbles.some(([first, last]) => first < to && last > from);
  }

  /** The micro-batches that pass through a stage, where the scene is a schedule. @param {CanvasRenderingContext2D} g @param {import("./layout.js").RankRow} row */
  drawPasses(g, row) {
    const { scene, palette } = this.app;
    g.font = `600 ${SANS}`;
    g.fillStyle = palette.text["on-compute"];
    for (const pass of scene?.passes ?? []) {
      const left = this.x(pass.start_ns, pass.rank);
      const room = pass.dur_ns / this.nsPerPixel - g.measureText(pass.label).width;
      if (pass.rank === row.rank && room > 2 && left >= GUTTER && left + room < GUTTER + this.width) this.labels.write(g, pass.label, left + room / 2, row.y + HEADER / 2);
    }
  }

  /** Hatch the time in which a rank has a bubble. @param {CanvasRenderingContext2D} g @param {Strip | undefined} strip @param {number} y @param {number} height */
  drawBubbles(g, strip, y, height) {
    if (!strip?.shares.bubbles.length) return;
    const column = (strip.end - strip.begin) / strip.shares.bubble.length;
    g.fillStyle = hatch(g, this.app.palette);
    for (const ends of strip.shares.bubbles) {
      const [left, right] = ends.map((at) => GUTTER + Math.min(Math.max((strip.begin + at * column - this.app.store.view.begin) / this.nsPerPixel, 0), this.width));
      if (right > left) g.fillRect(left, y, right - left, height);
    }
  }

  /** On the strip of a collapsed rank, what it waits for, where the waiting is exposed.
   * @param {CanvasRenderingContext2D} g @param {import("./layout.js").RankRow} row */
  drawWaits(g, row) {
    const strip = this.strips.get(row.rank);
    if (!strip) return;
    const { begin } = this.app.store.view;
    g.font = SANS;
    g.textAlign = "left";
    const done = new Set(); // a slice is in every tile that it reaches into
    /** @type {{ tile: import("./tiles.js").Tile, at: number, from: number, until: number }[]} */
    const exposed = [];
    for (const tile of this.tilesOf(row.rank, COMMUNICATION)) {
      for (let at = 0; tile.wait && at < tile.start.length; at++) {
        if (done.has(tile.id[at])) continue;
        done.add(tile.id[at]);
        const from = Math.max((tile.start[at] - begin) / this.nsPerPixel, 0);
        const until = Math.min((tile.start[at] + tile.wait[at] - begin) / this.nsPerPixel, this.width);
        if (until <= from) continue;
        const { wait, bubble } = strip.shares;
        const scale = wait.length * this.nsPerPixel / (strip.end - strip.begin); // columns of the strip per pixel
        const column = (/** @type {number} */ x) => Math.floor((begin - strip.begin) / this.nsPerPixel * scale + x * scale);
        const waits = (/** @type {number} */ index) => wait[index] + bubble[index] > 127; // the rest is hidden behind compute
        let first = column((from + until) / 2);
        if (!waits(first)) continue;
        while (first > column(from) && waits(first - 1)) first--;
        exposed.push({ tile, at, from: first > column(from) ? from + (first - column(from)) / scale : from, until });
      }
    }
    // Waits at the same time are drawn as one: the longest has the words.
    const since = this.labels.boxes.length;
    this.waits.set(row.rank, exposed);
    for (const { tile, at, from, until } of exposed.sort((a, b) => b.until - b.from - (a.until - a.from))) {
      const before = this.labels.boxes.length;
      this.drawWait(g, row.rank, tile, at, from, until, until, row.y + 3, since);
      for (const box of this.labels.boxes.slice(before)) box.slice = { tile, at };
    }
  }

  /** @param {CanvasRenderingContext2D} g @param {import("./layout.js").RankRow} row */
  drawShares(g, row) {
    const strip = this.strips.get(row.rank);
    if (!strip) return;
    const of = (/** @type {Uint8Array} */ values) => values.reduce((sum, value) => sum + value, 0) / (255 * values.length);
    const { shares } = strip;
    const [compute, comm, wait, copy, bubble, unrecorded] = [shares.compute, shares.comm, shares.wait, shares.copy, shares.bubble, shares.unrecorded].map(of);
    const parts = [["compute", compute], ["communication", comm], ["bubble", bubble], ["waiting", wait], ["copies", copy],
      ["idle", Math.max(0, 1 - compute - comm - wait - copy - bubble - unrecorded)], ["not recorded", unrecorded]];
    g.font = SANS;
    g.textAlign = "left";
    g.fillStyle = this.app.palette.text["ink-2"];
    this.labels.write(g, parts.filter(([, share]) => Number(share) >= 0.005).map(([name, share]) => `${name} ${percent(Number(share))}`).join(" · "), GUTTER + 8, row.y + HEADER / 2);
  }

  /** A folded group. @param {CanvasRenderingContext2D} g @param {import("./layout.js").GroupRow} row */
  drawGroup(g, row) {
    g.font = MONO;
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = this.app.palette.text["ink-2"];
    g.fillText(`▸ ${row.label}`, GUTTER - 10, row.y + row.height / 2);
    this.labels.write(g, row.text, GUTTER + 8, row.y + row.height / 2);
  }

  /** The handle that folds the group, at its first row.
   * @param {CanvasRenderingContext2D} g @param {{ first: boolean, y: number }} row */
  drawHandle(g, row) {
    if (!row.first) return;
    g.font = MONO;
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillStyle = this.app.palette.text["ink-3"];
    g.fillText("▾", 8, row.y + LANE / 2);
  }

  /** The label of a track and the names of its slices. @param {CanvasRenderingContext2D} g @param {import("./layout.js").TrackRow} row */
  drawTrack(g, row) {
    const { text } = this.app.palette;
    const label = row.pinned ? `• ${row.first ? "" : row.rank % SECOND + " "}${row.track.short}` : row.track.short;
    g.font = MONO;
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = text["ink-2"];
    g.fillText(cut(label, LABEL_CHARACTERS), GUTTER - 10, row.y + LANE / 2);
    this.drawHandle(g, row);
    if (row.track.track === COMMUNICATION.track) this.drawBubbles(g, this.strips.get(row.rank), row.y, LANE - 1);
    this.drawNames(g, row, this.tilesOf(row.rank, row.track));
  }

  /** @param {CanvasRenderingContext2D} g @param {{ rank: number, track: { segment: number, track: number }, y: number, lanes: number }} row
   * @param {import("./tiles.js").Tile[]} tiles */
  drawNames(g, row, tiles) {
    const { palette, store: { view: { slice: chosen } } } = this.app;
    const { begin } = this.app.store.view;
    const { nsPerPixel, width } = this;
    const guilty = this.app.guilty.get(row.rank);
    const done = new Set(); // a slice is in every tile that it reaches into
    g.font = SANS;
    g.textAlign = "left";
    g.textBaseline = "middle";
    for (const tile of tiles) {
      for (let at = 0; at < tile.start.length; at++) {
        const wide = tile.duration[at] / nsPerPixel;
        const mine = chosen !== null && chosen.id === tile.id[at] && chosen.rank === row.rank && chosen.segment === tile.segment[at];
        const blamed = guilty !== undefined && guilty.has(sliceNumber(tile.segment[at], tile.id[at]));
        if ((wide < NAME_PIXELS && !mine && !blamed) || tile.row[at] >= row.lanes || done.has(tile.id[at])) continue;
        const left = (tile.start[at] - begin) / nsPerPixel;
        if (left > width || left + wide < 0) continue;
        done.add(tile.id[at]);
        const from = Math.max(left, 0);
        const to = Math.min(left + wide, width);
        const y = row.y + tile.row[at] * LANE;
        if (mine || blamed) {
          g.strokeStyle = mine ? palette.text.ink : this.app.blame;
          g.lineWidth = mine ? 2 : 1.5;
          g.strokeRect(GUTTER + from + 0.75, y + 0.75, Math.max(to - from - 1.5, 1), LANE - 2.5);
        }
        const wait = tile.wait ? tile.wait[at] : 0;
        if (wait > 0) this.drawWait(g, row.rank, tile, at, from, to, left + wait / nsPerPixel, y);
        else if (to - from >= NAME_PIXELS) {
          g.fillStyle = palette.ink[tile.kind[at]];
          const duration = to - from > 120 ? `  ${time(tile.duration[at])}` : "";
          const room = to - from - 8 - (duration ? g.measureText(duration).width : 0);
          this.labels.write(g, this.labels.fit(g, nameIn(tile, at, tile.short), room) + duration, GUTTER + from + 5, y + LANE / 2);
        }
      }
    }
  }

  /** A collective that waits: who it waits for where there is room, its name in the transfer otherwise.
   * @param {CanvasRenderingContext2D} g @param {number} rank @param {import("./tiles.js").Tile} tile @param {number} at @param {number} from @param {number} to
   * @param {number} until end of the waiting @param {number} y @param {number} [since] not over the labels from this one on */
  drawWait(g, rank, tile, at, from, to, until, y, since = this.labels.boxes.length) {
    const { text } = this.app.palette;
    const end = Math.min(Math.max(until, from), to);
    const name = nameIn(tile, at, tile.short);
    const long = `${name} waits ${time(tile.wait?.[at])} for rank ${(tile.last?.[at] ?? 0) % SECOND}`;
    const room = end - from - 12;
    if (room >= WAIT_PIXELS) {
      const words = room >= g.measureText(long).width ? long : this.labels.fit(g, name, room);
      if (this.labels.meets(g, words, GUTTER + from + 8, since)) return;
      g.fillStyle = text["on-light"];
      const [begin, last] = [from, end].map((x) => this.app.store.view.begin + x * this.nsPerPixel);
      if (tile.track === COMMUNICATION.track && this.hasBubble(rank, begin, last)) this.labels.plate(g, words, GUTTER + from + 8, y + LANE / 2, text.ink, this.app.store.view.open.includes(rank) ? text.wait : text.idle, LANE);
      else this.labels.write(g, words, GUTTER + from + 8, y + LANE / 2);
    } else if (to - end >= NAME_PIXELS) {
      g.fillStyle = text["on-comm"];
      this.labels.write(g, this.labels.fit(g, name, to - end - 8), GUTTER + end + 5, y + LANE / 2);
    }
  }

  /** @param {CanvasRenderingContext2D} g @param {number} height */
  drawSelection(g, height) {
    const { view } = this.app.store;
    const { text } = this.app.palette;
    if (view.area) {
      const left = GUTTER + Math.max((view.area[0] - view.begin) / this.nsPerPixel, 0);
      const right = GUTTER + Math.min((view.area[1] - view.begin) / this.nsPerPixel, this.width);
      g.fillStyle = text.accent;
      g.globalAlpha = 0.1;
      for (const [top, bottom] of right > left ? this.areaRows(height) : []) g.fillRect(left, top, right - left, bottom - top);
      g.globalAlpha = 1;
    }
  }

  /** Request the activity of the visible ranks in the window; the previous one is shown until it arrives.
   * @param {number[]} ranks */
  loadStrips(ranks) {
    const { begin, end } = this.app.store.view;
    const key = `${begin}/${end}/${ranks.join(",")}`;
    if (!ranks.length || this.wantedStrips === key) return;
    this.wantedStrips = key;
    clearTimeout(this.stripTimer);
    this.stripTimer = setTimeout(() => {
      for (const second of [false, true]) { // of two runs, each has its own times
        const some = ranks.filter((rank) => (rank >= SECOND) === second);
        if (some.length) this.askStrips(key, [begin, end], some);
      }
    }, 60);
  }

  /** @param {string} key @param {[number, number]} places @param {number[]} ranks of one run */
  async askStrips(key, places, ranks) {
    const times = this.timesOf(ranks[0], places);
    try {
      const answer = await columns("overview", { begin: times[0], end: times[1], width: STRIP_COLUMNS, ranks: ranks.join(",") });
      if (this.wantedStrips !== key) return;
      ranks.forEach((rank, index) => this.strips.set(rank, { begin: places[0], end: places[1], shares: this.app.axis.spread(sharesOf(answer, index), times, places, rank) }));
      this.redraw();
    } catch (error) {
      show(error);
    }
  }

  /** The element at a point of the canvas.
   * @param {number} x @param {number} y
   * @returns {{ rank?: number, hit?: Hit, row?: import("./layout.js").Row }} */
  at(x, y) {
    if (y < AXIS) return {};
    const { rows, pins, pinsHeight } = this.layout();
    const fixed = y - AXIS < pinsHeight;
    const inside = fixed ? y - AXIS : y - AXIS - pinsHeight + this.box.scrollTop;
    const row = visible(fixed ? pins : rows, inside, inside + 1)[0];
    if (!row) return {};
    const { rank } = row;
    if (x < GUTTER || x > GUTTER + this.width) return { rank, row };
    if (row.type === "track") return { rank, row, hit: this.hitIn(rank, row.track, Math.floor((inside - row.y) / LANE), x - GUTTER, row.y) };
    if (row.type === "rank" && !row.open) {
      const meant = this.labels.boxes.find((box) => box.slice && x >= box.x && x <= box.x + box.width && Math.abs(y - box.y - box.height / 2) < HEADER / 2)?.slice
        ?? this.waits.get(rank)?.find(({ from, until }) => x - GUTTER >= from && x - GUTTER <= until);
      return { rank, row, hit: meant ? this.hitOf(rank, meant.tile, meant.at, 0, row.y) : this.hitIn(rank, COMMUNICATION, 0, x - GUTTER, row.y) };
    }
    return { rank, row };
  }

  /** @param {number} rank @param {{ segment: number, track: number }} track @param {number} lane @param {number} x @param {number} y
   * @returns {Hit | undefined} */
  hitIn(rank, track, lane, x, y) {
    const { begin } = this.app.store.view;
    let best;
    let nearest = 4;
    for (const tile of this.tilesOf(rank, track)) {
      for (let at = 0; at < tile.start.length; at++) {
        if (tile.row[at] !== lane) continue;
        const left = (tile.start[at] - begin) / this.nsPerPixel;
        const wide = Math.max(tile.duration[at] / this.nsPerPixel, 1);
        const away = x < left ? left - x : x > left + wide ? x - left - wide : 0;
        if (away >= nearest) continue;
        nearest = Math.max(away, 0.001);
        best = this.hitOf(rank, tile, at, lane, y);
      }
    }
    return best;
  }

  /** @param {number} rank @param {import("./tiles.js").Tile} tile @param {number} at @param {number} lane @param {number} y @returns {Hit} */
  hitOf(rank, tile, at, lane, y) {
    return {
      rank, track: tile.track, segment: tile.segment[at], id: tile.id[at], name: nameIn(tile, at), start: tile.start[at], duration: tile.duration[at],
      count: tile.count[at], kind: tile.kind[at], row: lane, x: (tile.start[at] - this.app.store.view.begin) / this.nsPerPixel, y: y + lane * LANE,
      width: Math.max(tile.duration[at] / this.nsPerPixel, 1),
    };
  }

  /** Of the selected area, the heights on the canvas: all, or those of its tracks.
   * @param {number} height @returns {[number, number][]} */
  areaRows(height) {
    const { box } = this.app.store.view;
    if (!box.length) return [[0, height]];
    const { rows, pinsHeight } = this.layout();
    const top = AXIS + pinsHeight - this.box.scrollTop;
    return rows.filter((row) => row.type === "track" && box.includes(trackKey(row.rank, row.track)))
      .map((row) => [Math.max(top + row.y, AXIS + pinsHeight), Math.max(top + row.y + row.height, AXIS + pinsHeight)]);
  }

  /** The tracks between two heights of the canvas; collectives are slices of other tracks.
   * @param {number} a @param {number} b @returns {string[]} */
  tracksBetween(a, b) {
    const { rows, pinsHeight } = this.layout();
    const by = this.box.scrollTop - AXIS - pinsHeight;
    return visible(rows, Math.min(a, b) + by, Math.max(a, b) + by + 1)
      .flatMap((row) => (row.type === "track" && row.track.track >= 0 ? [trackKey(row.rank, row.track)] : []));
  }

  /** Scroll to a rank or one of its tracks; false where it is not in the list.
   * @param {number} rank @param {{ segment: number, track: number, depth?: number }} [track] */
  scrollTo(rank, track) {
    const { rows, pinsHeight } = this.sized();
    const row = rows.find((r) => r.rank === rank && (track ? r.type === "track" && trackKey(rank, r.track) === trackKey(rank, track) : r.type === "rank"));
    if (!row) return false;
    const y = row.y + (track?.depth ?? 0) * LANE;
    const { scrollTop, clientHeight } = this.box;
    if (y < scrollTop || y + LANE + GAP > scrollTop + clientHeight - AXIS - pinsHeight) this.box.scrollTop = Math.max(0, y - clientHeight / 3);
    return true;
  }
}

/** A slice within its rank. @param {number} segment @param {number} id */
export function sliceNumber(segment, id) {
  return segment * 2 ** 44 + id;
}

/** The shares of one rank in an answer of `overview`.
 * @param {import("./api.js").Columns} answer @param {number} index @returns {import("./palette.js").Shares} */
export function sharesOf(answer, index) {
  const part = (/** @type {string} */ name) => answer.column[name].subarray(index * answer.width, (index + 1) * answer.width);
  const bubble = part("bubble");
  return { compute: part("compute"), comm: part("comm"), wait: part("wait"), copy: part("copy"), bubble, unrecorded: part("unrecorded"), bubbles: stretches(bubble) };
}

const DEFAULT_GROUPS = new Set(["", "default_pg", "world"]);

/** The name of a slice; of a matched collective, its kind, number and group.
 * @param {import("./tiles.js").Tile} tile @param {number} at @param {Record<string, string>} [short] its short form, of some names */
function nameIn(tile, at, short = {}) {
  const full = tile.names[String(tile.name[at])] ?? "";
  const name = short[full] ?? full;
  if (tile.track !== COMMUNICATION.track || !tile.match || tile.match[at] < 0) return name;
  const [kind, ...group] = name.split(" ");
  return `${kind} #${tile.match[at]}${DEFAULT_GROUPS.has(group.join(" ")) ? "" : ` ${group.join(" ")}`}`;
}
