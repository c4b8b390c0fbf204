// Slices as pixels: one row of pixels per lane, which the timeline repeats. The cost does not depend on their widths.

/** @param {Uint32Array} pixels rows of `width` @param {number} width @param {number} lanes
 * @param {import("./tiles.js").Tile[]} tiles coarse ones first @param {number} begin @param {number} nsPerPixel
 * @param {import("./palette.js").Palette} palette */
export function paint(pixels, width, lanes, tiles, begin, nsPerPixel, palette) {
  for (const { start, duration, row, kind, name, wait } of tiles) {
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
      if (wait && wait[at] > 0) { // a collective: first it waits for another rank
        const until = Math.min(to, Math.max(from, Math.round(left + wait[at] / nsPerPixel)));
        pixels.fill(palette.wait, line + from, line + until);
      }
    }
  }
}

/** Draw lanes of one row of pixels each into a picture, `tall` pixels high, with a free line below each. Both have the same width.
 * @param {Uint32Array} picture @param {Uint32Array} lanes @param {number} width @param {number} count of lanes @param {number} tall
 * @param {number} y of the first lane; the part outside of [top, bottom) is left out @param {number} top @param {number} bottom */
export function repeat(picture, lanes, width, count, tall, y, top, bottom) {
  for (let lane = 0; lane < count; lane++) {
    const source = lanes.subarray(lane * width, (lane + 1) * width);
    const from = Math.max(y + lane * tall, top);
    const to = Math.min(y + (lane + 1) * tall - 1, bottom);
    for (let line = from; line < to; line++) picture.set(source, line * width);
  }
}
