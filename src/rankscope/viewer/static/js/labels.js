// Words on a canvas: each is cut to its room as it is measured, and where they are is known, so that a test can ask whether two overlap.

import { cut } from "./format.js";

const CHARACTER = 5.2; // px, of a narrow one: a first guess of how many fit
const MOST_KNOWN = 20_000;

/** @typedef {{ text: string, x: number, y: number, width: number, height: number, slice?: { tile: import("./tiles.js").Tile, at: number } }} Box on the canvas;
 *   slice: what the words are about, where others are at the same place */

export class Labels {
  constructor() {
    /** @type {Box[]} of the last picture */
    this.boxes = [];
    /** @type {Map<string, string>} */
    this.cut = new Map();
  }

  /** A name in the current font, shortened to so many pixels. @param {CanvasRenderingContext2D} g @param {string} name @param {number} room */
  fit(g, name, room) {
    const key = `${g.font} ${Math.floor(room)} ${name}`;
    let short = this.cut.get(key);
    if (short === undefined) {
      let characters = Math.min(Math.floor(room / CHARACTER), name.length);
      do short = cut(name, characters); while (g.measureText(short).width > room && characters-- > 0);
      if (this.cut.size > MOST_KNOWN) this.cut.clear();
      this.cut.set(key, short);
    }
    return short;
  }

  /** Where the words around a height end. @param {CanvasRenderingContext2D} g @param {number} y */
  rightOf(g, y) {
    const { a: ratio, f: top } = g.getTransform();
    const there = this.boxes.filter((box) => Math.abs(box.y + box.height / 2 - y - top / ratio) < box.height);
    return Math.max(0, ...there.map((box) => box.x + box.width));
  }

  /** Whether words from x on would be over a label, of those of one row: from the number `since` on.
   * @param {CanvasRenderingContext2D} g @param {string} text @param {number} x @param {number} since */
  meets(g, text, x, since) {
    const right = x + g.measureText(text).width;
    return this.boxes.slice(since).some((box) => box.x < right && box.x + box.width > x);
  }

  /** Write at the left of x, around the height y. @param {CanvasRenderingContext2D} g @param {string} text @param {number} x @param {number} y */
  write(g, text, x, y) {
    if (!text) return;
    g.textAlign = "left";
    g.textBaseline = "middle";
    g.fillText(text, x, y);
    const { a: ratio, f: top } = g.getTransform();
    this.boxes.push({ text, x, y: y - 6 + top / ratio, width: g.measureText(text).width, height: 12 });
  }

  /** The same on a plate of its own. @param {CanvasRenderingContext2D} g @param {string} text @param {number} x @param {number} y
   * @param {string} ink @param {string} plate @param {number} [height] */
  plate(g, text, x, y, ink, plate, height = 16) {
    g.fillStyle = plate;
    g.fillRect(x - 4, y - height / 2, g.measureText(text).width + 8, height);
    g.fillStyle = ink;
    this.write(g, text, x, y);
  }
}
