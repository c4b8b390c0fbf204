"use strict";
// Tooltips, sorting, copying, folding, light and dark theme. The page is readable without this script.
const root = document.documentElement;
const tip = document.getElementById("tip");

document.getElementById("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
});

// Folded parts: a link opens the part it leads to, "open all" opens every one, and paper has the findings, and what is open.
const parts = () => [...document.querySelectorAll(".more, #findings details, .row[open] details")];
const unfold = document.getElementById("unfold");
unfold.addEventListener("click", () => {
  const open = unfold.getAttribute("aria-pressed") !== "true";
  for (const part of document.querySelectorAll("details.row")) part.open = open;
  unfold.setAttribute("aria-pressed", String(open));
  unfold.textContent = open ? "fold all" : "open all";
});
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!(target instanceof HTMLDetailsElement)) return;
  target.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
let foldedForPaper = null;
function onPaper(printing) {
  if (printing && foldedForPaper === null) {
    foldedForPaper = parts().filter((part) => !part.open);
    for (const part of foldedForPaper) part.open = true;
  } else if (!printing && foldedForPaper !== null) {
    for (const part of foldedForPaper) part.open = false;
    foldedForPaper = null;
  }
}
addEventListener("beforeprint", () => onPaper(true));
addEventListener("afterprint", () => onPaper(false));
matchMedia("print").addEventListener("change", (media) => onPaper(media.matches));
document.getElementById("print").addEventListener("click", () => print());

/** The tooltip of an element: the <title> of a shape (removed, or the browser shows it as well), the whole text of a cut cell. */
function textAt(node) {
  const shape = node.closest("svg.chart *");
  if (shape) {
    const title = shape.querySelector(":scope > title");
    if (title) { shape.dataset.tip = title.textContent; title.remove(); }
    return shape.dataset.tip || "";
  }
  const cell = node.closest("td.t");
  return cell && (cell.scrollWidth > cell.clientWidth || cell.querySelector(".cut")) ? cell.textContent : "";
}
function showTip(event) {
  const text = event.target instanceof Element ? textAt(event.target) : "";
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 12, innerWidth - box.width - 6);
  const below = event.clientY + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below + box.height > innerHeight ? Math.max(4, event.clientY - box.height - 10) : below) + "px";
}
document.addEventListener("pointermove", showTip);
document.addEventListener("pointerdown", showTip);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

/** The sort key of a cell: its number without separators, or its text. */
function valueOf(row, column, isText) {
  const text = row.cells[column].textContent;
  if (isText) return text;
  return text === "-" ? null : Number(text.replaceAll(",", ""));
}
function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const isText = header.classList.contains("t");
  // The first click sorts numbers in descending, names in ascending order.
  const next = { ascending: "descending", descending: "ascending" };
  const order = next[header.getAttribute("aria-sort")] || (isText ? "ascending" : "descending");
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", order);
  const sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [valueOf(row, column, isText), row]);
  rows.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null); // unknown values stay at the end
    return sign * (isText ? a.localeCompare(b) : a - b);
  });
  body.append(...rows.map(([, row]) => row));
}

function tableText(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.replace(/\s+/g, " ").trim()).join("\t")).join("\n");
}
async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea"); // some browsers have no clipboard API for local files
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = label; }, 1200);
}
document.addEventListener("click", (event) => {
  const button = event.target instanceof Element && event.target.closest("button");
  if (!button) return;
  if (button.parentNode.matches("table.data th")) sortBy(button.parentNode);
  else if (button.dataset.copy === "table") copy(tableText(document.getElementById(button.dataset.of)), button);
  else if (button.dataset.copy === "text") copy(document.getElementById(button.dataset.of).textContent, button);
  else if (button.dataset.copy === "command") copy(button.previousElementSibling.textContent, button);
});
