// Names of kernels and ops for people: without what says nothing, cut where they stop differing. Pure, for tests in node.
// The rules are those of text/names.py; tests/text/short_names.json has cases for both.

/** @typedef {[number, number][]} Parts ranges of characters that are kept */

const ENGINE = "autograd::engine::evaluate_function: ";
const CPP = /::|^void |\w<.*>|\w\((?:[^()]*[*&]|(?:unsigned|bool|char|int|long|float|double)\b)/;
const UNNAMED = /\(anonymous namespace\)|<unnamed>|operator\(\)/g;
const RETURN_TYPE = /(?:^void|::type)$/;
const QUALIFIED = /(?:\w+::)*(\w+)/dg;
const APPLIES = /elementwise|multi_tensor_apply|reduce_kernel|index_kernel/;
const FUNCTION = /\b(?!gpu_kernel_impl|[AB]UnaryFunctor|BinaryFunctor)(?:[A-Za-z_]\w*(?:[Kk]ernel|_cuda|[Ff]unctor|Impl|Ops)\w*|launch_\w+)/;
const WRAPPERS = new Set(["Kernel", "Kernel2", "device_kernel"]);
const LEAST_PART = 8;
const MOST_KNOWN = 20_000;

/** @param {string} name @param {number} [room] */
export function shortenName(name, room) {
  return shortenNames([name], room)[0];
}

/** The names of one column, each in at most `room` characters; verbatim: only what the room demands is cut.
 * @param {string[]} names @param {number} [room] @param {boolean} [verbatim] @returns {string[]} */
export function shortenNames(names, room = Infinity, verbatim = false) {
  /** @type {Map<string, Parts>} */
  const parts = new Map(names.map((name) => [name, verbatim ? whole(name) : essence(name)]));
  if (!verbatim) {
    tellApart(parts, wordAt);
    for (const name of alike(parts).flat()) parts.set(name, whole(name));
  }
  const short = new Map([...parts].map(([name, kept]) => [name, joined(name, kept)]));
  /** @type {Map<string, Parts>} */
  const cut = new Map([...short.values()].map((text) => [text, withoutMiddle(text, room)]));
  if (room >= LEAST_PART) tellApart(cut, (text, index) => around(text, index, room));
  return names.map((name) => {
    const text = short.get(name) ?? "";
    return joined(name, within(parts.get(name) ?? [], cut.get(text) ?? []));
  });
}

/** @type {Map<string, Parts>} */
const essences = new Map();

/** The function's own name, and the function that it applies; the whole of other texts. @param {string} name @returns {Parts} */
function essence(name) {
  let parts = essences.get(name);
  if (!parts) {
    if (essences.size > MOST_KNOWN) essences.clear();
    essences.set(name, parts = essenceOf(name));
  }
  return parts;
}

/** @param {string} name @returns {Parts} */
function essenceOf(name) {
  const begin = name.startsWith(ENGINE) ? ENGINE.length : 0;
  if (!CPP.test(name.slice(begin))) return [[begin, name.length]];
  const plain = name.replace(UNNAMED, (match) => "_".repeat(match.length));
  const core = coreOf(plain, begin);
  if (!core) return [[begin, name.length]];
  const [start, end] = core;
  const inner = WRAPPERS.has(name.slice(start, end)) && coreOf(plain.slice(end + 1).split(/[,>]/)[0], 0);
  if (inner) return [[end + 1 + inner[0], end + 1 + inner[1]]];
  const applied = APPLIES.test(name.slice(start, end)) && plain[end] === "<" && FUNCTION.exec(plain.slice(end));
  return applied ? [core, [end + applied.index, end + applied.index + applied[0].length]] : [core];
}

/** Start and end of the identifier before template arguments and parameters; null if it is no C++ name.
 * @param {string} text @param {number} begin @returns {[number, number] | null} */
function coreOf(text, begin) {
  let [depth, start, end] = [0, begin, 0];
  for (let index = begin; index < text.length; index++) {
    const char = text[index];
    if ("<({".includes(char)) {
      if (depth === 0 && !end && index > start && isWord(text[index - 1])) end = index;
      if (depth === 0 && end && char === "(") break;
      depth++;
    } else if (">)}".includes(char)) depth--;
    else if (depth === 0 && (char === ":" || char === " ")) {
      if (char === " " && !RETURN_TYPE.test(text.slice(begin, index))) return null; // a sentence
      [start, end] = [index + 1, 0];
    }
  }
  end ||= text.length;
  return depth >= 0 && start < end && isWord(text[start]) ? [start, end] : null;
}

/** @param {string | undefined} char */
function isWord(char) {
  return char !== undefined && /[\p{L}\p{N}_]/u.test(char);
}

/** Whether a cut in front of a character divides a word. @param {string} text @param {number} index */
function isInsideWord(text, index) {
  return index > 0 && isWord(text[index - 1]) && isWord(text[index]);
}

/** @param {string} text @returns {Parts} */
function whole(text) {
  return [[0, text.length]];
}

/** The parts, with an ellipsis between them, and at an end where a word is cut. @param {string} text @param {Parts} parts */
function joined(text, parts) {
  if (!parts.length) return "";
  const [before, after] = [parts[0][0], parts[parts.length - 1][1]].map((index) => (isInsideWord(text, index) ? "…" : ""));
  return before + parts.map(([begin, end]) => text.slice(begin, end)).join("…") + after;
}

/** Of names that look alike, show where they differ: at the end of their common beginning.
 * @param {Map<string, Parts>} parts @param {(name: string, index: number, kept: Parts) => Parts} differing */
function tellApart(parts, differing) {
  const split = (/** @type {string[]} */ names) => {
    const index = commonLength(names);
    for (const name of names) parts.set(name, differing(name, index, parts.get(name) ?? []));
    for (const group of alike(parts, names)) if (group.length < names.length) split(group);
  };
  for (const group of alike(parts)) split(group);
}

/** Groups of names that look the same. @param {Map<string, Parts>} parts @param {string[]} [among] */
function alike(parts, among = [...parts.keys()]) {
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const name of among) {
    const shown = joined(name, parts.get(name) ?? []);
    const group = groups.get(shown);
    if (group) group.push(name);
    else groups.set(shown, [name]);
  }
  return [...groups.values()].filter((group) => group.length > 1);
}

