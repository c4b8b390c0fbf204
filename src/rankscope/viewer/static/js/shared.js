// The answers of a shared file: those that do not depend on what is visible were recorded (viewer/shared_file.py), the others
// are computed here from the slices of the file, as the server computes them from those of the run.

import { ServerError } from "./api.js";
import { cut } from "./format.js";

/** @typedef {Record<string, any>} Row */

const CLASSES = ["compute", "comm", "wait", "copy", "bubble"];
const REFERENCES = ["launch", "op", "python", "module", "parent"];
const BRIEF = ["rank", "segment", "id", "track", "depth", "name", "category", "start_ns", "dur_ns"];
const MOST = 100;
const NAME_CHARACTERS = 44;
const GROUPS = /** @type {Record<string, string[]>} */ ({ name: ["name", "category"], track: ["rank", "label"], rank: ["rank"], category: ["category"] });

/** The content of a file: JSON, deflated, as base64. @param {string} text */
export async function readShared(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new SharedFile(await new Response(stream).json());
}

export class SharedFile {
  /** @param {any} content */
  constructor(content) {
    this.content = content;
    /** @type {string} the state of the page that was shared, as in its address */
    this.view = content.view;
    const drawn = slicesOf(content);
    this.slices = drawn.filter(({ track }) => track >= 0);
    this.labels = new Map(Object.entries(content.recorded).filter(([name]) => name.startsWith("tracks/"))
      .flatMap(([, answer]) => answer.tracks.map((/** @type {any} */ track) => [`${answer.rank}.${track.segment}.${track.track}`, track.label])));
    for (const slice of this.slices) slice.label = this.labels.get(`${slice.rank}.${slice.segment}.${slice.track}`) ?? "";
    this.byId = new Map(this.slices.map((slice) => [keyOf(slice), slice]));
    this.collectives = new Map(content.collectives.flatMap((/** @type {Row} */ answer) => answer.rows.map((/** @type {Row} */ row) => [keyOf(row), answer])));
    /** @type {Map<string, Row[]>} in order of row and start */
    this.tracks = new Map();
    for (const slice of drawn) {
      const key = slice.track < 0 ? `${slice.rank}/${slice.track}` : `${slice.rank}/${slice.segment}/${slice.track}`;
      const track = this.tracks.get(key);
      if (track) track.push(slice);
      else this.tracks.set(key, [slice]);
    }
  }

  /** What the server answers. Columns of numbers are arrays in `column`.
   * @param {string} name @param {Record<string, any>} query @returns {any} */
  answer(name, query) {
    const own = /** @type {Record<string, (query: any) => any>} */ ({
      overview: (q) => this.overview(q), tile: (q) => this.tile(q), counter: (q) => this.counter(q), slice: (q) => this.details(q),
      neighbour: (q) => this.neighbour(q), collective: (q) => this.collectives.get(keyOf(q)), area: (q) => this.area(q), events: (q) => this.events(q),
      search: (q) => this.search(q), find: (q) => this.find(q), flows: (q) => this.flows(q), state: () => ({ state: "open" }), marks: () => ({ files: [] }),
    })[name];
    if (own) return own(query);
    const { recorded } = this.content;
    const key = { report: `report/${query.name}`, charts: `charts/${query.name}`, flame: `flame/${query.by || (recorded["flame/python/host"]?.total_ns ? "python" : "op")}/${query.time ?? "host"}` }[name]
      ?? (query.rank === undefined ? name : `${name}/${query.rank}`);
    if (!(key in recorded)) {
      throw new ServerError("This file does not contain that.", "It holds one window of the run, and no database.", `Open the run itself: rankscope view ${recorded.run.path}`);
    }
    const answer = recorded[key];
    if (name === "report" && query.ranks !== undefined) return { ...answer, rows: answer.rows.filter((/** @type {Row} */ row) => row.rank === Number(query.ranks)) };
    return answer;
  }

  /** @param {any} query */
  overview({ begin, end, width, ranks }) {
    const wanted = ranks ? String(ranks).split(",").map(Number) : this.content.recorded.run.ranks;
    /** @type {Record<string, Uint8Array>} */
    const column = Object.fromEntries([...CLASSES, "unrecorded"].map((name) => [name, new Uint8Array(wanted.length * width)]));
    wanted.forEach((/** @type {number} */ rank, /** @type {number} */ index) => {
      const { recorded, ...classes } = this.content.activity[rank];
      for (const name of CLASSES) {
        if (classes[name]) column[name].set(shares(classes[name], begin, end, width).map((share) => Math.ceil(share * 255)), index * width);
      }
      column.unrecorded.set(shares(recorded, begin, end, width).map((share) => Math.floor((1 - share) * 255)), index * width);
    });
    return { ranks: wanted, width, begin_ns: begin, end_ns: end, column };
  }

