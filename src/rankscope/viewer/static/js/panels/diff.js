// What changed between two runs.

import { h } from "../dom.js";
import { quantity, time } from "../format.js";
import { table } from "../table.js";
import { facts } from "./findings.js";

/** @param {import("../app.js").App} app */
export async function diffPanel(app) {
  if (!app.run.titles) return h("p", { class: "quiet" }, "Only one run is open. To compare two: rankscope view BASE NEW");
  await app.loadFindings();
  const result = app.diff;
  const rows = result.rows.map((/** @type {any} */ row) => {
    const show = (/** @type {number | null} */ value) => (row.report === "memory" ? quantity(value, "bytes") : time(value));
    return { ...row, before: show(row.base), after: show(row.new) };
  });
  const columns = [{ name: "verdict" }, { name: "change_pct", title: "change", unit: "percent" }, { name: "before" }, { name: "after" }, { name: "p_value", title: "p" }, { name: "what", full: "key" }];
  requestAnimationFrame(() => document.querySelector("#panel .card[aria-current=true]")?.scrollIntoView({ block: "nearest" }));
  return h("div", { class: "columns diff" },
    h("div", {}, h("h2", {}, result.title, " ", h("span", { class: "quiet" }, result.window)),
      result.findings.map((/** @type {any} */ finding, /** @type {number} */ at) => h("article", { class: `card ${finding.severity}`, "aria-current": String(at === app.shownFinding), onclick: () => app.showFinding(at) }, h("h3", {}, finding.title), facts(finding), finding.advice ? h("p", { class: "quiet" }, finding.advice) : "")),
      result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note))),
    h("div", {}, table(columns, rows, { filter: true, caption: result.title, hot: (row) => row.verdict === "slower" || row.verdict === "more" })));
}
