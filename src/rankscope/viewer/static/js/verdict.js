// The headline: the finding that is shown, what removing it saves, and the main figures. Of two runs, the change.

import { json, show } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { percent, time } from "./format.js";
import { drawTwin } from "./twin.js";

/** @typedef {{ step_ns: number | null, steps: number, verdict?: string, [name: string]: any }} Facts of the report `summary` */

/** @param {import("./app.js").App} app */
export async function loadVerdict(app) {
  try {
    const [breakdown, summary] = await Promise.all([json("report", { name: "breakdown" }), json("report", { name: "summary" })]);
    const whole = breakdown.rows.filter((/** @type {any} */ row) => row.step === null);
    for (const name of ["compute_ns", "exposed_comm_ns", "idle_ns", "span_ns"]) {
      app.orders.set(name, new Map(whole.map((/** @type {any} */ row) => [row.rank, row[name]])));
    }
    const draw = () => (app.run.titles ? drawChange(app) : drawVerdict(app, summary));
    app.store.listen((view, changed) => { if (changed.has("finding")) draw(); });
    draw();
    app.redraw();
    drawTwin(app);
  } catch (error) {
    show(error);
  }
}

/** @param {import("./app.js").App} app @param {{ title: string, facts: Facts }} summary the report */
function drawVerdict(app, { title: summary, facts }) {
  const at = app.shownFinding;
  const finding = app.findings[at];
  if (!finding) {
    const parts = summary.replace(/ \(-r [^)]*\)/g, "");
    fill(byId("verdict"), facts.verdict ? headline("ok", facts.verdict, parts) : headline("info", parts, ""), walkButtons(app, "finding"),
      h("span", { class: "space" }), ...figures(app, facts));
    return;
  }
  const { headline: title, why } = finding.scene;
  fill(byId("verdict"), headline(finding.severity, finding.kind === "limit" ? `Limit: ${title}` : title, [why, ...finding.lines].filter(Boolean).join(" · ")), saving(finding, facts),
    walkButtons(app, "finding"),
    h("span", { class: "space" }), ...figures(app, facts));
}

/** @param {import("./app.js").App} app its findings are the differences between two runs */
function drawChange(app) {
  const finding = app.findings[app.shownFinding];
  fill(byId("verdict"), headline(finding?.severity ?? "ok", finding?.title ?? "No change between the runs.", finding?.lines.join(" · ") ?? ""),
    h("span", { class: "space" }), walkButtons(app, "difference"));
}

/** @param {import("./app.js").App} app @param {string} what */
function walkButtons(app, what) {
  const { findings: { length }, shownFinding } = app;
  if (!length) return "";
  return h("div", { class: "walk" },
    h("button", { class: "plain", title: `previous ${what} (P)`, onclick: () => app.walk(-1) }, "‹ P"),
    h("span", { class: "quiet" }, shownFinding < 0 ? `${length} ${what}${length > 1 ? "s" : ""}` : `${what} ${shownFinding + 1} of ${length}`),
    h("button", { class: "plain", title: `next ${what} (N)`, onclick: () => app.walk(1) }, "N ›"));
}

/** @param {string} severity @param {string} title @param {string} why */
function headline(severity, title, why) {
  return h("div", { class: "headline" }, h("i", { class: `severity-dot ${severity}`, title: severity }), h("div", {}, h("h1", {}, title), h("p", { title: why }, why)));
}

/** @param {any} finding @param {Facts} facts */
function saving(finding, facts) {
  if (!finding.cost_ns) return "";
  const share = facts.mean_step_ns ? ` a step (${wholePercent(finding.cost_ns / facts.mean_step_ns)})` : "";
  return h("span", { class: `pill ${finding.severity}`, title: finding.kind === "fault" ? "less than others wait for it: the next slowest rank then sets the pace" : null }, `fix saves ${finding.kind === "limit" ? "up to " : ""}${time(finding.cost_ns)}${share}`);
}

/** @param {number} share */
function wholePercent(share) {
  return share < 0.01 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/** @param {import("./app.js").App} app @param {Facts} facts a single rank waits for nobody */
function figures(app, facts) {
  const share = (/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ swatch) =>
    (facts[name] === null || facts[name] === undefined || (app.isAlone && !facts[name] && swatch !== "compute" && swatch !== "idle") ? "" : kpi(percent(Number(facts[name]) / 100), label, swatch));
  return [
    facts.step_ns === null ? "" : kpi(time(facts.step_ns), "step"),
    share("compute_pct", "compute", "compute"),
    share("transfer_pct", "transfer", "comm"),
    share("exposed_wait_pct", "waiting", "wait"),
    share("idle_pct", "idle", "idle"),
  ];
}

/** @param {string} value @param {string} label @param {string} [swatch] */
function kpi(value, label, swatch) {
  return h("div", { class: "kpi" }, h("b", {}, value), h("span", {}, swatch ? h("i", { class: `swatch ${swatch}` }) : "", label));
}
