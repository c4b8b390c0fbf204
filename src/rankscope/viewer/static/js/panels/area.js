// A time range summed up: the shares of each rank, and slices by name, track, rank or category, on devices and on hosts.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { percent, time } from "../format.js";
import { rankName } from "../layout.js";
import { table } from "../table.js";
import { rangeOf, rangeText } from "./range.js";

const choice = { by: "name" };
const BAR = 160;
const CLASSES = /** @type {const} */ ([["compute", "compute"], ["comm", "exposed transfer"], ["wait", "waiting for another rank"], ["bubble", "bubble"], ["copy", "copies"], ["idle", "idle"]]);

/** @param {import("../app.js").App} app */
export async function areaPanel(app) {
  const { area } = app.store.view;
  const range = rangeOf(app);
  const answer = await json("area", { ...range, by: choice.by });
  const pick = h("select", { "aria-label": "Group by", onchange: (/** @type {any} */ event) => { choice.by = event.target.value; app.panels.draw(); } },
    ["name", "track", "rank", "category"].map((by) => h("option", { value: by, selected: by === choice.by }, `by ${by}`)));
  const zoom = area ? h("button", { onclick: () => app.show(area[0], area[1], { history: true }) }, "Zoom to it") : h("span", { class: "quiet" }, "Drag over the tracks to choose a time range, or a box of tracks.");
  return h("div", {}, h("div", { class: "row" }, h("b", {}, `${rangeText(app).replace(/^./, (first) => first.toUpperCase())}`), pick, zoom),
    h("div", { class: "columns area" },
      h("div", {}, h("h2", {}, "Where the time goes"), h("div", { class: "shares" }, answer.shares.map(share), legend(answer.shares))),
      ["device", "host"].map((side) => h("div", {}, h("h2", {}, side === "device" ? "On the device" : "On the host"), groups(app, answer[side], answer.more[side], range.end - range.begin)))));
}

/** @param {import("../app.js").App} app @param {any[]} rows @param {number} more @param {number} span */
function groups(app, rows, more, span) {
  if (!rows.length) return h("p", { class: "quiet" }, "Nothing.");
  const keys = { name: ["name", "category"], track: ["rank", "label"], rank: ["rank"], category: ["category"] }[choice.by] ?? [];
  const columns = [...keys.map((name) => ({ name, title: name === "label" ? "track" : name, short: name === "name" ? Object.fromEntries(rows.map((row) => [row.name, row.short])) : undefined })),
    { name: "inside_ns", title: "time", unit: "ns", help: "inside the range; nested slices count in their callers too" }, { name: "count" }, { name: "avg_ns", title: "average", unit: "ns" }, { name: "max_ns", title: "longest", unit: "ns" }];
  return h("div", {}, table(columns, rows, { caption: `Slices in ${time(span)}` }), more ? h("p", { class: "quiet" }, `${more.toLocaleString("en")} more are not shown.`) : "");
}

/** @param {any} share */
function share(share) {
  let x = 0;
  const bar = s("svg", { viewBox: `0 0 ${BAR} 12`, width: BAR, height: 12, "aria-hidden": "true" });
  for (const [name] of CLASSES) {
    bar.append(s("rect", { x, y: 0, width: BAR * share[name], height: 12, fill: `var(--${name})` }));
    x += BAR * share[name];
  }
  const text = CLASSES.map(([name, label]) => `${label} ${percent(share[name])}`).join(", ");
  return h("div", { title: text }, h("b", {}, rankName(share.rank)), bar,
    h("span", {}, CLASSES.filter(([name]) => share[name] >= 0.0005).map(([name, label]) => `${label} ${percent(share[name])}`).join(", ") + (share.unrecorded > 0 ? `, not recorded ${percent(share.unrecorded)}` : "")));
}

/** Only pipelines have bubbles. @param {any[]} shares */
function legend(shares) {
  const shown = CLASSES.filter(([name]) => name !== "bubble" || shares.some((/** @type {any} */ of) => of.bubble > 0));
  return h("p", { class: "quiet" }, shown.map(([name, label]) => [h("i", { class: `swatch ${name}` }), `${label} `]).flat());
}
