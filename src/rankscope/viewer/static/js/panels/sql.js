// Read-only SQL over the run.

import { json, show, ServerError } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { table } from "../table.js";

/** @param {string} view @param {string} time a column */
const first = (view, time) => `SELECT name, count(*) AS calls, sum(${time}) AS total_ns\nFROM ${view} GROUP BY name ORDER BY total_ns DESC LIMIT 20`;

/** What the rows of an answer lead to: the slice with their id, else the time on their rank; undefined where they have neither.
 * @param {import("../app.js").App} app @param {string[]} names of the columns */
function leading(app, names) {
  const start = ["start_ns", "ts_ns", "start", "ts"].find((name) => names.includes(name));
  if (!(names.includes("rank") || app.isAlone) || !(names.includes("id") || start)) return undefined;
  return async (/** @type {any} */ row) => {
    const { id, segment = 0, dur_ns: duration, rank = app.run.ranks[0] } = row;
    const at = start && row[start];
    try {
      const isSlice = Number.isInteger(id) && !(start?.startsWith("ts") && typeof duration !== "number"); // what has no duration is no slice
      const slice = isSlice ? await json("slice", { rank, segment, id }) : null;
      if (slice && (!start || slice.start_ns === at)) return await app.goTo(slice, { stay: true });
      if (typeof at !== "number" || !app.run.ranks.includes(rank)) return announce("this row has no place in the timeline");
      app.reveal(rank);
      const { begin, end } = app.store.view;
      const [place, margin] = [app.axis.of(at, rank), duration ? duration * 0.1 : (end - begin) / 2];
      return app.show(place - margin, place + (duration ?? 0) + margin, { history: true });
    } catch (error) {
      return show(error);
    }
  };
}

/** @param {import("../app.js").App} app */
export async function sqlPanel(app) {
  const [schema, kernels] = await Promise.all([json("schema"), json("report", { name: "kernels", top: 1 })]);
  const box = /** @type {HTMLTextAreaElement} */ (h("textarea", { "aria-label": "SQL", spellcheck: "false" }));
  box.value = app.store.view.sql || (kernels.rows.length ? first("gpu", "dur_ns") : first("slices", "self_ns"));
  const out = h("div");

  let asking = new AbortController();

  async function run() {
    app.store.set({ sql: box.value });
    asking.abort(); // the server ends a query that nobody waits for
    asking = new AbortController();
    try {
      const answer = await json("query", { sql: box.value }, asking.signal);
      const rows = answer.rows.map((/** @type {any[]} */ row) => Object.fromEntries(answer.columns.map((/** @type {string} */ name, /** @type {number} */ at) => [name, row[at]])));
      const go = leading(app, answer.columns);
      fill(out, h("p", { class: "quiet" }, `${answer.more ? `the first ${rows.length} rows; there are more` : `${rows.length} rows`}${go && rows.length ? ". A click on a row, or Enter, shows it in the timeline." : ""}`),
        table(answer.columns.map((/** @type {string} */ name) => ({ name, unit: name.endsWith("_ns") ? "ns" : "", verbatim: true })), rows, { go }));
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      if (!(error instanceof ServerError)) throw error;
      fill(out, h("p", {}, error.message), h("pre", { class: "quiet" }, error.why), h("p", { class: "quiet" }, error.hint));
    }
  }

  box.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(); });
  return h("div", {}, box, h("div", { class: "row" }, h("button", { class: "plain", onclick: run }, "Run"), h("span", { class: "quiet" }, "Ctrl-Enter; read-only")), out,
    h("h2", {}, "Tables"), schema.map((/** @type {any} */ view) => h("details", {}, h("summary", {}, view.name), h("p", { class: "quiet" }, view.help), h("p", {}, view.columns.join(", ")))));
}
