// A flame graph of host or device time by op, module or Python function: equal calls of all steps and ranks are merged.

import { json } from "../api.js";
import { fill, h, s } from "../dom.js";
import { cut, percent, time } from "../format.js";
import { SECOND } from "../layout.js";
import { chart, resizing } from "./chart.js";
import { rankChoice } from "./rank_choice.js";

const ROW = 19;
const choice = { by: "", time: "host", search: "", invert: false, run: "change" };

/** @typedef {{ name: string, self_ns: number, total_ns: number, children: Node[], before_ns?: number }} Node
 *   before_ns: with a baseline, what it took there */

/** @param {import("../app.js").App} app */
export async function flamePanel(app) {
  const { area } = app.store.view;
  const { rank } = app.panels;
  const two = Boolean(app.run.titles);
  const ask = (/** @type {string} */ run) => json("flame", {
    by: choice.by, time: choice.time, begin: area?.[0], end: area?.[1], run, ranks: rank === null ? undefined : rank % SECOND,
  });
  const wanted = two && choice.run !== "1" ? "2" : "";
  const tree = await ask(wanted);
  choice.by ||= tree.by;
  const nameOf = (/** @type {string} */ name, /** @type {number} */ room) => cut(tree.short[name] ?? name, room);
  const base = two && choice.run === "change" ? perStep(await ask("")) : null;
  const shown = prepared(base ? perStep(tree) : tree, base, choice.invert);
  const picture = h("div");
  const share = h("span", { class: "quiet", role: "status" });
  /** @type {Node[]} */
  let path = [shown];

  function draw() {
    const root = path[path.length - 1];
    const pattern = choice.search.toLowerCase();
    fill(share, pattern ? `${percent(matched(root, pattern) / (root.total_ns || 1))} in names with this text` : "");
    fill(picture, h("div", { class: "row crumbs" }, path.map((node, at) => h("button", {
      class: "plain", "aria-current": String(at === path.length - 1), onclick: () => { path = path.slice(0, at + 1); draw(); },
    }, nameOf(node.name, 40)))),
    resizing((width) => graph(root, shown.total_ns, pattern, width, nameOf, (nodes) => { path = [...path, ...nodes]; draw(); })));
  }

  const pick = (/** @type {"by" | "time" | "run"} */ name, /** @type {[string, string][]} */ values) => h("select", {
    "aria-label": name, onchange: (/** @type {any} */ event) => { choice[name] = event.target.value; app.panels.draw(); },
  }, values.map(([value, text]) => h("option", { value, selected: value === choice[name] }, text)));
  if (shown.total_ns) draw();
  return h("div", {}, h("div", { class: "row" },
    pick("by", [["op", "ops"], ["module", "modules"], ["python", "Python functions"]]), pick("time", [["host", "host time"], ["device", "device time"]]),
    two ? pick("run", [["change", "B, coloured by the change from A"], ["1", "run A"], ["2", "run B"]]) : "",
    two ? "" : rankChoice(app, rank, "all ranks merged"),
    h("label", {}, h("input", { type: "checkbox", checked: choice.invert, onchange: (/** @type {any} */ event) => { choice.invert = event.target.checked; app.panels.draw(); } }), " inverted (callees first)"),
    h("input", { type: "search", placeholder: "Find in the graph", "aria-label": "Find in the flame graph", value: choice.search, oninput: (/** @type {any} */ event) => { choice.search = event.target.value; draw(); } }),
    share, h("span", { class: "quiet" }, [`${time(shown.total_ns)}${base ? " a rank and step" : ""}`, area ? "selected time range" : "", tree.note].filter(Boolean).join(" · "))),
  shown.total_ns ? picture : "",
  base ? h("p", { class: "quiet" }, h("i", { class: "swatch slower" }), "longer than in A ", h("i", { class: "swatch faster" }), "shorter than in A") : "");
}

/** Times of one rank and step on average. @param {any} tree @returns {Node} */
function perStep(tree) {
  const parts = Math.max(tree.ranks, 1) * Math.max(tree.steps, 1);
  /** @param {Node} node @returns {Node} */
  const divided = (node) => ({ name: node.name, self_ns: node.self_ns / parts, total_ns: node.total_ns / parts, children: node.children.map(divided) });
  return divided(tree);
}

/** @param {Node} tree @param {Node | null} base @param {boolean} invert */
function prepared(tree, base, invert) {
  const one = invert ? inverted(tree) : tree;
  return base ? compared(one, invert ? inverted(base) : base) : one;
}

