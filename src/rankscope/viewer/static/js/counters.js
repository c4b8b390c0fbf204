// Counters over time as filled steps: memory, queue depth, counters of the file.

import { columns, json, show } from "./api.js";
import { cut, quantity } from "./format.js";
import { COUNTER, GUTTER, LABEL_CHARACTERS } from "./layout.js";

const PAUSE = 80;

export class Counters {
  /** @param {import("./app.js").App} app @param {() => void} arrived */
  constructor(app, arrived) {
    this.app = app;
    this.arrived = arrived;
    /** @type {Map<number, import("./layout.js").Counter[]>} */
    this.known = new Map();
    /** @type {Map<string, { begin: number, end: number, max: number, value: Float64Array }>} */
    this.kept = new Map();
    /** @type {Map<string, string>} */
    this.wanted = new Map();
  }

  /** @param {number} rank */
  async load(rank) {
    this.known.set(rank, (await json("counters", { rank })).counters);
  }

  /** Draw the values at hand, and request those of the window.
   * @param {CanvasRenderingContext2D} g @param {any} row @param {number} width */
  draw(g, row, width) {
    const { timeline, store: { view } } = this.app;
    const [begin, end] = timeline.timesOf(row.rank);
    const { text } = this.app.palette;
    const key = `${row.rank}/${row.counter.name}`;
    g.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    g.textAlign = "right";
    g.textBaseline = "middle";
    g.fillStyle = text["ink-2"];
    g.fillText(cut(row.counter.label, LABEL_CHARACTERS), GUTTER - 10, row.y + 10);
    this.ask(key, row, begin, end, Math.ceil(width));
    const kept = this.kept.get(key);
    if (!kept || !kept.max) return;
    const here = kept.value.reduce((high, value) => Math.max(high, value), 0);
    const most = quantity(kept.max, row.counter.unit);
    g.fillText(here < kept.max && row.counter.group === "clocks" ? `${quantity(here, row.counter.unit)} of ${most}` : most, GUTTER - 10, row.y + 23);
    const scale = (kept.end - kept.begin) / kept.value.length;
    g.fillStyle = text.line;
    g.fillRect(GUTTER, row.y + 3, width, 1); // the highest value, or the limit where it is known
    g.fillStyle = text.copy;
    for (let at = 0; at < kept.value.length; at++) {
      const x = timeline.x(kept.begin + at * scale, row.rank) - GUTTER;
      const wide = (scale / (view.end - view.begin)) * width;
      if (x + wide < 0 || x > width) continue;
      const high = (kept.value[at] / kept.max) * (COUNTER - 6);
      g.fillRect(GUTTER + Math.max(x, 0), row.y + COUNTER - 3 - high, Math.max(wide, 1), high);
    }
  }

  /** @param {string} key @param {any} row @param {number} begin @param {number} end @param {number} width */
  ask(key, row, begin, end, width) {
    const window = `${begin}/${end}/${width}`;
    if (this.wanted.get(key) === window) return;
    this.wanted.set(key, window);
    setTimeout(async () => {
      if (this.wanted.get(key) !== window) return;
      try {
        const answer = await columns("counter", { rank: row.rank, name: row.counter.name, begin, end, width });
        this.kept.set(key, { begin, end, max: Math.max(answer.max, row.counter.most), value: answer.column.value });
        this.arrived();
      } catch (error) {
        show(error);
      }
    }, PAUSE);
  }
}
