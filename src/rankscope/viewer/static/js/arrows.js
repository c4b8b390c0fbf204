// Arrows over the tracks: from callers to what they launch, and a collective on all its ranks with the arrival of the last one.

import { time } from "./format.js";
import { COMMUNICATION, GUTTER, HEADER, LANE, rankName, trackKey } from "./layout.js";
import { MONO, SANS } from "./palette.js";

const DOT = 4; // radius, px

/** Where a track is drawn; in the row of its folded group or of its rank where it is not.
 * @param {import("./layout.js").Row[]} rows @param {number} rank @param {{ segment: number, track: number }} track */
function rowOf(rows, rank, track) {
  const mine = rows.filter((row) => row.rank === rank);
  const key = trackKey(rank, track);
  return mine.find((row) => row.type === "track" && trackKey(rank, row.track) === key) ?? mine.find((row) => row.type === "rank");
}

/** @param {CanvasRenderingContext2D} g @param {import("./timeline.js").Timeline} timeline @param {import("./layout.js").Row[]} rows */
export function drawArrows(g, timeline, rows) {
  const chain = timeline.arrows.slice(1).map((point, at) => [timeline.arrows[at], point]);
  const pairs = [...chain, ...timeline.flows];
  if (!pairs.length) return;
  /** @type {Map<string, import("./layout.js").Row | undefined>} */
  const known = new Map();
  /** @param {import("./timeline.js").Point} point */
  const pointOf = (point) => {
    const key = trackKey(point.rank, point);
    if (!known.has(key)) known.set(key, rowOf(rows, point.rank, point));
    const row = known.get(key);
    return row && { x: timeline.x(point.start, point.rank), y: row.y + (row.type === "track" ? Math.min(point.row, row.lanes - 1) * LANE : 0) + LANE / 2 };
  };
  g.strokeStyle = timeline.app.palette.text.accent;
  g.lineWidth = 1.5;
  for (const [from, to] of pairs) {
    const [a, b] = [pointOf(from), pointOf(to)];
    if (a && b) curve(g, a.x, a.y, b.x, b.y, Math.min(30, Math.abs(b.x - a.x) / 2 + 8));
  }
}

/** @param {CanvasRenderingContext2D} g @param {number} x @param {number} y @param {number} toX @param {number} toY @param {number} bend */
function curve(g, x, y, toX, toY, bend) {
  g.beginPath();
  g.moveTo(x, y);
  g.bezierCurveTo(x + bend, y, toX - bend, toY, toX, toY);
  g.stroke();
}

/** A dot where each rank arrives, arrows from the last to those that wait for it, and a line at its arrival.
 * @param {CanvasRenderingContext2D} g @param {import("./timeline.js").Timeline} timeline
 * @param {import("./layout.js").Row[]} rows */
export function drawCollective(g, timeline, rows) {
  const collective = timeline.peers ?? timeline.app.scene?.collective;
  const last = collective?.rows.find((row) => row.rank === collective.last);
  if (!collective || !last) return;
  const { text } = timeline.app.palette;
  const arrivals = collective.rows.filter((row) => timeline.inView.has(row.rank)).flatMap((row) => {
    const drawn = rowOf(rows, row.rank, COMMUNICATION);
    if (!drawn) return [];
    const high = drawn.type === "rank" ? HEADER : LANE;
    const top = drawn.y + (drawn.type === "track" ? timeline.laneOf(row) * LANE : 0);
    return [{ ...row, x: timeline.x(row.start_ns, row.rank), top, middle: top + high / 2, bottom: top + high }];
  });
  const x = timeline.x(last.start_ns, last.rank);
  const from = arrivals.find((arrival) => arrival.rank === last.rank);
  g.save();
  g.beginPath();
  g.rect(GUTTER, 0, timeline.width, 1e6);
  g.clip();
  g.lineWidth = 1.5;
  for (const arrival of arrivals) {
    if (arrival.rank === last.rank) continue;
    g.strokeStyle = g.fillStyle = text.accent;
    if (from && !timeline.peers?.messages.length) { // a message has its own arrow
      const [start, end] = arrival.top > from.top ? [from.bottom, arrival.top + 3] : [from.top, arrival.bottom - 3];
      g.beginPath();
      g.moveTo(x, start);
      g.bezierCurveTo(x + 26, start + (end - start) * 0.4, x + 26, end - (end - start) * 0.3, x, end);
      g.stroke();
    }
    g.beginPath();
    g.arc(arrival.x, arrival.middle, DOT, 0, 2 * Math.PI);
    g.fill();
  }
  if (from) { // the collective of the last rank
    g.strokeStyle = text.ink;
    g.lineWidth = 2;
    g.strokeRect(x + 1, from.top + 1, Math.max(last.dur_ns / timeline.nsPerPixel - 2, 2), LANE - 3);
  }
  const bottom = Math.max(...arrivals.map((arrival) => arrival.bottom), 0);
  const header = rows.find((row) => row.type === "rank" && row.rank === last.rank && row.open);
  if (arrivals.length) drawArrival(g, timeline, `${rankName(last.rank)} arrives ${time(last.arrives_ns)} after the first`, x, bottom, header);
  g.restore();
}

