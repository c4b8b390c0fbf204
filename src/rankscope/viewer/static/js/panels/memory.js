// Memory over time, and what was allocated at the peak.

import { json } from "../api.js";
import { h } from "../dom.js";
import { quantity, time } from "../format.js";
import { table } from "../table.js";
import { drawn } from "./chart.js";
import { rankChoice } from "./rank_choice.js";

/** @param {import("../app.js").App} app */
export async function memoryPanel(app) {
  const rank = app.panels.rank ?? app.store.view.slice?.rank ?? app.store.view.open[0] ?? app.ranks[0];
  const answer = await json("memory", { rank });
  const choice = h("div", { class: "row" }, rankChoice(app, rank));
  if (!answer.peaks.length) return h("div", {}, choice, h("p", { class: "quiet" }, `Rank ${rank} has no memory events. Record them: rankscope profile --profile-memory`));
  const holders = app.run.reports.some((report) => report.name === "memory.allocators") ? await json("report", { name: "memory.allocators", ranks: rank, top: 30 }) : null;
  choice.append(...answer.peaks.map((/** @type {any} */ peak) => peakOf(app, peak)));
  return h("div", { class: "columns wide-first" }, h("div", {}, choice, drawn(answer)),
    h("div", {}, h("h2", {}, "Allocated at the peak"), holders?.rows.length
      ? table(holders.columns.filter((/** @type {any} */ column) => column.name !== "rank"), holders.rows)
      : h("p", { class: "quiet" }, holders?.notes.join(" ") ?? "Not recorded.")));
}

/** @param {import("../app.js").App} app @param {{ device: string, ts_ns: number, allocated_bytes: number }} peak */
function peakOf(app, { device, ts_ns: at, allocated_bytes: bytes }) {
  const show = () => app.show(at - 1e6, at + 1e6, { history: true });
  return h("b", {}, `${device}: peak ${quantity(bytes, "bytes")} at ${time(at)} `,
    at < app.run.begin_ns || at > app.run.end_ns ? "" : h("button", { class: "plain", onclick: show }, "Show the peak"));
}
