// The first seconds: the phases of opening a run with their times, and a picture of what has been read so far: how busy each
// track of a trace is over time, or how much of each file is read. The timeline replaces it.

import { byId, fill, h } from "./dom.js";
import { scaled, time } from "./format.js";
import { AXIS, GAP, GUTTER, LABEL_CHARACTERS, LANE, RIGHT } from "./layout.js";
import { shortenNames } from "./names.js";
import { MONO, readPalette } from "./palette.js";

const DOING = /** @type {Record<string, string>} */ ({
  read: "Reading the traces", link: "Linking launches, kernels and steps", "align clocks": "Aligning clocks and steps", draw: "Drawing",
  findings: "Looking for problems",
});
const EVERY = 200; // ms

/** The list of phases, in place of the verdict. */
export class Phases {
  constructor() {
    /** @type {Map<string, { seconds: number, done: boolean }>} */
    this.times = new Map();
    this.note = "";
  }

  /** What the server has done. @param {any} state */
  told(state) {
    this.times = new Map((state.phases ?? []).map((/** @type {any} */ { name, ...time }) => [name, time]));
    if (state.total_bytes) this.note = ` ${scaled(state.read_bytes, "B")} of ${scaled(state.total_bytes, "B")}`;
    this.draw(state.state === "open");
  }

  /** A phase that lasts as long as some work of the page. @template T @param {string} name @param {Promise<T>} work */
  async during(name, work) {
    const from = performance.now();
    const set = (/** @type {boolean} */ done) => {
      this.times.set(name, { seconds: (performance.now() - from) / 1000, done });
      this.draw(true);
    };
    const timer = setInterval(set, EVERY, false);
    set(false);
    try {
      return await work;
    } finally {
      clearInterval(timer);
      set(true);
    }
  }

  /** @param {boolean} open phases before this one that did not happen: the store has their results */
  draw(open) {
    const names = Object.keys(DOING).filter((name) => !open || this.times.has(name) || name !== "read" && name !== "link");
    const doing = names.find((name) => !this.times.get(name)?.done);
    const title = !doing ? "Summing up" : this.times.has(doing) ? DOING[doing] : "Opening the run";
    fill(byId("verdict"), h("div", {}, h("h1", {}, title), h("ol", { class: "phases" }, names.map((name) => {
      const phase = this.times.get(name);
      return h("li", { class: phase?.done ? "done" : phase ? "doing" : "" }, name, phase && !phase.done && name === "read" ? this.note : "",
        phase ? ` ${phase.seconds.toFixed(1)} s` : "");
    }))));
  }
}

/** A cleared canvas above the tracks, as large as they are. @param {import("./palette.js").Palette} palette */
function prepared(palette) {
  const canvas = /** @type {HTMLCanvasElement} */ (byId("growing"));
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.className = "";
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.font = MONO;
  const row = (/** @type {string} */ label, /** @type {number} */ index) => {
    const y = AXIS + index * (LANE + GAP);
    g.globalAlpha = 1;
    g.fillStyle = palette.text["ink-2"];
    g.textAlign = "right";
    g.fillText(label, GUTTER - 10, y + LANE - 6);
    return y;
  };
  return { g, canvas, row, width: width - GUTTER - RIGHT, height };
}

/** How much of each file has been read, where other processes read them. @param {[string, number][]} files name and share of those
 * that are begun @param {number} count of all */
export function drawFiles(files, count) {
  const palette = readPalette([]);
  const { g, row, width, height } = prepared(palette);
  const each = Math.max(Math.min(LANE + GAP, Math.floor((height - AXIS) / count)), 3);
  files.sort(([a], [b]) => (a < b ? -1 : 1));
  const names = shortenNames(files.map(([name]) => name), LABEL_CHARACTERS);
  const labelled = each === LANE + GAP;
  if (!labelled) row(`${count} files`, 0);
  for (let index = 0; index < count; index++) {
    const y = labelled ? row(names[index] ?? "", index) : AXIS + index * each;
    const high = labelled ? LANE : each - 1;
    g.globalAlpha = 1;
    g.fillStyle = palette.text.idle;
    g.fillRect(GUTTER, y, width, high);
    g.fillStyle = palette.text.accent;
    g.globalAlpha = 0.35;
    g.fillRect(GUTTER, y, width * (files[index]?.[1] ?? 0), high);
  }
}

/** @param {import("./api.js").Columns} picture viewer/growing.py */
export function drawGrowing(picture) {
  const { labels, bins, column } = picture;
  const palette = readPalette(picture.kinds);
  const { g, canvas, row, width, height } = prepared(palette);
  g.fillStyle = palette.text["ink-2"];
  g.textAlign = "left";
  g.fillText(`read so far: ${time(picture.end_ns - picture.begin_ns)}`, GUTTER, AXIS - 9);
  const each = width / bins;
  labels.slice(0, Math.ceil(height / (LANE + GAP))).forEach((/** @type {string} */ label, /** @type {number} */ index) => {
    const y = row(label, index);
    for (let bin = 0; bin < bins; bin++) {
      const busy = column.busy[index * bins + bin];
      if (!busy) continue;
      g.globalAlpha = 0.25 + 0.75 * busy / 255;
      g.fillStyle = palette.text[picture.kinds[column.kind[index * bins + bin]]];
      g.fillRect(GUTTER + bin * each, y, Math.max(each, 1), LANE);
    }
  });
  canvas.dataset.growing = String(labels.length);
}
