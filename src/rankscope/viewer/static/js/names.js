// Long names in little room: the beginning and the end stay, and names that differ look different. Pure, for tests in node.
// The rules are those of views/text.py.

/** @typedef {[number, number][]} Parts ranges of characters that are kept */

const LEAST_PART = 8;
const QUALIFIERS = /^(?:void )?(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)*/;
const PARAMETERS = /(?<=[\w>])\((?:[^()]|\([^()]*\))*\)$/;
const LINE_NUMBER = /\(\d+\)$/;

/** @param {string} name @param {number} room */
export function shortenName(name, room) {
  return shortenNames([name], room)[0];
}

/** The names of one column, each in at most `room` characters.
 * @param {string[]} names @param {number} room @returns {string[]} */
export function shortenNames(names, room) {
  /** @type {Map<string, Parts>} */
  const kept = new Map(names.map((name) => [name, shortened(name, room)]));
  if (room >= LEAST_PART) for (const group of alike(kept)) tellApart(group, room, kept);
  return names.map((name) => joined(name, kept.get(name) ?? []));
}

/** @param {string} text @param {Parts} kept */
function joined(text, kept) {
  if (!kept.length) return "";
  const before = kept[0][0] > 0 ? "…" : "";
  const after = kept[kept.length - 1][1] < text.length ? "…" : "";
  return before + kept.map(([begin, end]) => text.slice(begin, end)).join("…") + after;
}

/** A function name with its template arguments, without qualifiers and parameters; of other names, the whole.
 * @param {string} text @returns {[number, number]} */
function ownName(text) {
  const start = QUALIFIERS.exec(text)?.[0].length ?? 0;
  const end = LINE_NUMBER.test(text) ? text.length : PARAMETERS.exec(text)?.index ?? text.length;
  return start < end ? [start, end] : [0, text.length];
}

/** A name without `aten::`, `void at::native::` and parameters. @param {string} text */
export function ownWords(text) {
  return text.slice(...ownName(text));
}

/** The part of a name to work on, and the room for it besides the ellipses.
 * @param {string} text @param {number} room @param {number} [place] a character that must be in it
 * @returns {[number, number, number]} */
function ownPart(text, room, place) {
  const [start, end] = ownName(text);
  const inside = room - Number(start > 0) - Number(end < text.length);
  const has = place === undefined || (start <= place && place < end);
  return inside < LEAST_PART || !has ? [0, text.length, room] : [start, end, inside];
}

/** @param {string} text @param {number} room @returns {Parts} */
function shortened(text, room) {
  if (text.length <= room) return [[0, text.length]];
  const [start, end, inside] = ownPart(text, room);
  if (end - start <= inside) return [[start, end]];
  if (inside <= 0) return [];
  const [left, right] = middleCut(end - start, inside);
  return [[start, start + left], [start + right, end]];
}

/** The beginning gets three fifths of the room.
 * @param {number} length @param {number} room @returns {[number, number]} */
function middleCut(length, room) {
  const end = Math.floor(((room - 1) * 2) / 5);
  return [room - 1 - end, length - end];
}

/** Groups of names that look the same.
 * @param {Map<string, Parts>} kept @param {string[]} [among] */
function alike(kept, among = [...kept.keys()]) {
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const name of among) {
    const shown = joined(name, kept.get(name) ?? []);
    groups.set(shown, [...(groups.get(shown) ?? []), name]);
  }
  return [...groups.values()].filter((group) => group.length > 1);
}

/** Show where the common beginning ends; for names that still look the same, where theirs ends.
 * @param {string[]} names @param {number} room @param {Map<string, Parts>} kept */
function tellApart(names, room, kept) {
  const place = commonLength(names);
  for (const name of names) kept.set(name, around(name, place, room));
  for (const group of alike(kept, names)) if (group.length < names.length) tellApart(group, room, kept);
}

/** @param {string[]} names */
function commonLength(names) {
  const sorted = [...names].sort();
  const [first, last] = [sorted[0], sorted[sorted.length - 1]];
  let at = 0;
  while (at < first.length && first[at] === last[at]) at++;
  return at;
}

/** The beginning of a name and what stands at a place, and the end if it fits.
 * @param {string} text @param {number} place @param {number} room @returns {Parts} */
function around(text, place, room) {
  const [start, end, inside] = ownPart(text, room, place);
  if (end - start <= inside) return [[start, end]];
  const [left, right] = middleCut(end - start, inside).map((at) => start + at);
  if (place < left || place >= right) return [[start, left], [right, end]];
  const head = start + Math.floor(inside / 4);
  const rest = inside - Math.floor(inside / 4) - 2;
  const from = Math.max(head, place - Math.floor(rest / 4));
  if (end - from <= rest + 1) return [[start, head], [Math.max(end - rest - 1, head), end]]; // needs no second ellipsis
  return [[start, head], [from, from + rest]];
}
