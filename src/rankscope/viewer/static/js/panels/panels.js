// The tabs of the panel: one is shown at a time, selected by tab or number key.

import { json, show } from "../api.js";
import { byId, fill, h } from "../dom.js";
import { areaPanel } from "./area.js";
import { diffPanel } from "./diff.js";
import { EventsPanel } from "./events.js";
import { findingsPanel } from "./findings.js";
import { flamePanel } from "./flame.js";
import { memoryPanel } from "./memory.js";
import { rooflinePanel } from "./roofline.js";
import { selectionPanel } from "./selection.js";
import { sqlPanel } from "./sql.js";
import { kernelsPanel, reportPanel, reportsPanel } from "./tables.js";

const PAUSE = 200;
const RANGE = ["begin", "end", "area", "box", "open", "filter"];

/** @type {Record<string, { title: string, draw: (app: import("../app.js").App) => Promise<Node | string>, redrawOn: string[] }>}
 * redrawOn: the parts of the view that it shows */
const PANELS = {
  findings: { title: "Findings", draw: (app) => (app.run.titles ? diffPanel(app) : findingsPanel(app)), redrawOn: ["finding"] },
  selection: { title: "Selection", draw: selectionPanel, redrawOn: ["slice"] },
  events: { title: "Events", draw: drawEvents, redrawOn: [...RANGE, "slice"] },
  area: { title: "Area", draw: areaPanel, redrawOn: RANGE },
  flame: { title: "Flame", draw: flamePanel, redrawOn: ["area"] },
  kernels: { title: "Kernels", draw: kernelsPanel, redrawOn: ["by"] },
  ops: { title: "Ops", draw: reportPanel("ops"), redrawOn: ["by"] },
  collectives: { title: "Collectives", draw: reportPanel("collectives"), redrawOn: ["by"] },
  memory: { title: "Memory", draw: memoryPanel, redrawOn: [] },
  roofline: { title: "Roofline", draw: rooflinePanel, redrawOn: [] },
  reports: { title: "Reports", draw: reportsPanel, redrawOn: ["report", "by"] },
  diff: { title: "Diff", draw: diffPanel, redrawOn: ["finding"] },
  sql: { title: "SQL", draw: sqlPanel, redrawOn: [] },
};
const NAMES = Object.keys(PANELS);

/** @param {import("../app.js").App} app */
async function drawEvents(app) {
  const { events, box } = app.panels;
  if (!events.node.isConnected) fill(box, events.node); // it scrolls to the selected slice, and so it needs its place first
  await events.load();
  return events.node;
}

export class Panels {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.box = byId("panel");
    this.events = new EventsPanel(app);
    /** @type {any} the selected slice, with its details */
    this.slice = null;
    /** @type {number | null} the rank that was chosen in a tab; null: all, or the one that is selected */
    this.rank = null;
    this.turn = 0;
    this.shown = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.tabs = NAMES.map((name) => h("button", {
      role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => app.store.set({ tab: name }, { history: true }),
    }, PANELS[name].title));
    fill(byId("tabs"), ...this.tabs);
    byId("tabs").addEventListener("keydown", (event) => this.arrows(event));
    byId("tabs").addEventListener("wheel", (event) => { byId("tabs").scrollLeft += event.deltaY; }, { passive: true });
  }

  get tab() {
    const { tab } = this.app.store.view;
    return tab in PANELS ? tab : "findings";
  }

  /** Once the findings are known: their number in the tab. */
  countFindings() {
    const { length } = this.app.findings;
    this.tabs[0].textContent = length ? `Findings ${length}` : "Findings";
  }

  /** The tab to show for a slice that is selected in the timeline: Events stays, with the slice's row. */
  get tabOfSlice() {
    return this.tab === "events" ? "events" : "selection";
  }

  /** The tab to show for a time range. */
  get tabOfArea() {
    return this.tab === "events" || this.tab === "flame" ? this.tab : "area";
  }

  /** @param {Set<string>} changed */
  changed(changed) {
    if (changed.has("slice")) this.slice = null; // its details come with the panel
    if (changed.has("tab")) this.draw();
    else if (PANELS[this.tab].redrawOn.some((name) => changed.has(name))) this.later(changed.has("slice") || changed.has("finding") ? 0 : PAUSE);
  }

  /** Draw when the window rests. @param {number} pause ms */
  later(pause) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), pause);
  }

  /** The tab's head is selected at once. Nothing of another tab is shown below it. */
  prepare() {
    const { tab } = this;
    this.tabs.forEach((button, at) => {
      button.setAttribute("aria-selected", String(NAMES[at] === tab));
      button.tabIndex = NAMES[at] === tab ? 0 : -1;
      if (NAMES[at] === tab) button.scrollIntoView({ block: "nearest", inline: "nearest" }); // of a strip that is wider than its place
    });
    this.box.setAttribute("aria-labelledby", `tab-${tab}`);
    this.box.setAttribute("aria-busy", "true");
    if (this.shown === tab) return;
    fill(this.box, h("p", { class: "quiet" }, `${PANELS[tab].title}…`));
    this.box.scrollTop = 0;
    this.shown = "";
  }

  async draw() {
    clearTimeout(this.timer);
    const { tab } = this;
    const turn = ++this.turn;
    this.prepare();
    try {
      const content = await PANELS[tab].draw(this.app);
      if (turn === this.turn && this.box.firstChild !== content) { // the old content stays until the new one is complete
        const { scrollTop } = this.box;
        fill(this.box, content);
        this.box.scrollTop = this.shown === tab ? scrollTop : 0;
      }
    } catch (error) {
      show(error);
    }
    if (turn !== this.turn) return;
    this.shown = tab;
    this.box.setAttribute("aria-busy", "false");
  }

  /** @param {number} at */
  choose(at) {
    if (NAMES[at]) this.app.store.set({ tab: NAMES[at] }, { history: true });
  }

  /** @param {KeyboardEvent} event */
  arrows(event) {
    const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!by) return;
    event.stopPropagation();
    const next = (NAMES.indexOf(this.tab) + by + NAMES.length) % NAMES.length;
    this.choose(next);
    this.tabs[next].focus();
  }

  /** The mean time of a step, in ns; null without steps. @returns {Promise<number | null>} */
  async stepTime() {
    return (await json("report", { name: "summary" })).facts.mean_step_ns ?? null;
  }
}
