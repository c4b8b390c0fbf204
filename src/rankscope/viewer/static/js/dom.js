// DOM helpers. Text is inserted as text nodes: nothing from a trace is parsed as HTML.

/** @typedef {Node | string | number | null | undefined | false} Child */

/** @param {string} tag @param {Record<string, any>} [properties] @param {...(Child | Child[])} children
 * @returns {HTMLElement} */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

/** @param {string} tag @param {Record<string, any>} [attributes] @param {...(Child | Child[])} children
 * @returns {SVGElement} */
export function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  append(element, children);
  return element;
}

/** @param {Element} element @param {(Child | Child[])[]} children */
function append(element, children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) element.append(child instanceof Node ? child : String(child));
  }
}

/** @template {HTMLElement} T @param {string} id @returns {T} */
export function byId(id) {
  return /** @type {T} */ (document.getElementById(id));
}

/** @param {Element} element @param {...Child} children */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** For screen readers.
 * @param {string} text */
export function announce(text) {
  byId("spoken").textContent = text;
}

/** @param {string} what @param {string} [why] @param {string} [hint] */
export function showProblem(what, why = "", hint = "") {
  const box = byId("message");
  fill(box, h("b", {}, what), why && h("p", {}, why), hint && h("p", {}, hint),
    h("button", { class: "plain", onclick: () => { box.hidden = true; } }, "Close"));
  box.hidden = false;
}
