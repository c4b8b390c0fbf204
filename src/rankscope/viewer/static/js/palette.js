// The colours of the theme, as numbers for pixels and as text for strokes.

export const MONO = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
export const SANS = "11px system-ui, 'DejaVu Sans', sans-serif";

const OTHERS = ["bg", "panel", "line", "ink", "ink-2", "ink-3", "accent", "idle", "late", "bubble", "wait", "bad", "hot", "on-compute", "on-light", "on-comm"];
const INKS = ["on-compute", "on-light", "on-comm"];
const HOST = "-host"; // ends the kinds of ops: the family's hue, pale
const PALE = 0.3; // of the hue, the rest is the colour of ops

/** @typedef {{ text: Record<string, string>, pixel: Uint32Array, shade: Uint32Array, ink: string[], idle: number, late: number, wait: number, blank: number }} Palette
 *   pixel, shade, ink: of each kind; ink is that of words on it */

/** @param {string[]} kinds in the order of the server @returns {Palette} */
export function readPalette(kinds) {
  const style = getComputedStyle(document.documentElement);
  /** @type {Record<string, string>} */
  const text = {};
  for (const name of [...kinds, ...OTHERS]) text[name] = style.getPropertyValue(`--${name}`).trim();
  const pixel = new Uint32Array(kinds.map((kind) => (kind.endsWith(HOST)
    ? mixed(number(text[kind.slice(0, -HOST.length)]), number(text.op), PALE) : number(text[kind] || text.other))));
  const shade = new Uint32Array(pixel.map((value) => dim(value)));
  const ink = [...pixel].map((ground) => text[inkOn(ground, INKS.map((name) => [name, number(text[name])]))]);
  return { text, pixel, shade, ink, idle: number(text.idle), late: number(text.late), wait: number(text.wait), blank: number(text.panel) };
}

/** Little-endian RGBA of #rrggbb.
 * @param {string} color */
export function number(color) {
  const value = parseInt(color.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** @param {number} a @param {number} b @param {number} share of a */
export function mixed(a, b, share) {
  const part = (/** @type {number} */ shift) => Math.round(((a >>> shift) & 0xff) * share + ((b >>> shift) & 0xff) * (1 - share)) << shift;
  return (0xff000000 | part(16) | part(8) | part(0)) >>> 0;
}

/** Of some inks, the one that stands out most. @param {number} ground @param {[string, number][]} inks */
export function inkOn(ground, inks) {
  const contrast = (/** @type {number} */ ink) => Math.abs(Math.log((luminance(ink) + 0.05) / (luminance(ground) + 0.05)));
  return inks.reduce((best, ink) => (contrast(ink[1]) > contrast(best[1]) ? ink : best))[0];
}

/** As WCAG defines it. @param {number} pixel */
function luminance(pixel) {
  const linear = (/** @type {number} */ shift) => {
    const value = ((pixel >>> shift) & 0xff) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * linear(0) + 0.7152 * linear(8) + 0.0722 * linear(16);
}

/** A slightly greyer colour, to distinguish neighbours with different names.
 * @param {number} pixel */
function dim(pixel) {
  const part = (/** @type {number} */ shift) => Math.round(((pixel >>> shift) & 0xff) * 0.86 + 18) << shift;
  return (0xff000000 | (part(16) & 0xff0000) | (part(8) & 0xff00) | (part(0) & 0xff)) >>> 0;
}

/** @typedef {{ compute: Uint8Array, comm: Uint8Array, wait: Uint8Array, copy: Uint8Array, bubble: Uint8Array, unrecorded: Uint8Array,
 *   bubbles: [number, number][] }} Shares of 255; bubbles: columns that are mostly a bubble, from and to */

/** The colours of a rank over time: mixed by shares; the rest is `idle`, what was not recorded is blank. Bubbles are hatched over it.
 * @param {Uint32Array} pixels @param {Shares} shares @param {Palette} palette
 * @param {(column: number) => number} [restAt] the colour of the rest; it is idle */
export function paintShares(pixels, { compute, comm, wait, copy, unrecorded }, palette, restAt = () => palette.idle) {
  const [blue, orange, pale] = palette.pixel;
  for (let at = 0; at < compute.length; at++) {
    const [a, b, w, c, u] = [compute[at], comm[at], wait[at], copy[at], unrecorded[at]];
    const rest = Math.max(0, 255 - a - b - w - c - u);
    const ground = restAt(at);
    const all = a + b + w + c + u + rest;
    let mixed = 0;
    for (let shift = 0; shift < 24; shift += 8) {
      const part = (a * ((blue >>> shift) & 0xff) + b * ((orange >>> shift) & 0xff) + w * ((palette.wait >>> shift) & 0xff)
        + c * ((pale >>> shift) & 0xff) + u * ((palette.blank >>> shift) & 0xff) + rest * ((ground >>> shift) & 0xff)) / all;
      mixed |= Math.round(part) << shift;
    }
    pixels[at] = (0xff000000 | mixed) >>> 0;
  }
}

/** The mean of several ranks. @param {Shares[]} rows @returns {Shares} */
export function meanShares(rows) {
  const mean = (/** @type {"compute" | "comm" | "wait" | "copy" | "bubble" | "unrecorded"} */ name) =>
    rows[0][name].map((_, at) => rows.reduce((sum, row) => sum + row[name][at], 0) / rows.length);
  const bubble = mean("bubble");
  return { compute: mean("compute"), comm: mean("comm"), wait: mean("wait"), copy: mean("copy"), bubble, unrecorded: mean("unrecorded"), bubbles: stretches(bubble) };
}

const HATCHED = 63; // of 255: where a rank waits for stages that compute with short pauses, it is a bubble half of the time

/** Neighbouring columns that have enough of a class. @param {Uint8Array} share of 255 @returns {[number, number][]} from and to */
export function stretches(share) {
  /** @type {[number, number][]} */
  const spans = [];
  for (let at = 0; at < share.length; at++) {
    if (share[at] <= HATCHED) continue;
    const last = spans[spans.length - 1];
    if (last && last[1] === at) last[1] = at + 1;
    else spans.push([at, at + 1]);
  }
  return spans;
}

/** @type {{ color: string, pattern: CanvasPattern | null }} */
let hatched = { color: "", pattern: null };

/** Diagonal lines, to fill with: what is below is seen between them. @param {CanvasRenderingContext2D} g @param {Palette} palette */
export function hatch(g, palette) {
  const color = palette.text.bubble;
  if (hatched.color !== color) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
    pen.strokeStyle = color;
    pen.lineWidth = 1.5;
    pen.beginPath();
    for (const by of [-6, 0, 6]) {
      pen.moveTo(by - 1, 7);
      pen.lineTo(by + 7, -1);
    }
    pen.stroke();
    hatched = { color, pattern: g.createPattern(tile, "repeat") };
  }
  return hatched.pattern ?? color;
}
