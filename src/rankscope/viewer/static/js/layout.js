// The rows of the timeline: ranks, and the tracks of expanded ranks. Pure, so that tests need no browser.

export const GUTTER = 150;
export const LABEL_CHARACTERS = 19; // of a track, in the gutter
export const HEADER = 26;
export const LANE = 18;
export const GAP = 4;
const MOST_LANES = 64;

export const SECOND = 1e6; // added to rank numbers of the second run
export const COUNTER = 34;

/** @param {number} rank */
export function rankName(rank) {
  return rank >= SECOND ? `B rank ${rank - SECOND}` : `rank ${rank}`;
}

/** @typedef {{ segment: number, track: number, kind: string, label: string, slices: number, rows: number }} Track
 * @typedef {{ type: "rank", rank: number, y: number, height: number, open: boolean, pinned: boolean }
 *   | { type: "counter", rank: number, counter: { name: string, label: string, unit: string }, y: number, height: number }
 *   | { type: "track", rank: number, track: Track, y: number, height: number, lanes: number }} Row */

/** Ranks in the selected order, pinned ones first.
 * @param {number[]} ranks @param {number[]} pinned @param {Map<number, number> | null} order value to sort by, largest first */
export function ordered(ranks, pinned, order) {
  const rest = ranks.filter((rank) => !pinned.includes(rank));
  if (order) rest.sort((a, b) => (order.get(b) ?? -Infinity) - (order.get(a) ?? -Infinity) || a - b);
  return [...pinned.filter((rank) => ranks.includes(rank)), ...rest];
}

/** @param {number[]} ranks @param {Set<number>} open @param {number[]} pinned @param {Map<number, Track[]>} tracks
 * @param {string} filter only tracks whose label contains it
 * @param {Map<number, { name: string, label: string, unit: string }[]>} [counters]
 * @returns {{ rows: Row[], height: number }} */
export function rowsOf(ranks, open, pinned, tracks, filter = "", counters = new Map()) {
  /** @type {Row[]} */
  const rows = [];
  let y = 0;
  for (const rank of ranks) {
    const isOpen = open.has(rank);
    rows.push({ type: "rank", rank, y, height: HEADER, open: isOpen, pinned: pinned.includes(rank) });
    y += HEADER;
    if (!isOpen) continue;
    for (const counter of counters.get(rank) ?? []) {
      if (!counter.label.toLowerCase().includes(filter.toLowerCase())) continue;
      rows.push({ type: "counter", rank, counter, y, height: COUNTER });
      y += COUNTER;
    }
    for (const track of tracks.get(rank) ?? []) {
      if (!track.slices || !track.label.toLowerCase().includes(filter.toLowerCase())) continue;
      const lanes = Math.min(Math.max(track.rows, 1), MOST_LANES);
      const height = lanes * LANE + GAP;
      rows.push({ type: "track", rank, track, y, height, lanes });
      y += height;
    }
  }
  return { rows, height: y };
}

/** The rows between two vertical positions.
 * @param {Row[]} rows @param {number} top @param {number} bottom */
export function visible(rows, top, bottom) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].y + rows[middle].height <= top) low = middle + 1;
    else high = middle;
  }
  const found = [];
  for (let at = low; at < rows.length && rows[at].y < bottom; at++) found.push(rows[at]);
  return found;
}

/** A window that stays inside the run and is never narrower than ten nanoseconds.
 * @param {number} begin @param {number} end @param {number} first @param {number} last @returns {[number, number]} */
export function clamp(begin, end, first, last) {
  const margin = (last - first) * 0.02 + 10;
  const width = Math.min(Math.max(end - begin, 10), last - first + 2 * margin);
  const from = Math.min(Math.max(begin, first - margin), last + margin - width);
  return [from, from + width];
}

/** Zoom around a point.
 * @param {number} begin @param {number} end @param {number} at @param {number} factor @returns {[number, number]} */
export function zoomed(begin, end, at, factor) {
  return [at - (at - begin) * factor, at + (end - at) * factor];
}
