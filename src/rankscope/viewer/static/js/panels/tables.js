// Reports of `rankscope stats` as tables: kernels, ops and collectives have tabs of their own, the others share one.

import { isFile, json } from "../api.js";
import { h } from "../dom.js";
import { table } from "../table.js";
import { drawn } from "./chart.js";

const WITH_CHARTS = ["breakdown", "collectives", "idle", "kernels", "overlap", "steps", "stragglers"]; // beside the table
/** By report, the question of `find` for the slices of a row. @type {Record<string, (row: any) => Record<string, any>>} */
const INSTANCES = {
  kernels: ({ name, rank }) => ({ name, rank }),
  ops: ({ name, rank }) => ({ name, rank }),
  collectives: ({ kind, group, bytes }) => ({ kind, group, bytes }),
};

/** @param {string} name @returns {(app: import("../app.js").App) => Promise<Node>} */
export function reportPanel(name) {
  return async (app) => reportTable(app, name);
}

/** Of a run without GPU events, its ops. @param {import("../app.js").App} app */
export async function kernelsPanel(app) {
  const { rows } = await json("report", { name: "kernels" });
  if (rows.length) return reportTable(app, "kernels");
  return h("div", {}, h("p", { class: "quiet" }, "No kernels of a GPU are recorded. These are the ops of the host."), await reportTable(app, "ops"));
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
  return h("div", {}, h("div", { class: "row" }, choice, app.run.opens_on ? "" : sorts), await reportTable(app, known.name));
}

/** @param {import("../app.js").App} app @param {string} name */
async function reportTable(app, name) {
  const known = app.run.reports.find((report) => report.name === name);
  const keys = isFile() ? [] : known?.by ?? [];
  const by = keys.includes(app.store.view.by) ? app.store.view.by : "";
  const result = await json("report", { name, by });
  const choice = h("select", { "aria-label": "Rows", onchange: (/** @type {any} */ event) => app.store.set({ by: event.target.value }, { history: true }) },
    ["", ...keys].map((key) => h("option", { value: key, selected: key === by }, key ? `by ${key}` : "as it is")));
  const pictures = WITH_CHARTS.includes(name) ? drawn(await json("charts", { name })) : [];
  const answer = h("div", {}, h("h2", {}, result.title, " ", keys.length ? choice : "",
    h("span", { class: "quiet" }, ` ${known?.question ?? ""} ${result.window} · rankscope stats ${app.run.path} -r ${name}${by && ` --by ${by}`}`)),
    result.rows.length ? table(result.columns, result.rows, { caption: result.title, filter: true, go: leading(app, name, result.rows) }) : "",
    result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note)));
  return pictures.length ? h("div", { class: "columns wide-first" }, answer, h("div", {}, pictures)) : answer;
}

/** What a row leads to: its slices, or its step and rank. @param {import("../app.js").App} app @param {string} name @param {any[]} rows */
function leading(app, name, rows) {
  const [first] = rows;
  if (name === "collectives" ? first.kind && !isFile() : INSTANCES[name] && first.name) return (/** @type {any} */ row) => app.search.walk(INSTANCES[name](row), { stay: true });
  if (!Number.isInteger(first.rank) && !rows.some((row) => Number.isInteger(row.step))) return undefined;
  return (/** @type {any} */ row) => {
    const step = app.run.steps.find((each) => each.step === row.step);
    if (step) {
      const place = app.axis.of(step.start_ns, 0);
      app.show(place - step.dur_ns * 0.01, place + step.dur_ns * 1.01, { history: true });
    }
    const rank = row.rank ?? row.last_rank;
    if (app.run.ranks.includes(rank)) app.reveal(rank);
  };
}
