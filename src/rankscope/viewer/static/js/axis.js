// The time axis of the page. Of two runs, each step that both have begins at one place, and takes as long as in the slower one;
// where the other has nothing then, its rows are blank. Of one run, places are its times.

import { SECOND, sharedSteps } from "./layout.js";
import { stretches } from "./palette.js";

/** @typedef {{ begin_ns: number, end_ns: number, steps: import("./layout.js").Step[], second_steps?: import("./layout.js").Step[], ends_ns?: number[] }} Times */

export class Axis {
  /** @param {Times} run */
  constructor(run) {
    /** @type {{ start_ns: number, later_ns: number, dur_ns: number }[]} */
    const shared = [];
    for (const step of run.second_steps ? sharedSteps(run.steps, run.second_steps) : []) {
      const last = shared[shared.length - 1];
      if (!last || (step.start_ns > last.start_ns && step.start_ns + step.later_ns > last.start_ns + last.later_ns)) shared.push(step);
    }
    this.durations = shared.map((step) => step.dur_ns);
    /** of both runs @type {[number[], number[]]} */
    this.starts = [shared.map((step) => step.start_ns), shared.map((step) => step.start_ns + step.later_ns)];
    /** @type {number[]} the places of these steps */
    this.at = [];
    for (let index = 0; index < shared.length; index++) {
      this.at.push(Math.max(...this.starts.map((starts) => (index ? this.at[index - 1] + starts[index] - starts[index - 1] : starts[0]))));
    }
    this.begin = run.begin_ns;
    this.last = run.end_ns; // time of both runs
    const index = shared.length - 1;
    this.end = index < 0 ? run.end_ns : this.at[index] + Math.max(...this.starts.map((starts, side) => (run.ends_ns?.[side] ?? run.end_ns) - starts[index]));
  }

  /** The place of a time. @param {number} ns @param {number} rank */
  of(ns, rank) {
    const starts = this.starts[rank >= SECOND ? 1 : 0];
    if (!starts.length) return ns;
    const index = lastUpTo(starts, ns);
    return this.at[index] + ns - starts[index];
  }

  /** The time at a place; where the step is over, that of the next one's begin. @param {number} place @param {number} rank */
  back(place, rank) {
    const [ns, next] = this.within(place, rank);
    return Math.min(ns, next);
  }

  /** A time counted from the step at a place, and when the next step begins. @param {number} place @param {number} rank */
  within(place, rank) {
    const starts = this.starts[rank >= SECOND ? 1 : 0];
    if (!starts.length) return [place, Infinity];
    const index = lastUpTo(this.at, place);
    return [starts[index] + place - this.at[index], starts[index + 1] ?? Infinity];
  }

  /** Columns from one time to another, as columns from one place to another. @param {import("./palette.js").Shares} shares
   * @param {[number, number]} times @param {[number, number]} places @param {number} rank @returns {import("./palette.js").Shares} */
  spread(shares, [from, to], [begin, end], rank) {
    if (!this.at.length) return shares;
    const count = shares.compute.length;
    const source = Int32Array.from({ length: count }, (_, at) => {
      const [ns, next] = this.within(begin + ((at + 0.5) * (end - begin)) / count, rank);
      return ns >= from && ns < Math.min(to, next) ? Math.floor(((ns - from) / (to - from)) * count) : -1;
    });
    const part = (/** @type {Uint8Array} */ values, nothing = 0) => Uint8Array.from(source, (column) => (column < 0 ? nothing : values[column]));
    const bubble = part(shares.bubble);
    return {
      compute: part(shares.compute), comm: part(shares.comm), wait: part(shares.wait), copy: part(shares.copy), bubble,
      unrecorded: part(shares.unrecorded, 255), bubbles: stretches(bubble),
    };
  }
}

/** The index of the last value that is not larger; 0 where all are. @param {number[]} values in order @param {number} limit */
function lastUpTo(values, limit) {
  let [low, high] = [0, values.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (values[middle] <= limit) low = middle;
    else high = middle - 1;
  }
  return low;
}
