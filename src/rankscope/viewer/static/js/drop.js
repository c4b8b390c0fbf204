// Files that are dropped onto the page. The server of `view --drop` takes them, one request each; every other one takes none.

import { isFile, show, write } from "./api.js";
import { byId, fill, h, showProblem } from "./dom.js";
import { scaled } from "./format.js";

/** @typedef {{ name: string, file: File }} Named name: its path in what was dropped */

let listens = false;
let most = 0;

/** @param {number} bytes that the server takes at once; 0: it takes no files */
export function listenToDrops(bytes) {
  if (listens) return;
  listens = true;
  most = bytes;
  const filesIn = (/** @type {DragEvent} */ event) => [...event.dataTransfer?.items ?? []].filter(({ kind }) => kind === "file");
  for (const name of /** @type {const} */ (["dragenter", "dragover"])) {
    document.addEventListener(name, (event) => { if (filesIn(event).length) event.preventDefault(); });
  }
  document.addEventListener("drop", (event) => {
    const items = filesIn(event);
    if (!items.length) return; // a text
    event.preventDefault();
    if (!most) {
      showProblem("This page takes no files.", isFile() ? "It is a file itself." : "Its server shows one run, and writes no others.", "For a page that does: rankscope view --drop");
      return;
    }
    const entries = items.map((item) => ({ entry: item.webkitGetAsEntry?.(), file: item.getAsFile() })); // at once: they go with the event
    Promise.all(entries.map(({ entry, file }) => (entry ? filesOf(entry, "") : file ? [{ name: file.name, file }] : []))).then((named) => send(named.flat())).catch(show);
  });
}

/** All files of a file or folder. @param {any} entry @param {string} above @returns {Promise<Named[]>} */
async function filesOf(entry, above) {
  const name = `${above}${entry.name}`;
  if (entry.isFile) return [{ name, file: await new Promise((done, fail) => { entry.file(done, fail); }) }];
  const reader = entry.createReader();
  /** @type {Named[]} */
  const files = [];
  for (;;) { // a part at a time
    /** @type {any[]} */
    const part = await new Promise((done, fail) => { reader.readEntries(done, fail); });
    if (!part.length) return files;
    for (const inner of part) files.push(...await filesOf(inner, `${name}/`));
  }
}

/** @param {Named[]} all */
async function send(all) {
  const named = all.filter(({ name }) => !/(^|\/)\./.test(name)); // hidden: a store of rankscope, and what systems leave in folders
  const size = named.reduce((sum, { file }) => sum + file.size, 0);
  if (size > most) return showProblem(`These files have ${scaled(size, "B")}.`, `The page takes ${scaled(most, "B")} at once.`, "Open them where they are: rankscope view FOLDER");
  const title = h("h1", {});
  fill(byId("verdict"), h("div", {}, title, h("p", {}, "To a temporary folder of the server.")));
  try {
    for (const [at, { name, file }] of named.entries()) {
      fill(title, `Sending ${at + 1} of ${named.length}: ${name}`);
      await write("drop", at ? { name } : { name, first: 1 }, file);
    }
    await write("open-dropped", {});
  } catch (error) {
    fill(title, "Not sent");
    return show(error);
  }
  history.replaceState(null, "", location.pathname);
  return location.reload();
}

/** In place of the tracks: where to drop, and buttons for those who choose. */
export function drawDropZone() {
  const choice = (/** @type {string} */ text, /** @type {Record<string, any>} */ how) => {
    const input = /** @type {HTMLInputElement} */ (h("input", { type: "file", multiple: true, class: "unseen", tabindex: -1, "aria-label": text, ...how }));
    input.addEventListener("change", () => send([...input.files ?? []].map((file) => ({ name: file.webkitRelativePath || file.name, file }))).catch(show));
    return [h("button", { class: "plain", onclick: () => input.click() }, text), input];
  };
  document.body.dataset.empty = "true";
  fill(byId("main"), h("section", { class: "drop", "aria-label": "Files to open" },
    h("p", {}, "Drop here, or ", ...choice("Choose files", {}), " ", ...choice("Choose a folder", { webkitdirectory: true })),
    h("p", { class: "quiet" }, "They go to the rankscope on this machine, into a temporary folder that is removed when it ends.")));
}
