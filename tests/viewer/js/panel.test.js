// The pure parts of the panel, of marks and of the shared file.

import assert from "node:assert/strict";
import test from "node:test";

const js = new URL("../../../src/rankscope/viewer/static/js/", import.meta.url);
const { columnScale } = await import(new URL("format.js", js));
const { headingOf } = await import(new URL("table.js", js));
const { compared, inverted, matched } = await import(new URL("panels/flame.js", js));
const { marksFrom, marksText } = await import(new URL("marks.js", js));
const { longest, shares, SharedFile } = await import(new URL("shared.js", js));

test("a column has one unit, and its heading names it", () => {
  const scale = columnScale("ns", [12_345_678, 900, null]);
  assert.deepEqual([scale.label, scale.text(12_345_678), scale.text(900), scale.text(0)], ["ms", "12.346", "0.001", "0"]);
  assert.equal(headingOf({ name: "total_ns", unit: "ns" }, "ms"), "Total (ms)");
  assert.equal(headingOf({ name: "pct", title: "% of roof", unit: "percent" }, "%"), "% of roof");
  assert.equal(headingOf({ name: "calls", unit: "count" }), "Calls");
  assert.equal(columnScale("count", [3]), null);
  assert.equal(columnScale("ns", [60e9, 2500, 2500, 2500]).label, "µs"); // one long span does not choose
  assert.equal(columnScale("ns", [2e9, 150e6, 150e6, 150e6]).label, "s");
});

const tree = {
  name: "all", self_ns: 0, total_ns: 100, children: [
    { name: "a", self_ns: 20, total_ns: 60, children: [{ name: "mm", self_ns: 40, total_ns: 40, children: [] }] },
    { name: "b", self_ns: 0, total_ns: 40, children: [{ name: "mm", self_ns: 40, total_ns: 40, children: [] }] }],
};

test("an inverted flame graph starts with the callees, and adds up", () => {
  const up = inverted(tree);
  assert.deepEqual(up.children.map((node) => [node.name, node.total_ns]), [["mm", 80], ["a", 20]]);
  assert.deepEqual(up.children[0].children.map((node) => [node.name, node.total_ns]), [["a", 40], ["b", 40]]);
});

test("a search in a flame graph counts nested matches once", () => {
  assert.equal(matched(tree, "mm"), 80);
  assert.equal(matched({ ...tree, name: "mm" }, "mm"), 100);
});

test("a flame graph with a baseline knows what each node took before", () => {
  const base = { ...tree, total_ns: 50, children: [{ ...tree.children[0], total_ns: 30, children: [] }] };
  const both = compared(tree, base);
  assert.deepEqual([both.before_ns, both.children[0].before_ns, both.children[1].before_ns], [50, 30, 0]);
});

test("marks survive the address, whatever their names are", () => {
  const marks = [{ at: 5, name: "a, b: c & d" }, { at: -7, name: "größer" }];
  assert.deepEqual(marksFrom(marksText(marks)), marks);
  assert.deepEqual(marksFrom("x,5:%E0%A4%A"), []);
  assert.deepEqual(marksFrom(null), []);
});

test("of a shared file's slices, the longest that starts in a pixel is drawn", () => {
  const slice = (start_ns, dur_ns, depth = 0) => ({ start_ns, dur_ns, depth });
  const found = longest([slice(-5, 20), slice(16, 1), slice(17, 2), slice(40, 10), slice(17, 3, 1)], 0, 10, 8);
  assert.deepEqual(found.map(({ slice, count }) => [slice.start_ns, slice.dur_ns, count]), [[-5, 20, 1], [17, 2, 2], [40, 10, 1], [17, 3, 1]]);
});

test("shares of intervals", () => {
  assert.deepEqual([...shares([[0, 25], [10, 40]], 0, 40, 4)], [1, 0, 0.5, 1]);
  assert.deepEqual([...shares([[], []], 0, 40, 2)], [0, 0]);
  assert.deepEqual([...shares([[-100], [100]], 0, 40, 2)], [1, 1]);
});

const columns = {
  rank: [0, 0, 0], segment: [0, 0, 0], track: [1, 1, 2], depth: [0, 1, 0], id: [10, 1, 5], start_ns: [100, 20, -10], dur_ns: [50, 10, 30], self_ns: [40, 10, 30],
  step: [1, 1, null], bytes: [null, null, null], on_device: [0, 0, 1], launch: [null, null, 5], op: [null, 1, 6], python: [null, null, null], module: [null, null, null],
  parent: [null, 1, null], kind: [3, 5, 0], args: [null, { x: 1 }, null], name: [0, 2, 3], category: [1, 1, 4],
};
const recorded = { run: { ranks: [0], tile_width: 1024, path: "runs/a" }, "tracks/0": { rank: 0, tracks: [{ segment: 0, track: 1, label: "thread" }, { segment: 0, track: 2, label: "stream 7" }] } };
const file = new SharedFile({
  view: "", recorded, slices: columns, texts: ["aten::mm", "cpu_op", "launch", "gemm", "kernel"], short: { "aten::mm": "mm" }, counters: { 0: { queue: { time: [90, 120], value: [1, 4] } } },
  activity: { 0: { compute: [[110], [140]], comm: [[], []], copy: [[], []], recorded: [[100], [150]] } }, collectives: [],
});

test("a shared file answers what the server answers", () => {
  assert.deepEqual(file.answer("slice", { rank: 0, segment: 0, id: 10 }).launched.map((slice) => slice.name), ["gemm"]);
  const kernel = file.answer("slice", { rank: 0, segment: 0, id: 16 });
  assert.deepEqual([kernel.start_ns, kernel.related.launch.name, kernel.related.op.name, kernel.where, kernel.compared.count], [110, "launch", "aten::mm", "stream 7", 1]);
  assert.deepEqual(file.answer("search", { q: "G" }).names.map((entry) => [entry.name, entry.count, entry.ranks]), [["gemm", 1, "0"]]);
  assert.equal(file.answer("find", { q: "^l|^g", regex: 1, at: 0 }).found.name, "gemm");
  assert.equal(file.answer("find", { q: "^l|^g", regex: 1, at: 110, after: "0.0.16" }).found.name, "launch");
  assert.deepEqual(file.answer("events", { begin: 0, end: 200, sort: "dur_ns", order: "descending", slice: "0.0.11" }).place, 2);
  const area = file.answer("area", { begin: 100, end: 150, ranks: "0", by: "category" });
  assert.deepEqual([area.device[0].category, area.device[0].inside_ns, area.shares[0].compute], ["kernel", 30, 0.6]);
  assert.equal(file.answer("tile", { rank: 0, segment: 0, track: 1, level: 0, index: 0 }).column.start.length, 2);
  assert.deepEqual([...file.answer("counter", { rank: 0, name: "queue", begin: 100, end: 140, width: 2 }).column.value], [4, 4]);
  assert.deepEqual([...file.answer("overview", { begin: 100, end: 150, width: 1 }).column.compute], [153]);
  assert.throws(() => file.answer("query", { sql: "SELECT 1" }), /does not contain/);
});