  /** @param {any} query */
  tile({ rank, segment, track, level, index }) {
    const { tile_width: width } = this.content.recorded.run;
    const all = this.tracks.get(track < 0 ? `${rank}/${track}` : `${rank}/${segment}/${track}`) ?? [];
    const drawn = longest(all, index * width * 2 ** level, 2 ** level, width);
    /** @type {Record<string, string>} */
    const names = {};
    const numbers = new Map();
    const name = drawn.map(({ slice }) => {
      if (!numbers.has(slice.name)) numbers.set(slice.name, slice.name_number ?? numbers.size);
      names[numbers.get(slice.name)] = slice.name;
      return numbers.get(slice.name);
    });
    const peers = drawn.map(({ slice }) => this.waitOf(slice));
    const of = (/** @type {string} */ key) => Float64Array.from(drawn, ({ slice }) => slice[key]);
    return {
      rank, segment, track, level, index, names, short: this.content.short,
      column: {
        start: of("start_ns"), duration: of("dur_ns"), id: of("id"), name: Uint32Array.from(name), count: Uint32Array.from(drawn, ({ count }) => count),
        segment: Uint16Array.from(drawn, ({ slice }) => slice.segment), row: Uint16Array.from(drawn, ({ slice }) => slice.depth), kind: Uint8Array.from(drawn, ({ slice }) => slice.kind),
        wait: Float64Array.from(peers, ({ wait }) => wait), match: Float64Array.from(peers, ({ match }) => match), last: Float64Array.from(peers, ({ last }) => last),
      },
    };
  }

  /** How long a slice waits for another rank, in which collective, and for whom. @param {Row} slice */
  waitOf(slice) {
    const answer = this.collectives.get(keyOf(slice));
    const own = answer?.rows.find((/** @type {Row} */ row) => keyOf(row) === keyOf(slice));
    return { wait: own?.wait_ns ?? 0, match: Number(answer?.title.split("#")[1] ?? -1), last: answer?.last ?? -1 };
  }

  /** @param {any} query */
  counter({ rank, name, begin, end, width }) {
    const { time, value } = this.content.counters[rank][name];
    const highest = new Float64Array(width);
    let at = 0;
    let held = 0;
    for (let pixel = 0; pixel < width; pixel++) {
      const edge = begin + ((end - begin) * (pixel + 1)) / width;
      let most = held;
      for (; at < time.length && time[at] <= edge; at++) {
        held = value[at];
        if (time[at] >= begin) most = Math.max(most, held);
        else most = held;
      }
      highest[pixel] = most;
    }
    return { rank, name, max: Math.max(...value, 0), column: { value: highest } };
  }

  /** @param {any} query */
  details(query) {
    const slice = this.byId.get(keyOf(query));
    if (!slice) throw new ServerError("This slice is not in the file.", "The file holds one window of the run.", "");
    const same = this.slices.filter((other) => other.name === slice.name && other.category === slice.category).map((other) => other.dur_ns).sort((a, b) => a - b);
    const launched = this.slices.filter((other) => other.rank === slice.rank && other.segment === slice.segment && other !== slice
      && (other.launch === slice.id || (other.op === slice.id && other.on_device))).slice(0, 20);
    const related = REFERENCES.map((name) => [name, this.byId.get(`${slice.rank}/${slice.segment}/${slice[name]}`)]).filter(([, other]) => other);
    return {
      ...slice, step_start_ns: null, args: slice.args ?? {}, where: slice.label, links: [], launched, origin: slice.origin, related: Object.fromEntries(related), compared: compared(same, slice.dur_ns),
      is_collective: this.collectives.has(keyOf(slice)),
    };
  }

  /** @param {any} query */
  neighbour({ rank, segment, id, by }) {
    const slice = this.byId.get(keyOf({ rank, segment, id }));
    const row = slice ? this.slices.filter((other) => other.rank === rank && other.segment === segment && other.track === slice.track && other.depth === slice.depth) : [];
    return { found: row[row.findIndex((other) => other.id === id) + (by > 0 ? 1 : -1)] ?? null };
  }

  /** The slices that a request names. @param {any} query @returns {Row[]} */
  inside({ begin, end, ranks, tracks, text }) {
    const wanted = ranks ? new Set(String(ranks).split(",").map(Number)) : null;
    const keys = tracks ? new Set(tracks.split(",")) : null;
    const part = (text ?? "").toLowerCase();
    return this.slices.filter((slice) => slice.start_ns < end && slice.start_ns + slice.dur_ns > begin && (!wanted || wanted.has(slice.rank))
      && (!keys || keys.has(`${slice.rank}.${slice.segment}.${slice.track}`))
      && (!part || [slice.name, slice.category, slice.label].some((word) => word.toLowerCase().includes(part))));
  }

