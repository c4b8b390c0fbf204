// The findings: a list with what each would save, the text of one with commands to copy, and its collective on every rank.

import { h } from "../dom.js";
import { rankNumber } from "../layout.js";
import { percent, time } from "../format.js";
import { copyText, table } from "../table.js";

const LEAST = 0.001; // of a bubble: a part that is smaller on all stages has no column
const BUBBLES = [{ name: "stage" }, { name: "bubble_ns", title: "total", unit: "ns", help: "idle and waiting in send and recv while another stage computes" },
  { name: "schedule_ns", title: "design", unit: "ns", help: "what the schedule has by design" }, { name: "stages_ns", title: "stages", unit: "ns", help: "what unequal stages add" },
  { name: "rank_ns", title: "ranks", unit: "ns", help: "what slow ranks add" }, { name: "rest_ns", title: "rest", unit: "ns", help: "transfer and jitter" }];
/** The tables of what a fault comes from. @type {Record<string, string[]>} */
const OF_CAUSE = { compute: ["stragglers.op_differences", "gpu"], copy: ["memcpy"], dataloader: ["dataloader"],
  host: ["stragglers.op_differences", "host_cpu"], contention: ["host_cpu"], transfer: ["collectives"] };

/** @param {import("../app.js").App} app */
export async function findingsPanel(app) {
  const [findings, step] = await Promise.all([app.loadFindings(), app.panels.stepTime()]);
  if (!findings.length) return h("p", { class: "quiet" }, app.checkedText);
  const at = app.shownFinding;
  const shown = findings[at];
  const { collective, bubbles } = shown?.scene ?? {};
  return h("div", { class: `columns three findings ${shown?.severity ?? ""}` }, h("div", {}, list(app, findings, "Faults", step), list(app, findings, "Limits", step)),
    shown ? h("div", {}, details(app, shown)) : "",
    collective ? h("div", {}, h("h2", {}, `${collective.title} on every rank`), peersTable(app, collective), whyLess(shown, collective.rows), h("p", { class: "quiet" }, collective.text)) : "",
    bubbles ? h("div", {}, h("h2", {}, "Bubbles per step, and what they come from"), table(BUBBLES.filter(({ name }) => bubbles.some((/** @type {any} */ row) => name === "stage" || row[name] > LEAST * row.bubble_ns)), bubbles, { caption: "Bubbles", tools: false })) : "");
}

/** @param {import("../app.js").App} app @param {any[]} findings @param {"Faults" | "Limits"} what @param {number | null} step ns */
function list(app, findings, what, step) {
  const listed = findings.map((finding, index) => ({ finding, index })).filter(({ finding }) => (finding.kind === "limit") === (what === "Limits"));
  if (!listed.length) return "";
  const most = what === "Limits" ? "Saves at most" : "Saves";
  const saved = listed.reduce((sum, { finding }) => sum + (finding.cost_ns ?? 0), 0);
  const row = (/** @type {{ finding: any, index: number }} */ { finding, index }) => h("tr", {
    "data-go": true, tabindex: 0, class: index === app.shownFinding ? "chosen" : "", "aria-selected": String(index === app.shownFinding), onclick: () => app.showFinding(index),
    onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") app.showFinding(index); },
  }, h("td", { class: "text" }, h("i", { class: `dot ${finding.severity}`, title: finding.severity }), finding.title),
  h("td", {}, finding.cost_ns === null ? "–" : time(finding.cost_ns)), h("td", {}, finding.cost_ns === null || !step ? "–" : percent(finding.cost_ns / step)));
  return h("div", {}, h("table", { class: "wrapping" }, h("caption", { class: "unseen" }, what),
    h("thead", {}, h("tr", {}, h("th", { class: "text", scope: "col" }, what), h("th", { scope: "col" }, step ? `${most} a step` : most), h("th", { scope: "col" }, "Share"))),
    h("tbody", {}, listed.map(row))),
  saved && step && listed.length > 1 ? h("p", { class: "quiet" }, `Each time is counted once. Together: ${time(saved)} of ${time(step)}.`) : "");
}

