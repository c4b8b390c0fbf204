// Marks: named points in time on the axis. They are in the address of the page; on request also in a file beside the run.

import { isFile, json, show, write } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { cut, moment, time } from "./format.js";
import { AXIS, GUTTER } from "./layout.js";

const FLAG = 7; // px
const NEAR = 8; // px around a flag that belong to it
const LETTER = 6.7; // px of the axis' font

/** @typedef {{ at: number, name: string }} Mark ns from the run's start */

/** The marks of an address: time and name, names encoded. @param {string | null} text @returns {Mark[]} */
export function marksFrom(text) {
  return (text ?? "").split(",").flatMap((word) => {
    const match = /^(-?\d+):(.*)$/.exec(word);
    try {
      return match ? [{ at: Number(match[1]), name: decodeURIComponent(match[2]) }] : [];
    } catch { // not encoded as ours are
      return [];
    }
  });
}

/** @param {Mark[]} marks */
export function marksText(marks) {
  return marks.map(({ at, name }) => `${Math.round(at)}:${encodeURIComponent(name)}`).join(",");
}

export class Marks {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.dialog = /** @type {HTMLDialogElement} */ (h("dialog", { id: "marks", "aria-label": "Marks" }));
    document.body.append(this.dialog);
  }

  /** @param {Mark[]} marks @param {boolean} [history] */
  set(marks, history = true) {
    this.app.store.set({ marks: [...marks].sort((a, b) => a.at - b.at) }, { history });
  }

  /** Make a mark under the pointer, else at the selected slice, else in the middle; and ask for its name. */
  add() {
    const { view } = this.app.store;
    const at = Math.round(this.app.pointerTime ?? this.app.placeOf(this.app.panels.slice) ?? (view.begin + view.end) / 2);
    const mark = { at, name: `mark ${view.marks.length + 1}` };
    this.set([...view.marks, mark]);
    announce(`${mark.name} at ${time(at)}`);
    this.open(mark);
  }

  /** All marks, each with its name to change. @param {Mark} [fresh] the one whose name is selected */
  open(fresh) {
    const { app } = this;
    const { marks } = app.store.view;
    const span = app.run.end_ns - app.run.begin_ns;
    const rename = (/** @type {Mark} */ mark, /** @type {string} */ name) => {
      this.set(app.store.view.marks.map((other) => (other.at === mark.at && other.name === mark.name ? { ...other, name } : other)));
      mark.name = name;
    };
    const rows = marks.map((given) => {
      const mark = { ...given };
      const input = /** @type {HTMLInputElement} */ (h("input", { "aria-label": `Name of the mark at ${moment(mark.at, span)}`, value: mark.name, maxlength: 200, onchange: () => rename(mark, input.value) }));
      input.addEventListener("keydown", (event) => { if (event.key === "Enter") { rename(mark, input.value); this.dialog.close(); } });
      if (fresh && mark.at === fresh.at && mark.name === fresh.name) setTimeout(() => input.select());
      return h("div", { class: "row" }, h("button", { class: "plain", onclick: () => { this.dialog.close(); this.goTo(mark); } }, moment(mark.at, span)), input,
        h("button", { class: "plain", "aria-label": `Remove ${mark.name}`, onclick: () => { this.set(app.store.view.marks.filter((other) => other.at !== mark.at || other.name !== mark.name)); this.open(); } }, "Remove"));
    });
    const kept = h("div");
    fill(this.dialog, h("h2", {}, "Marks"), ...(rows.length ? rows : [h("p", { class: "quiet" }, "None yet. M makes one under the pointer.")]),
      isFile() ? "" : h("div", {}, h("p", { class: "quiet" }, "The address of this page holds the marks."),
        rows.length ? h("button", { class: "plain", onclick: () => this.keep(kept) }, "Keep beside the run") : "", kept),
      h("p", {}, h("button", { class: "plain", onclick: () => this.dialog.close() }, "Close")));
    if (!this.dialog.open) this.dialog.showModal();
    if (!isFile()) this.list(kept).catch(show);
  }

  /** @param {HTMLElement} kept */
  async keep(kept) {
    try {
      const { file } = await write("keep-marks", { marks: marksText(this.app.store.view.marks) });
      announce(`wrote ${file}`);
      await this.list(kept, file);
    } catch (error) {
      show(error);
    }
  }

  /** The files beside the run. @param {HTMLElement} box @param {string} [written] */
  async list(box, written) {
    const { files } = await json("marks");
    fill(box, written ? h("p", { role: "status" }, `Wrote ${written}`) : "", files.length ? h("h2", {}, "Beside the run") : "",
      ...files.map((/** @type {any} */ file) => h("div", { class: "row" }, h("button", { class: "plain", onclick: () => { this.load(file.marks); this.open(); } }, "Show"),
        h("span", {}, `${file.marks.length} by ${file.by}, ${file.kept.slice(0, 16).replace("T", " ")} UTC`))));
  }

  /** Add marks of a file to those that are shown. @param {{ at_ns: number, name: string }[]} marks @param {boolean} [history] */
  load(marks, history = true) {
    const { marks: shown } = this.app.store.view;
    const fresh = marks.map(({ at_ns, name }) => ({ at: at_ns, name })).filter(({ at, name }) => !shown.some((mark) => mark.at === at && mark.name === name));
    this.set([...shown, ...fresh], history);
  }

  /** A page without a state in its address shows what was kept last beside the run. */
  async showKept() {
    const { files } = await json("marks");
    const last = files[files.length - 1];
    if (!last || this.app.store.view.marks.length) return;
    this.load(last.marks, false);
    announce(`${last.marks.length} marks by ${last.by}`);
  }

  /** @param {Mark} mark */
  goTo(mark) {
    const { begin, end } = this.app.store.view;
    if (mark.at < begin || mark.at > end) this.app.show(mark.at - (end - begin) / 2, mark.at + (end - begin) / 2, { history: true });
  }

  /** The mark whose flag is at a point of the axis. @param {number} x px from the left edge of the canvas @returns {Mark | undefined} */
  at(x) {
    const { view } = this.app.store;
    return view.marks.find((mark) => Math.abs(GUTTER + (mark.at - view.begin) / this.app.timeline.nsPerPixel - x) < NEAR);
  }

  /** Flags on the axis, lines through the tracks. @param {CanvasRenderingContext2D} g @param {number} height px */
  draw(g, height) {
    const { view } = this.app.store;
    const { text } = this.app.palette;
    const { nsPerPixel, width } = this.app.timeline;
    g.font = "11px ui-monospace, 'DejaVu Sans Mono', monospace";
    g.textBaseline = "middle";
    g.textAlign = "left";
    view.marks.forEach((mark, index) => {
      const x = (mark.at - view.begin) / nsPerPixel;
      if (x < 0 || x > width) return;
      const next = view.marks[index + 1];
      const room = Math.min(next ? (next.at - mark.at) / nsPerPixel : width, width - x) - FLAG - 6;
      const name = cut(mark.name, Math.max(0, Math.floor(room / LETTER)));
      g.fillStyle = text.accent;
      g.fillRect(GUTTER + x, 0, 1, height);
      g.beginPath();
      g.moveTo(GUTTER + x, 1);
      g.lineTo(GUTTER + x + FLAG, 1 + FLAG / 2);
      g.lineTo(GUTTER + x, 1 + FLAG);
      g.fill();
      if (!name) return;
      g.fillStyle = text.bg; // over the labels of the axis
      g.fillRect(GUTTER + x + FLAG + 1, 0, name.length * LETTER + 4, AXIS - 1);
      g.fillStyle = text.accent;
      g.fillText(name, GUTTER + x + FLAG + 3, AXIS / 2);
    });
  }
}

/** @param {import("./app.js").App} app */
export function listenToMarks(app) {
  app.timeline.canvas.addEventListener("click", (event) => {
    const mark = event.offsetY < AXIS ? app.marks.at(event.offsetX) : undefined;
    if (mark) app.marks.open(mark);
  });
}
