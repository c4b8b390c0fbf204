// The rows of the timeline: ranks, and the tracks of expanded ranks in groups that fold. Pure, so that tests need no browser.

const isNarrow = (globalThis.innerWidth ?? 1000) <= 700; // a phone
export const GUTTER = isNarrow ? 128 : 168;
export const HAS_NOTES = !isNarrow; // at the left of the gutter, beside names
export const RIGHT = 16; // free at the right of the map and of the tracks
export const LABEL_CHARACTERS = isNarrow ? 15 : 20; // of a track, in the gutter
export const AXIS = 26; // height, as of the rows below
export const HEADER = 26;
export const LANE = 20;
export const GAP = 5;
export const FOLDED = 19;
export const COUNTER = 34;
const MOST_LANES = 64;

export const COMMUNICATION = { segment: 0, track: -1 }; // the track of a rank's collectives
export const SECOND = 1e6; // added to rank numbers of the second run

const MANY = 32; // ranks; more are listed by their groups

/** Groups of tracks in drawing order. `more`: streams with next to nothing in them. */
export const GROUPS = ["communication", "streams", "more", "clocks", "host", "counters"];

export const RANKS = "ranks"; // the groups of many ranks fold like those of tracks: "2:ranks" is an exception of the third group

export const naming = { first: "" }; // what stands before ranks of the first run, where there are two

/** @param {number} rank */
export function rankName(rank) {
  return rank >= SECOND ? `B rank ${rank - SECOND}` : `${naming.first}rank ${rank}`;
}

/** The same in a column of ranks. @param {number} rank */
export function rankNumber(rank) {
  return rankName(rank).replace("rank ", "");
}

/** @typedef {{ segment: number, track: number, kind: string, label: string, short: string, slices: number, rows: number,
 *   group: string, share: number, categories: string[] }} Track
 * @typedef {{ name: string, label: string, unit: string, group: string, most: number }} Counter
 * @typedef {{ type: "rank", rank: number, y: number, height: number, open: boolean, pinned: boolean }} RankRow
 * @typedef {{ type: "group", rank: number, group: string, label: string, text: string, y: number, height: number }} GroupRow a folded group
 * @typedef {{ type: "counter", rank: number, counter: Counter, group: string, first: boolean, y: number, height: number }} CounterRow
 * @typedef {{ type: "track", rank: number, track: Track, group: string, first: boolean, pinned: boolean, y: number, height: number, lanes: number }} TrackRow
 *   first: of its group, so that the handle to fold the group is here
 * @typedef {{ label: string, ranks: number[] }} RankGroup
 * @typedef {{ type: "ranks", rank: number, number: number, label: string, ranks: number[], open: boolean, y: number, height: number }} RanksRow rank: -1 - number, which no rank has
 * @typedef {RankRow | RanksRow | GroupRow | CounterRow | TrackRow} Row
 * @typedef {{ ranks: number[], open: Set<number>, pinned: number[], pins: string[], folds: string[], filter: string,
 *   tracks: Map<number, Track[]>, counters: Map<number, Counter[]>, depths?: Map<string, number>, groups?: RankGroup[], apart?: Set<number> }} Shown apart: ranks that stand before the groups. depths: rows of tracks that are drawn, where not all are */

/** Ranks in display order: pinned ones, those of a finding, then the rest. Of two runs, equal ranks are neighbours.
 * @param {number[]} ranks @param {number[]} pinned @param {Map<number, number> | null} order value to sort by, largest first
 * @param {number[]} [leading] */
export function ordered(ranks, pinned, order, leading = []) {
  const known = new Set(ranks);
  const head = [...new Set([...pinned, ...leading])].filter((rank) => known.has(rank));
  const first = new Set(head);
  const rest = ranks.filter((rank) => !first.has(rank));
  rest.sort((a, b) => (order ? (order.get(b) ?? -Infinity) - (order.get(a) ?? -Infinity) : 0) || (a % SECOND) - (b % SECOND) || a - b);
  return [...head, ...rest];
}

