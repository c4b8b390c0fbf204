// Roofline of ops and kernels: the chart of the report, as large as the panel lets it be, and its table.

import { json, show } from "../api.js";
import { fill, h } from "../dom.js";
import { table } from "../table.js";
import { drawn, resizing } from "./chart.js";

export async function rooflinePanel() {
  const result = await json("report", { name: "roofline" });
  const notes = result.notes.map((/** @type {string} */ note) => h("p", { class: "quiet" }, note));
  if (!result.rows.some((/** @type {any} */ row) => row.intensity > 0 && row.flop_s > 0)) return h("div", {}, h("p", { class: "quiet" }, "No op has known FLOPs. To record shapes: rankscope profile --record-shapes"), notes);
  const picture = resizing((width, height) => {
    const box = h("div", {});
    json("roofline", { width, height }).then((answer) => fill(box, ...drawn(answer))).catch(show);
    return box;
  });
  return h("div", { class: "columns wide-first" }, picture, h("div", {}, h("h2", {}, result.title), table(result.columns, result.rows), notes));
}