/** Why mending saves another time than the others wait here. @param {any} finding @param {{ wait_ns: number | null }[]} rows */
function whyLess({ cost_ns: saved, kind }, rows) {
  const waited = Math.max(0, ...rows.map(({ wait_ns: wait }) => wait ?? 0));
  if (kind !== "fault" || !saved || !waited) return "";
  return h("p", { class: "why" }, `Others wait up to ${time(waited)} here; mending saves ${time(saved)} a step. `,
    "Waiting is not all saved: the next slowest rank then sets the pace. Part of it may be the schedule's design, or beside other work.");
}

/** What is stated of a finding, a line each. @param {any} finding */
export function facts(finding) {
  return finding.lines.length ? h("ul", { class: "facts" }, finding.lines.map((/** @type {string} */ line) => h("li", {}, line))) : "";
}

/** @param {import("../app.js").App} app @param {any} finding */
function details(app, finding) {
  const { slices } = finding.scene;
  return h("article", { class: "finding" }, h("h2", {}, finding.title), facts(finding),
    slices.length ? h("p", { class: "quiet" }, `In this window: ${slices.length} slice${slices.length === 1 ? "" : "s"}, the longest `,
      h("button", { class: "link", onclick: () => app.goTo(slices[0], { stay: true }) }, `${slices[0].name}, ${time(slices[0].dur_ns)}`), ".") : "",
    h("p", { class: "quiet" }, "Tables: ", tablesOf(app, finding).map(([report, by], index) => [index ? ", " : "",
      h("button", { class: "link", onclick: () => app.store.set({ tab: "reports", report, by }, { history: true }) }, by ? `${report} by ${by}` : report)]).flat()),
    finding.advice ? h("p", { class: "quiet" }, finding.advice) : "",
    finding.commands.map(command),
    finding.about ? h("details", { class: "about" }, h("summary", {}, "What this means, and when it is wrong"), h("pre", {}, finding.about)) : "");
}

/** The tables behind a finding: its report, also by step, and those of its cause. @param {import("../app.js").App} app
 * @param {any} finding @returns {[string, string][]} report and `by` */
function tablesOf(app, finding) {
  const name = finding.report;
  const report = app.run.reports.find((each) => each.name === name);
  const cause = finding.facts.find((/** @type {any} */ fact) => fact.quantity === "cause")?.value;
  /** @type {[string, string][]} */
  const tables = report ? [[name, ""]] : [];
  if (report?.by.includes("step")) tables.push([name, "step"]);
  return [...tables, ...(OF_CAUSE[cause] ?? []).filter((each) => each !== name).map((each) => /** @type {[string, string]} */ ([each, ""]))];
}

/** A line to copy. @param {string} text */
export function command(text) {
  const button = h("button", { class: "plain", "aria-label": `Copy: ${text}`, onclick: async () => {
    await copyText(text);
    button.textContent = "Copied";
  } }, "Copy");
  return h("div", { class: "command" }, h("code", {}, text), button);
}

/** A collective with one row per rank, in order of arrival: when it arrives, how long it waits, how long it transfers.
 * @param {import("../app.js").App} app @param {any} peers an answer of the route `collective` */
export function peersTable(app, peers) {
  const rows = peers.rows.map((/** @type {any} */ row) => ({ ...row, of: rankNumber(row.rank), transfer_ns: row.wait_ns === null ? null : row.dur_ns - row.wait_ns }));
  const columns = [app.run.titles ? { name: "of", title: "rank" } : { name: "rank" }, { name: "arrives_ns", title: "arrives", unit: "ns" }, { name: "wait_ns", title: "waits", unit: "ns" },
    { name: "transfer_ns", title: "transfers", unit: "ns" }];
  return table(columns, rows, { caption: peers.title, tools: false, hot: (row) => row.rank === peers.last, go: (row) => app.goTo(row, { stay: true }) });
}
