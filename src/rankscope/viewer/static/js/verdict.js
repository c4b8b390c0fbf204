// The headline: the costliest finding and the main figures.

import { json, show } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { percent, time } from "./format.js";
import { drawTwin } from "./twin.js";

/** @param {import("./app.js").App} app */
export async function drawVerdict(app) {
  try {
    const [breakdown, findings] = await Promise.all([json("report", { name: "breakdown" }), app.panels.findings()]);
    const whole = breakdown.rows.filter((/** @type {any} */ row) => row.step === null);
    const span = sum(whole, "span_ns") || 1;
    const worst = findings[0];
    if (worst?.ranks?.length === 1) app.overview.hot = worst.ranks[0];
    const steps = app.run.steps.map((step) => step.dur_ns).sort((a, b) => a - b);
    fill(byId("verdict"),
      h("div", {}, h("h1", {}, worst ? worst.title : "No problems found."),
        h("p", {}, worst ? worst.evidence : "No report has a finding.")),
      steps.length ? kpi(time(steps[Math.floor(steps.length / 2)]), `step, median of ${steps.length}`) : "",
      kpi(percent(sum(whole, "compute_ns") / span), "compute", "compute"),
      kpi(percent(sum(whole, "exposed_comm_ns") / span), "exposed communication", "comm"),
      kpi(percent(sum(whole, "idle_ns") / span), "idle", "idle"));
    for (const name of ["compute_ns", "exposed_comm_ns", "idle_ns", "span_ns"]) {
      app.orders.set(name, new Map(whole.map((/** @type {any} */ row) => [row.rank, row[name]])));
    }
    app.redraw();
    drawTwin(app);
  } catch (error) {
    show(error);
  }
}

/** @param {any[]} rows @param {string} name */
function sum(rows, name) {
  return rows.reduce((total, row) => total + row[name], 0);
}

/** @param {string} value @param {string} label @param {string} [swatch] */
function kpi(value, label, swatch) {
  return h("div", { class: "kpi" }, h("b", {}, value), h("span", {}, swatch ? h("i", { class: `swatch ${swatch}` }) : "", label));
}
