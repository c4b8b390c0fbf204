// The page /watch: the telemetry of a running job, asked for every second.

import { ServerError, json, show, write } from "./api.js";
import { byId, fill, h, s, showProblem } from "./dom.js";
import { quantity, time } from "./format.js";

const EVERY_MS = 1000;
const BAR = 10;
const HEIGHT = 90;

/** @param {(number | null)[]} times */
function medianOf(times) {
  const known = times.filter((one) => one !== null).sort((a, b) => a - b);
  return known[Math.floor(known.length / 2)] ?? null;
}

/** Bars from 0 to twice the median, so that one long step does not flatten the others.
 * @param {(number | null)[]} times @returns {{ x: number, height: number, long: boolean, title: string }[]} */
export function bars(times) {
  const top = 2 * (medianOf(times) || 1);
  return times.flatMap((one, index) => one === null ? [] : [{
    x: index * BAR, height: Math.min(one / top, 1) * HEIGHT, long: one > top, title: time(one),
  }]);
}

/** @param {any} state */
function figures(state) {
  const step = state.step_ns;
  return [
    h("div", {}, h("h1", {}, `${state.run} · ${state.state}`), h("p", {}, `step ${state.last_step.toLocaleString("en")}`)),
    kpi(step ? time(step.median) : "–", step ? `step; 90 % of ${step.steps}: ${time(step.p5)} to ${time(step.p95)}` : "step time"),
    kpi(`${state.alive_ranks} of ${state.world_size}`, "ranks alive"),
    kpi(`${state.like_median} of ${state.count}`, "ranks like the median"),
    kpi(state.memory_bytes ? quantity(state.memory_bytes.max, "bytes") : "–", "most memory of a rank"),
  ];
}

/** @param {string} value @param {string} label */
function kpi(value, label) {
  return h("div", { class: "kpi" }, h("b", {}, value), h("span", {}, label));
}

/** @param {any} alarm */
function alarmBox(alarm) {
  return h("div", { class: alarm.severity }, h("b", {}, `${alarm.severity}: `), alarm.text, h("p", {}, alarm.hint));
}

/** @param {any[]} alarms */
function pastAlarms(alarms) {
  if (!alarms.length) return [];
  const lines = alarms.map((alarm) => h("p", {}, `${alarm.text}${alarm.last_step > alarm.since_step ? `, until step ${alarm.last_step}` : ""}`));
  return [h("h2", {}, "Earlier"), ...lines.reverse()];
}

/** @param {any[]} ranks */
function rankTable(ranks) {
  const heading = h("tr", {}, h("th", {}, "rank"), ...["node", "phase", "cause"].map((name) => h("th", { class: "text" }, name)),
    ...["own work", "memory", "step", "ago"].map((name) => h("th", {}, name)));
  return h("table", {}, heading, ...ranks.map((rank) => h("tr", { class: rank.alarms.length ? "bad" : null },
    h("td", {}, rank.rank), ...[rank.node, rank.phase, rank.cause ?? ""].map((text) => h("td", { class: "text" }, text)),
    h("td", {}, rank.excess_ns === null ? "–" : `${rank.excess_ns > 0 ? "+" : ""}${time(rank.excess_ns)}`),
    h("td", {}, quantity(rank.memory_bytes, "bytes")), h("td", {}, rank.last_step),
    h("td", {}, `${(rank.without_step_s + rank.age_s).toFixed(0)} s`))));
}

/** Nothing where a job has one role. @param {any[]} roles @param {string} bottleneck */
function roleTable(roles, bottleneck) {
  if (!roles.length) return [];
  const heading = h("tr", {}, ...["role", "waits for"].map((name) => h("th", { class: "text" }, name)),
    ...["waits", "step time", "step"].map((name) => h("th", {}, name)));
  return [h("table", {}, heading, ...roles.map((role) => h("tr", {},
    ...[role.role, role.waits_for ?? ""].map((text) => h("td", { class: "text" }, text)),
    h("td", {}, role.wait_pct === null ? "–" : `${role.wait_pct.toFixed(0)} %`),
    h("td", {}, role.step_ns === null ? "–" : time(role.step_ns)), h("td", {}, role.last_step)))), h("p", {}, bottleneck)];
}

/** The times of the last steps, with axes. @param {(number | null)[]} times @param {number[]} steps */
function trend(times, steps) {
  const median = medianOf(times);
  if (median === null) return [];
  const right = times.length * BAR;
  const marks = (/** @type {string} */ name, /** @type {string[]} */ texts) => h("div", { class: name }, texts.map((text) => h("span", {}, text)));
  return [
    h("div", { class: "axes" }, marks("y", [time(2 * median), time(median), "0"]),
      s("svg", { viewBox: `0 0 ${right} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `Times of steps ${steps[0]} to ${steps[steps.length - 1]}` },
        ...bars(times).map((bar) => s("rect", { x: bar.x, y: HEIGHT - bar.height, width: BAR - 1, height: bar.height, class: bar.long ? "long" : "" },
          s("title", {}, `step ${steps[bar.x / BAR]}: ${bar.title}`))),
        s("line", { x1: 0, x2: right, y1: HEIGHT / 2, y2: HEIGHT / 2 })),
      marks("x", [0, times.length >> 1, times.length - 1].map((at) => `step ${steps[at]}`))),
    h("p", { class: "legend" }, h("span", {}, h("i", { class: "swatch compute" }), "time of a step"),
      h("span", {}, h("i", { class: "swatch long" }), "over twice the median: the bar is cut"), h("span", {}, "- - the median of these steps")),
  ];
}

/** All ranks record their next steps. */
async function capture() {
  const told = byId("asked");
  told.hidden = false;
  try {
    const { asked } = await write("capture", {});
    fill(told, `${asked.join("; ")}. Afterwards: rankscope view ${told.dataset.run}`);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    fill(told, [error.message, error.why, error.hint].filter(Boolean).join(" · "));
  }
}

/** @param {any} state */
function draw(state) {
  fill(byId("title"), `${state.run} · ${state.state}`);
  byId("asked").dataset.run = state.run;
  fill(byId("figures"), ...figures(state));
  fill(byId("roles"), ...roleTable(state.roles, state.bottleneck));
  fill(byId("trend"), ...trend(state.trend_ns, state.trend_steps));
  byId("capture").hidden = state.state !== "running";
  const present = state.alarms.length ? state.alarms.map(alarmBox) : [h("p", {}, "no alarm")];
  const suspected = state.suspicions.map((/** @type {any} */ alarm) => h("p", {}, h("b", {}, "suspicion, not an alarm yet: "), alarm.text));
  fill(byId("alarms"), ...present, ...suspected, ...pastAlarms(state.past_alarms));
  fill(byId("ranks"), rankTable(state.ranks));
  document.body.dataset.ready = "true";
}

async function refresh() {
  try {
    const state = await json("watch");
    byId("message").hidden = true;
    draw(state);
    if (["ended", "failed", "silent", "off"].includes(state.state)) return;
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    showProblem(error.message, error.why, error.hint);
  }
  setTimeout(refresh, EVERY_MS);
}

if (typeof document !== "undefined") {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  history.replaceState(null, "", location.pathname); // the token is in a cookie now
  byId("capture").addEventListener("click", () => { capture().catch(show); });
  refresh();
}
