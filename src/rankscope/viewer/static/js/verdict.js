// The headline: the costliest finding and the main figures.

import { json, show } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { percent, time } from "./format.js";
import { drawTwin } from "./twin.js";

/** @param {import("./app.js").App} app */
export async function drawVerdict(app) {
  try {
    const [breakdown, summary, findings] = await Promise.all(
      [json("report", { name: "breakdown" }), json("report", { name: "summary" }), app.panels.findings()]);
    const whole = breakdown.rows.filter((/** @type {any} */ row) => row.step === null);
    const { facts } = summary;
    const share = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ swatch) =>
      (facts[name] === null ? "" : kpi(percent(facts[name] / 100), label, swatch));
    const worst = findings[0];
    if (worst?.ranks?.length === 1) app.overview.hot = worst.ranks[0];
    fill(byId("verdict"),
      h("div", {}, h("h1", {}, worst ? worst.title : "No problems found."),
        h("p", {}, worst ? worst.evidence : "No report has a finding.")),
      facts.step_ns === null ? "" : kpi(time(facts.step_ns), `step, median of ${facts.steps}`),
      share("compute_pct", "compute", "compute"),
      share("transfer_pct", "exposed transfer", "comm"),
      share("exposed_wait_pct", "waiting for another rank", "wait"),
      share("idle_pct", "idle", "idle"));
    for (const name of ["compute_ns", "exposed_comm_ns", "idle_ns", "span_ns"]) {
      app.orders.set(name, new Map(whole.map((/** @type {any} */ row) => [row.rank, row[name]])));
    }
    app.redraw();
    drawTwin(app);
  } catch (error) {
    show(error);
  }
}

/** @param {string} value @param {string} label @param {string} [swatch] */
function kpi(value, label, swatch) {
  return h("div", { class: "kpi" }, h("b", {}, value), h("span", {}, swatch ? h("i", { class: `swatch ${swatch}` }) : "", label));
}
