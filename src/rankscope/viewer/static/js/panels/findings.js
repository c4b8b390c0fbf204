// The findings, costliest first, each with a button that shows it in the timeline.

import { h } from "../dom.js";
import { time } from "../format.js";

/** @param {import("../app.js").App} app */
export async function findingsPanel(app) {
  const findings = await app.loadFindings();
  if (!findings.length) return h("p", { class: "quiet" }, "No findings.");
  return h("div", {}, findings.map((finding, at) => h("article", { class: `card ${finding.severity}` },
    h("button", { class: "go", onclick: () => app.showFinding(at), "aria-label": `show: ${finding.title}` }, "show →"),
    h("span", { class: "severity" }, finding.severity, finding.cost_ns ? ` · ${time(finding.cost_ns)}` : ""),
    h("h3", {}, finding.title), h("p", {}, finding.evidence), finding.hint ? h("p", {}, "→ ", finding.hint) : "")));
}
