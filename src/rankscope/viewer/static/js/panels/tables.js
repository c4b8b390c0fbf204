// All reports of `rankscope stats` as sortable tables.

import { json } from "../api.js";
import { h } from "../dom.js";
import { table } from "../table.js";

/** @param {import("../app.js").App} app */
export async function tablesPanel(app) {
  const { view } = app.store;
  const known = app.run.reports.find((report) => report.name === view.report) ?? app.run.reports[0];
  const result = await json("report", { name: known.name });
  const choice = h("select", { "aria-label": "Report", onchange: (/** @type {any} */ event) => app.store.set({ report: event.target.value }, { history: true }) },
    app.run.reports.map((report) => h("option", { value: report.name, selected: report.name === known.name }, report.name)));
  const sorts = h("select", { "aria-label": "Order of ranks", onchange: (/** @type {any} */ event) => app.store.set({ sort: event.target.value }) },
    ["rank", ...app.orders.keys()].map((name) => h("option", { value: name, selected: name === view.sort }, name === "rank" ? "ranks by number" : `ranks by ${name.replace(/_ns$/, "").replaceAll("_", " ")}`)));
  const filter = h("input", { placeholder: "filter tracks", "aria-label": "Filter tracks by name", value: view.filter, onchange: (/** @type {any} */ event) => app.store.set({ filter: event.target.value }) });
  return h("div", {}, h("div", { class: "row" }, choice, sorts, filter), h("h2", {}, result.title),
    h("p", { class: "quiet" }, `${known.question} Window: ${result.window}. Command: rankscope stats RUN -r ${known.name}`),
    result.rows.length ? table(result.columns, result.rows, { caption: result.title }) : "",
    result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note)));
}
