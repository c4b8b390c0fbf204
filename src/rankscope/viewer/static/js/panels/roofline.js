// Roofline of ops and kernels: rate against intensity, both logarithmic, below the roofs of the device.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { scaled } from "../format.js";
import { shortenNames } from "../names.js";
import { table } from "../table.js";
import { chart, grid, logTicks, resizing, textWidth } from "./chart.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [84, 14, 14, 34];
const LABEL_CHARACTERS = 24;
const MOST_LABELS = 12;

/** @param {import("../app.js").App} app */
export async function rooflinePanel(app) {
  const [result, roofs] = await Promise.all([json("report", { name: "roofline" }), json("roofs")]);
  const points = result.rows.filter((/** @type {any} */ row) => row.intensity > 0 && row.flop_s > 0);
  const notes = result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note));
  if (!points.length) return h("div", {}, h("p", { class: "quiet" }, "No op has known FLOPs. To record shapes: rankscope profile --record-shapes"), notes);
  const used = new Set(points.map((/** @type {any} */ point) => point.dtype));
  const peaks = Object.entries(roofs.peaks).filter(([dtype]) => used.has(dtype));
  return h("div", { class: "columns wide-first" }, h("div", {}, h("h2", {}, "Rate against intensity"), resizing((width, height) => draw(points, peaks, roofs.bandwidth, width, height)),
    h("p", { class: "quiet" }, h("i", { class: "swatch compute" }), "compute-bound ", h("i", { class: "swatch copy" }), "memory-bound",
      peaks.length ? "" : "; the peaks of this device are not known")),
  h("div", {}, h("h2", {}, result.title), table(result.columns, result.rows), notes));
}

/** @typedef {{ x: number, y: number, width: number, height: number }} Box */

/** The first place of a label that is inside the picture and free, or null.
 * @param {number} x @param {number} y @param {number} width @param {Box[]} taken @param {{ left: number, right: number, bottom: number }} box
 * @returns {Box | null} */
export function labelPlace(x, y, width, taken, box) {
  const places = [[x + 8, y - 6], [x - 8 - width, y - 6], [x - width / 2, y - 20], [x - width / 2, y + 8]];
  for (const [at, top] of places) {
    const inside = at >= box.left && at + width <= box.right && top >= 0 && top + 12 <= box.bottom;
    if (inside && !taken.some((other) => at < other.x + other.width && other.x < at + width && top < other.y + other.height && other.y < top + 12)) return { x: at, y: top, width, height: 12 };
  }
  return null;
}

/** @param {any[]} points @param {[string, any][]} peaks FLOP/s by data type @param {number | null} bandwidth bytes/s
 * @param {number} width @param {number} height */
function draw(points, peaks, bandwidth, width, height) {
  const of = (/** @type {string} */ name) => points.map((point) => point[name]);
  const [left, right] = [Math.min(...of("intensity")) / 3, Math.max(...of("intensity")) * 3];
  const top = Math.max(...of("flop_s"), ...peaks.map(([, peak]) => peak));
  const [low, high] = [Math.min(...of("flop_s")) / 3, top * 2];
  const box = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const x = (/** @type {number} */ value) => box.left + (Math.log(value / left) / Math.log(right / left)) * (box.right - box.left);
  const y = (/** @type {number} */ value) => box.bottom - (Math.log(value / low) / Math.log(high / low)) * (box.bottom - box.top);
  const svg = chart(width, height, { role: "img", "aria-label": "FLOP per second against FLOP per byte; the table has the numbers" });
  grid(svg, box, logTicks(left, right).map((at) => [x(at), String(Number(at.toPrecision(1)))]), logTicks(low, high).map((at) => [y(at), scaled(at, "FLOP/s")]));
  svg.append(s("text", { x: box.right, y: height - 4, "text-anchor": "end" }, "FLOP per byte"));
  const roof = (/** @type {number} */ from, /** @type {number} */ to, /** @type {(intensity: number) => number} */ rate) => {
    if (to > from) svg.append(s("line", { x1: x(from), x2: x(to), y1: y(rate(from)), y2: y(rate(to)), class: "roof" }));
  };
  for (const [, peak] of peaks) roof(bandwidth ? Math.max(peak / bandwidth, left) : left, right, () => peak);
  const highest = Math.max(...peaks.map(([, peak]) => peak), 0) || top;
  const from = bandwidth ? Math.max(left, low / bandwidth) : right;
  if (bandwidth) roof(from, Math.min(right, highest / bandwidth), (intensity) => intensity * bandwidth);
  for (const point of points) {
    svg.append(s("circle", { cx: x(point.intensity), cy: y(point.flop_s), r: 4.5, fill: point.bound === "memory" ? "var(--copy)" : "var(--compute)", stroke: "var(--bg)" },
      s("title", {}, `${point.name}: ${scaled(point.flop_s, "FLOP/s")} at ${point.intensity.toFixed(1)} FLOP/B, ${point.pct_of_roof?.toFixed(1) ?? "?"} % of its roof, ${point.bound}-bound`)));
  }
  /** @type {Box[]} */
  const taken = points.map((point) => ({ x: x(point.intensity) - 5, y: y(point.flop_s) - 5, width: 10, height: 10 }));
  const label = (/** @type {number} */ px, /** @type {number} */ py, /** @type {string} */ text) => {
    const place = labelPlace(px, py, textWidth(text), taken, box);
    if (!place) return;
    taken.push(place);
    svg.append(s("text", { x: place.x, y: place.y + 10 }, text));
  };
  for (const [dtype, peak] of peaks) label(box.right + 4, y(peak) + 10, `${dtype} ${scaled(peak, "FLOP/s")}`);
  if (bandwidth && from < right) label(x(from), Math.max(y(from * bandwidth) + 10, box.top + 10), scaled(bandwidth, "B/s"));
  const named = points.slice(0, MOST_LABELS); // most time first
  shortenNames(named.map((point) => point.name), LABEL_CHARACTERS).forEach((name, at) => label(x(named[at].intensity), y(named[at].flop_s), name));
  return svg;
}