/** An arrow for each message, from the rank that sends it to the one that receives it: of the selected send or recv, else of the shown schedule.
 * @param {CanvasRenderingContext2D} g @param {import("./timeline.js").Timeline} timeline
 * @param {import("./layout.js").Row[]} rows */
export function drawMessages(g, timeline, rows) {
  const { peers, app, inView } = timeline;
  const messages = (peers ? peers.messages : app.scene?.messages) ?? [];
  g.save();
  g.beginPath();
  g.rect(GUTTER, 0, timeline.width, 1e6);
  g.clip();
  g.strokeStyle = g.fillStyle = peers ? app.palette.text.accent : app.palette.text.ink;
  g.lineWidth = peers ? 2 : 1;
  for (const end of messages.length ? peers?.rows ?? [] : []) {
    const row = rowOf(rows, end.rank, COMMUNICATION);
    if (row) g.strokeRect(timeline.x(end.start_ns, end.rank), row.y + (row.type === "rank" ? 3 : 1), Math.max(end.dur_ns / timeline.nsPerPixel, 2), LANE - 3);
  }
  for (const message of messages) {
    if (!inView.has(message.from) && !inView.has(message.to)) continue;
    const [from, to] = [message.from, message.to].map((rank) => rowOf(rows, rank, COMMUNICATION));
    if (!from || !to) continue;
    const down = to.y > from.y;
    const [start, end] = [from, to].map((row, at) => row.y + (row.type === "rank" ? HEADER : LANE) * (down === (at === 0) ? 0.7 : 0.3));
    arrow(g, timeline.x(message.start_ns, message.from), start, timeline.x(message.end_ns, message.to), end);
  }
  g.restore();
}

/** @param {CanvasRenderingContext2D} g @param {number} x @param {number} y @param {number} toX @param {number} toY */
function arrow(g, x, y, toX, toY) {
  const angle = Math.atan2(toY - y, toX - x);
  g.beginPath();
  g.moveTo(x, y);
  g.lineTo(toX - 4 * Math.cos(angle), toY - 4 * Math.sin(angle));
  g.stroke();
  g.beginPath();
  g.moveTo(toX, toY);
  for (const side of [-0.45, 0.45]) g.lineTo(toX - 7 * Math.cos(angle + side), toY - 7 * Math.sin(angle + side));
  g.fill();
}

/** The line at the arrival, and its words: beside the shares of the late rank where its tracks are shown, else below the collective.
 * @param {CanvasRenderingContext2D} g @param {import("./timeline.js").Timeline} timeline @param {string} label @param {number} x @param {number} bottom
 * @param {import("./layout.js").Row} [header] */
function drawArrival(g, timeline, label, x, bottom, header) {
  const { text } = timeline.app.palette;
  g.strokeStyle = timeline.app.blame;
  g.setLineDash([4, 3]);
  g.beginPath();
  g.moveTo(x, timeline.box.scrollTop);
  g.lineTo(x, bottom + 4);
  g.stroke();
  g.setLineDash([]);
  const free = header ? timeline.labels.rightOf(g, header.y + HEADER / 2) : 0;
  g.font = `600 ${MONO}`;
  const wide = g.measureText(label).width;
  const late = x - 8 - wide > free && x + 8 + wide > GUTTER + timeline.width;
  timeline.labels.plate(g, label, late ? x - 8 - wide : Math.max(x + 8, free + 16), header ? header.y + HEADER / 2 : bottom + 11, timeline.app.blame, header ? text[timeline.app.isAlarming ? "hot" : "panel"] : text.bg);
}

/** A bracket over the time in which the GPU is idle, with the reason.
 * @param {CanvasRenderingContext2D} g @param {import("./timeline.js").Timeline} timeline @param {import("./layout.js").Row[]} rows */
export function drawGap(g, timeline, rows) {
  const gap = timeline.app.scene?.gap;
  const row = gap && rows.find((one) => one.rank === gap.rank && one.type === "track" && one.group === "streams");
  if (!gap || !row) return;
  const { text } = timeline.app.palette;
  const [left, right] = gap.span.map((ns) => Math.min(Math.max(timeline.x(ns, gap.rank), GUTTER), GUTTER + timeline.width));
  const y = row.y + LANE / 2;
  g.strokeStyle = timeline.app.blame;
  g.lineWidth = 1.5;
  g.beginPath();
  g.moveTo(left, y - 6);
  g.lineTo(left, y + 6);
  g.moveTo(left, y);
  g.lineTo(right, y);
  g.moveTo(right, y - 6);
  g.lineTo(right, y + 6);
  g.stroke();
  g.font = SANS;
  const words = timeline.labels.fit(g, gap.text, right - left - 24);
  if (words) timeline.labels.plate(g, words, (left + right - g.measureText(words).width) / 2, y, timeline.app.blame, text.bg);
}
