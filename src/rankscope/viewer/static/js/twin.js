// The ranks as a list of buttons for screen readers: expand, collapse, the shares of each, and the groups of tracks of expanded ones.

import { byId, fill, h } from "./dom.js";
import { percent } from "./format.js";
import { GROUPS, RANKS, isFolded, rankName } from "./layout.js";

const MOST = 256;

/** @param {import("./app.js").App} app */
export function drawTwin(app) {
  const { view } = app.store;
  const { groups: listed } = app.rankGroups;
  fill(byId("twin"), ...listed.map(({ label, ranks }, number) => h("li", {}, h("button", {
    "aria-expanded": !isFolded(view.folds, number, RANKS), onclick: () => app.fold(RANKS, number),
  }, `${label}, ${ranks.length} ranks`))), ...app.ranks.slice(0, MOST).map((rank) => h("li", {}, h("button", {
    "aria-expanded": view.open.includes(rank), onclick: () => app.toggle(rank),
  }, `${rankName(rank)}${shares(app, rank)}`), view.open.includes(rank) ? groups(app, rank) : "")));
}

/** @param {import("./app.js").App} app @param {number} rank */
function groups(app, rank) {
  return h("ul", {}, GROUPS.map((group) => h("li", {}, h("button", {
    "aria-expanded": !isFolded(app.store.view.folds, rank, group), onclick: () => app.fold(group, rank),
  }, group === "more" ? "streams with little in them" : group))));
}

/** @param {import("./app.js").App} app @param {number} rank */
function shares(app, rank) {
  const span = app.orders.get("span_ns")?.get(rank);
  if (!span) return "";
  const share = (/** @type {string} */ name) => percent((app.orders.get(name)?.get(rank) ?? 0) / span);
  return `: compute ${share("compute_ns")}, exposed communication ${share("exposed_comm_ns")}, idle ${share("idle_ns")}`;
}
