// The overview of all ranks over the whole run. Its brush is the visible window.

import { columns, show } from "./api.js";
import { byId } from "./dom.js";
import { GUTTER, rankName } from "./layout.js";
import { mix } from "./palette.js";
import { paintShares } from "./raster.js";

const TOP = 16;
const RANKS_AT_A_TIME = 32;

export class Overview {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.canvas = /** @type {HTMLCanvasElement} */ (byId("overview"));
    /** @type {Map<number, { compute: Uint8Array, comm: Uint8Array, copy: Uint8Array, unrecorded: Uint8Array }>} */
    this.rows = new Map();
    this.columns = 1200;
    this.hot = -1;
    this.listen();
  }

  /** Load the overview, some ranks at a time, and draw what has arrived. */
  async load() {
    const { run } = this.app;
    for (let at = 0; at < run.ranks.length; at += RANKS_AT_A_TIME) {
      const ranks = run.ranks.slice(at, at + RANKS_AT_A_TIME);
      try {
        const answer = await columns("overview", { begin: run.begin_ns, end: run.end_ns, width: this.columns, ranks: ranks.join(",") });
        ranks.forEach((rank, place) => {
          const [from, to] = [place * answer.width, (place + 1) * answer.width];
          this.rows.set(rank, {
            compute: answer.column.compute.subarray(from, to), comm: answer.column.comm.subarray(from, to), copy: answer.column.copy.subarray(from, to),
            unrecorded: answer.column.unrecorded.subarray(from, to),
          });
        });
        this.draw();
      } catch (error) {
        show(error);
        return;
      }
    }
    this.canvas.dataset.ready = "true";
  }

  get rowHeight() {
    const count = this.app.ranks.length;
    return count <= 10 ? 17 : count <= 24 ? 12 : count <= 64 ? 6 : count <= 256 ? 3 : 1;
  }

  draw() {
    const { app, canvas } = this;
    const ranks = app.ranks;
    const row = this.rowHeight;
    const height = TOP + ranks.length * row + 4;
    const g = app.prepare(canvas, height);
    const width = canvas.clientWidth - GUTTER - 16;
    g.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    this.drawSteps(g, width, height);
    const image = new ImageData(this.columns, 1);
    const pixels = new Uint32Array(image.data.buffer);
    ranks.forEach((rank, place) => {
      const y = TOP + place * row;
      if (row >= 12) {
        g.fillStyle = rank === this.hot ? app.palette.text.bad : app.palette.text["ink-2"];
        g.textAlign = "right";
        g.fillText(rankName(rank), GUTTER - 10, y + row - 4);
      }
      const shares = this.rows.get(rank);
      if (!shares) return;
      paintShares(pixels, shares, (a, b, c, d) => mix(app.palette, a, b, c, d));
      g.drawImage(app.picture(image), 0, 0, this.columns, 1, GUTTER, y, width, Math.max(1, row - (row > 4 ? 2 : 0)));
    });
    if (row < 12) {
      g.fillStyle = app.palette.text["ink-2"];
      g.textAlign = "right";
      g.fillText(`${ranks.length} ranks`, GUTTER - 10, TOP + 12);
    }
    this.drawBrush(g, width, height);
  }

  /** @param {CanvasRenderingContext2D} g @param {number} width @param {number} height */
  drawSteps(g, width, height) {
    const { run, palette } = this.app;
    g.textAlign = "left";
    let free = 0;
    for (const step of run.steps) {
      const x = GUTTER + this.toX(step.start_ns, width);
      g.fillStyle = palette.text.line;
      g.fillRect(x, 2, 1, height);
      if (x < free) continue;
      g.fillStyle = palette.text["ink-3"];
      g.fillText(`step ${step.step}`, x + 4, 11);
      free = x + 62;
    }
  }

  /** @param {CanvasRenderingContext2D} g @param {number} width @param {number} height */
  drawBrush(g, width, height) {
    const { view } = this.app.store;
    const left = GUTTER + this.toX(view.begin, width);
    const right = GUTTER + this.toX(view.end, width);
    g.fillStyle = this.app.palette.text.accent;
    g.globalAlpha = 0.08;
    g.fillRect(left, TOP - 2, right - left, height - TOP);
    g.globalAlpha = 1;
    g.strokeStyle = this.app.palette.text.accent;
    g.lineWidth = 1.5;
    g.strokeRect(left, TOP - 2, Math.max(right - left, 2), height - TOP);
  }

  /** @param {number} ns @param {number} width */
  toX(ns, width) {
    const { run } = this.app;
    return Math.min(Math.max((ns - run.begin_ns) / (run.end_ns - run.begin_ns), 0), 1) * width;
  }

  /** @param {number} x */
  toTime(x) {
    const { run } = this.app;
    const share = (x - GUTTER) / (this.canvas.clientWidth - GUTTER - 16);
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
      const rank = this.app.ranks[Math.floor((event.offsetY - TOP) / this.rowHeight)];
      const { begin, end } = this.app.store.view;
      const middle = this.toTime(event.offsetX);
      this.app.show(middle - (end - begin) / 2, middle + (end - begin) / 2);
      if (rank !== undefined) this.app.reveal(rank);
    });
  }
}
