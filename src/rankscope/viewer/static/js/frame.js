// The panel's place in the page: at the bottom over the full width, or at the right. Its place and size are in the URL, and
// in localStorage for the next page.

import { announce, byId } from "./dom.js";

const SIZES = { bottom: 292, right: 420 }; // px
const SMALLEST = 120;
const ARROW = 24;
const KEPT = "rankscope-panel";

/** @typedef {{ dock: string, size: number }} Place size 0: the default of its place */

/** Where the panel was when a page was last used. @returns {Partial<Place>} */
export function lastPlace() {
  try {
    const { dock, size } = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return dock in SIZES && size >= 0 ? { dock, size } : {};
  } catch { // a browser that keeps nothing for this page
    return {};
  }
}

/** @param {Place} docking */
function keep(docking) {
  try {
    localStorage.setItem(KEPT, JSON.stringify(docking));
  } catch { /* the URL has it */ }
}

/** @param {import("./app.js").App} app */
export function listenToFrame(app) {
  const { store } = app;
  const main = byId("main");
  const splitter = byId("splitter");
  const aside = byId("aside");
  const button = byId("dock-button");

  const atRight = () => store.view.dock === "right";
  const room = () => (atRight() ? main.clientWidth : main.clientHeight) * 0.7;

  function draw() {
    const size = store.view.size || Math.min(SIZES[atRight() ? "right" : "bottom"], Math.round(room() * 0.52));
    main.dataset.dock = atRight() ? "right" : "bottom";
    aside.style.height = atRight() ? "" : `${size}px`;
    aside.style.width = atRight() ? `${size}px` : "";
    button.textContent = atRight() ? "⇱ bottom" : "⇲ dock right";
    splitter.setAttribute("aria-orientation", atRight() ? "vertical" : "horizontal");
    splitter.setAttribute("aria-valuenow", String(size));
    splitter.setAttribute("aria-valuemin", String(SMALLEST));
    splitter.setAttribute("aria-valuemax", String(Math.round(room())));
  }

  /** @param {number} size */
  const resize = (size) => store.set({ size: Math.round(Math.min(Math.max(size, SMALLEST), room())) });

  button.addEventListener("click", () => {
    store.set({ dock: atRight() ? "bottom" : "right", size: 0 });
    announce(`panel at the ${store.view.dock}`);
  });
  splitter.addEventListener("pointerdown", (event) => splitter.setPointerCapture(event.pointerId));
  splitter.addEventListener("pointermove", (event) => {
    if (!splitter.hasPointerCapture(event.pointerId)) return;
    const box = main.getBoundingClientRect();
    resize(atRight() ? box.right - event.clientX : box.bottom - event.clientY);
  });
  splitter.addEventListener("keydown", (event) => {
    const by = { ArrowUp: ARROW, ArrowLeft: ARROW, ArrowDown: -ARROW, ArrowRight: -ARROW }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    resize((atRight() ? aside.offsetWidth : aside.offsetHeight) + by);
  });
  store.listen((view, changed) => {
    if (!changed.has("dock") && !changed.has("size")) return;
    draw();
    keep({ dock: view.dock, size: view.size });
  });
  draw();
}
