// The overview of all ranks over the whole run. Its brush is the visible window: an element above the canvas, so that panning
// does not draw the map again.

import { columns, json, show } from "./api.js";
import { byId } from "./dom.js";
import { cut } from "./format.js";
import { GUTTER, HAS_NOTES, RIGHT, SECOND, rankName } from "./layout.js";
import { MONO, hatch, meanShares, paintShares } from "./palette.js";
import { sharesOf } from "./timeline.js";

const TOP = 16;
const HEIGHT = 150; // of the rows of many ranks together: all are on the screen
const LABELLED = 12; // height of rows with a name
const RANKS_AT_A_TIME = 32;
const BRACKETS = HAS_NOTES ? [62, 100] : [62]; // where those of a stage begin, and those of groups in it
const BRACKET_CHARACTERS = 8;
const LETTERS = 9; // height of a label

export class Overview {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.canvas = /** @type {HTMLCanvasElement} */ (byId("overview"));
    this.brush = byId("brush");
    /** @type {Map<number, import("./palette.js").Shares>} */
    this.rows = new Map();
    /** @type {Map<number, import("./palette.js").Shares>} by the number of a group of ranks, their mean */
    this.groups = new Map();
    this.columns = 1200;
    this.listen();
  }

  /** Load the overview, some ranks at a time, and draw what has arrived. @param {() => void} begun called after the first part */
  async load(begun) {
    const { run, axis } = this.app;
    const parts = [...run.ranks.keys()].filter((at) => !(at % RANKS_AT_A_TIME)).flatMap((at) => {
      const some = run.ranks.slice(at, at + RANKS_AT_A_TIME);
      return [some.filter((rank) => rank < SECOND), some.filter((rank) => rank >= SECOND)]; // a question is about one run
    });
    for (const ranks of parts.filter((each) => each.length)) {
      try {
        const answer = await columns("overview", { begin: axis.begin, end: axis.last, width: this.columns, ranks: ranks.join(",") });
        ranks.forEach((rank, index) => this.rows.set(rank, axis.spread(sharesOf(answer, index), [axis.begin, axis.last], [axis.begin, axis.end], rank)));
        run.grid ??= await json("grid");
        this.groups.clear();
        if (ranks.some((rank) => this.rows.get(rank)?.bubbles.length)) byId("bubble-key").hidden = false;
        this.draw();
      } catch (error) {
        show(error);
        return;
      } finally {
        begun();
      }
    }
    this.canvas.dataset.ready = "true";
  }

  get rowHeight() {
    const count = this.app.run.ranks.length;
    return count <= 8 ? 19 : count <= HEIGHT ? Math.floor(HEIGHT / count) : HEIGHT / count;
  }

  draw() {
    const { app, canvas } = this;
    const ranks = app.mapRanks;
    const row = this.rowHeight;
    const height = TOP + ranks.length * row + 4;
    const g = app.prepare(canvas, height);
    const width = canvas.clientWidth - GUTTER - RIGHT;
    g.font = MONO;
    this.drawSteps(g, width, height);
    const image = new ImageData(this.columns, ranks.length);
    const pixels = new Uint32Array(image.data.buffer);
    ranks.forEach((rank, index) => {
      if (row >= LABELLED) this.drawLabel(g, rank, TOP + index * row + row - 5);
      const shares = this.rows.get(rank);
      if (shares) paintShares(pixels.subarray(index * this.columns, (index + 1) * this.columns), shares, app.palette, app.restOf(rank, app.run.begin_ns, app.run.end_ns, this.columns));
    });
    const picture = app.picture(image);
    g.imageSmoothingEnabled = row < 1; // a pixel is the mean of its ranks
    g.drawImage(picture, 0, 0, this.columns, ranks.length, GUTTER, TOP, width, ranks.length * row);
    this.drawBubbles(g, ranks, row, width);
    g.fillStyle = app.palette.text.bg;
    const gap = row > 10 ? 2 : 1;
    if (row > 3) ranks.forEach((_, index) => g.fillRect(GUTTER, TOP + (index + 1) * row - gap, width, gap));
    this.drawGroups(g, ranks, row);
    if (row < LABELLED) this.markHot(g, ranks, row, (index, y, high) => g.drawImage(picture, 0, index, this.columns, 1, GUTTER, y, width, high));
    if (row < LABELLED && ranks !== app.run.grid?.ranks) {
      g.fillStyle = app.palette.text["ink-2"];
      g.textAlign = "right";
      g.fillText(`${ranks.length} ranks`, GUTTER - 10, TOP + 12);
    }
    this.drawBrush();
  }

  /** @param {CanvasRenderingContext2D} g @param {number[]} ranks @param {number} row @param {number} width */
  drawBubbles(g, ranks, row, width) {
    g.fillStyle = hatch(g, this.app.palette);
    ranks.forEach((rank, index) => {
      for (const [from, to] of this.rows.get(rank)?.bubbles ?? []) {
        g.fillRect(GUTTER + (from / this.columns) * width, TOP + index * row, ((to - from) / this.columns) * width, row);
      }
    });
  }

  /** The mean of the ranks of a group that have arrived. @param {number} at @param {number[]} ranks */
  meanOf(at, ranks) {
    const rows = ranks.flatMap((rank) => this.rows.get(rank) ?? []);
    if (!this.groups.has(at) && rows.length) this.groups.set(at, meanShares(rows));
    return this.groups.get(at);
  }

  /** Brackets around the ranks of a stage, and of a group inside it; where they stand side by side.
   * @param {CanvasRenderingContext2D} g @param {number[]} ranks @param {number} row */
  drawGroups(g, ranks, row) {
    const { grid } = this.app.run;
    if (!grid || ranks !== grid.ranks) return;
    const { text } = this.app.palette;
    g.font = MONO;
    g.textAlign = "left";
    g.fillStyle = text["ink-3"];
    g.fillText(grid.title, 8, 11);
    g.textAlign = "right";
    grid.levels.slice(0, BRACKETS.length).forEach((groups, depth) => {
      const named = !depth || groups.every(({ from, to }) => (to - from) * row - 2 >= LETTERS);
      const x = BRACKETS[named ? depth : depth - 1] + (named ? 0 : 9);
      let free = 0;
      for (const { label, from, to } of groups) {
        const [top, bottom] = [TOP + from * row, TOP + to * row - 2];
        if (bottom - top < 3) continue;
        g.fillStyle = text["ink-3"];
        for (const [left, y, wide, tall] of [[x, top, 1, bottom - top], [x, top, 4, 1], [x, bottom - 1, 4, 1]]) g.fillRect(left, y, wide, tall);
        const middle = (top + bottom) / 2 + 4;
        if (!named || middle - LETTERS < free) continue;
        g.fillStyle = text["ink-2"];
        g.fillText(cut(label, BRACKET_CHARACTERS), x - 4, middle);
        free = middle + 1;
      }
    });
  }

  /** @param {CanvasRenderingContext2D} g @param {number} rank @param {number} y */
  drawLabel(g, rank, y) {
    const hot = this.app.isHot(rank);
    g.font = hot ? `600 ${MONO}` : MONO;
    g.fillStyle = hot ? this.app.blame : this.app.palette.text["ink-2"];
    g.textAlign = "right";
    g.fillText(rankName(rank), GUTTER - 10, y);
  }

  /** Of many ranks, those of the shown finding have a mark and a name.
   * @param {CanvasRenderingContext2D} g @param {number[]} ranks @param {number} row @param {(index: number, y: number, high: number) => void} drawAgain */
  markHot(g, ranks, row, drawAgain) {
    g.fillStyle = this.app.blame;
    g.textAlign = "right";
    ranks.forEach((rank, index) => {
      if (!this.app.isHot(rank)) return;
      const y = TOP + index * row;
      if (row < 3) drawAgain(index, Math.round(y), 3); // not mixed with its neighbours
      g.fillRect(GUTTER - 8, y, 6, Math.max(row - 1, 3));
      if (y > TOP + 18 || this.app.run.grid) g.fillText(rankName(rank), GUTTER - 12, y + 4);
    });
  }

  /** @param {CanvasRenderingContext2D} g @param {number} width @param {number} height */
  drawSteps(g, width, height) {
    const { run, palette } = this.app;
    g.textAlign = "left";
    let free = 0;
    for (const step of run.steps) {
      const x = GUTTER + this.toX(this.app.axis.of(step.start_ns, 0), width);
      g.fillStyle = palette.text.line;
      g.fillRect(x, 2, 1, height);
      if (x < free) continue;
      g.fillStyle = palette.text["ink-3"];
      g.fillText(`step ${step.step}`, x + 4, 11);
      free = x + 62;
    }
  }

  drawBrush() {
    const { view } = this.app.store;
    const width = this.canvas.clientWidth - GUTTER - RIGHT;
    const left = GUTTER + this.toX(view.begin, width);
    this.brush.style.transform = `translateX(${left}px)`;
    this.brush.style.width = `${Math.max(GUTTER + this.toX(view.end, width) - left, 3)}px`;
    this.brush.style.top = `${TOP - 3}px`;
    this.brush.style.height = `${this.app.run.ranks.length * this.rowHeight + 4}px`;
  }

  /** @param {number} ns @param {number} width */
  toX(ns, width) {
    const { run } = this.app;
    return Math.min(Math.max((ns - run.begin_ns) / (run.end_ns - run.begin_ns), 0), 1) * width;
  }

  /** @param {number} x */
  toTime(x) {
    const { run } = this.app;
    const share = (x - GUTTER) / (this.canvas.clientWidth - GUTTER - RIGHT);
    return run.begin_ns + Math.min(Math.max(share, 0), 1) * (run.end_ns - run.begin_ns);
  }

  listen() {
    let from = 0;
    this.canvas.addEventListener("pointerdown", (event) => {
      from = event.offsetX;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!(event.buttons & 1) || Math.abs(event.offsetX - from) < 3) return;
      this.app.show(this.toTime(Math.min(from, event.offsetX)), this.toTime(Math.max(from, event.offsetX)));
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (Math.abs(event.offsetX - from) >= 3) return;
      const rank = this.app.mapRanks[Math.floor((event.offsetY - TOP) / this.rowHeight)];
      const { begin, end } = this.app.store.view;
      const middle = this.toTime(event.offsetX);
      this.app.show(middle - (end - begin) / 2, middle + (end - begin) / 2);
      if (rank !== undefined) this.app.reveal(rank);
    });
  }
}
