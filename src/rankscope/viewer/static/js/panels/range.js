// The range that Events and Area are about: what is selected, else what is visible.

import { time } from "../format.js";
import { SECOND, trackKey } from "../layout.js";

const MOST_TRACKS = 100;
const MOST_RANKS = 64;

/** The parameters of a request.
 * @param {import("../app.js").App} app */
export function rangeOf(app) {
  const { view } = app.store;
  const tracks = view.area && view.box.length ? view.box : visibleTracks(app);
  const ranks = tracks.length ? [...new Set(tracks.map((key) => Number(key.split(".")[0])))] : ranksOf(app);
  const [begin, end] = app.timeline.timesOf(ranks[0], view.area ?? undefined);
  return { begin, end, ranks: ranks.join(","), tracks: tracks.length <= MOST_TRACKS ? tracks.join(",") : "" };
}

/** Expanded ranks; all, where none is. Of two runs, only those of the one that comes first. @param {import("../app.js").App} app */
function ranksOf(app) {
  const { open } = app.store.view;
  const shown = open.length ? open : app.ranks;
  return shown.filter((rank) => (rank >= SECOND) === (shown[0] >= SECOND)).slice(0, MOST_RANKS);
}

/** The tracks that a filter leaves; none where all are shown. @param {import("../app.js").App} app */
function visibleTracks(app) {
  if (!app.store.view.filter) return [];
  return app.timeline.layout().rows.flatMap((row) => (row.type === "track" && row.track.track >= 0 ? [trackKey(row.rank, row.track)] : []));
}

/** @param {import("../app.js").App} app */
export function rangeText(app) {
  const { view } = app.store;
  const { begin, end, ranks, tracks } = rangeOf(app);
  const count = ranks.split(",").length;
  const wanted = Math.max(count, app.run.titles ? 0 : view.open.length || app.ranks.length);
  const run = app.run.titles ? ` of run ${Number(ranks.split(",")[0]) >= SECOND ? "B" : "A"}` : "";
  const where = tracks ? `${tracks.split(",").length} track${tracks.includes(",") ? "s" : ""}`
    : `${count < wanted ? `the first ${count} of ${wanted}` : count} rank${wanted === 1 ? "" : "s"}`;
  return `${view.area ? "selected" : "visible"} ${time(end - begin)} on ${where}${run}`;
}
