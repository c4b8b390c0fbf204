// A flame graph of host or device time, by op, module or Python function.

import { json } from "../api.js";
import { fill, h, s } from "../dom.js";
import { percent, time } from "../format.js";
import { shortenName } from "../names.js";

const [WIDTH, ROW] = [376, 18];
const choice = { by: "op", time: "host" };

/** @param {import("../app.js").App} app */
export async function flamePanel(app) {
  const rank = app.store.view.slice?.rank ?? app.store.view.open[0] ?? app.ranks[0];
  const { area } = app.store.view;
  const tree = await json("flame", { rank, by: choice.by, time: choice.time, begin: area?.[0], end: area?.[1] });
  const pick = (/** @type {"by" | "time"} */ name, /** @type {string[]} */ values) => h("select", {
    "aria-label": name, onchange: (/** @type {any} */ event) => { choice[name] = event.target.value; app.panels.draw(); },
  }, values.map((value) => h("option", { value, selected: value === choice[name] }, value)));
  const picture = h("div");
  const open = (/** @type {any} */ node) => fill(picture, graph(node, tree.total_ns, open, node === tree ? null : () => open(tree)));
  if (tree.total_ns) open(tree);
  return h("div", {}, h("div", { class: "row" }, pick("by", ["op", "module", "python"]), pick("time", ["host", "device"]), h("span", { class: "quiet" }, `rank ${rank}${area ? ", selected time range" : ""}`)),
    tree.total_ns ? picture : h("p", { class: "quiet" }, tree.note));
}

/** @param {any} root @param {number} whole @param {(node: any) => void} open @param {(() => void) | null} back */
function graph(root, whole, open, back) {
  const rows = depth(root);
  const picture = s("svg", { viewBox: `0 0 ${WIDTH} ${rows * ROW + 2}`, class: "chart", role: "tree", "aria-label": "Flame graph" });
  /** @param {any} node @param {number} x @param {number} width @param {number} level */
  function place(node, x, width, level) {
    if (width < 0.6) return;
    const label = `${node.name}: ${time(node.total_ns)}, ${percent(node.total_ns / (whole || 1))}, self ${time(node.self_ns)}`;
    const group = s("g", { tabindex: 0, role: "treeitem", "aria-label": label }, s("title", {}, label),
      s("rect", { x, y: level * ROW, width: Math.max(width - 0.7, 0.4), height: ROW - 1, fill: level % 2 ? "var(--op)" : "var(--annotation)" }),
      width > 30 ? s("text", { x: x + 3, y: level * ROW + 12 }, shortenName(node.name, Math.floor(width / 5.4))) : "");
    group.addEventListener("click", () => open(node));
    group.addEventListener("keydown", (event) => { if (/** @type {KeyboardEvent} */ (event).key === "Enter") open(node); });
    picture.append(group);
    let at = x;
    for (const child of node.children) {
      const part = (width * child.total_ns) / (node.total_ns || 1);
      place(child, at, part, level + 1);
      at += part;
    }
  }
  place(root, 0, WIDTH, 0);
  return h("div", {}, back ? h("div", { class: "row" }, h("button", { class: "plain", onclick: back }, "Show all")) : "", picture);
}

/** @param {any} node @returns {number} */
function depth(node) {
  return 1 + Math.max(0, ...node.children.map(depth));
}
