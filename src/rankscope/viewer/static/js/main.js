// Start of the page: what opening the run does and how long it takes. The rest of the page is loaded meanwhile.

import { json, show, useFile } from "./api.js";
import { byId, fill, h } from "./dom.js";
import { drawDropZone, listenToDrops } from "./drop.js";
import { Phases } from "./phases.js";

const EVERY = 250; // ms

/** The link has an address only here: a shared file has none. */
function showTelemetryLink() {
  const link = /** @type {HTMLAnchorElement} */ (byId("watch-link"));
  link.href = "watch";
  link.hidden = false;
}

/** Show the progress until the run is open; false if it cannot be opened. @param {Phases} phases */
async function opened(phases) {
  let again = 1; // traces may have been written since the telemetry was shown
  for (;; await new Promise((done) => setTimeout(done, EVERY))) {
    const state = await json("state", again ? { again } : {});
    again = 0;
    if (state.telemetry) showTelemetryLink();
    if (state.title) byId("title").textContent = state.title;
    if (state.state === "telemetry") {
      location.replace("watch");
      await new Promise(() => {}); // asked again, a slow page would begin to load again and again
    }
    listenToDrops(state.drops);
    phases.told(state);
    if (state.state === "open") return true;
    if (state.state === "waiting" || state.state === "failed") {
      fill(byId("verdict"), h("div", {}, h("h1", {}, state.error ?? "Drop a trace here"), h("p", {}, state.error ? `${state.why} ${state.hint}` : "One trace, those of all ranks, or a folder.")));
      if (state.drops) drawDropZone();
      return false;
    }
  }
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

/** @param {string} hash of the address */
function startTheme(hash) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = new URLSearchParams(hash.slice(1)).get("theme") || (dark ? "dark" : "light");
}

async function start() {
  // The cookie of the first answer is enough from now on: the token does not stay in the address and the history.
  if (location.search) history.replaceState(history.state, "", location.pathname + location.hash);
  await readFile();
  startTheme(location.hash);
  const page = import("./page.js");
  page.catch(() => {}); // whoever waits for it says so
  const phases = new Phases();
  if (await opened(phases)) await (await page).startPage(phases);
}

start().catch(show);
