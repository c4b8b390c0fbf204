// Memory over time, drawn as the steps that it is, and what was allocated at the peak.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { moment, quantity, scaled, ticks, time } from "../format.js";
import { table } from "../table.js";
import { blockMaps } from "./block_map.js";
import { chart, grid, resizing } from "./chart.js";
import { rankChoice } from "./rank_choice.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 12, 12, 22];

/** @param {import("../app.js").App} app */
export async function memoryPanel(app) {
  const rank = app.panels.rank ?? app.store.view.slice?.rank ?? app.store.view.open[0] ?? app.ranks[0];
  const { curves } = await json("memory", { rank });
  if (!curves.length) return h("div", {}, h("div", { class: "row" }, rankChoice(app, rank)), h("p", { class: "quiet" }, `Rank ${rank} has no memory events. Record them: rankscope profile --profile-memory`));
  const devices = [...curves].sort((a, b) => Number(a.device === "CPU") - Number(b.device === "CPU"));
  const holders = app.run.reports.some((report) => report.name === "allocators") ? await json("report", { name: "allocators", ranks: rank, top: 30 }) : null;
  const maps = await blockMaps(rank);
  return h("div", { class: "columns wide-first" }, h("div", {}, devices.map((/** @type {any} */ curve, /** @type {number} */ at) => picture(app, curve, at ? "" : rankChoice(app, rank))), maps),
    h("div", {}, h("h2", {}, "Allocated at the peak"), holders?.rows.length
      ? table(holders.columns.filter((/** @type {any} */ column) => column.name !== "rank"), holders.rows)
      : h("p", { class: "quiet" }, holders?.notes.join(" ") ?? "Not recorded.")));
}

/** The points of a value that holds until the next one, as a path. @param {number[]} x @param {number[]} y @param {number} end */
export function stepPath(x, y, end) {
  const text = (/** @type {number} */ value) => value.toFixed(1);
  return `M${text(x[0])},${text(y[0])}${x.slice(1).map((at, index) => `H${text(at)}V${text(y[index + 1])}`).join("")}H${text(end)}`;
}

/** @param {import("../app.js").App} app @param {any} curve @param {Node | string} choice of the rank, above the first device */
function picture(app, curve, choice) {
  const peak = curve.allocated.indexOf(Math.max(...curve.allocated));
  const show = () => app.show(curve.ts_ns[peak] - 1e6, curve.ts_ns[peak] + 1e6, { history: true });
  const hasReserved = curve.reserved.some((/** @type {number} */ value) => value > 0);
  return h("div", {}, h("h2", {}, choice, ` ${curve.device}: peak ${quantity(curve.allocated[peak], "bytes")} at ${time(curve.ts_ns[peak])} `,
    curve.ts_ns[peak] < app.run.begin_ns || curve.ts_ns[peak] > app.run.end_ns ? "" : h("button", { class: "plain", onclick: show }, "Show the peak")),
    resizing((width, height) => draw(app, curve, peak, width, height)),
    h("p", { class: "quiet" }, h("i", { class: "line compute" }), "allocated", hasReserved ? [h("i", { class: "line dashed" }), "reserved"] : ""));
}

/** @param {import("../app.js").App} app @param {any} curve @param {number} peak @param {number} width @param {number} height */
function draw(app, curve, peak, width, height) {
  const first = Math.min(app.run.begin_ns, curve.ts_ns[0]); // a shared file has a window of the run, and the whole curve
  const last = Math.max(app.run.end_ns, curve.ts_ns[curve.ts_ns.length - 1]);
  const high = Math.max(...curve.allocated, ...curve.reserved, 1) * 1.05;
  const box = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const x = (/** @type {number} */ ns) => Math.min(Math.max(box.left + ((ns - first) / (last - first)) * (box.right - box.left), box.left), box.right);
  const y = (/** @type {number} */ bytes) => box.bottom - (bytes / high) * (box.bottom - box.top);
  const times = curve.ts_ns.map(x);
  const svg = chart(width, height, { role: "img", "aria-label": `Memory over time; peak ${scaled(curve.allocated[peak], "B")}` });
  grid(svg, box, ticks(first, last, width / 140).map((at) => [x(at), moment(at, last - first)]), ticks(0, high, 6).map((at) => [y(at), at ? scaled(at, "B") : "0"]));
  svg.append(
    s("path", { d: stepPath(times, curve.reserved.map(y), box.right), fill: "none", stroke: "var(--ink-3)", "stroke-dasharray": "5 3" }),
    s("path", { d: stepPath(times, curve.allocated.map(y), box.right), fill: "none", stroke: "var(--compute)", "stroke-width": 1.5 }),
    s("circle", { cx: times[peak], cy: y(curve.allocated[peak]), r: 4, fill: "var(--bad)" }, s("title", {}, `peak ${scaled(curve.allocated[peak], "B")}`)));
  return svg;
}
