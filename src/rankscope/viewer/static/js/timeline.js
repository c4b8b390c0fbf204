// The tracks: each rank as a strip of its activity, expanded ranks with their streams and threads.

import { columns, json, show } from "./api.js";
import { byId } from "./dom.js";
import { moment, percent, ticks, time } from "./format.js";
import { GAP, GUTTER, HEADER, LABEL_CHARACTERS, LANE, rankName, rowsOf, visible } from "./layout.js";
import { shortenName } from "./names.js";
import { mix } from "./palette.js";
import { paint, paintShares } from "./raster.js";
import { Counters } from "./counters.js";
import { Tiles } from "./tiles.js";

const AXIS = 20;
const STRIP_COLUMNS = 600;

/** @typedef {{ rank: number, segment: number, track: number, id: number, name: string, start: number, duration: number,
 *   count: number, kind: number, row: number, x: number, y: number, width: number }} Hit */

export class Timeline {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.box = byId("tracks");
    this.spacer = byId("spacer");
    this.canvas = /** @type {HTMLCanvasElement} */ (byId("canvas"));
    this.tiles = new Tiles(app.run.tile_width, () => this.redraw());
    /** @type {Map<number, import("./layout.js").Track[]>} */
    this.tracks = new Map();
    this.counters = new Counters(app, () => this.redraw());
    /** @type {{ key: string, ranks: number[], answer: import("./api.js").Columns } | null} */
    this.strips = null;
    this.wantedStrips = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.stripTimer = undefined;
    this.pending = false;
    /** @type {Hit[]} */
    this.arrows = [];
    this.marks = /** @type {{ at: number, text: string }[]} */ ([]);
    this.frames = /** @type {number[]} */ ([]);
    this.box.addEventListener("scroll", () => this.redraw());
  }

  get width() {
    return Math.max(this.canvas.clientWidth - GUTTER, 50);
  }

  get nsPerPixel() {
    const { begin, end } = this.app.store.view;
    return (end - begin) / this.width;
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

  async loadTracks() {
    for (const rank of this.app.store.view.open) {
      if (this.tracks.has(rank)) continue;
      this.tracks.set(rank, []);
      try {
        this.tracks.set(rank, (await json("tracks", { rank })).tracks);
        await this.counters.load(rank);
        this.redraw();
      } catch (error) {
        this.tracks.delete(rank);
        show(error);
      }
    }
  }

  layout() {
    const { view } = this.app.store;
    return rowsOf(this.app.ranks, new Set(view.open), view.pinned, this.tracks, view.filter, this.counters.known);
  }

  draw() {
    const { app, canvas, box } = this;
    const { rows, height } = this.layout();
    this.spacer.style.height = `${Math.max(height + AXIS + 60, box.clientHeight)}px`;
    const g = app.prepare(canvas, box.clientHeight);
    const top = box.scrollTop;
    this.tiles.begin();
    this.drawGrid(g, box.clientHeight);
    g.save();
    g.beginPath();
    g.rect(0, AXIS, canvas.clientWidth, box.clientHeight - AXIS);
    g.clip();
    g.translate(0, AXIS - top);
    const seen = visible(rows, top, top + box.clientHeight);
    for (const row of seen) {
      if (row.type === "track") this.drawTrack(g, row);
      if (row.type === "counter") this.counters.draw(g, row, this.width);
    }
    for (const row of seen) {
      if (row.type === "rank") this.drawRank(g, row);
    }
    this.drawArrows(g, rows);
    g.restore();
    this.drawSelection(g, box.clientHeight);
    this.tiles.fetch();
    this.loadStrips(seen.flatMap((row) => (row.type === "rank" ? [row.rank] : [])));
    canvas.dataset.busy = String(this.tiles.busy);
  }

  /** @param {CanvasRenderingContext2D} g @param {number} height */
  drawGrid(g, height) {
    const { view } = this.app.store;
    const { text } = this.app.palette;
    g.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    g.textBaseline = "middle";
    g.textAlign = "left";
    for (const at of ticks(view.begin, view.end, this.width / 110)) {
      const x = GUTTER + (at - view.begin) / this.nsPerPixel;
      g.fillStyle = text.line;
      g.fillRect(x, 0, 1, height);
      g.fillStyle = text["ink-3"];
      g.fillText(moment(at, view.end - view.begin), x + 4, AXIS / 2);
    }
    g.fillStyle = text["ink-2"];
    g.textAlign = "right";
    g.fillText(time(view.end - view.begin), GUTTER - 10, AXIS / 2);
    g.fillStyle = text.line;
    g.fillRect(GUTTER - 1, 0, 1, height);
  }

  /** @param {CanvasRenderingContext2D} g @param {any} row */
  drawRank(g, row) {
    const { text } = this.app.palette;
    g.fillStyle = text.panel;
    g.fillRect(0, row.y, this.canvas.clientWidth, HEADER - 1);
    g.font = "600 12px ui-monospace, 'DejaVu Sans Mono', monospace";
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillStyle = row.rank === this.app.overview.hot ? text.bad : text.ink;
    g.fillText(`${row.open ? "▾" : "▸"} ${rankName(row.rank)}${row.pinned ? " •" : ""}`, 12, row.y + HEADER / 2);
    const place = this.strips ? this.strips.ranks.indexOf(row.rank) : -1;
    if (!this.strips || place < 0) return;
    const { answer } = this.strips;
    const part = (/** @type {string} */ name) => answer.column[name].subarray(place * answer.width, (place + 1) * answer.width);
    const shares = { compute: part("compute"), comm: part("comm"), copy: part("copy"), unrecorded: part("unrecorded") };
    const image = new ImageData(answer.width, 1);
    paintShares(new Uint32Array(image.data.buffer), shares, (a, b, c, d) => mix(this.app.palette, a, b, c, d));
    const left = GUTTER + (answer.begin_ns - this.app.store.view.begin) / this.nsPerPixel;
    const width = (answer.end_ns - answer.begin_ns) / this.nsPerPixel;
    g.save();
    g.beginPath();
    g.rect(GUTTER, row.y, this.width, HEADER);
    g.clip();
    g.drawImage(this.app.picture(image), 0, 0, answer.width, 1, left, row.y + 4, width, row.open ? 5 : HEADER - 10);
    g.restore();
    if (row.open) this.drawShares(g, row, shares);
  }

  /** @param {CanvasRenderingContext2D} g @param {any} row @param {Record<string, Uint8Array>} shares */
  drawShares(g, row, shares) {
    const of = (/** @type {Uint8Array} */ values) => values.reduce((sum, value) => sum + value, 0) / (255 * values.length);
    const [compute, comm, copy] = [of(shares.compute), of(shares.comm), of(shares.copy)];
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    g.fillStyle = this.app.palette.text["ink-2"];
    const unrecorded = of(shares.unrecorded);
    const idle = Math.max(0, 1 - compute - comm - copy - unrecorded);
    const rest = unrecorded > 0 ? ` · not recorded ${percent(unrecorded)}` : "";
    g.fillText(`compute ${percent(compute)} · exposed communication ${percent(comm)} · idle ${percent(idle)}${rest}`, GUTTER + 10, row.y + 17);
  }

  /** @param {CanvasRenderingContext2D} g @param {any} row */
  drawTrack(g, row) {
    const { app } = this;
    const { begin, end } = app.store.view;
    const width = Math.ceil(this.width);
    const key = { rank: row.rank, segment: row.track.segment, track: row.track.track };
    const tiles = this.tiles.of(key, begin, end, this.nsPerPixel);
    g.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = app.palette.text["ink-2"];
    g.fillText(shortenName(row.track.label, LABEL_CHARACTERS), GUTTER - 10, row.y + LANE / 2);
    if (!tiles.length) return;
    const image = new ImageData(width, row.lanes);
    paint(new Uint32Array(image.data.buffer), width, row.lanes, tiles, begin, this.nsPerPixel, app.palette);
    g.drawImage(app.picture(image), 0, 0, width, row.lanes, GUTTER, row.y, width, row.lanes * LANE);
    g.fillStyle = app.palette.text.bg;
    for (let lane = 1; lane <= row.lanes; lane++) g.fillRect(GUTTER, row.y + lane * LANE - 1, width, 1);
    this.drawNames(g, row, tiles);
  }

  /** @param {CanvasRenderingContext2D} g @param {any} row @param {import("./tiles.js").Tile[]} tiles */
  drawNames(g, row, tiles) {
    const { app } = this;
    const { begin } = app.store.view;
    const chosen = app.store.view.slice;
    const done = new Set(); // a slice can be in a coarse tile and in the fine tile that replaces it
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    g.textAlign = "left";
    for (const tile of tiles) {
      for (let at = 0; at < tile.start.length; at++) {
        const wide = tile.duration[at] / this.nsPerPixel;
        const mine = chosen && chosen.id === tile.id[at] && chosen.rank === row.rank && chosen.segment === tile.segment[at];
        if ((wide < 34 && !mine) || tile.row[at] >= row.lanes || done.has(tile.id[at])) continue;
        done.add(tile.id[at]);
        const left = (tile.start[at] - begin) / this.nsPerPixel;
        const from = Math.max(left, 0);
        const to = Math.min(left + wide, this.width);
        const y = row.y + tile.row[at] * LANE;
        if (mine) {
          g.strokeStyle = app.palette.text.ink;
          g.lineWidth = 2;
          g.strokeRect(GUTTER + from, y + 1, Math.max(to - from, 2), LANE - 3);
        }
        if (to - from < 34) continue;
        g.fillStyle = app.palette.text[tile.kind[at] === 0 ? "on-compute" : "on-light"];
        if (tile.kind[at] === 1 || tile.kind[at] === 2) g.fillStyle = "#1b1400";
        const name = tile.names[String(tile.name[at])] ?? "";
        const room = Math.floor((to - from - 8) / 6);
        const duration = to - from > 120 ? `  ${time(tile.duration[at])}` : "";
        g.fillText(shortenName(name, room - duration.length) + duration, GUTTER + from + 5, y + LANE / 2);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} g @param {import("./layout.js").Row[]} rows */
  drawArrows(g, rows) {
    if (this.arrows.length < 2) return;
    const places = this.arrows.map((hit) => {
      const row = rows.find((r) => r.type === "track" && r.rank === hit.rank && r.track.track === hit.track && r.track.segment === hit.segment);
      return row && { x: GUTTER + (hit.start - this.app.store.view.begin) / this.nsPerPixel, y: row.y + hit.row * LANE + LANE / 2 };
    });
    g.strokeStyle = this.app.palette.text.accent;
    g.lineWidth = 1.5;
    for (let at = 1; at < places.length; at++) {
      const [a, b] = [places[at - 1], places[at]];
      if (!a || !b) continue;
      g.beginPath();
      g.moveTo(a.x, a.y);
      g.bezierCurveTo(a.x + 30, a.y, b.x - 30, b.y, b.x, b.y);
      g.stroke();
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
      if (right > left) g.fillRect(left, 0, right - left, height);
      g.globalAlpha = 1;
    }
    g.setLineDash([4, 3]);
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    g.textAlign = "left";
    this.marks.forEach((mark, place) => {
      const x = GUTTER + (mark.at - view.begin) / this.nsPerPixel;
      if (x < GUTTER) return;
      g.strokeStyle = g.fillStyle = text.bad;
      g.beginPath();
      g.moveTo(x, AXIS);
      g.lineTo(x, height);
      g.stroke();
      const late = x - GUTTER > this.width * 0.6;
      g.textAlign = late ? "right" : "left";
      g.fillText(mark.text, late ? x - 4 : x + 4, height - 12 - 13 * (place % 4));
    });
    g.setLineDash([]);
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
      columns("overview", { begin: Math.round(begin), end: Math.max(Math.round(end), Math.round(begin) + 1), width: STRIP_COLUMNS, ranks: ranks.join(",") })
        .then((answer) => {
          if (this.wantedStrips !== key) return;
          this.strips = { key, ranks, answer };
          this.redraw();
        })
        .catch(show);
    }, 60);
  }

  /** The element at a point of the canvas.
   * @param {number} x @param {number} y @returns {{ rank?: number, hit?: Hit, header?: boolean, track?: any }} */
  at(x, y) {
    const inside = y - AXIS + this.box.scrollTop;
    const row = visible(this.layout().rows, inside, inside + 1)[0];
    if (!row || y < AXIS) return {};
    if (row.type === "rank") return { rank: row.rank, header: true };
    if (row.type === "counter") return { rank: row.rank };
    const lane = Math.floor((inside - row.y) / LANE);
    return { rank: row.rank, track: row.track, hit: x >= GUTTER ? this.hitIn(row, lane, x - GUTTER) : undefined };
  }

  /** @param {any} row @param {number} lane @param {number} x @returns {Hit | undefined} */
  hitIn(row, lane, x) {
    const { begin, end } = this.app.store.view;
    const key = { rank: row.rank, segment: row.track.segment, track: row.track.track };
    let best;
    let nearest = 4;
    for (const tile of this.tiles.of(key, begin, end, this.nsPerPixel)) {
      for (let at = 0; at < tile.start.length; at++) {
        if (tile.row[at] !== lane) continue;
        const left = (tile.start[at] - begin) / this.nsPerPixel;
        const wide = Math.max(tile.duration[at] / this.nsPerPixel, 1);
        const away = x < left ? left - x : x > left + wide ? x - left - wide : 0;
        if (away >= nearest) continue;
        nearest = Math.max(away, 0.001);
        best = {
          ...key, segment: tile.segment[at], id: tile.id[at], name: tile.names[String(tile.name[at])] ?? "", start: tile.start[at], duration: tile.duration[at],
          count: tile.count[at], kind: tile.kind[at], row: lane, x: left, y: row.y + lane * LANE, width: wide,
        };
      }
    }
    return best;
  }

  /** Scroll to a rank or one of its tracks.
   * @param {number} rank @param {{ segment: number, track: number, depth?: number }} [track] */
  scrollTo(rank, track) {
    const row = this.layout().rows.find((r) => r.rank === rank
      && (track ? r.type === "track" && r.track.track === track.track && r.track.segment === track.segment : r.type === "rank"));
    if (!row) return;
    const y = row.y + (track?.depth ?? 0) * LANE;
    const { scrollTop, clientHeight } = this.box;
    if (y < scrollTop || y + LANE + GAP > scrollTop + clientHeight - AXIS) this.box.scrollTop = Math.max(0, y - clientHeight / 3);
  }
}


