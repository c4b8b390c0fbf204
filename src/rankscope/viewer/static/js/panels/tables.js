// Reports of `rankscope stats` as tables: kernels, ops and collectives have tabs of their own, the others share one.

import { isFile, json } from "../api.js";
import { h } from "../dom.js";
import { table } from "../table.js";

/** By report, the question of `find` for the slices of a row. @type {Record<string, (row: any) => Record<string, any>>} */
const INSTANCES = {
  kernels: ({ name }) => ({ name }),
  ops: ({ name }) => ({ name }),
  collectives: ({ kind, group, bytes }) => ({ kind, group, bytes }),
};

/** @param {string} name @returns {(app: import("../app.js").App) => Promise<Node>} */
export function reportPanel(name) {
  return async (app) => reportTable(app, name);
}

/** @param {import("../app.js").App} app */
export async function reportsPanel(app) {
  const { view } = app.store;
  const wanted = app.run.renamed_reports[view.report] ?? view.report; // of a link that an older version made
  const known = app.run.reports.find((report) => report.name === wanted) ?? app.run.reports[0];
  const choice = h("select", { "aria-label": "Report", onchange: (/** @type {any} */ event) => app.store.set({ report: event.target.value }, { history: true }) },
    app.run.reports.map((report) => h("option", { value: report.name, selected: report.name === known.name }, report.name)));
  const sorts = h("select", { "aria-label": "Order of ranks", onchange: (/** @type {any} */ event) => app.store.set({ sort: event.target.value }) },
    ["rank", ...app.orders.keys()].map((name) => h("option", { value: name, selected: name === view.sort }, name === "rank" ? "ranks by number" : `ranks by ${name.replace(/_ns$/, "").replaceAll("_", " ")}`)));
  return h("div", {}, h("div", { class: "row" }, choice, sorts), await reportTable(app, known.name));
}

/** @param {import("../app.js").App} app @param {string} name */
async function reportTable(app, name) {
  const known = app.run.reports.find((report) => report.name === name);
  const result = await json("report", { name });
  const go = INSTANCES[name] && !(isFile() && name === "collectives") ? (/** @type {any} */ row) => app.search.walk(INSTANCES[name](row), { stay: true }) : undefined;
  return h("div", {}, h("h2", {}, result.title, " ", h("span", { class: "quiet" }, `${known?.question ?? ""} ${result.window} · rankscope stats ${app.run.path} -r ${name}`)),
    result.rows.length ? table(result.columns, result.rows, { caption: result.title, filter: true, go }) : "",
    result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note)));
}
