// Search: names with category, ranks, count and total time. Enter goes to the first slice of the first name, or of the chosen one;
// ] and [ to its others. Above the first name, with the arrow up, all names are chosen.

import { ServerError, json, show } from "./api.js";
import { byId, fill, h, announce } from "./dom.js";
import { time } from "./format.js";
import { COMMUNICATION } from "./layout.js";

const PAUSE = 180;

export class Search {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    this.input = /** @type {HTMLInputElement} */ (byId("search"));
    this.list = byId("found");
    this.regex = byId("search-regex");
    /** @type {any[]} */
    this.names = [];
    this.chosen = -1; // of the list; -1: all names that match
    this.timer = 0;
    this.asked = "";
    /** @type {Record<string, any> | null} what is walked through: a name, or all that match */
    this.walked = null;
    this.listen();
  }

  /** The text and whether it is a regular expression. */
  get question() {
    return { q: this.input.value.trim(), regex: this.regex.getAttribute("aria-pressed") === "true" ? 1 : "" };
  }

  listen() {
    const { input } = this;
    input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => this.look(), PAUSE);
    });
    input.addEventListener("focus", () => { if (this.names.length && input.value) this.draw(); });
    input.addEventListener("keydown", (event) => this.key(event));
    this.regex.addEventListener("click", () => {
      this.regex.setAttribute("aria-pressed", String(this.regex.getAttribute("aria-pressed") !== "true"));
      input.focus();
      this.look();
    });
    for (const [id, by] of /** @type {[string, number][]} */ ([["search-next", 1], ["search-previous", -1]])) {
      byId(id).addEventListener("click", () => {
        if (this.question.q) this.walked ??= this.question;
        this.step(by);
      });
    }
    document.addEventListener("pointerdown", (event) => {
      if (!(/** @type {HTMLElement} */ (event.target).closest(".search"))) this.close();
    });
  }

  /** @param {KeyboardEvent} event */
  async key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      this.chosen = Math.min(Math.max(this.chosen + (event.key === "ArrowDown" ? 1 : -1), -1), this.names.length - 1);
      this.draw();
    } else if (event.key === "Enter") {
      clearTimeout(this.timer);
      await this.look();
      if (this.names.length) this.go(this.names[this.chosen]); // the first that is listed, unless another is chosen
    }
  }

  close() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
  }

  /** @param {string} text */
  count(text) {
    byId("search-count").textContent = text;
  }

  /** @param {string} [nothing] said where no name is found */
  draw(nothing = "No name matches.") {
    const { names, list, input } = this;
    fill(list, ...names.map((entry, at) => h("li", { title: entry.name, role: "option", "aria-selected": at === this.chosen, id: `found-${at}`, onclick: () => this.go(entry) },
      h("span", { class: "name" }, entry.short), h("span", { class: "note" }, entry.category ?? ""),
      h("span", { class: "note" }, `${entry.count.toLocaleString("en")} on rank${/^\d+$/.test(entry.ranks) ? "" : "s"} ${entry.ranks}`), h("span", { class: "note" }, time(entry.total_ns)))));
    if (!names.length) fill(list, h("li", {}, h("span", { class: "quiet" }, nothing)));
    list.hidden = !input.value;
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (this.chosen >= 0) input.setAttribute("aria-activedescendant", `found-${this.chosen}`);
    else input.removeAttribute("aria-activedescendant");
    list.children[this.chosen]?.scrollIntoView({ block: "nearest" });
  }

  async look() {
    const { question } = this;
    const asked = JSON.stringify(question);
    if (asked === this.asked) return;
    this.asked = asked;
    this.walked = null;
    this.count("");
    if (!question.q) { this.close(); return; }
    try {
      const answer = await json("search", question);
      if (asked !== this.asked) return;
      this.names = answer.names;
      this.chosen = 0;
      this.count(answer.count.toLocaleString("en"));
      this.draw();
      announce(`${answer.count} slices of ${answer.names.length + answer.more_names} names found`);
    } catch (error) {
      if (asked !== this.asked) return;
      this.names = [];
      this.draw(error instanceof ServerError ? `${error.message}: ${error.why}` : String(error)); // until the text is corrected
    }
  }

  /** Walk through the hits of one name, or of all that match. @param {any} [entry] */
  go(entry) {
    this.close();
    this.input.blur();
    return this.walk(entry ? { name: entry.name } : this.question);
  }

  /** Go to the first hit of a question; to the next one, where it is the question of before.
   * @param {Record<string, any>} question parameters of `find` @param {{ stay?: boolean }} [how] of App.goTo */
  walk(question, how = {}) {
    const again = how.stay && JSON.stringify(question) === JSON.stringify(this.walked);
    this.walked = question;
    if (how.stay) { // the box names what is walked through
      this.input.value = question.name ?? question.kind;
      this.regex.setAttribute("aria-pressed", "false");
      this.asked = JSON.stringify(this.question);
    }
    if (!again) this.app.panels.slice = null;
    return this.step(1, { ...how, at: this.app.run.begin_ns - 1 });
  }

  /** The next or previous hit after the selected slice; where none is selected, after `at`: the left edge of the window. Where nothing is
   * searched for, the hits are the slices of its name on its rank.
   * @param {number} by @param {{ stay?: boolean, at?: number }} [how] */
  async step(by, how = {}) {
    const { app } = this;
    const { slice } = app.panels;
    const question = this.walked ?? (slice && { name: slice.name, rank: slice.rank });
    if (!question) return announce("select a slice or search first");
    const from = slice ? { at: Math.round(slice.start_ns), after: `${slice.rank}.${slice.segment}.${slice.id}` } : { at: how.at ?? Math.round(app.store.view.begin) - 1 };
    const ask = (/** @type {any} */ where) => json("find", { ...question, ...where, direction: by < 0 ? "previous" : "next" });
    try {
      let answer = await ask(from);
      if (!answer.found) answer = await ask({ at: by < 0 ? app.run.end_ns + 1 : app.run.begin_ns - 1 }); // from the other end
      if (!answer.found) return announce("nothing found");
      this.count(`${answer.place.toLocaleString("en")} of ${answer.count.toLocaleString("en")}`);
      announce(`${answer.place} of ${answer.count}: ${answer.found.name} on rank ${answer.found.rank}`);
      return await app.goTo(question.kind ? { ...answer.found, track: COMMUNICATION.track, depth: 0 } : answer.found, how);
    } catch (error) {
      return show(error);
    }
  }
}
