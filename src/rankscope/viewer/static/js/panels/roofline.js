// Roofline chart of ops and kernels: rate against intensity, both logarithmic.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { scaled } from "../format.js";
import { table } from "../table.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [380, 260, 58, 26];

/** @param {import("../app.js").App} app */
export async function rooflinePanel(app) {
  if (!app.run.reports.some((report) => report.name === "roofline")) return h("p", { class: "quiet" }, "This version has no roofline report.");
  const result = await json("report", { name: "roofline" });
  const points = result.rows.filter((/** @type {any} */ row) => row.intensity > 0 && row.flop_s > 0);
  const notes = result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note));
  if (!points.length) return h("div", {}, h("p", { class: "quiet" }, "No op has known FLOPs. To record shapes: rankscope profile --record-shapes"), notes);
  return h("div", {}, h("h2", {}, "Roofline"), chart(points), table(result.columns, result.rows), notes);
}

/** @param {any[]} points */
function chart(points) {
  const logs = (/** @type {string} */ name) => points.map((point) => Math.log10(point[name]));
  const roofs = points.filter((point) => point.pct_of_roof > 0).map((point) => Math.log10(point.flop_s / (point.pct_of_roof / 100)));
  const [left, right] = [Math.floor(Math.min(...logs("intensity"))), Math.ceil(Math.max(...logs("intensity")) + 0.2)];
  const [low, high] = [Math.floor(Math.min(...logs("flop_s"))), Math.ceil(Math.max(...logs("flop_s"), ...roofs) + 0.1)];
  const x = (/** @type {number} */ log) => LEFT + ((log - left) / Math.max(right - left, 1)) * (WIDTH - LEFT - 10);
  const y = (/** @type {number} */ log) => HEIGHT - BOTTOM - ((log - low) / Math.max(high - low, 1)) * (HEIGHT - BOTTOM - 10);
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": "FLOP per second against FLOP per byte; the table below has the numbers" });
  for (let at = left; at <= right; at++) picture.append(s("line", { x1: x(at), x2: x(at), y1: 10, y2: HEIGHT - BOTTOM, class: "grid" }), s("text", { x: x(at), y: HEIGHT - 12, "text-anchor": "middle" }, `10^${at}`));
  for (let at = low; at <= high; at++) picture.append(s("line", { x1: LEFT, x2: WIDTH - 10, y1: y(at), y2: y(at), class: "grid" }), s("text", { x: LEFT - 4, y: y(at) + 3, "text-anchor": "end" }, scaled(10 ** at, "FLOP/s")));
  for (const point of points) {
    const [px, py] = [x(Math.log10(point.intensity)), y(Math.log10(point.flop_s))];
    if (point.pct_of_roof > 0) {
      const roof = y(Math.log10(point.flop_s / (point.pct_of_roof / 100)));
      picture.append(s("line", { x1: px, x2: px, y1: py, y2: roof, stroke: "var(--ink-3)", "stroke-dasharray": "2 2" }), s("line", { x1: px - 5, x2: px + 5, y1: roof, y2: roof, stroke: "var(--ink)" }));
    }
    picture.append(s("circle", { cx: px, cy: py, r: 4, fill: point.bound === "memory" ? "var(--copy)" : "var(--compute)", stroke: "var(--bg)" },
      s("title", {}, `${point.name}: ${scaled(point.flop_s, "FLOP/s")} at ${point.intensity.toFixed(1)} FLOP/B, ${point.pct_of_roof?.toFixed(1) ?? "?"} % of its roof, ${point.bound}-bound`)));
  }
  picture.append(s("text", { x: WIDTH - 10, y: HEIGHT - 2, "text-anchor": "end" }, "FLOP per byte; the bar above a point is its roof"));
  return picture;
}
