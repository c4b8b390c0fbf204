// The picture of a trace that is still being read: how busy each of its tracks is over time. The timeline replaces it.

import { byId } from "./dom.js";
import { time } from "./format.js";
import { AXIS, GAP, GUTTER, LANE, RIGHT } from "./layout.js";
import { MONO, readPalette } from "./palette.js";

/** @param {import("./api.js").Columns} picture viewer/growing.py */
export function drawGrowing(picture) {
  const { labels, bins, column } = picture;
  const canvas = /** @type {HTMLCanvasElement} */ (byId("canvas"));
  byId("overview").style.height = "0"; // until there is a map
  const palette = readPalette(picture.kinds);
  const ratio = window.devicePixelRatio || 1;
  const height = byId("tracks").clientHeight;
  const width = canvas.clientWidth;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const g = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.font = MONO;
  g.fillStyle = palette.text["ink-2"];
  g.textAlign = "left";
  g.fillText(`read so far: ${time(picture.end_ns - picture.begin_ns)}`, GUTTER, AXIS - 9);
  const each = (width - GUTTER - RIGHT) / bins;
  labels.forEach((/** @type {string} */ label, /** @type {number} */ row) => {
    const y = AXIS + row * (LANE + GAP);
    if (y > height) return;
    g.globalAlpha = 1;
    g.fillStyle = palette.text["ink-2"];
    g.textAlign = "right";
    g.fillText(label, GUTTER - 10, y + LANE - 6);
    for (let bin = 0; bin < bins; bin++) {
      const busy = column.busy[row * bins + bin];
      if (!busy) continue;
      g.globalAlpha = 0.25 + 0.75 * busy / 255;
      g.fillStyle = palette.text[picture.kinds[column.kind[row * bins + bin]]];
      g.fillRect(GUTTER + bin * each, y, Math.max(each, 1), LANE);
    }
  });
  g.globalAlpha = 1;
  canvas.dataset.growing = String(labels.length);
}
