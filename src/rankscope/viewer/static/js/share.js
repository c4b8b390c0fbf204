// "Share": the command that opens this view for a colleague, and the visible window as one HTML file, which opens without a server.

import { download, isFile, show } from "./api.js";
import { announce, byId, fill, h } from "./dom.js";
import { scaled } from "./format.js";
import { SECOND } from "./layout.js";
import { command } from "./panels/findings.js";
import { encode } from "./state.js";

/** @param {import("./app.js").App} app */
export function listenToShare(app) {
  const dialog = /** @type {HTMLDialogElement} */ (h("dialog", { id: "share", "aria-label": "Share this view" }));
  document.body.append(dialog);
  byId("share-button").addEventListener("click", () => open(app, dialog));
}

/** @param {import("./app.js").App} app @param {HTMLDialogElement} dialog */
function open(app, dialog) {
  const { run } = app;
  const place = encode({ ...app.store.view, dock: "bottom", size: 0, theme: "" }); // those are of this screen
  const button = /** @type {HTMLButtonElement} */ (h("button", { class: "plain", onclick: () => write(app, button) }, "Write the file"));
  fill(dialog, h("h2", {}, "Share this view"),
    h("p", {}, `A colleague who can read the run${run.places.length > 1 ? "s" : ""} opens this place with:`), command(`rankscope view ${run.places.join(" ")} --at '${place}'`),
    h("p", { class: "quiet" }, "From another machine: ssh://HOST before the path. A copy of the run: its own path. The token of this page is not needed."),
    h("p", {}, isFile() ? "In this file, and in any page of the run, the place is the end of the address:" : "In any page of the run, or a shared file of it, the place is the end of the address:"), command(place),
    isFile() || run.titles ? "" : h("p", {}, "Without the run: the visible window as one HTML file. ", button),
    h("p", {}, h("button", { class: "plain", onclick: () => dialog.close() }, "Close")));
  dialog.showModal();
}

/** @param {import("./app.js").App} app @param {HTMLButtonElement} button */
async function write(app, button) {
  button.disabled = true;
  button.textContent = "Writing…";
  try {
    const { view } = app.store;
    const file = await download("share", {
      begin: Math.round(view.begin), end: Math.max(Math.round(view.end), Math.round(view.begin) + 1), view: encode(view),
      ranks: [...new Set([...view.open, ...(view.slice ? [view.slice.rank] : [])])].filter((rank) => rank < SECOND).join(","),
    });
    const url = URL.createObjectURL(file);
    const link = h("a", { href: url, download: `${app.run.title}-${Math.round(view.begin / 1e6)}ms.html` });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    announce(`wrote a file of ${scaled(file.size, "B")}`);
  } catch (error) {
    show(error);
  }
  button.textContent = "Write the file";
  button.disabled = false;
}
