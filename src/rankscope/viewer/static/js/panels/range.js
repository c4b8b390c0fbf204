// The range that Events and Area are about: what is selected, else what is visible.

import { time } from "../format.js";

const MOST_TRACKS = 100;
const MOST_RANKS = 64;

/** The parameters of a request.
 * @param {import("../app.js").App} app */
export function rangeOf(app) {
  const { view } = app.store;
  const [begin, end] = view.area ?? [Math.round(view.begin), Math.max(Math.round(view.end), Math.round(view.begin) + 1)];
  const tracks = view.area && view.box.length ? view.box : visibleTracks(app);
  const ranks = tracks.length ? [...new Set(tracks.map((key) => Number(key.split(".")[0])))] : ranksOf(app);
  const later = Math.round(app.timeline.beginOf(ranks[0]) - view.begin); // of two runs, the second is shown from another time on
  return { begin: begin + later, end: end + later, ranks: ranks.join(","), tracks: tracks.length <= MOST_TRACKS ? tracks.join(",") : "" };
}

/** Expanded ranks; all, where none is. @param {import("../app.js").App} app */
function ranksOf(app) {
  const { open } = app.store.view;
  return (open.length ? open : app.ranks).slice(0, MOST_RANKS);
}

/** The tracks that a filter leaves; none where all are shown. @param {import("../app.js").App} app */
function visibleTracks(app) {
  if (!app.store.view.filter) return [];
  return app.timeline.layout().rows.flatMap((row) => (row.type === "track" && row.track.track >= 0 ? [`${row.rank}.${row.track.segment}.${row.track.track}`] : []));
}

/** @param {import("../app.js").App} app */
export function rangeText(app) {
  const { view } = app.store;
  const { begin, end, ranks, tracks } = rangeOf(app);
  const where = tracks ? `${tracks.split(",").length} tracks` : `${ranks.split(",").length} rank${ranks.includes(",") ? "s" : ""}`;
  return `${view.area ? "selected" : "visible"} ${time(end - begin)} on ${where}`;
}
