// The tabs of the panel: one is shown at a time, selected by tab or number key.

import { show } from "../api.js";
import { byId, fill, h } from "../dom.js";
import { diffPanel } from "./diff.js";
import { findingsPanel } from "./findings.js";
import { flamePanel } from "./flame.js";
import { memoryPanel } from "./memory.js";
import { rooflinePanel } from "./roofline.js";
import { selectionPanel } from "./selection.js";
import { sqlPanel } from "./sql.js";
import { tablesPanel } from "./tables.js";

/** @type {Record<string, { title: string, draw: (app: import("../app.js").App) => Promise<Node | string>, redrawOn: string[] }>} */
const PANELS = {
  findings: { title: "Findings", draw: findingsPanel, redrawOn: [] },
  selection: { title: "Selection", draw: selectionPanel, redrawOn: ["slice", "area"] },
  tables: { title: "Tables", draw: tablesPanel, redrawOn: ["report"] },
  flame: { title: "Flame", draw: flamePanel, redrawOn: ["area"] },
  memory: { title: "Memory", draw: memoryPanel, redrawOn: [] },
  roofline: { title: "Roofline", draw: rooflinePanel, redrawOn: [] },
  diff: { title: "Diff", draw: diffPanel, redrawOn: [] },
  sql: { title: "SQL", draw: sqlPanel, redrawOn: [] },
};

export class Panels {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.box = byId("panel");
    /** @type {any} the selected slice, with its details */
    this.slice = null;
    this.turn = 0;
    this.tabs = Object.entries(PANELS).map(([name, { title }]) => h("button", {
      role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => app.store.set({ tab: name }, { history: true }),
    }, title));
    fill(byId("tabs"), ...this.tabs);
    byId("tabs").addEventListener("keydown", (event) => this.arrows(event));
  }

  /** @param {Set<string>} changed */
  changed(changed) {
    const { tab } = this.app.store.view;
    const panel = PANELS[tab] ?? PANELS.findings;
    if (changed.has("slice") && !this.app.store.view.slice) this.slice = null;
    if (changed.has("tab") || panel.redrawOn.some((name) => changed.has(name))) this.draw();
  }

  async draw() {
    const { tab } = this.app.store.view;
    const names = Object.keys(PANELS);
    this.tabs.forEach((button, at) => {
      button.setAttribute("aria-selected", String(names[at] === tab));
      button.tabIndex = names[at] === tab ? 0 : -1;
    });
    this.box.setAttribute("aria-labelledby", `tab-${tab}`);
    const turn = ++this.turn;
    this.box.setAttribute("aria-busy", "true");
    try {
      const content = await (PANELS[tab] ?? PANELS.findings).draw(this.app);
      if (turn === this.turn) fill(this.box, content); // the old content stays until the new one is complete
    } catch (error) {
      show(error);
    }
    if (turn === this.turn) this.box.setAttribute("aria-busy", "false");
  }

  /** @param {number} at */
  choose(at) {
    const name = Object.keys(PANELS)[at];
    if (name) this.app.store.set({ tab: name }, { history: true });
  }

  /** @param {KeyboardEvent} event */
  arrows(event) {
    const names = Object.keys(PANELS);
    const at = names.indexOf(this.app.store.view.tab);
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.stopPropagation();
    const next = (at + by + names.length) % names.length;
    this.choose(next);
    this.tabs[next].focus();
  }
}
