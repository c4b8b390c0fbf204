// Start of the page: wait until the run is open, then draw it.

import { App, describe, startTheme } from "./app.js";
import { always, columns, json, show, useFile } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { scaled } from "./format.js";
import { lastPlace, listenToFrame } from "./frame.js";
import { drawGrowing } from "./growing.js";
import { listenToKeys } from "./keys.js";
import { listenToMarks } from "./marks.js";
import { listenToPointer } from "./pointer.js";
import { sharedSteps } from "./layout.js";
import { listenToMoves } from "./moves.js";
import { listenToShare } from "./share.js";
import { EMPTY, Store, decode } from "./state.js";
import { listenToTrackTools } from "./track_tools.js";
import { loadVerdict } from "./verdict.js";

/** The link has an address only here: a shared file has none. */
function showTelemetryLink() {
  const link = /** @type {HTMLAnchorElement} */ (byId("watch-link"));
  link.href = "watch";
  link.hidden = false;
}

/** Show the progress until the run is open, and draw what has been read; false if it cannot be opened. */
async function opened() {
  for (let drawn = 0; ;) {
    const state = await json("state");
    if (state.telemetry) showTelemetryLink();
    if (state.state === "open") return true;
    if (state.state === "failed") {
      fill(byId("verdict"), h("div", {}, h("h1", {}, state.error), h("p", {}, `${state.why} ${state.hint}`)));
      return false;
    }
    const share = state.total_bytes ? state.read_bytes / state.total_bytes : 0;
    fill(byId("verdict"), h("div", {}, h("h1", {}, state.doing ? `Reading traces: ${state.doing}` : "Reading traces"),
      h("p", {}, h("progress", { value: share, max: 1 }), ` ${scaled(state.read_bytes, "B")} of ${scaled(state.total_bytes, "B")}`)));
    if (state.batches > drawn) {
      drawn = state.batches;
      drawGrowing(await columns("growing", {}));
    }
    await new Promise((done) => setTimeout(done, 300));
  }
}

/** A page without a state in its address opens on the first finding, or on the one that its address names; without one, on
 * the whole run. Two runs open on a step of both.
 * @param {App} app @param {number} finding -1: none is named */
async function open(app, finding) {
  const { run } = app;
  if (run.second_steps) {
    const shared = sharedSteps(run.steps, run.second_steps);
    const step = shared[shared.length >> 1];
    if (step) app.show(step.start_ns - step.dur_ns * 0.01, step.start_ns + step.dur_ns * 1.01);
    app.store.set({ tab: "diff" });
  } else if (app.findings.length) await app.showFinding(Math.max(finding, 0), {});
  else app.store.set({ open: app.ranks.slice(0, 1) });
}

/** Where the page is a shared file: its data are in it, and so is the view to open on. */
async function readFile() {
  const content = document.getElementById("shared-file")?.textContent;
  if (!content) return;
  const { readShared } = await import("./shared.js");
  const file = await readShared(content);
  useFile(file);
  if (file.view && !location.hash) history.replaceState(null, "", file.view);
}

/** Whether a link names a finding and no time: the finding's scene says what to show. @param {Partial<import("./state.js").View>} view */
function namesFinding(view) {
  return (view.finding ?? -1) >= 0 && view.begin === undefined;
}

async function start() {
  // The cookie of the first answer is enough from now on: the token does not stay in the address and the history.
  if (location.search) history.replaceState(history.state, "", location.pathname + location.hash);
  await readFile();
  const requested = decode(location.hash);
  startTheme(requested.theme ?? "");
  if (!(await opened())) return;
  always.clocks = requested.clocks ?? "";
  /** @type {import("./app.js").Run} */
  const run = await json("run");
  const place = location.hash ? {} : lastPlace();
  const view = { ...EMPTY, ...requested, ...place, begin: requested.begin ?? run.begin_ns, end: requested.end ?? run.end_ns };
  const app = new App(run, new Store(view));
  describe(run);
  listenToFrame(app);
  listenToKeys(app);
  listenToPointer(app);
  listenToMarks(app);
  listenToShare(app);
  listenToTrackTools(app);
  window.addEventListener("popstate", () => app.store.set({ ...EMPTY, begin: run.begin_ns, end: run.end_ns, ...decode(location.hash) }));
  listenToMoves((link) => {
    const wanted = decode(link);
    if (namesFinding(wanted)) app.showFinding(wanted.finding ?? 0).catch(show);
    else app.store.set({ ...EMPTY, begin: run.begin_ns, end: run.end_ns, ...wanted, theme: app.store.view.theme }, { history: true });
  });
  app.store.listen((view, changed) => { if (changed.has("clocks")) setTimeout(() => location.reload(), 250); }); // all times change
  /** @type {any} */ (window).rankscope = app; // for the console and tests
  const fresh = !location.hash || namesFinding(requested);
  const map = app.overview.load();
  app.timeline.loadTracks();
  app.timeline.redraw();
  app.panels.changed(new Set(["tab"]));
  if (fresh && run.ranks.length === 1) app.store.set({ open: run.ranks }); // whatever is found is there: its tracks come first
  const untouched = app.store.view;
  await Promise.all([map, app.loadFindings()]);
  if (fresh && app.store.view === untouched) await open(app, requested.finding ?? -1);
  await loadVerdict(app);
  document.body.dataset.ready = "true";
}

start().catch(show);
