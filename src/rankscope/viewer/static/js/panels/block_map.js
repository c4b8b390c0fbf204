// The block map: addresses over time, each allocation in the colour of the line of Python that made it.

import { columns, isFile, json, show } from "../api.js";
import { fill, h, s } from "../dom.js";
import { moment, quantity, scaled, ticks, time } from "../format.js";
import { chart, grid, resizing } from "./chart.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 12, 12, 22];
const CELL = 2; // px
const LEVELS = [0.02, 0.3, 0.6, 0.9]; // a cell of which less is allocated is drawn as free
const LEAST_DRAG = 4; // px

/** The maps of the devices of a rank that have a snapshot; a shared file has none. @param {number} rank @returns {Promise<Node[]>} */
export async function blockMaps(rank) {
  if (isFile()) return [];
  const { devices } = await json("blocks", { rank });
  return devices.map((/** @type {number} */ device) => blockMap(rank, device));
}

/** @param {number} rank @param {number} device */
function blockMap(rank, device) {
  /** @type {{ begin?: number, end?: number }} undefined: the whole history */
  let shown = {};
  let turn = 0;
  const legend = h("p", { class: "quiet" });
  const pointed = h("p", { class: "quiet block-text" }, "Point at a block; drag to zoom.");
  const whole = h("button", { class: "plain", onclick: () => zoom({}) }, "Whole history");
  /** @type {(() => void)} */
  let again = () => {};
  const picture = resizing((width, height) => {
    const box = h("div", { class: "picture-box" });
    again = () => load(box, width, height).catch(show);
    again();
    return box;
  });

  /** @param {{ begin?: number, end?: number }} window */
  function zoom(window) {
    shown = window;
    again();
  }

  /** @param {HTMLElement} box @param {number} width @param {number} height */
  async function load(box, width, height) {
    const mine = ++turn;
    const size = { columns: Math.floor((width - LEFT - RIGHT) / CELL), rows: Math.floor((height - TOP - BOTTOM) / CELL) };
    const map = await columns("blocks", { rank, device, ...shown, ...size });
    if (mine !== turn) return;
    whole.hidden = shown.begin === undefined;
    fill(legend, ...map.lines.map((/** @type {string} */ line, /** @type {number} */ at) => h("span", {}, h("i", { class: `swatch s${at + 1}` }), `${line}  `)), h("i", { class: "swatch free" }), "reserved and free");
    fill(box, draw(map, width, height, zoom, (block) => fill(pointed, block ? describe(map, block) : "")));
  }

  return h("div", { class: "block-map" }, h("h2", {}, `GPU ${device}: blocks over address and time `, whole), picture, legend, pointed);
}

/** @param {any} map @param {number} at */
function spelt(map, at) {
  return map.has_times ? time(at) : `entry ${at}`;
}

/** @param {any} map @param {any} block */
function describe(map, block) {
  const life = `${spelt(map, block.begin)} to ${block.end === map.last ? "the end" : spelt(map, block.end)}`;
  const lived = map.has_times ? ` (${time(block.end - block.begin)})` : "";
  const { line, op, frames } = map.stacks[block.stack];
  return `${quantity(block.bytes, "bytes")}, ${life}${lived}${op ? `, ${op}` : ""}\n${frames.length ? frames.join("\n") : line}`;
}

/** The runs of cells with a code, as one path. @param {Uint8Array} codes @param {number} wanted @param {number} width in cells
 * @param {(column: number) => number} x @param {(row: number) => number} y */
export function cellPath(codes, wanted, width, x, y) {
  let path = "";
  for (let row = 0; row * width < codes.length; row++) {
    for (let column = 0; column < width; column++) {
      if (codes[row * width + column] !== wanted) continue;
      const first = column;
      while (column < width && codes[row * width + column] === wanted) column++;
      path += `M${x(first).toFixed(1)},${y(row + 1).toFixed(1)}H${x(column).toFixed(1)}V${y(row).toFixed(1)}H${x(first).toFixed(1)}z`;
    }
  }
  return path;
}

/** @param {any} map @param {number} width @param {number} height @param {(window: { begin: number, end: number }) => void} zoom
 * @param {(block: any) => void} point */
