// Tables that can be sorted by mouse and keyboard, filtered, and copied as TSV. A column has one unit, and its heading names it.

import { h, announce } from "./dom.js";
import { columnScale, cut, quantity } from "./format.js";

const NAME_CHARACTERS = 64;
const UNIT_WORDS = / (ns|bytes|pct|flops|flop s|gb s)$/;

/** @typedef {{ name: string, title?: string, unit?: string, help?: string, verbatim?: boolean, full?: string, short?: Record<string, string> }} Column full: the field with the whole text; short: by text, what is shown of it; verbatim: its name is its heading, and its texts are shown as they are */

/** @param {Column[]} columns @param {Record<string, any>[]} rows
 * @param {{ go?: (row: any) => void, hot?: (row: any) => boolean, caption?: string, filter?: boolean, tools?: boolean }} [how]
 *   filter: with a box for text; tools: false leaves out the button that copies */
export function table(columns, rows, how = {}) {
  let by = "";
  let up = false;
  let wanted = "";
  const body = h("tbody");
  const scales = new Map(columns.map((column) => [column.name, columnScale(column.unit ?? "", rows.map((row) => row[column.name]))]));
  const heads = columns.map((column) => h("th", { class: isText(column, rows) ? "text" : "", title: column.help ?? "", scope: "col" },
    h("button", { onclick: () => sort(column) }, headingOf(column, scales.get(column.name)?.label))));
  const texts = new Map(columns.map((column) => [column.name, isText(column, rows) ? (/** @type {string} */ text) => column.short?.[text] ?? cut(text, NAME_CHARACTERS) : null]));

  /** @param {Column} column @param {any} row */
  function cell(column, row) {
    const value = row[column.name];
    const scale = scales.get(column.name);
    return scale && typeof value === "number" ? scale.text(value) : textOf(column, row);
  }

  function shown() {
    const matching = rows.filter((row) => !wanted || columns.some((column) => textOf(column, row).toLowerCase().includes(wanted)));
    return by ? matching.sort((a, b) => compare(a[by], b[by]) * (up ? 1 : -1)) : matching;
  }

  function draw() {
    body.replaceChildren(...shown().map((row) => h("tr", {
      class: how.hot?.(row) ? "hot" : "", "data-go": Boolean(how.go), tabindex: how.go ? 0 : null,
      onclick: () => how.go?.(row), onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") how.go?.(row); },
    }, columns.map((column) => {
      const short = texts.get(column.name);
      const text = cell(column, row);
      const shown = short?.(text) ?? text;
      const full = column.full ? String(row[column.full]) : text;
      return h("td", { class: short ? "text" : "", title: shown === full ? null : full }, shown);
    }))));
  }

  /** @param {Column} column */
  function sort(column) {
    up = by === column.name ? !up : isText(column, rows);
    by = column.name;
    heads.forEach((head, at) => head.setAttribute("aria-sort", columns[at].name !== by ? "none" : up ? "ascending" : "descending"));
    announce(`sorted by ${column.title ?? column.name}, ${up ? "ascending" : "descending"}`);
    draw();
  }

  draw();
  const filter = how.filter ? h("input", {
    type: "search", placeholder: "Filter rows", "aria-label": "Filter rows", oninput: (/** @type {any} */ event) => { wanted = event.target.value.toLowerCase(); draw(); },
  }) : "";
  const copy = how.tools === false ? "" : h("button", { class: "plain", onclick: () => copyText(tsv(columns, shown())) }, "Copy as TSV");
  return h("div", {}, how.filter ? h("div", { class: "row" }, filter, copy) : "",
    h("div", { class: "scroll" }, h("table", {}, how.caption ? h("caption", { class: "unseen" }, how.caption) : "", h("thead", {}, h("tr", {}, heads)), body)),
    how.filter || !copy ? "" : h("p", {}, copy));
}

/** The title of a column with its unit: "Total (ms)"; without the unit that is part of a machine name.
 * @param {Column} column @param {string} [unit] */
export function headingOf(column, unit) {
  if (column.verbatim) return unit ? `${column.name} (${unit})` : column.name;
  const title = (column.title ?? column.name.replaceAll("_", " ")).replace(column.unit ? UNIT_WORDS : /$^/, "");
  const text = title.charAt(0).toUpperCase() + title.slice(1);
  return !unit || title.split(/[ (]/).includes(unit) ? text : `${text} (${unit})`;
}

/** @param {Column} column @param {Record<string, any>} row */
function textOf(column, row) {
  const value = row[column.name];
  return typeof value === "object" && value !== null ? JSON.stringify(value) : quantity(value, column.unit ?? "");
}

/** @param {Column} column @param {Record<string, any>[]} rows */
function isText(column, rows) {
  const value = rows.find((row) => row[column.name] !== null && row[column.name] !== undefined)?.[column.name];
  return typeof value === "string" || typeof value === "object";
}

/** Null sorts below all other values.
 * @param {any} a @param {any} b */
export function compare(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}

/** @param {Column[]} columns @param {Record<string, any>[]} rows */
export function tsv(columns, rows) {
  const clean = (/** @type {any} */ value) => String(value ?? "").replace(/[\t\n\r]+/g, " ");
  return [columns.map((column) => column.name), ...rows.map((row) => columns.map((column) => clean(row[column.full ?? column.name])))]
    .map((cells) => cells.join("\t")).join("\n");
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "unseen" }));
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // the clipboard API needs https or localhost
    area.remove();
  }
  announce("copied");
}
