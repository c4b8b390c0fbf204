// "Share this view": the visible window as one HTML file, which opens without a server.

import { download, isFile, show } from "./api.js";
import { announce, byId, h } from "./dom.js";
import { scaled } from "./format.js";
import { SECOND } from "./layout.js";
import { encode } from "./state.js";

/** @param {import("./app.js").App} app */
export function listenToShare(app) {
  const button = /** @type {HTMLButtonElement} */ (byId("share-button"));
  button.hidden = isFile();
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Writing…";
    try {
      await share(app);
    } catch (error) {
      show(error);
    }
    button.textContent = "Share this view";
    button.disabled = false;
  });
}

/** @param {import("./app.js").App} app */
async function share(app) {
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
}