/** @param {number} rank @param {{ segment: number, track: number }} track */
export function trackKey(rank, track) {
  return `${rank}.${track.segment}.${track.track}`;
}

/** "host" folds a group on all ranks; "2:host" is an exception of rank 2.
 * @param {string[]} folds @param {number} rank @param {string} group */
export function isFolded(folds, rank, group) {
  return folds.includes(group) !== folds.includes(`${rank}:${group}`);
}

/** Fold or unfold a group of one rank, or of all.
 * @param {string[]} folds @param {string} group @param {number} [rank] */
export function toggleFold(folds, group, rank) {
  if (rank === undefined) {
    const rest = folds.filter((fold) => fold !== group && !fold.endsWith(`:${group}`));
    return folds.includes(group) ? rest : [...rest, group];
  }
  const exception = `${rank}:${group}`;
  return folds.includes(exception) ? folds.filter((fold) => fold !== exception) : [...folds, exception];
}

/** Whether a filter names a track: by its label, its group, its kind or a category of its slices. "stream 7" is not "stream 76".
 * @param {string} filter @param {string[]} texts */
export function named(filter, texts) {
  const wanted = filter.trim().toLowerCase();
  return texts.some((text) => {
    const at = text.toLowerCase().indexOf(wanted);
    return at >= 0 && !(/\d$/.test(wanted) && /\d/.test(text[at + wanted.length] ?? ""));
  });
}

/** The outer groups of many ranks, in the order of the map; none of few ranks.
 * @param {{ ranks: number[], grid?: { ranks: number[], levels: { label: string, from: number, to: number }[][] } }} run @returns {RankGroup[]} */
export function groupsOf({ ranks, grid }) {
  const groups = grid?.levels[0] ?? [];
  if (ranks.length <= MANY || groups.length < 2 || grid?.ranks.length !== ranks.length) return [];
  return groups.map(({ label, from, to }) => ({ label, ranks: grid.ranks.slice(from, to) }));
}

/** The rows from top to bottom, and the pinned tracks, which stay above them.
 * @param {Shown} shown @returns {{ rows: Row[], height: number, pins: TrackRow[], pinsHeight: number }} */
export function rowsOf(shown) {
  const { ranks, open, pinned, tracks, counters, filter } = shown;
  /** @type {Row[]} */
  const rows = [];
  let y = 0;
  /** @param {any} row */
  const add = (row) => {
    rows.push({ ...row, y });
    y += row.height;
  };
  /** @param {number} rank */
  const addRank = (rank) => {
    add({ type: "rank", rank, height: HEADER, open: open.has(rank), pinned: pinned.includes(rank) });
    if (!open.has(rank)) return;
    const all = tracks.get(rank) ?? [];
    for (const group of GROUPS) {
      const ofValues = (counters.get(rank) ?? []).filter((counter) => counter.group === group);
      const mine = ofValues.length ? counterRows(rank, ofValues, filter)
        : all.filter((track) => track.group === group && named(filter, [track.short, track.label, track.kind, group, ...track.categories]))
          .map((track) => trackRow(rank, track, shown));
      if (!mine.length) continue;
      if (!filter && isFolded(shown.folds, rank, group)) add({ type: "group", rank, group, height: FOLDED, ...summary(group, mine) });
      else mine.forEach((row, at) => add({ ...row, first: at === 0 }));
    }
    y += GAP;
  };
  const { groups = [], apart } = shown;
  ranks.filter((rank) => !groups.length || apart?.has(rank)).forEach(addRank);
  groups.forEach((group, number) => {
    const isOpen = !isFolded(shown.folds, number, RANKS);
    add({ type: "ranks", rank: -1 - number, number, ...group, open: isOpen, height: HEADER });
    if (isOpen) group.ranks.filter((rank) => !apart?.has(rank)).forEach(addRank);
  });
  const pins = pinnedRows(shown);
  return { rows, height: y, pins, pinsHeight: pins.reduce((sum, row) => sum + row.height, 0) };
}

