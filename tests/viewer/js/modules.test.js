// The page's pure parts, by node's own test runner: no browser, no packages.

import assert from "node:assert/strict";
import test from "node:test";

const js = new URL("../../../src/rankscope/viewer/static/js/", import.meta.url);
const { cut, moment, quantity, ticks, time } = await import(new URL("format.js", js));
const { clamp, groupsOf, isFolded, named, ordered, rankName, rowsOf, stepAt, toggleFold, visible, zoomed } = await import(new URL("layout.js", js));
const { Axis } = await import(new URL("axis.js", js));
const { indicesOf, levelOf, Tiles } = await import(new URL("tiles.js", js));
const { decode, encode, EMPTY } = await import(new URL("state.js", js));
const { unpack } = await import(new URL("api.js", js));
const { compare, tsv } = await import(new URL("table.js", js));
const { paint, repeat } = await import(new URL("raster.js", js));
const { inkOn, mixed, number, paintShares, stretches } = await import(new URL("palette.js", js));
const { bars } = await import(new URL("watch.js", js));

test("one long step does not flatten the others", () => {
  const drawn = bars([100, null, 100, 1000, 50]);
  assert.deepEqual(drawn.map((bar) => [bar.x, bar.height, bar.long]), [[0, 45, false], [20, 45, false], [30, 90, true], [40, 22.5, false]]);
  assert.deepEqual(bars([]), []);
});

test("many ranks stand in groups that expand", () => {
  const ranks = Array.from({ length: 40 }, (_, at) => at);
  const grid = { ranks: [...ranks].reverse(), levels: [[{ label: "stage 0", from: 0, to: 30 }, { label: "stage 1", from: 30, to: 40 }]] };
  const groups = groupsOf({ ranks, grid });
  assert.deepEqual(groups.map(({ label, ranks: own }) => [label, own.length, own[0]]), [["stage 0", 30, 39], ["stage 1", 10, 9]]);
  assert.deepEqual(groupsOf({ ranks: ranks.slice(0, 32), grid }), []); // few, or not all of the grid, as in a shared file
  assert.deepEqual(groupsOf({ ranks }), []); // not known yet
  const rows = (folds) => rowsOf({ ranks, open: new Set(), pinned: [], pins: [], folds, filter: "", tracks: new Map(), counters: new Map(), groups, apart: new Set([7]) }).rows
    .map((row) => (row.type === "ranks" ? row.label : row.rank));
  assert.deepEqual(rows(["ranks"]), [7, "stage 0", "stage 1"]);
  assert.deepEqual(rows(["ranks", "1:ranks"]), [7, "stage 0", "stage 1", 9, 8, 6, 5, 4, 3, 2, 1, 0]);
});

test("times read as people write them", () => {
  assert.equal(time(0), "0 ns");
  assert.equal(time(999), "999 ns");
  assert.equal(time(12_345), "12.3 µs");
  assert.equal(time(182_400_000), "182 ms");
  assert.equal(time(null), "–");
  assert.equal(quantity(12.34, "percent"), "12.3 %");
  assert.equal(quantity(5_480_000_000, "bytes"), "5.48 GB");
});

test("neighbouring ticks never read the same", () => {
  for (const [begin, end] of [[0, 1e9], [35e6, 36e6], [35_000_000, 35_000_100], [-5e6, 5e6]]) {
    const labels = ticks(begin, end, 8).map((at) => moment(at, end - begin));
    assert.ok(labels.length >= 2 && labels.length <= 11);
    assert.equal(new Set(labels).size, labels.length, labels.join(" "));
  }
});

test("a view survives its link", () => {
  const view = { ...EMPTY, begin: 5, end: 900, open: [3, 1], pinned: [1], slice: { rank: 1, segment: 0, id: 77 }, area: [10, 20], tab: "sql", sql: "SELECT '&#'", sort: "idle_ns",
    finding: 1, folds: ["host", "2:streams"], pins: ["2.0.-1", "0.1.32"], dock: "right", size: 333 };
  assert.deepEqual({ ...EMPTY, ...decode(encode(view)) }, view);
});

test("a link that makes no sense opens the run as it is", () => {
  for (const hash of ["", "#t=9-3", "#slice=a.b.c&open=x,y", "#%%%", "#t=1e9-2"]) {
    const view = decode(hash);
    assert.equal(view.begin, undefined);
    assert.deepEqual([view.slice, view.open], [null, []]);
  }
});

