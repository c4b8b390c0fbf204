// The slices that are visible or selected, one row each. Only the rows on the screen exist; the others are asked for as one
// scrolls. A row selects its slice in the timeline, and a slice that is selected there is scrolled to here.

import { json, show } from "../api.js";
import { announce, fill, h } from "../dom.js";
import { columnScale, moment, time } from "../format.js";
import { rankNumber } from "../layout.js";
import { headingOf } from "../table.js";
import { rangeOf, rangeText } from "./range.js";

const ROW = 24;
const PAGE = 100;
const MOST_ROWS = 400_000; // higher boxes than this many rows lose precision in browsers
const PAUSE = 150;

const COLUMNS = [
  { name: "name", text: true }, { name: "category", text: true }, { name: "rank" }, { name: "track", text: true }, { name: "step" },
  { name: "start_ns", title: "start" }, { name: "dur_ns", title: "duration", unit: "ns" }, { name: "self_ns", title: "self", unit: "ns" },
];

export class EventsPanel {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.sort = "start_ns";
    this.descending = false;
    this.text = "";
    this.count = 0;
    this.turn = 0;
    this.wanted = "";
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    /** @type {Map<number, any[]>} */
    this.pages = new Map();
    /** @type {Set<number>} */
    this.asked = new Set();
    this.note = h("span", { class: "quiet", role: "status" });
    this.filter = h("input", { type: "search", placeholder: "Filter by name, category or track", "aria-label": "Filter events", oninput: (/** @type {any} */ event) => {
      this.text = event.target.value;
      this.later();
    } });
    this.heads = COLUMNS.map((column) => h("th", { class: column.text ? "text" : "", scope: "col" }, h("button", { onclick: () => this.sortBy(column.name) })));
    this.body = h("tbody");
    this.above = h("div");
    this.below = h("div");
    this.scroller = h("div", { class: "events", tabindex: 0, role: "region", "aria-label": "Events", onscroll: () => this.draw(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event) },
      this.above, h("table", {}, h("thead", {}, h("tr", {}, this.heads)), this.body), this.below);
    this.node = h("div", { class: "events-panel" }, h("div", { class: "row" }, this.filter, this.note), this.scroller);
    new ResizeObserver(() => this.draw()).observe(this.scroller);
  }

  /** What to ask for, without the page. */
  get query() {
    return { ...rangeOf(this.app), text: this.text, sort: this.sort, order: this.descending ? "descending" : "" };
  }

  /** Ask again, when the window rests. */
  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.load().catch(show), PAUSE);
  }

  async load() {
    const key = JSON.stringify(this.query);
    if (key !== this.wanted) {
      this.wanted = key;
      const turn = ++this.turn;
      const answer = await json("events", { ...this.query, limit: PAGE });
      if (turn !== this.turn) return;
      this.pages = new Map([[0, answer.rows]]);
      this.asked = new Set([0]);
      this.count = answer.count;
      this.scroller.scrollTop = 0;
      fill(this.note, `${answer.count.toLocaleString("en")} events, ${time(answer.total_ns)} in all, ${rangeText(this.app)}${
        answer.count > MOST_ROWS ? `; the first ${MOST_ROWS.toLocaleString("en")} are listed` : ""}`);
      this.draw();
    }
    await this.reveal();
  }

  /** @param {string} name */
  sortBy(name) {
    this.descending = this.sort === name ? !this.descending : name.endsWith("_ns") && name !== "start_ns";
    this.sort = name;
    announce(`sorted by ${name.replace(/_ns$/, "")}, ${this.descending ? "descending" : "ascending"}`);
    this.load().catch(show);
  }

  /** Scroll to the slice that is selected in the timeline. */
  async reveal() {
    const { slice } = this.app.store.view;
    if (!slice) return this.draw();
    const { place: index } = await json("events", { ...this.query, limit: 0, slice: `${slice.rank}.${slice.segment}.${slice.id}` });
    if (index === null) return this.draw();
    const { scrollTop, clientHeight } = this.scroller;
    const y = index * ROW;
    if (y < scrollTop || y + 3 * ROW > scrollTop + clientHeight) this.scroller.scrollTop = Math.max(0, y - clientHeight / 2 + ROW);
    return this.draw();
  }

  /** Up and down select the row before or after. @param {KeyboardEvent} event */
  key(event) {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const { slice } = this.app.store.view;
    for (const [page, rows] of this.pages) {
      const at = rows.findIndex((row) => this.isChosen(row));
      if (!slice || at < 0) continue;
      const next = page * PAGE + at + by;
      const row = this.pages.get(Math.floor(next / PAGE))?.[next % PAGE];
      if (row) this.choose(row);
      return;
    }
  }

  /** @param {any} row */
  isChosen(row) {
    const { slice } = this.app.store.view;
    return slice !== null && slice.id === row.id && slice.rank === row.rank && slice.segment === row.segment;
  }

  /** @param {any} row */
  choose(row) {
    this.app.goTo(row, { stay: true }).catch(show);
  }

  /** The rows on the screen; those that are not here yet are asked for. */
  draw() {
    const count = Math.min(this.count, MOST_ROWS);
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW) - 5);
    const last = Math.min(count, first + Math.ceil(this.scroller.clientHeight / ROW) + 10);
    this.above.style.height = `${first * ROW}px`;
    this.below.style.height = `${Math.max(0, count - last) * ROW}px`;
    const rows = [];
    for (let at = first; at < last; at++) {
      const page = Math.floor(at / PAGE);
      rows.push(this.pages.get(page)?.[at % PAGE] ?? null);
      if (!this.asked.has(page)) this.ask(page);
    }
    const span = this.app.store.view.end - this.app.store.view.begin;
    const scales = COLUMNS.map((column) => columnScale(column.unit ?? "", [...this.pages.values()].flat().map((row) => row[column.name])));
    this.heads.forEach((head, at) => {
      const column = COLUMNS[at];
      /** @type {HTMLElement} */ (head.firstChild).textContent = headingOf(column, column.name === "start_ns" ? moment(0, span).split(" ")[1] : scales[at]?.label);
      head.setAttribute("aria-sort", column.name !== this.sort ? "none" : this.descending ? "descending" : "ascending");
    });
    fill(this.body, ...rows.map((row) => row === null ? h("tr", {}, h("td", { colspan: COLUMNS.length, class: "text quiet" }, "…")) : h("tr", {
      "data-go": true, "aria-selected": String(this.isChosen(row)), class: this.isChosen(row) ? "chosen" : "", onclick: () => this.choose(row),
    }, COLUMNS.map((column, at) => h("td", { class: column.text ? "text" : "", title: column.name === "name" ? row.name : null }, cell(column.name, row, scales[at], span))))));
  }

  /** @param {number} page */
  async ask(page) {
    this.asked.add(page);
    const { turn } = this;
    try {
      const answer = await json("events", { ...this.query, limit: PAGE, offset: page * PAGE });
      if (turn !== this.turn) return;
      this.pages.set(page, answer.rows);
      this.draw();
    } catch (error) {
      show(error);
    }
  }
}

/** @param {string} name @param {any} row @param {{ text: (value: number) => string } | null} scale @param {number} span */
function cell(name, row, scale, span) {
  if (name === "name") return row.short;
  if (name === "track") return row.label;
  if (name === "rank") return rankNumber(row.rank);
  if (name === "start_ns") return moment(row.start_ns, span).split(" ")[0];
  const value = row[name];
  return value === null ? "–" : scale ? scale.text(value) : value;
}
