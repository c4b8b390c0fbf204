// The choice of a rank for the tabs that show one rank, or all of them merged.

import { h } from "../dom.js";
import { rankName } from "../layout.js";

/** @param {import("../app.js").App} app @param {number | null} chosen @param {string} [all] the text for all ranks, where that can be chosen */
export function rankChoice(app, chosen, all) {
  return h("select", { "aria-label": "Rank", onchange: (/** @type {any} */ event) => {
    app.panels.rank = event.target.value === "all" ? null : Number(event.target.value);
    app.panels.draw();
  } }, all ? h("option", { value: "all", selected: chosen === null }, all) : "",
  app.run.ranks.map((rank) => h("option", { value: rank, selected: rank === chosen }, rankName(rank))));
}