test("an unfolded view and an empty list of folds survive their links", () => {
  assert.deepEqual(decode(encode({ ...EMPTY, folds: [] })).folds, []);
  assert.deepEqual(decode("#v=1").folds, EMPTY.folds);
  assert.deepEqual(decode("#fold=host,<b>&tracks=1.2,x,1.0.3").pins, ["1.0.3"]);
});

test("the window stays inside the run: no time before its start", () => {
  assert.deepEqual(clamp(0, 100, 0, 1000), [0, 100]);
  assert.deepEqual(clamp(-1e9, 1e9, 0, 1000), [0, 1000]);
  assert.deepEqual(clamp(-50, 50, 0, 1000), [0, 100]);
  const [from, to] = clamp(500, 500, 0, 1000);
  assert.equal(to - from, 10);
  assert.deepEqual(zoomed(0, 100, 25, 0.5), [12.5, 62.5]);
});

const track = (track, group, short, more = {}) => ({ segment: 0, track, kind: group === "host" ? "thread" : "stream", label: `GPU 0 ${short}`, short, slices: 5, rows: 1, group, share: 0.5, categories: [], ...more });
const TRACKS = new Map([[0, [
  track(7, "streams", "stream 7", { rows: 2, categories: ["kernel"] }), track(-1, "communication", "communication"),
  track(76, "more", "stream 76", { share: 0.001 }), track(77, "more", "annotations", { share: 0.9 }), track(80, "more", "stream 80", { share: 0.002 }), track(9, "host", "thread 9"),
]]]);
const shown = (more) => ({ ranks: [0, 1], open: new Set([0]), pinned: [], pins: [], folds: ["more"], filter: "", tracks: TRACKS, counters: new Map(), ...more });
const labels = (rows) => rows.map((row) => row.label ?? row.track?.short ?? row.counter?.label ?? rankName(row.rank));

test("rows of open ranks in groups, and those in view", () => {
  const { rows, height } = rowsOf(shown());
  assert.deepEqual(labels(rows), ["rank 0", "communication", "stream 7", "2 more streams", "thread 9", "rank 1"]);
  assert.equal(rows[3].text, "0.3 % of the time");
  assert.ok(height > rows[5].y);
  assert.deepEqual(labels(visible(rows, rows[2].y + 1, rows[2].y + 2)), ["stream 7"]);
  assert.deepEqual(visible(rows, 1e6, 2e6), []);
});

test("groups fold on one rank and on all", () => {
  assert.deepEqual(labels(rowsOf(shown({ folds: ["host", "streams", "0:more"] })).rows), ["rank 0", "communication", "streams", "2 more streams", "host", "rank 1"]);
  const one = toggleFold([], "host", 2);
  assert.deepEqual([isFolded(one, 2, "host"), isFolded(one, 3, "host")], [true, false]);
  assert.deepEqual(toggleFold(one, "host", 2), []);
  const all = toggleFold(one, "host");
  assert.deepEqual([isFolded(all, 2, "host"), isFolded(all, 3, "host")], [true, true]);
  assert.equal(isFolded(toggleFold(all, "host", 2), 2, "host"), false);
});

test("a filter shows tracks by name, group and category, folded or not", () => {
  const found = (filter) => labels(rowsOf(shown({ filter, ranks: [0] })).rows).slice(1);
  assert.deepEqual(found("stream 7"), ["stream 7"]);
  assert.deepEqual(found("Stream 76"), ["stream 76"]);
  assert.deepEqual(found("kernel"), ["stream 7"]);
  assert.deepEqual(found("host"), ["thread 9"]);
  assert.equal(named("", ["anything"]), true);
});

test("pinned tracks stay above the others in the order they are kept in", () => {
  const { pins, pinsHeight, rows } = rowsOf(shown({ open: new Set(), pins: ["0.0.9", "0.0.7", "5.0.1"] }));
  assert.deepEqual(labels(pins), ["thread 9", "stream 7"]);
  assert.ok(pins[1].y === pins[0].height && pinsHeight === pins[1].y + pins[1].height && rows.length === 2);
});