  /** @param {any} query */
  events(query) {
    const { sort = "start_ns", order, limit = 100, offset = 0, slice } = query;
    const by = sort === "track" ? "label" : sort;
    const sign = order === "descending" ? -1 : 1;
    const rows = this.inside(query).sort((a, b) => {
      const [left, right] = [a[by], b[by]];
      if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1;
      return (left < right ? -1 : left > right ? 1 : 0) * sign;
    });
    const index = slice ? rows.findIndex((row) => `${row.rank}.${row.segment}.${row.id}` === slice) : -1;
    return { count: rows.length, total_ns: rows.reduce((sum, row) => sum + row.dur_ns, 0), rows: rows.slice(offset, offset + limit), place: index < 0 ? null : index };
  }

  /** @param {any} query */
  area(query) {
    const { begin, end, by = "name", ranks } = query;
    /** @type {Map<string, Row>} */
    const groups = new Map();
    for (const slice of this.inside(query)) {
      const key = [...GROUPS[by].map((name) => slice[name]), slice.on_device].join("\u0000");
      const group = groups.get(key) ?? { ...Object.fromEntries(GROUPS[by].map((name) => [name, slice[name]])), short: slice.short, on_device: slice.on_device, count: 0, inside_ns: 0, sum_ns: 0, max_ns: 0 };
      group.count += 1;
      group.inside_ns += Math.min(slice.start_ns + slice.dur_ns, end) - Math.max(slice.start_ns, begin);
      group.sum_ns += slice.dur_ns;
      group.max_ns = Math.max(group.max_ns, slice.dur_ns);
      group.avg_ns = group.sum_ns / group.count;
      groups.set(key, group);
    }
    const sorted = [...groups.values()].sort((a, b) => b.inside_ns - a.inside_ns);
    const shown = String(ranks).split(",").map((rank) => {
      const { recorded, ...classes } = this.content.activity[rank];
      const parts = CLASSES.map((name) => [name, classes[name] ? shares(classes[name], begin, end, 1)[0] : 0]);
      const unrecorded = 1 - shares(recorded, begin, end, 1)[0];
      return { rank: Number(rank), ...Object.fromEntries(parts), unrecorded, idle: Math.max(0, 1 - unrecorded - parts.reduce((sum, [, share]) => sum + Number(share), 0)) };
    });
    return { begin_ns: begin, end_ns: end, shares: shown, device: sorted.filter((group) => group.on_device), host: sorted.filter((group) => !group.on_device), more: { device: 0, host: 0 } };
  }

  /** @param {any} query */
  search(query) {
    const matches = matcher(query);
    /** @type {Map<string, Row>} */
    const names = new Map();
    for (const slice of this.slices) {
      if (!matches(slice.name)) continue;
      const key = `${slice.name}\u0000${slice.category}`;
      const entry = names.get(key) ?? { name: slice.name, short: slice.short, category: slice.category, count: 0, total_ns: 0, first_ns: slice.start_ns, on: new Set() };
      entry.count += 1;
      entry.total_ns += slice.dur_ns;
      entry.first_ns = Math.min(entry.first_ns, slice.start_ns);
      entry.on.add(slice.rank);
      names.set(key, entry);
    }
    /** @type {Row[]} */
    const sorted = [...names.values()].sort((a, b) => b.total_ns - a.total_ns).map((entry) => ({ ...entry, on: undefined, ranks: [...entry.on].sort((a, b) => a - b).join(",") }));
    return { q: query.q, names: sorted.slice(0, MOST), count: sorted.reduce((sum, entry) => sum + entry.count, 0), more_names: Math.max(0, sorted.length - MOST) };
  }

  /** @param {any} query */
  find(query) {
    const matches = query.name ? (/** @type {string} */ name) => name === query.name : matcher(query);
    const back = query.direction === "previous";
    const hits = this.slices.filter((slice) => matches(slice.name) && (query.rank === undefined || slice.rank === Number(query.rank))).sort(inOrder);
    const [rank, segment, id] = query.after ? query.after.split(".").map(Number) : Array(3).fill(back ? -Infinity : Infinity);
    const at = { start_ns: Number(query.at), rank, segment, id };
    const index = back ? hits.findLastIndex((slice) => inOrder(slice, at) < 0) : hits.findIndex((slice) => inOrder(slice, at) > 0);
    return index < 0 ? { found: null, count: hits.length } : { found: brief(hits[index]), place: index + 1, count: hits.length };
  }

