// Above the tracks: a filter, and a menu that folds groups on all ranks at once and expands or collapses all ranks.

import { byId, fill, h } from "./dom.js";
import { GROUPS } from "./layout.js";

const NAMES = /** @type {Record<string, string>} */ ({
  streams: "streams", communication: "communication", more: "streams with little in them", clocks: "GPU clock and power", host: "host threads", counters: "counters",
});
const MOST_EXPANDED = 32;
const PAUSE = 120;

/** @param {import("./app.js").App} app */
export function listenToTrackTools(app) {
  const filter = /** @type {HTMLInputElement} */ (byId("filter"));
  const button = byId("tracks-button");
  const menu = byId("tracks-menu");
  let timer = 0;

  function draw() {
    const { folds, open } = app.store.view;
    fill(menu,
      h("b", {}, "On all ranks"),
      ...GROUPS.map((group) => {
        const box = h("input", { type: "checkbox", onchange: () => app.fold(group) });
        /** @type {HTMLInputElement} */ (box).checked = !folds.includes(group);
        return h("label", {}, box, ` ${NAMES[group]}`);
      }),
      h("button", { class: "plain", onclick: () => app.store.set({ open: app.ranks.slice(0, MOST_EXPANDED) }) },
        app.ranks.length > MOST_EXPANDED ? `Expand the first ${MOST_EXPANDED} ranks` : "Expand all ranks"),
      h("button", { class: "plain", disabled: !open.length, onclick: () => app.store.set({ open: [] }) }, "Collapse all ranks"));
  }

  /** @param {boolean} open */
  function show(open) {
    if (open) draw();
    menu.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
  }

  filter.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(() => app.store.set({ filter: filter.value }), PAUSE);
  });
  button.addEventListener("click", () => show(menu.hidden !== false));
  document.addEventListener("pointerdown", (event) => {
    if (!(/** @type {HTMLElement} */ (event.target).closest(".track-tools"))) show(false);
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    show(false);
    button.focus();
  });
  app.store.listen((view, changed) => {
    if (changed.has("filter") && filter.value !== view.filter) filter.value = view.filter;
    if ((changed.has("folds") || changed.has("open")) && !menu.hidden) draw();
  });
  filter.value = app.store.view.filter;
}