/** @param {Shown} shown @returns {TrackRow[]} */
function pinnedRows(shown) {
  const { pins, tracks } = shown;
  let y = 0;
  return pins.flatMap((key) => {
    const rank = Number(key.split(".")[0]);
    const track = (tracks.get(rank) ?? []).find((one) => trackKey(rank, one) === key);
    if (!track) return [];
    const row = { ...trackRow(rank, track, shown), y };
    y += row.height;
    return [row];
  });
}

/** @param {number} rank @param {Track} track @param {Shown} shown @returns {TrackRow} */
function trackRow(rank, track, { pins, depths }) {
  const key = trackKey(rank, track);
  const lanes = Math.min(Math.max(track.rows, 1), depths?.get(key) ?? MOST_LANES, MOST_LANES);
  return { type: "track", rank, track, group: track.group, first: false, pinned: pins.includes(key), y: 0, lanes, height: lanes * LANE + GAP };
}

/** @param {number} rank @param {Counter[]} counters @param {string} filter @returns {CounterRow[]} */
function counterRows(rank, counters, filter) {
  return counters.filter((counter) => named(filter, [counter.label, counter.group]))
    .map((counter) => ({ type: "counter", rank, counter, group: counter.group, first: false, y: 0, height: COUNTER }));
}

/** What stands for a folded group. @param {string} group @param {any[]} rows */
function summary(group, rows) {
  if (rows[0].type === "counter") return { label: group, text: rows.map((row) => row.counter.label).join(", ") };
  const own = rows.filter((row) => row.track.short !== "annotations");
  const share = Math.min(own.reduce((/** @type {number} */ sum, row) => (group === "host" ? Math.max(sum, row.track.share) : sum + row.track.share), 0), 1);
  const text = `${(100 * share).toFixed(1)} % of the time`;
  const many = (/** @type {string} */ word) => `${own.length} ${word}${own.length === 1 ? "" : "s"}`;
  if (group === "more") return { label: `${own.length} more streams`, text };
  return { label: group, text: group === "communication" ? text : `${many(group === "host" ? "thread" : "stream")}, ${group === "host" ? "the busiest " : ""}${text}` };
}

/** The rows between two vertical positions.
 * @template {{ y: number, height: number }} R @param {R[]} rows @param {number} top @param {number} bottom @returns {R[]} */
export function visible(rows, top, bottom) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].y + rows[middle].height <= top) low = middle + 1;
    else high = middle;
  }
  const shown = [];
  for (let at = low; at < rows.length && rows[at].y < bottom; at++) shown.push(rows[at]);
  return shown;
}

/** A window that stays inside the run and is never narrower than ten nanoseconds.
 * @param {number} begin @param {number} end @param {number} first @param {number} last @returns {[number, number]} */
export function clamp(begin, end, first, last) {
  const width = Math.min(Math.max(end - begin, 10), last - first);
  const from = Math.min(Math.max(begin, first), last - width);
  return [from, from + width];
}

/** Zoom around a point.
 * @param {number} begin @param {number} end @param {number} at @param {number} factor @returns {[number, number]} */
export function zoomed(begin, end, at, factor) {
  return [at - (at - begin) * factor, at + (end - at) * factor];
}

/** @typedef {{ step: number, start_ns: number, dur_ns: number }} Step */

/** The step that a time is in, or the last one before it; undefined before the first. @template {{ start_ns: number }} S
 * @param {S[]} steps @param {number} ns @returns {S | undefined} */
export function stepAt(steps, ns) {
  return steps.findLast((step) => step.start_ns <= ns);
}

/** The steps that both runs have: where they begin, and the time of the longer one.
 * @param {Step[]} first @param {Step[]} second */
export function sharedSteps(first, second) {
  const other = new Map(second.map((step) => [step.step, step]));
  return first.flatMap((step) => {
    const twin = other.get(step.step);
    return twin ? [{ start_ns: step.start_ns, later_ns: twin.start_ns - step.start_ns, dur_ns: Math.max(step.dur_ns, twin.dur_ns) }] : [];
  });
}