/** The tree upside down: below each name that took time itself, its callers. @param {Node} tree @returns {Node} */
export function inverted(tree) {
  /** @type {Node} */
  const root = { name: tree.name, self_ns: 0, total_ns: tree.total_ns, children: [] };
  /** @param {Node} node @param {Node[]} callers innermost first */
  function add(node, callers) {
    let at = root;
    for (const one of node.self_ns > 0 ? [node, ...callers] : []) {
      let child = at.children.find((other) => other.name === one.name);
      if (!child) at.children.push(child = { name: one.name, self_ns: 0, total_ns: 0, children: [] });
      child.total_ns += node.self_ns;
      at = child;
    }
    for (const child of node.children) add(child, [node, ...callers]);
  }
  for (const child of tree.children) add(child, []);
  /** @param {Node} node */
  const sort = (node) => { node.children.sort((a, b) => b.total_ns - a.total_ns).forEach(sort); };
  sort(root);
  return root;
}

/** Each node with what it took in the baseline; names that are only there are left out. @param {Node} node @param {Node | undefined} base @returns {Node} */
export function compared(node, base) {
  const known = new Map((base?.children ?? []).map((child) => [child.name, child]));
  return { ...node, before_ns: base?.total_ns ?? 0, children: node.children.map((child) => compared(child, known.get(child.name))) };
}

/** The time in nodes that match, each counted once. @param {Node} node @param {string} pattern @returns {number} */
export function matched(node, pattern) {
  if (node.name.toLowerCase().includes(pattern)) return node.total_ns;
  return node.children.reduce((sum, child) => sum + matched(child, pattern), 0);
}

/** @param {Node} node @param {number} level @param {string} pattern */
function color(node, level, pattern) {
  if (pattern && node.name.toLowerCase().includes(pattern)) return "var(--comm)";
  if (node.before_ns === undefined) return level % 2 ? "var(--op)" : "var(--annotation)";
  const change = (node.total_ns - node.before_ns) / Math.max(node.total_ns, node.before_ns, 1);
  const share = Math.round(Math.min(Math.abs(change), 1) * 85);
  return share < 3 ? "var(--op)" : `color-mix(in srgb, var(${change > 0 ? "--bad" : "--compute"}) ${share}%, var(--op))`;
}

/** @param {Node} root @param {number} whole @param {string} pattern @param {number} width
 * @param {(name: string, room: number) => string} nameOf @param {(nodes: Node[]) => void} open */
function graph(root, whole, pattern, width, nameOf, open) {
  const picture = chart(width, depth(root, width) * ROW + 2, { role: "tree", "aria-label": "Flame graph" });
  /** @param {Node} node @param {number} x @param {number} wide @param {number} level @param {Node[]} path */
  function addBox(node, x, wide, level, path) {
    if (wide < 0.6) return;
    const change = node.before_ns === undefined ? "" : `, ${node.before_ns ? `was ${time(node.before_ns)}` : "new"}`;
    const label = `${node.name}: ${time(node.total_ns)}, ${percent(node.total_ns / (whole || 1))}${node.self_ns ? `, self ${time(node.self_ns)}` : ""}${change}`;
    const group = s("g", { tabindex: 0, role: "treeitem" }, s("title", {}, label),
      s("rect", { x, y: level * ROW, width: Math.max(wide - 0.7, 0.4), height: ROW - 1, rx: 2, fill: color(node, level, pattern) }),
      wide > 34 ? s("text", { x: x + 5, y: level * ROW + 13, class: "inside", "aria-hidden": "true" }, nameOf(node.name, Math.floor((wide - 8) / 6.2))) : "");
    group.addEventListener("click", () => open(path));
    group.addEventListener("keydown", (event) => { if (/** @type {KeyboardEvent} */ (event).key === "Enter") open(path); });
    picture.append(group);
    let at = x;
    for (const child of node.children) {
      const part = (wide * child.total_ns) / (node.total_ns || 1);
      addBox(child, at, part, level + 1, [...path, child]);
      at += part;
    }
  }
  addBox(root, 0, width, 0, []);
  return picture;
}

/** Rows that are wide enough to be drawn. @param {Node} node @param {number} wide @returns {number} */
function depth(node, wide) {
  if (wide < 0.6) return 0;
  return 1 + Math.max(0, ...node.children.map((child) => depth(child, (wide * child.total_ns) / (node.total_ns || 1))));
}