  /** @param {any} query */
  flows({ rank, name, begin, end }) {
    const pointOf = (/** @type {Row} */ slice) => ({ rank: slice.rank, segment: slice.segment, track: slice.track, row: slice.depth, start: slice.start_ns });
    const callers = new Map(this.slices.filter((slice) => slice.rank === Number(rank) && slice.name === name && slice.start_ns < end && slice.start_ns + slice.dur_ns > begin)
      .map((slice) => [keyOf(slice), slice]));
    const flows = this.slices.filter((slice) => slice.on_device).flatMap((slice) => [slice.op, slice.launch].flatMap((id) => {
      const caller = callers.get(`${slice.rank}/${slice.segment}/${id}`);
      return caller ? [[pointOf(caller), pointOf(slice)]] : [];
    }));
    return { more: false, flows };
  }
}

/** @param {Row} slice */
function keyOf(slice) {
  return `${slice.rank}/${slice.segment}/${slice.id}`;
}

/** @param {Row} slice */
function brief(slice) {
  return Object.fromEntries(BRIEF.map((name) => [name, slice[name]]));
}

/** @param {Row} a @param {Row} b */
function inOrder(a, b) {
  return a.start_ns - b.start_ns || a.rank - b.rank || a.segment - b.segment || a.id - b.id || 0;
}

/** The rows of the file's columns. @param {any} content @returns {Row[]} */
function slicesOf({ slices, texts, short }) {
  let [id, start] = [0, 0];
  return slices.id.map((/** @type {number} */ step, /** @type {number} */ at) => {
    id += step;
    start += slices.start_ns[at];
    const row = Object.fromEntries(Object.keys(slices).map((name) => [name, slices[name][at]]));
    for (const name of REFERENCES) row[name] = row[name] === null ? null : id - row[name];
    return { ...row, id, start_ns: start, name: texts[row.name], short: cut(short[texts[row.name]] ?? texts[row.name], NAME_CHARACTERS), name_number: row.name, category: texts[row.category], on_device: Boolean(row.on_device) };
  });
}

/** For each row and pixel of a window, the longest slice that starts in it and how many do; and what reaches into the window.
 * @param {Row[]} slices in order of row and start @param {number} begin @param {number} step ns of a pixel @param {number} width */
export function longest(slices, begin, step, width) {
  const end = begin + step * width;
  /** @type {{ slice: Row, count: number, pixel: number }[]} */
  const drawn = [];
  for (const slice of slices) {
    if (slice.start_ns >= end || (slice.start_ns < begin && slice.start_ns + slice.dur_ns <= begin)) continue;
    const pixel = slice.start_ns < begin ? -1 : Math.floor((slice.start_ns - begin) / step);
    const last = drawn[drawn.length - 1];
    if (last && last.pixel === pixel && last.slice.depth === slice.depth) {
      last.count += 1;
      if (slice.dur_ns > last.slice.dur_ns) last.slice = slice;
    } else drawn.push({ slice, count: 1, pixel });
  }
  return drawn;
}

/** The share of each of `width` equal parts of a window that intervals cover.
 * @param {[number[], number[]]} intervals starts and ends, in order @param {number} begin @param {number} end @param {number} width */
export function shares([starts, ends], begin, end, width) {
  const size = (end - begin) / width;
  const covered = new Float64Array(width);
  for (let at = 0; at < starts.length; at++) {
    const [from, to] = [Math.max(starts[at], begin), Math.min(ends[at], end)];
    for (let pixel = Math.floor((from - begin) / size); from < to && pixel < width && begin + pixel * size < to; pixel++) {
      covered[pixel] += (Math.min(to, begin + (pixel + 1) * size) - Math.max(from, begin + pixel * size)) / size;
    }
  }
  return covered.map((share) => Math.min(share, 1));
}

/** @param {any} query @returns {(name: string) => boolean} */
function matcher({ q, regex }) {
  if (String(regex) !== "1") return (name) => name.toLowerCase().includes(q.toLowerCase());
  try {
    const pattern = new RegExp(q, "i");
    return (name) => pattern.test(name);
  } catch (error) {
    throw new ServerError(`'${q}' is not a regular expression`, String(error), "Switch the .* button off to search for this text as it is.");
  }
}

/** @param {number[]} durations in order @param {number} mine */
function compared(durations, mine) {
  const count = durations.length;
  const [low, high] = [durations[0], durations[count - 1]];
  const at = (/** @type {number} */ share) => durations[Math.min(count - 1, Math.floor(share * count))];
  const bins = high > low ? 32 : 1;
  const edges = Array.from({ length: bins + 1 }, (_, bin) => (bins === 1 ? low + bin : Math.max(low, 1) * (((high + 1) / Math.max(low, 1)) ** (bin / bins))));
  const counts = Array(bins).fill(0);
  for (const duration of durations) {
    const bin = edges.findLastIndex((edge) => duration >= edge);
    counts[Math.min(Math.max(bin, 0), bins - 1)] += 1;
  }
  return { count, p50_ns: at(0.5), p99_ns: at(0.99), min_ns: low, max_ns: high, longer: durations.filter((duration) => duration > mine).length, histogram: { edges_ns: edges, counts } };
}
