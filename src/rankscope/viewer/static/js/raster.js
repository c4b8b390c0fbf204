// Slices as pixels: one row of pixels per lane, which the canvas enlarges. The cost does not depend on their widths.

/** @param {Uint32Array} pixels rows of `width` @param {number} width @param {number} lanes
 * @param {import("./tiles.js").Tile[]} tiles coarse ones first @param {number} begin @param {number} nsPerPixel
 * @param {import("./palette.js").Palette} palette */
export function paint(pixels, width, lanes, tiles, begin, nsPerPixel, palette) {
  for (const { start, duration, row, kind, name } of tiles) {
    for (let at = 0; at < start.length; at++) {
      if (row[at] >= lanes) continue;
      const left = (start[at] - begin) / nsPerPixel;
      const right = left + duration[at] / nsPerPixel;
      if (right < 0 || left >= width) continue;
      const from = Math.max(0, Math.floor(left));
      let to = Math.min(width, Math.max(from + 1, Math.round(right)));
      if (to - from > 3 && to < width) to -= 1; // a gap between neighbours
      const color = name[at] & 1 ? palette.shade[kind[at]] : palette.pixel[kind[at]];
      const line = row[at] * width;
      if (to - from === 1) pixels[line + from] = color;
      else pixels.fill(color, line + from, line + to);
    }
  }
}

/** Shares of time as pixels, one row per rank.
 * @param {Uint32Array} pixels @param {{ compute: Uint8Array, comm: Uint8Array, copy: Uint8Array, unrecorded: Uint8Array }} shares
 * @param {(compute: number, comm: number, copy: number, unrecorded: number) => number} mix */
export function paintShares(pixels, { compute, comm, copy, unrecorded }, mix) {
  for (let at = 0; at < compute.length; at++) pixels[at] = mix(compute[at], comm[at], copy[at], unrecorded[at]);
}
