// Charts of the panel: those that the server draws, and a picture that is drawn again when its box changes size.

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

/** Charts that the server draws, those of `rankscope report --chart`: text of the run is escaped in them.
 * @param {{ charts: { title: string, subtitle: string, svg: string }[] }} answer */
export function drawn({ charts }) {
  const parser = new DOMParser();
  return charts.map(({ title, subtitle, svg }) => {
    const xml = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ');
    const picture = document.importNode(parser.parseFromString(xml, "image/svg+xml").documentElement, true);
    return h("div", { class: "drawn-chart" }, h("h2", {}, title), picture, h("p", { class: "quiet" }, subtitle));
  });
}
