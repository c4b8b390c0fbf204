// Search: names with count and total time. Enter goes to the first slice of the chosen name.

import { json, show } from "./api.js";
import { byId, fill, h, announce } from "./dom.js";
import { time } from "./format.js";
import { shortenNames } from "./names.js";

const PAUSE = 180;
const NAME_CHARACTERS = 44;

/** @param {import("./app.js").App} app */
export function listenToSearch(app) {
  const input = /** @type {HTMLInputElement} */ (byId("search"));
  const list = byId("found");
  /** @type {any[]} */
  let names = [];
  let chosen = 0;
  let timer = 0;
  let asked = "";

  function draw() {
    const short = shortenNames(names.map((entry) => entry.name), NAME_CHARACTERS);
    fill(list, ...names.map((entry, at) => h("li", { title: entry.name, role: "option", "aria-selected": at === chosen, id: `found-${at}`, onclick: () => go(entry) },
      h("span", { class: "name" }, short[at]), h("span", { class: "note" }, `${entry.count.toLocaleString("en")} × on ${entry.ranks} rank${entry.ranks === 1 ? "" : "s"}`),
      h("span", { class: "note" }, time(entry.total_ns)))));
    if (!names.length) fill(list, h("li", {}, h("span", { class: "quiet" }, "No name contains this text.")));
    list.hidden = !input.value;
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.setAttribute("aria-activedescendant", names.length ? `found-${chosen}` : "");
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
  }

  async function look() {
    const q = input.value.trim();
    if (q === asked) return;
    asked = q;
    if (!q) { list.hidden = true; return; }
    try {
      const answer = await json("search", { q });
      if (answer.q !== asked) return;
      names = answer.names;
      chosen = 0;
      draw();
      announce(`${names.length} names found`);
    } catch (error) {
      show(error);
    }
  }

  /** @param {any} entry */
  async function go(entry) {
    app.searched = entry.name;
    list.hidden = true;
    input.blur();
    try {
      const { found } = await json("find", { name: entry.name, at: Math.round(app.store.view.begin) - 1 });
      const first = found ?? (await json("find", { name: entry.name, at: Math.round(entry.first_ns) - 1 })).found;
      if (first) await app.goTo(first);
    } catch (error) {
      show(error);
    }
  }

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(look, PAUSE);
  });
  input.addEventListener("focus", () => { if (names.length && input.value) draw(); });
  input.addEventListener("keydown", async (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = Math.min(Math.max(chosen + (event.key === "ArrowDown" ? 1 : -1), 0), names.length - 1);
      draw();
    } else if (event.key === "Enter") {
      clearTimeout(timer);
      await look();
      if (names[chosen]) await go(names[chosen]);
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (!(/** @type {HTMLElement} */ (event.target).closest(".search"))) list.hidden = true;
  });
}
