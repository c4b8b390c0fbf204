// Memory over time, and what was allocated at the peak.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { quantity, scaled, ticks, time } from "../format.js";
import { table } from "../table.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [380, 190, 54, 20];

/** @param {import("../app.js").App} app */
export async function memoryPanel(app) {
  const rank = app.store.view.slice?.rank ?? app.store.view.open[0] ?? app.ranks[0];
  const { curves } = await json("memory", { rank });
  if (!curves.length) return h("p", { class: "quiet" }, `Rank ${rank} has no memory events. Record them: rankscope profile --profile-memory`);
  const reports = app.run.reports.map((report) => report.name);
  const holders = reports.includes("allocators") ? await json("report", { name: "allocators", ranks: rank, top: 30 }) : null;
  return h("div", {}, curves.map((/** @type {any} */ curve) => h("div", {}, h("h2", {}, `Rank ${rank}, ${curve.device}`), chart(app, curve))),
    holders?.rows.length ? h("div", {}, h("h2", {}, "Allocated at the peak"), table(holders.columns, holders.rows)) : "");
}

/** @param {import("../app.js").App} app @param {any} curve */
function chart(app, curve) {
  const { begin_ns: first, end_ns: last } = app.run;
  const high = Math.max(...curve.allocated, ...curve.reserved, 1);
  const x = (/** @type {number} */ ns) => LEFT + ((ns - first) / (last - first)) * (WIDTH - LEFT - 8);
  const y = (/** @type {number} */ bytes) => HEIGHT - BOTTOM - (bytes / high) * (HEIGHT - BOTTOM - 12);
  const line = (/** @type {number[]} */ values) => values.map((value, at) => `${at ? "L" : "M"}${x(curve.ts_ns[at]).toFixed(1)},${y(value).toFixed(1)}`).join("");
  const peak = curve.allocated.indexOf(Math.max(...curve.allocated));
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `Memory over time; peak ${scaled(curve.allocated[peak], "B")}` });
  for (const at of ticks(0, high, 4)) {
    picture.append(s("line", { x1: LEFT, x2: WIDTH - 8, y1: y(at), y2: y(at), class: "grid" }), s("text", { x: LEFT - 4, y: y(at) + 3, "text-anchor": "end" }, scaled(at, "B")));
  }
  picture.append(s("path", { d: line(curve.reserved), fill: "none", stroke: "var(--ink-3)", "stroke-dasharray": "4 3" }),
    s("path", { d: line(curve.allocated), fill: "none", stroke: "var(--compute)", "stroke-width": 1.5 }),
    s("circle", { cx: x(curve.ts_ns[peak]), cy: y(curve.allocated[peak]), r: 3, fill: "var(--bad)" }),
    s("text", { x: LEFT, y: HEIGHT - 6 }, "0"), s("text", { x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, time(last - first)));
  return h("div", {}, picture, h("p", { class: "quiet" }, `solid: allocated, peak ${quantity(curve.allocated[peak], "bytes")} at ${time(curve.ts_ns[peak])}; dashed: reserved `,
    h("button", { class: "plain", onclick: () => app.show(curve.ts_ns[peak] - 1e6, curve.ts_ns[peak] + 1e6, { history: true }) }, "show the peak")));
}