test("ranks of a finding lead, then pinned order and sort; of two runs, equal ranks are neighbours", () => {
  assert.deepEqual(ordered([0, 1, 2, 3], [3], null), [3, 0, 1, 2]);
  assert.deepEqual(ordered([0, 1, 2, 3], [], null, [2, 0]), [2, 0, 1, 3]);
  assert.deepEqual(ordered([0, 1, 2], [], new Map([[2, 9], [0, 1]])), [2, 0, 1]);
  assert.deepEqual(ordered([0, 1, 1e6, 1000001], [], null), [0, 1e6, 1, 1000001]);
  assert.equal(rankName(1000003), "B rank 3");
});

test("both runs have one axis: a step begins at one place and takes as long as the slower one", () => {
  const steps = (...starts) => starts.map((start_ns, at) => ({ step: at + 2, start_ns, dur_ns: 10 }));
  const run = (first, second) => ({ begin_ns: 0, end_ns: 400, ends_ns: [230, 400], steps: first, second_steps: second });
  const axis = new Axis(run(steps(5, 100, 200), steps(10, 60, 300)));
  assert.deepEqual([axis.at, axis.end], [[10, 105, 345], 445]);
  const B = 1e6;
  for (const [ns, rank, place] of [[5, 0, 10], [10, B, 10], [0, 0, 5], [99, 0, 104], [60, B, 105], [110, 0, 115], [299, B, 344], [230, 0, 375]]) {
    assert.equal(axis.of(ns, rank), place);
    assert.equal(axis.back(place, rank), ns);
  }
  assert.equal(axis.back(90, B), 60); // B's step is over: its next one begins
  const full = () => Uint8Array.from({ length: 89 }, () => 255);
  const shares = { compute: full(), comm: full(), wait: full(), copy: full(), bubble: new Uint8Array(89), unrecorded: new Uint8Array(89) };
  const spread = axis.spread(shares, [0, 445], [0, 445], B); // columns of 5 ns
  assert.deepEqual([11, 12, 20, 21].map((at) => [spread.compute[at], spread.unrecorded[at]]), [[255, 0], [0, 255], [0, 255], [255, 0]]);
  const alone = new Axis({ begin_ns: 0, end_ns: 400, steps: steps(5, 100) });
  assert.deepEqual([alone.of(7, 0), alone.back(7, 0), alone.end, alone.spread(shares, [0, 1], [0, 1], 0)], [7, 7, 400, shares]);
  assert.equal(new Axis(run(steps(5), [])).end, 400); // no step in both
  assert.deepEqual(new Axis(run(steps(0, 100, 200), steps(5))).at, [5]); // only the first is in both
});

test("tiles cover the window and are finer than the screen", () => {
  assert.equal(levelOf(1), 0);
  assert.equal(levelOf(1000), 9);
  assert.deepEqual(indicesOf(0, 1024, 0, 1024), [0]);
  assert.deepEqual(indicesOf(-1, 1025, 0, 1024), [-1, 0, 1]);
});

test("a coarse tile stands in until the fine one is here", () => {
  const tiles = new Tiles(1024, new Axis({ begin_ns: 0, end_ns: 1, steps: [] }), () => {});
  const tile = (level) => ({ names: {}, level, column: { start: new Float64Array(0) } });
  const key = { rank: 0, segment: 0, track: 1 };
  tiles.keep("0/0/1/5/0", 0, tile(5));
  assert.deepEqual(tiles.of(key, 0, 900, 1).map((found) => found.level), [5]);
  assert.equal(tiles.wanted.size, 1);
  tiles.keep("0/0/1/0/0", 0, tile(0));
  tiles.begin();
  assert.deepEqual(tiles.of(key, 0, 900, 1).map((found) => found.level), [0]);
  assert.equal(tiles.wanted.size, 0);
});

test("columns come back as they were packed", () => {
  const head = JSON.stringify({ names: { 1: "x" }, columns: [{ name: "a", type: "uint8", length: 3 }, { name: "b", type: "float64", length: 1 }] });
  const padded = head + " ".repeat((8 - ((head.length + 1) % 8)) % 8) + "\n";
  const bytes = new Uint8Array(padded.length + 16);
  bytes.set(new TextEncoder().encode(padded));
  bytes.set([1, 2, 3], padded.length);
  new DataView(bytes.buffer).setFloat64(padded.length + 8, 2.5, true);
  const answer = unpack(bytes.buffer);
  assert.deepEqual([[...answer.column.a], [...answer.column.b], answer.names], [[1, 2, 3], [2.5], { 1: "x" }]);
});

