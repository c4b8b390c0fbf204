// The selected slice: its details, its place among others of its name, its callers and launches, its collective on all ranks.

import { json } from "../api.js";
import { h, s } from "../dom.js";
import { quantity, time } from "../format.js";
import { COMMUNICATION, rankNumber } from "../layout.js";
import { peersTable } from "./findings.js";

/** @param {import("../app.js").App} app */
export async function selectionPanel(app) {
  const { slice } = app.store.view;
  if (slice) return slicePanel(app, slice);
  return h("p", { class: "quiet" }, "Click a slice to see its details. Drag over the tracks to see what runs in a time range.");
}

/** @param {import("../app.js").App} app @param {import("../state.js").SliceKey} key */
async function slicePanel(app, key) {
  const slice = await json("slice", key);
  app.panels.slice = slice;
  const peers = slice.is_collective ? await json("collective", key) : null;
  if (peers?.messages.length) peers.beside = peers.rows.map((/** @type {any} */ row) => row.rank).filter((/** @type {number} */ rank) => rank !== slice.rank && !app.timeline.inView.has(rank));
  app.timeline.peers = peers;
  if (peers?.beside?.length) {
    app.timeline.scrollTo(peers.beside[0]);
    app.timeline.scrollTo(slice.rank, COMMUNICATION);
  }
  app.timeline.arrows = arrowsOf(slice);
  app.timeline.redraw();
  const { compared } = slice;
  return h("div", { class: "columns three" },
    h("div", {}, h("h2", { class: "name" }, slice.name), h("dl", {}, facts(app, slice).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
      Object.keys(slice.args).length ? h("div", {}, h("h2", {}, "Arguments"),
        h("dl", {}, Object.entries(slice.args).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, text(value))]))) : ""),
    h("div", {}, h("h2", {}, `Compared with ${compared.count.toLocaleString("en")} slices of this name`),
      h("p", { class: "quiet" }, `p50 ${time(compared.p50_ns)}, p99 ${time(compared.p99_ns)}, max ${time(compared.max_ns)}; ${compared.longer.toLocaleString("en")} longer`),
      histogram(compared.histogram, slice.dur_ns)),
    h("div", {}, peers ? h("div", {}, h("h2", {}, `${peers.title} on every rank`), h("p", { class: "quiet" }, peers.text), peersTable(app, peers)) : "",
      h("h2", {}, "Called from"), origin(slice.origin), related(app, slice), slice.launched.length ? h("div", {}, h("h2", {}, "Launched"), links(app, slice, slice.launched)) : ""));
}

/** @param {import("../app.js").App} app @param {any} slice */
function facts(app, slice) {
  const rows = [["rank", `${rankNumber(slice.rank)}, ${slice.where}`], ["category", slice.category], ["duration", time(slice.dur_ns)],
    ["self", time(slice.self_ns)], ["starts", app.timeline.momentOf(slice.start_ns, slice)], ["step", slice.step ?? "–"]];
  if (slice.bytes) rows.push(["bytes", quantity(slice.bytes, "bytes")]);
  return rows;
}

/** @param {any} value */
function text(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Where a kernel of a CUDA graph or of compiled code comes from. @param {any} source */
function origin(source) {
  if (!source) return "";
  const rows = [["op", source.op], ["module", source.module], ["line", source.line], ["compiled", source.compiled]];
  if (source.node !== null) rows.unshift(["graph replay", `node ${source.node}${source.graph === null ? "" : ` of graph ${source.graph}`}`]);
  return h("dl", {}, rows.filter(([, value]) => value !== null).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
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
  const drawn = (/** @type {any} */ other) => ({ ...other, rank: slice.rank, segment: slice.segment, start: other.start_ns, row: other.depth });
  const next = slice.launched.length === 1 ? slice.launched : [];
  return slice.related.launch || next.length ? [...chain, slice, ...next].map(drawn) : [];
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
