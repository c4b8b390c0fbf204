// Tables that can be sorted by mouse and keyboard and copied as TSV.

import { h, announce } from "./dom.js";
import { quantity } from "./format.js";
import { shortenNames } from "./names.js";

const NAME_CHARACTERS = 42; // style.css has room for about as many

/** @typedef {{ name: string, title?: string, unit?: string, help?: string }} Column */

/** @param {Column[]} columns @param {Record<string, any>[]} rows
 * @param {{ go?: (row: any) => void, hot?: (row: any) => boolean, caption?: string }} [how] */
export function table(columns, rows, how = {}) {
  let shown = [...rows];
  let by = "";
  let up = false;
  const body = h("tbody");
  const heads = columns.map((column) => h("th", { class: isText(column, rows) ? "text" : "", title: column.help ?? "", scope: "col" },
    h("button", { onclick: () => sort(column) }, column.title ?? column.name)));

  const texts = new Map(columns.map((column) => [column.name, isText(column, rows) ? shortTexts(column, rows) : null]));

  function draw() {
    body.replaceChildren(...shown.map((row) => h("tr", {
      class: how.hot?.(row) ? "hot" : "", "data-go": Boolean(how.go), tabindex: how.go ? 0 : null,
      onclick: () => how.go?.(row), onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter") how.go?.(row); },
    }, columns.map((column) => {
      const short = texts.get(column.name);
      const text = textOf(column, row);
      const shown = short?.get(text) ?? text;
      return h("td", { class: short ? "text" : "", title: shown === text ? null : text }, shown);
    }))));
  }

  /** @param {Column} column */
  function sort(column) {
    up = by === column.name ? !up : isText(column, rows);
    by = column.name;
    shown = [...rows].sort((a, b) => compare(a[by], b[by]) * (up ? 1 : -1));
    heads.forEach((head, at) => head.setAttribute("aria-sort", columns[at].name !== by ? "none" : up ? "ascending" : "descending"));
    announce(`sorted by ${column.title ?? column.name}, ${up ? "ascending" : "descending"}`);
    draw();
  }

  draw();
  const copy = h("button", { class: "plain", onclick: () => copyText(tsv(columns, shown)) }, "Copy as TSV");
  return h("div", {}, h("div", { class: "scroll" }, h("table", {}, how.caption ? h("caption", { class: "unseen" }, how.caption) : "",
    h("thead", {}, h("tr", {}, heads)), body)), h("p", {}, copy));
}

/** @param {Column} column @param {Record<string, any>} row */
function textOf(column, row) {
  const value = row[column.name];
  return typeof value === "object" && value !== null ? JSON.stringify(value) : quantity(value, column.unit ?? "");
}

/** Each text of a column with its short form.
 * @param {Column} column @param {Record<string, any>[]} rows */
function shortTexts(column, rows) {
  const all = rows.map((row) => textOf(column, row));
  const short = shortenNames(all, NAME_CHARACTERS);
  return new Map(all.map((text, at) => [text, short[at]]));
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
  return [columns.map((column) => column.name), ...rows.map((row) => columns.map((column) => clean(row[column.name])))]
    .map((cells) => cells.join("\t")).join("\n");
}

/** @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("copied");
  } catch {
    const area = /** @type {HTMLTextAreaElement} */ (h("textarea", { class: "unseen" }));
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // the clipboard API needs https or localhost
    area.remove();
  }
}
