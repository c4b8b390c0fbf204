// The colours of the theme, as numbers for pixels and as text for strokes.

const NAMES = ["compute", "comm", "copy", "op", "annotation", "runtime", "sync", "python", "other"];

/** @typedef {{ text: Record<string, string>, pixel: Uint32Array, shade: Uint32Array, idle: number, blank: number }} Palette */

/** @param {string[]} kinds in the order of the server @returns {Palette} */
export function readPalette(kinds) {
  const style = getComputedStyle(document.documentElement);
  /** @type {Record<string, string>} */
  const text = {};
  for (const name of [...NAMES, "bg", "panel", "line", "ink", "ink-2", "ink-3", "accent", "idle", "bad", "on-compute", "on-light"]) {
    text[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const pixel = new Uint32Array(kinds.map((kind) => number(text[kind] ?? text.other)));
  const shade = new Uint32Array(pixel.map((value) => dim(value)));
  return { text, pixel, shade, idle: number(text.idle), blank: number(text.panel) };
}

/** Little-endian RGBA of #rrggbb.
 * @param {string} color */
export function number(color) {
  const value = parseInt(color.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** A slightly greyer colour, to distinguish neighbours with different names.
 * @param {number} pixel */
function dim(pixel) {
  const part = (/** @type {number} */ shift) => Math.round(((pixel >>> shift) & 0xff) * 0.86 + 18) << shift;
  return (0xff000000 | (part(16) & 0xff0000) | (part(8) & 0xff00) | (part(0) & 0xff)) >>> 0;
}

/** Mix colours by shares of 255; the rest is idle, what was not recorded is blank.
 * @param {Palette} palette @param {number} compute @param {number} comm @param {number} copy @param {number} unrecorded */
export function mix(palette, compute, comm, copy, unrecorded) {
  const rest = Math.max(0, 255 - compute - comm - copy - unrecorded);
  const all = compute + comm + copy + unrecorded + rest;
  let mixed = 0xff000000;
  for (const shift of [0, 8, 16]) {
    const part = (compute * ((palette.pixel[0] >>> shift) & 0xff) + comm * ((palette.pixel[1] >>> shift) & 0xff)
      + copy * ((palette.pixel[2] >>> shift) & 0xff) + unrecorded * ((palette.blank >>> shift) & 0xff) + rest * ((palette.idle >>> shift) & 0xff)) / all;
    mixed |= Math.round(part) << shift;
  }
  return mixed >>> 0;
}
