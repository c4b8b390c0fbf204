// Read-only SQL over the run.

import { json, ServerError } from "../api.js";
import { fill, h } from "../dom.js";
import { table } from "../table.js";

/** @param {string} view @param {string} time a column */
const first = (view, time) => `SELECT name, count(*) AS calls, sum(${time}) AS total_ns\nFROM ${view} GROUP BY name ORDER BY total_ns DESC LIMIT 20`;

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
      fill(out, h("p", { class: "quiet" }, answer.more ? `the first ${rows.length} rows; there are more` : `${rows.length} rows`),
        table(answer.columns.map((/** @type {string} */ name) => ({ name, unit: name.endsWith("_ns") ? "ns" : "", verbatim: true })), rows));
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
