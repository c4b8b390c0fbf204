// The selection: a slice with its details, a collective on all ranks, or a time range.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { percent, quantity, time } from "../format.js";
import { table } from "../table.js";

/** @param {import("../app.js").App} app */
export async function selectionPanel(app) {
  const { slice, area } = app.store.view;
  if (slice) return slicePanel(app, slice);
  if (area) return areaPanel(app, area);
  return h("p", { class: "quiet" }, "Click a slice to see its details. Drag over the tracks to see what runs in a time range.");
}

/** @param {import("../app.js").App} app @param {import("../state.js").SliceKey} key */
async function slicePanel(app, key) {
  const slice = await json("slice", key);
  app.panels.slice = slice;
  const peers = slice.is_collective ? await json("collective", key) : null;
  app.timeline.peers = peers;
  app.timeline.arrows = arrowsOf(slice);
  app.timeline.redraw();
  const { compared } = slice;
  return h("div", {}, h("h2", {}, slice.name),
    h("dl", {}, facts(slice).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    peers ? collective(app, peers) : "",
    h("h2", {}, `Compared with ${compared.count.toLocaleString("en")} slices of this name`),
    h("p", { class: "quiet" }, `p50 ${time(compared.p50_ns)}, p99 ${time(compared.p99_ns)}, max ${time(compared.max_ns)}; ${compared.longer.toLocaleString("en")} longer`),
    histogram(compared.histogram, slice.dur_ns),
    h("h2", {}, "Called from"), related(app, slice),
    slice.launched.length ? h("div", {}, h("h2", {}, "Launched"), links(app, slice, slice.launched)) : "",
    Object.keys(slice.args).length ? h("div", {}, h("h2", {}, "Arguments"),
      h("dl", {}, Object.entries(slice.args).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, text(value))]))) : "");
}

/** @param {any} slice */
function facts(slice) {
  const rows = [["rank", `${slice.rank}, ${slice.where}`], ["category", slice.category], ["duration", time(slice.dur_ns)],
    ["self", time(slice.self_ns)], ["starts", time(slice.start_ns)], ["step", slice.step ?? "–"]];
  if (slice.bytes) rows.push(["bytes", quantity(slice.bytes, "bytes")]);
  return rows;
}

/** @param {any} value */
function text(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** @param {import("../app.js").App} app @param {any} slice */
function related(app, slice) {
  const entries = Object.entries(slice.related);
  if (!entries.length) return h("p", { class: "quiet" }, "No callers are recorded. To record stacks: rankscope profile --with-stack");
  return h("dl", {}, entries.flatMap(([name, other]) => [h("dt", {}, name), h("dd", {}, links(app, slice, [other]))]));
}

/** @param {import("../app.js").App} app @param {any} slice @param {any[]} others */
function links(app, slice, others) {
  return h("div", {}, others.map((other) => h("div", {}, h("button", {
    class: "plain", onclick: () => app.goTo({ ...other, rank: slice.rank, segment: slice.segment }),
  }, other.name), " ", h("span", { class: "quiet" }, time(other.dur_ns)))));
}

/** @param {any} slice */
function arrowsOf(slice) {
  const chain = [slice.related.op, slice.related.launch].filter(Boolean);
  const place = (/** @type {any} */ other) => ({ ...other, rank: slice.rank, segment: slice.segment, start: other.start_ns, row: other.depth });
  const next = slice.launched.length === 1 ? slice.launched : [];
  return slice.related.launch || next.length ? [...chain, slice, ...next].map(place) : [];
}

/** @param {any} bins @param {number} mine */
function histogram(bins, mine) {
  const most = Math.max(...bins.counts, 1);
  const width = 360 / bins.counts.length;
  const chosen = bins.edges_ns.findIndex((/** @type {number} */ edge, /** @type {number} */ at) => mine >= edge && mine < (bins.edges_ns[at + 1] ?? Infinity));
  const chart = s("svg", { viewBox: "0 0 380 74", class: "chart", role: "img", "aria-label": "Histogram of durations of slices with this name" });
  bins.counts.forEach((/** @type {number} */ count, /** @type {number} */ at) => {
    const height = count ? Math.max(2, (48 * count) / most) : 0;
    chart.append(s("rect", { x: 10 + at * width, y: 54 - height, width: Math.max(width - 1, 1), height, fill: at === chosen ? "var(--bad)" : "var(--compute)" },
      s("title", {}, `${count} of ${time(bins.edges_ns[at])} to ${time(bins.edges_ns[at + 1])}`)));
  });
  chart.append(s("text", { x: 10, y: 68 }, time(bins.edges_ns[0])), s("text", { x: 370, y: 68, "text-anchor": "end" }, time(bins.edges_ns[bins.edges_ns.length - 1])));
  return chart;
}

/** @param {import("../app.js").App} app @param {any} peers */
function collective(app, peers) {
  const columns = [{ name: "rank", title: peers.title }, { name: "arrives_ns", title: "arrival", unit: "ns" }, { name: "wait_ns", title: "wait", unit: "ns" },
    { name: "dur_ns", title: "duration", unit: "ns" }];
  return h("div", {}, h("h2", {}, "On all ranks"), h("p", { class: "quiet" }, peers.text),
    table(columns, peers.rows, { hot: (row) => row.rank === peers.last, go: (row) => app.goTo(row) }));
}

/** @param {import("../app.js").App} app @param {[number, number]} area */
async function areaPanel(app, area) {
  const open = app.store.view.open.length ? app.store.view.open : app.ranks;
  const answer = await json("area", { begin: area[0], end: area[1], ranks: open.slice(0, 64).join(",") });
  const columns = [{ name: "name" }, { name: "inside_ns", title: "time in range", unit: "ns" }, { name: "count" }, { name: "avg_ns", title: "average", unit: "ns" }, { name: "category" }];
  return h("div", {}, h("h2", {}, `${time(area[1] - area[0])} on ${open.length} rank${open.length === 1 ? "" : "s"}`),
    answer.shares.map((/** @type {any} */ share) => h("div", { class: "row" }, h("span", { class: "quiet" }, `rank ${share.rank}`), bar(share),
      h("span", {}, `compute ${percent(share.compute)}, exposed communication ${percent(share.comm)}, idle ${percent(share.idle)}${share.unrecorded > 0 ? `, not recorded ${percent(share.unrecorded)}` : ""}`))),
    h("div", { class: "row" }, h("button", { class: "plain", onclick: () => app.show(area[0], area[1], { history: true }) }, "Zoom to the range")),
    h("h2", {}, "Slices in the range"), table(columns, answer.names, { caption: "Names in the selected time range" }));
}

/** @param {any} share */
function bar(share) {
  const part = (/** @type {string} */ name) => s("rect", { x: 0, y: 0, height: 12, width: 120 * share[name], fill: `var(--${name})` });
  const chart = s("svg", { viewBox: "0 0 120 12", width: 120, height: 12, "aria-hidden": "true" }, s("rect", { width: 120, height: 12, fill: "var(--idle)" }));
  let x = 0;
  for (const name of ["compute", "comm", "copy"]) {
    const piece = part(name);
    piece.setAttribute("x", String(x));
    x += 120 * share[name];
    chart.append(piece);
  }
  return chart;
}