test("tables sort nulls last and leave as one line a row", () => {
  assert.deepEqual([3, null, 1, 2].sort(compare), [null, 1, 2, 3]);
  assert.equal(tsv([{ name: "a" }], [{ a: "x\ty\nz" }, { a: null }]), "a\nx y z\n");
});

test("every slice leaves at least one pixel", () => {
  const palette = { pixel: new Uint32Array([0xff0000ff]), shade: new Uint32Array([0xff0000aa]), idle: number("#eceff3"), blank: number("#ffffff") };
  const start = Float64Array.from({ length: 40 }, (_, at) => at * 10);
  const tile = { start, duration: new Float64Array(40).fill(0.01), row: new Uint16Array(40), kind: new Uint8Array(40), name: new Uint32Array(40) };
  const pixels = new Uint32Array(40);
  paint(pixels, 40, 1, [tile], 0, 10, palette);
  assert.ok(pixels.every((pixel) => pixel === 0xff0000ff));
});

test("a collective waits in a colour of its own, then transfers", () => {
  const palette = { pixel: new Uint32Array([1, 2, 3]), shade: new Uint32Array([1, 2, 3]), wait: 9, idle: 0, blank: 0 };
  const one = (value) => Float64Array.of(value);
  const tile = { start: one(10), duration: one(80), wait: one(50), row: new Uint16Array(1), kind: Uint8Array.of(1), name: new Uint32Array(1) };
  const pixels = new Uint32Array(10);
  paint(pixels, 10, 1, [tile], 0, 10, palette);
  assert.deepEqual([...pixels], [0, 9, 9, 9, 9, 9, 2, 2, 0, 0]);
});

test("lanes are repeated between the edges", () => {
  const picture = new Uint32Array(2 * 6);
  repeat(picture, Uint32Array.of(1, 2, 3, 4), 2, 2, 3, 1, 2, 6);
  assert.deepEqual([...picture], [0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 3, 4]);
});

test("idle is the colour of nothing, waiting is not communication", () => {
  const palette = { pixel: new Uint32Array([1, 2, 3].map((n) => 0xff000000 + n)), idle: number("#eceff3"), wait: number("#f7dfaf"), blank: number("#ffffff") };
  const shares = (values) => Object.fromEntries(["compute", "comm", "wait", "copy", "unrecorded"].map((name) => [name, Uint8Array.of(...values.map((value) => (value === name ? 255 : 0)))]));
  const pixels = new Uint32Array(4);
  paintShares(pixels, shares(["", "compute", "wait", "unrecorded"]), palette);
  assert.deepEqual([pixels[0], pixels[1] & 0xffffff, pixels[2], pixels[3]], [number("#eceff3"), 1, number("#f7dfaf"), number("#ffffff")]);
});

test("what is hatched are neighbouring columns with a quarter of a bubble", () => {
  assert.deepEqual(stretches(Uint8Array.of(0, 255, 64, 63, 200)), [[1, 3], [4, 5]]);
  assert.deepEqual(stretches(new Uint8Array(3)), []);
});

test("words stand out from their ground", () => {
  const inks = [["white", number("#ffffff")], ["black", number("#1b1f24")]];
  assert.deepEqual(["#0072b2", "#e69f00", "#b9c46a", "#8c564b"].map((ground) => inkOn(number(ground), inks)), ["white", "black", "black", "white"]);
  assert.equal(mixed(number("#ff0000"), number("#0000ff"), 0.25), number("#4000bf"));
});

test("a text is cut in its middle", () => {
  assert.deepEqual(["abcdefghij", "abc"].map((text) => cut(text, 6)), ["abc…ij", "abc"]);
  assert.deepEqual([1, 0, -3].map((room) => cut("abcdefghij", room)), ["…", "", ""]);
});

test("a time is in the last step that begins before it", () => {
  const steps = [{ start_ns: 10 }, { start_ns: 20 }, { start_ns: 40 }];
  for (let ns = 0; ns < 50; ns++) assert.equal(stepAt(steps, ns), ns < 10 ? undefined : ns < 20 ? steps[0] : ns < 40 ? steps[1] : steps[2]);
});
