// Tiles of tracks: requested when visible, cached, and replaced by coarser tiles until they arrive.

import { columns, show } from "./api.js";

const AT_A_TIME = 6;
const MOST_KEPT = 600;

/** The level whose pixels (2^level ns) are at most as wide as those of the screen.
 * @param {number} nsPerPixel */
export function levelOf(nsPerPixel) {
  return Math.max(0, Math.floor(Math.log2(Math.max(nsPerPixel, 1))));
}

/** The tiles of a level that cover a window.
 * @param {number} begin @param {number} end @param {number} level @param {number} width @returns {number[]} */
export function indicesOf(begin, end, level, width) {
  const size = width * 2 ** level;
  const indices = [];
  for (let index = Math.floor(begin / size); index * size < end; index++) indices.push(index);
  return indices;
}

/** @typedef {{ rank: number, segment: number, track: number }} TrackKey
 * @typedef {{ start: Float64Array, duration: Float64Array, id: Float64Array, name: Uint32Array, count: Uint32Array,
 *   row: Uint16Array, segment: Uint16Array, kind: Uint8Array, wait?: Float64Array, match?: Float64Array, last?: Float64Array, names: Record<string, string>, short: Record<string, string>, level: number, track: number }} Tile start: places on the axis */

export class Tiles {
  /** @param {number} width pixels of a tile @param {import("./axis.js").Axis} axis @param {() => void} arrived */
  constructor(width, axis, arrived) {
    this.width = width;
    this.axis = axis;
    this.arrived = arrived;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    /** @type {Map<string, { key: TrackKey, level: number, index: number }>} */
    this.wanted = new Map();
    /** @type {Set<string>} */
    this.asked = new Set();
  }

  /** Start a new frame: only tiles that it needs are requested. */
  begin() {
    this.wanted.clear();
  }

  /** The tiles for a part of the axis and a track; coarser ones in place of those that have not arrived.
   * @param {TrackKey} key @param {number} begin @param {number} end @param {number} nsPerPixel @returns {Tile[]} */
  of(key, begin, end, nsPerPixel) {
    const level = levelOf(nsPerPixel);
    [begin, end] = [this.axis.back(begin, key.rank), this.axis.back(end, key.rank)];
    /** @type {Map<string, Tile>} */
    const drawable = new Map();
    for (const index of indicesOf(begin, end, level, this.width)) {
      const name = nameOf(key, level, index);
      const tile = this.kept.get(name);
      if (tile) {
        this.kept.delete(name);
        this.kept.set(name, tile); // the most recently used is last
        drawable.set(name, tile);
        continue;
      }
      if (!this.asked.has(name)) this.wanted.set(name, { key, level, index });
      for (let up = 1; up <= 12; up++) {
        const coarse = nameOf(key, level + up, Math.floor(index / 2 ** up));
        const substitute = this.kept.get(coarse);
        if (substitute) {
          drawable.set(coarse, substitute);
          break;
        }
      }
    }
    return [...drawable.values()].sort((a, b) => b.level - a.level);
  }

  /** Request the tiles that are needed and not yet requested. */
  fetch() {
    for (const [name, { key, level, index }] of this.wanted) {
      if (this.asked.size >= AT_A_TIME) return;
      this.wanted.delete(name);
      this.asked.add(name);
      columns("tile", { ...key, level, index })
        .then((answer) => this.keep(name, key.rank, answer))
        .catch((error) => { if (!this.failed) show(error); this.failed = true; })
        .finally(() => { this.asked.delete(name); this.fetch(); });
    }
  }

  /** @param {string} name @param {number} rank @param {import("./api.js").Columns} answer */
  keep(name, rank, answer) {
    this.failed = false;
    const start = answer.column.start.map((/** @type {number} */ ns) => this.axis.of(ns, rank));
    this.kept.set(name, /** @type {any} */ ({ ...answer.column, start, names: answer.names, short: answer.short, level: answer.level, track: answer.track }));
    while (this.kept.size > MOST_KEPT) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    this.arrived();
  }

  get busy() {
    return this.asked.size > 0 || this.wanted.size > 0;
  }
}

/** @param {TrackKey} key @param {number} level @param {number} index */
function nameOf(key, level, index) {
  return `${key.rank}/${key.segment}/${key.track}/${level}/${index}`;
}