/** @param {string[]} names */
function commonLength(names) {
  const sorted = [...names].sort();
  const [first, last] = [sorted[0], sorted[sorted.length - 1]];
  let at = 0;
  while (at < first.length && first[at] === last[at]) at++;
  return at;
}

/** With the word at `index`, or the next one; one in front of the name with all that stands between them.
 * @param {string} name @param {number} index @param {Parts} parts @returns {Parts} */
function wordAt(name, index, parts) {
  while (isInsideWord(name, index)) index--;
  QUALIFIED.lastIndex = index;
  const match = QUALIFIED.exec(name);
  if (!match?.indices) return parts;
  const [start, end] = match.indices[1];
  if (end <= parts[0][1]) return [[match.index, parts[0][1]], ...parts.slice(1)];
  if (parts.some((part) => part[0] <= start && start < part[1])) return parts;
  return /** @type {Parts} */ ([...parts, [start, end]]).sort((a, b) => a[0] - b[0]);
}

/** The beginning gets three fifths of the room. @param {number} length @param {number} room @returns {[number, number]} */
function middleCut(length, room) {
  const end = Math.floor(((room - 1) * 2) / 5);
  return [room - 1 - end, length - end];
}

/** @param {string} text @param {number} room @returns {Parts} */
function withoutMiddle(text, room) {
  if (text.length <= room) return whole(text);
  if (room <= 0) return [];
  const [left, right] = middleCut(text.length, room);
  return [[0, left], [right, text.length]];
}

/** The beginning of a text and what stands at an index, and the end if it fits.
 * @param {string} text @param {number} index @param {number} room @returns {Parts} */
function around(text, index, room) {
  if (text.length <= room) return whole(text);
  const [left, right] = middleCut(text.length, room);
  if (index < left || index >= right) return [[0, left], [right, text.length]];
  const head = Math.floor(room / 4);
  const rest = room - head - 2;
  const from = Math.max(head, index - Math.floor(rest / 4));
  if (text.length - from <= rest + 1) return [[0, head], [Math.max(text.length - rest - 1, head), text.length]]; // needs no second ellipsis
  return [[0, head], [from, from + rest]];
}

/** The ranges of a name that are left when `cut` is applied to its joined parts. @param {Parts} parts @param {Parts} cut @returns {Parts} */
function within(parts, cut) {
  /** @type {Parts} */
  const ranges = [];
  let done = 0;
  for (const [begin, end] of parts) {
    for (const [a, b] of cut) {
      const [low, high] = [Math.max(a, done), Math.min(b, done + end - begin)];
      if (low < high) ranges.push([begin + low - done, begin + high - done]);
    }
    done += end - begin + 1;
  }
  return ranges;
}