function draw(map, width, height, zoom, point) {
  const box = { left: LEFT, right: width - RIGHT, top: TOP, bottom: height - BOTTOM };
  const across = (/** @type {number} */ share) => box.left + share * (box.right - box.left);
  const up = (/** @type {number} */ share) => box.bottom - share * (box.bottom - box.top);
  const at = (/** @type {number} */ ns) => across((ns - map.begin) / (map.end - map.begin));
  const svg = chart(width, height, { role: "img", "aria-label": `Blocks over address and time: ${map.allocations} allocations` });
  const label = (/** @type {number} */ tick) => (map.has_times ? moment(tick, map.end - map.begin) : String(tick));
  grid(svg, box, ticks(map.begin, map.end, width / 140).map((tick) => [at(tick), label(tick)]),
    ticks(0, map.reserved_bytes, 6).map((tick) => [up(tick / map.reserved_bytes), tick ? scaled(tick, "B") : "0"]));
  const x = (/** @type {number} */ column) => across(column / map.width);
  const y = (/** @type {number} */ row) => up(row / map.height);
  const { line, held, reserved } = map.column;
  const path = (/** @type {Uint8Array} */ codes, /** @type {number} */ code, /** @type {string} */ kind, /** @type {number} */ opacity) => {
    const d = cellPath(codes, code, map.width, x, y);
    if (d) svg.append(s("path", { d, class: kind, "fill-opacity": opacity }));
  };
  path(reserved.map((/** @type {number} */ share) => (share >= 128 ? 1 : 0)), 1, "free", 1);
  const level = (/** @type {number} */ share) => LEVELS.filter((least) => share / 255 >= least).length;
  const codes = held.map((/** @type {number} */ share, /** @type {number} */ cell) => (level(share) ? line[cell] * LEVELS.length + level(share) : 0));
  map.lines.forEach((/** @type {string} */ _, /** @type {number} */ index) => {
    for (let step = 1; step <= LEVELS.length; step++) path(codes, index * LEVELS.length + step, `s${index + 1}`, step / LEVELS.length);
  });
  interact(svg, map, box, width, zoom, point);
  return svg;
}

/** @param {SVGElement} svg @param {any} map @param {{ left: number, right: number, top: number, bottom: number }} box @param {number} width
 * @param {(window: { begin: number, end: number }) => void} zoom @param {(block: any) => void} point */
function interact(svg, map, box, width, zoom, point) {
  const chosen = s("rect", { y: box.top, height: box.bottom - box.top, width: 0, class: "chosen" });
  const outline = s("rect", { width: 0, height: 0, class: "outline" });
  svg.append(outline, chosen);
  const pointAt = (/** @type {PointerEvent} */ event) => {
    const edges = svg.getBoundingClientRect();
    const scale = width / edges.width;
    return { x: Math.min(Math.max((event.clientX - edges.left) * scale, box.left), box.right), y: (event.clientY - edges.top) * scale };
  };
  const when = (/** @type {number} */ x) => map.begin + ((x - box.left) / (box.right - box.left)) * (map.end - map.begin);
  const x = (/** @type {number} */ at) => Math.min(Math.max(box.left + ((at - map.begin) / (map.end - map.begin)) * (box.right - box.left), box.left), box.right);
  const y = (/** @type {number} */ offset) => box.bottom - (offset / map.reserved_bytes) * (box.bottom - box.top);
  const set = (/** @type {Element} */ rect, /** @type {Record<string, number>} */ values) => {
    for (const [name, value] of Object.entries(values)) rect.setAttribute(name, String(value));
  };
  /** @type {number | null} */
  let from = null;
  svg.addEventListener("pointerdown", (event) => {
    from = pointAt(event).x;
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const to = pointAt(event);
    if (from !== null) return set(chosen, { x: Math.min(from, to.x), width: Math.abs(to.x - from) });
    const offset = ((box.bottom - to.y) / (box.bottom - box.top)) * map.reserved_bytes;
    const at = when(to.x);
    const block = map.largest.find((/** @type {any} */ one) => at >= one.begin && at < one.end && offset >= one.offset && offset < one.offset + one.bytes);
    const edges = block && { x: x(block.begin), width: x(block.end) - x(block.begin), y: y(block.offset + block.bytes), height: y(block.offset) - y(block.offset + block.bytes) };
    set(outline, edges ?? { width: 0, height: 0 });
    point(block);
  });
  svg.addEventListener("pointerup", (event) => {
    const [begin, end] = [from ?? 0, pointAt(event).x].sort((a, b) => a - b);
    const dragged = from !== null && end - begin >= LEAST_DRAG;
    from = null;
    set(chosen, { width: 0 });
    if (dragged) zoom({ begin: Math.floor(when(begin)), end: Math.ceil(when(end)) });
  });
}
