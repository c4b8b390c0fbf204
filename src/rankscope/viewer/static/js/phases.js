// The phases of opening a run with their times, in place of the verdict, until the run is open.

import { byId, fill, h } from "./dom.js";
import { scaled } from "./format.js";

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
    if (state.total_bytes) this.note = ` ${scaled(state.read_bytes, "B")} of ${scaled(state.total_bytes, "B")}${state.count > 1 ? ` in ${state.count} files` : ""}`;
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
