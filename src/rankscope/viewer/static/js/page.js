// The page of a run that is open: the app and its listeners, then the first picture and the findings.

import { App, describe } from "./app.js";
import { Axis } from "./axis.js";
import { always, json, show } from "./api.js";
import { byId } from "./dom.js";
import { lastPlace, listenToFrame } from "./frame.js";
import { listenToKeys } from "./keys.js";
import { listenToMarks } from "./marks.js";
import { listenToPointer } from "./pointer.js";
import { listenToMoves } from "./moves.js";
import { listenToShare } from "./share.js";
import { EMPTY, Store, decode } from "./state.js";
import { listenToTrackTools } from "./track_tools.js";
import { loadVerdict } from "./verdict.js";

/** A page without a state in its address opens on the first fault, or on the finding that its address names; without one, on
 * the whole run. What has no timeline is open already. The findings of two runs are their differences.
 * @param {App} app @param {number} finding -1: none is named */
async function open(app, finding) {
  const { run } = app;
  const at = app.findings[finding] ? finding : app.firstProblem;
  if (run.titles && !app.findings.length) app.store.set({ tab: "diff" }, { history: false });
  else if (run.opens_on && finding < 0) return;
  else if (at >= 0) await app.showFinding(at, { history: false });
  else app.store.set({ open: app.ranks.slice(0, 1) });
}

/** Whether a link names a finding and no time: the finding's scene says what to show. @param {Partial<import("./state.js").View>} view */
function namesFinding(view) {
  return (view.finding ?? -1) >= 0 && view.begin === undefined;
}

/** @param {import("./phases.js").Phases} phases */
export async function startPage(phases) {
  const requested = decode(location.hash);
  always.clocks = requested.clocks ?? "";
  /** @type {import("./app.js").Run} */
  const run = await phases.during("align clocks", json("run"));
  const docking = location.hash ? {} : lastPlace();
  const fresh = !location.hash || namesFinding(requested);
  const view = { ...EMPTY, ...requested, ...docking, begin: requested.begin ?? run.begin_ns, end: requested.end ?? new Axis(run).end };
  if (fresh && run.ranks.length === 1) view.open = run.ranks; // whatever is found is there: its tracks come first
  if (fresh) Object.assign(view, run.opens_on);
  if (run.opens_on) byId("main").dataset.only = "panel";
  const app = new App(run, new Store(view));
  describe(run);
  listenToFrame(app);
  listenToKeys(app);
  listenToPointer(app);
  listenToMarks(app);
  listenToShare(app);
  listenToTrackTools(app);
  window.addEventListener("popstate", () => app.store.back({ begin: run.begin_ns, end: run.end_ns }));
  listenToMoves((link) => {
    const wanted = decode(link);
    if (namesFinding(wanted)) app.showFinding(wanted.finding ?? 0).catch(show);
    else app.store.set({ ...EMPTY, begin: run.begin_ns, end: run.end_ns, ...wanted, theme: app.store.view.theme }, { history: true });
  });
  app.store.listen((view, changed) => { if (changed.has("clocks")) setTimeout(() => location.reload(), 250); }); // all times change
  /** @type {any} */ (window).rankscope = app; // for the console and tests
  app.panels.prepare();
  const untouched = app.store.view;
  /** @type {Promise<void>} */
  let map = Promise.resolve();
  const begun = new Promise((done) => { map = app.overview.load(() => done(true)); });
  const tracks = Promise.all([begun, app.timeline.loadTracks()]); // before the findings, which need the database for long
  const drawn = phases.during("draw", tracks.then(() => app.timeline.begun())).then(() => { document.body.dataset.drawn = "true"; });
  await tracks;
  if (run.opens_on) await app.panels.draw(); // the page is about it
  else app.panels.changed(new Set(["tab"]));
  await Promise.all([map, drawn, phases.during("findings", map.then(() => app.loadFindings()))]);
  if (fresh && app.store.view === untouched) await open(app, requested.finding ?? -1);
  await loadVerdict(app);
  if (fresh) app.marks.showKept().catch(show);
  document.body.dataset.ready = "true";
}
