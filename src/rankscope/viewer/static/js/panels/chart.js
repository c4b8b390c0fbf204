// What the charts of the panel share: those that the server draws, a picture that is drawn again when its box changes
// size, and its axes.

import { json } from "../api.js";
import { byId, fill, h, s } from "../dom.js";

const [LOWEST, HIGHEST, AROUND] = [170, 420, 96]; // px; AROUND: what stands above and below a chart

/** A chart as wide as its column, and as high as the panel lets it be.
 * @param {(width: number, height: number) => Node} draw @returns {HTMLElement} */
export function resizing(draw) {
  const box = h("div", { class: "picture-box" });
  const panel = byId("panel");
  let drawn = "";
  const observer = new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    const height = Math.min(Math.max(panel.clientHeight - AROUND, LOWEST), HIGHEST);
    if (!box.isConnected) observer.disconnect();
    if (width < 50 || drawn === `${width}/${height}`) return;
    drawn = `${width}/${height}`;
    fill(box, draw(width, height));
  });
  observer.observe(box);
  observer.observe(panel);
  return box;
}

/** @param {number} width @param {number} height @param {Record<string, any>} attributes */
export function chart(width, height, attributes) {
  return s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "chart", ...attributes });
}

/** Lines of a grid with their labels, the labels inside the picture.
 * @param {Element} picture @param {{ left: number, right: number, top: number, bottom: number }} box
 * @param {[number, string][]} across positions and labels below @param {[number, string][]} up positions and labels at the left */
export function grid(picture, box, across, up) {
  for (const [y, label] of up) {
    picture.append(s("line", { x1: box.left, x2: box.right, y1: y, y2: y, class: "grid" }), s("text", { x: box.left - 6, y: y + 3.5, "text-anchor": "end" }, label));
  }
  for (const [x, label] of across) {
    const anchor = x > box.right - 30 ? "end" : x < box.left + 12 ? "start" : "middle";
    picture.append(s("line", { x1: x, x2: x, y1: box.top, y2: box.bottom, class: "grid" }), s("text", { x, y: box.bottom + 14, "text-anchor": anchor }, label));
  }
}

/** Charts that the server draws, those of `rankscope chart`: text of the run is escaped in them.
 * @param {"charts" | "roofline"} route @param {Record<string, any>} query @returns {Promise<HTMLElement[]>} */
export async function drawn(route, query) {
  const parser = new DOMParser();
  return (await json(route, query)).charts.map((/** @type {{ title: string, subtitle: string, svg: string }} */ { title, subtitle, svg }) => {
    const xml = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ');
    const picture = document.importNode(parser.parseFromString(xml, "image/svg+xml").documentElement, true);
    return h("div", { class: "drawn-chart" }, h("h2", {}, title), picture, h("p", { class: "quiet" }, subtitle));
  });
}
