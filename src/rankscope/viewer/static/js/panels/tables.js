// Reports of `rankscope stats` as tables: kernels, ops and collectives have tabs of their own, the others share one.

import { json } from "../api.js";
import { announce, h } from "../dom.js";
import { table } from "../table.js";
import { drawn } from "./chart.js";

const ON_THE_TIMELINE = ["kernels", "ops"]; // the names in their rows are names of slices
const WITH_CHARTS = ["breakdown", "collectives", "idle", "kernels", "overlap", "steps", "stragglers"]; // beside the table

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
  const go = ON_THE_TIMELINE.includes(name) ? (/** @type {any} */ row) => toNext(app, row.name) : undefined;
  const pictures = WITH_CHARTS.includes(name) ? await drawn("charts", { name }) : [];
  const answer = h("div", {}, h("h2", {}, result.title, " ", h("span", { class: "quiet" }, `${known?.question ?? ""} ${result.window} · rankscope stats ${app.run.path} -r ${name}`)),
    result.rows.length ? table(result.columns, result.rows, { caption: result.title, filter: true, go }) : "",
    result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note)));
  return pictures.length ? h("div", { class: "columns wide-first" }, answer, h("div", {}, pictures)) : answer;
}

/** The next slice of a name, after the selected one or from the left edge on.
 * @param {import("../app.js").App} app @param {string} name */
async function toNext(app, name) {
  const chosen = app.panels.slice;
  const at = chosen?.name === name ? chosen.start_ns : app.store.view.begin - 1;
  const { found } = await json("find", { name, at: Math.round(at) });
  const first = found ?? (await json("find", { name, at: Math.round(app.run.begin_ns) - 1 })).found;
  if (first) await app.goTo(first, { stay: true });
  else announce(`no slice has the name ${name}`);
}
