// Formatting of numbers with units.

/** @type {[number, string][]} largest first */
const TIME = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
/** @type {[number, string][]} */
const COUNT = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

const READABLE = 0.1; // of a unit: with three decimals, less than that has fewer than three digits

/** @param {number} value @param {number} digits */
function short(value, digits = 3) {
  if (value === 0) return "0";
  const whole = Math.floor(Math.log10(Math.abs(value))) + 1;
  return value.toFixed(Math.max(0, Math.min(digits, digits - whole)));
}

/** @param {number | null | undefined} ns */
export function time(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [size, unit] of TIME) {
    if (Math.abs(ns) >= size) return `${short(ns / size)} ${unit}`;
  }
  return ns === 0 ? "0 ns" : `${short(ns)} ns`;
}

/** A point in time, with the digits that are significant at this zoom level.
 * @param {number} ns @param {number} span */
export function moment(ns, span) {
  const [size, unit] = TIME.find(([size]) => span >= size) ?? TIME[3];
  const digits = Math.max(0, Math.min(6, Math.ceil(Math.log10(size / Math.max(span, 1))) + 3));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

/** @param {number | null | undefined} value @param {string} unit */
export function quantity(value, unit) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (unit === "ns") return time(value);
  if (unit === "percent") return `${value.toFixed(1)} %`;
  if (unit === "bytes") return scaled(value, "B");
  if (unit === "flop") return scaled(value, "FLOP");
  if (unit === "flop/s") return scaled(value, "FLOP/s");
  if (unit === "GB/s") return `${short(value)} GB/s`;
  if (unit === "MHz" || unit === "W" || unit === "°C") return `${short(value, 4)} ${unit}`;
  return Number.isInteger(value) ? value.toLocaleString("en") : short(value, 4);
}

/** @param {number} value @param {string} unit */
export function scaled(value, unit) {
  for (const [size, prefix] of COUNT) {
    if (Math.abs(value) >= size) return `${short(value / size)} ${prefix}${unit}`;
  }
  return `${short(value)} ${unit}`;
}

/** @type {Record<string, [number, string][]>} */
const UNITS = {
  ns: TIME,
  bytes: [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]],
  flop: prefixed("FLOP"),
  "flop/s": prefixed("FLOP/s"),
  percent: [[1, "%"]],
  "GB/s": [[1, "GB/s"]],
  MHz: [[1, "MHz"]],
  W: [[1, "W"]],
  "°C": [[1, "°C"]],
};

/** @param {string} unit @returns {[number, string][]} */
function prefixed(unit) {
  return [...COUNT, /** @type {[number, string]} */ ([1, ""])].map(([size, prefix]) => [size, prefix + unit]);
}

/** One unit for all values of a column, which its heading names: the largest in which their median has three digits, as in units.py.
 * Null for plain numbers.
 * @param {string} unit @param {(number | null)[]} values @returns {{ label: string, text: (value: number) => string } | null} */
export function columnScale(unit, values) {
  const steps = UNITS[unit];
  if (!steps) return null;
  const sizes = values.map((value) => Math.abs(value ?? 0)).filter((value) => value > 0);
  sizes.sort((a, b) => a - b);
  const [least, median, largest] = [0, Math.floor(sizes.length / 2), sizes.length - 1].map((at) => sizes[at] ?? 0);
  const [size, label] = steps.find(([size]) => largest >= size && median >= READABLE * size) ?? steps[steps.length - 1];
  // Two digits of the least value, three of the largest, and at most three after the point.
  const needed = Math.max(1 - Math.floor(Math.log10(least / size || 1)), 2 - Math.floor(Math.log10(largest / size || 1)));
  const digits = unit === "percent" ? 1 : size === 1 && sizes.every(Number.isInteger) ? 0 : Math.min(Math.max(needed, 0), 3);
  return { label, text: (value) => (value === 0 ? "0" : (value / size).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })) };
}

/** @param {number} share of one */
export function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/** A text in so many characters, without its middle; the beginning gets three fifths. The server has shortened names before.
 * @param {string} text @param {number} room */
export function cut(text, room) {
  if (text.length <= room) return text;
  const end = Math.floor(((room - 1) * 2) / 5);
  return room > 1 ? `${text.slice(0, room - 1 - end)}…${text.slice(text.length - end)}` : "…".slice(0, Math.max(room, 0));
}

/** Ticks of an axis, at most about `most`, spaced by 1, 2 or 5 times a power of ten.
 * @param {number} begin @param {number} end @param {number} most @returns {number[]} */
export function ticks(begin, end, most) {
  const rough = (end - begin) / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-12)));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const ticks = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) ticks.push(at);
  return ticks;
}
