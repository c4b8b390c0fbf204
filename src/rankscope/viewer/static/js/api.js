// Questions of the page: to the server, or to the file that the page is in (shared.js). Errors have three parts: what, why,
// and a hint.

import { showProblem } from "./dom.js";

export class ServerError extends Error {
  /** @param {string} what @param {string} why @param {string} hint */
  constructor(what, why, hint) {
    super(what);
    this.why = why;
    this.hint = hint;
  }
}

/** Parameters of every request: which clocks are used. */
export const always = { clocks: "" };

/** @type {{ answer: (name: string, query: Record<string, any>) => any } | null} */
let file = null;

/** Ask a shared file instead of the server. @param {{ answer: (name: string, query: Record<string, any>) => any }} shared */
export function useFile(shared) {
  file = shared;
}

export function isFile() {
  return file !== null;
}

/** @param {string} name @param {Record<string, any>} query */
function address(name, query) {
  const words = Object.entries({ ...always, ...query }).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return `/api/${name}?${new URLSearchParams(words.map(([key, value]) => [key, String(value)]))}`;
}

/** @param {string} name @param {Record<string, any>} query @param {AbortSignal} [signal] @param {string} [method] @param {Blob} [body] */
async function ask(name, query, signal, method, body) {
  let response;
  try {
    response = await fetch(address(name, query), { signal, method, body });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError("The rankscope server does not answer.", "It was stopped, or the ssh tunnel is closed.", "Start it again and reload the page.");
  }
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new ServerError(problem.error ?? `error ${response.status}`, problem.why ?? "", problem.hint ?? "");
  }
  return response;
}

/** @param {string} name @param {Record<string, any>} [query] @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function json(name, query = {}, signal) {
  if (file) return file.answer(name, query);
  return (await ask(name, query, signal)).json();
}

/** A request that writes a file. @param {string} name @param {Record<string, any>} query @param {Blob} [body] @returns {Promise<any>} */
export async function write(name, query, body) {
  return (await ask(name, query, undefined, "POST", body)).json();
}

/** A document to keep. @param {string} name @param {Record<string, any>} query @returns {Promise<Blob>} */
export async function download(name, query) {
  return (await ask(name, query)).blob();
}

/** @typedef {Record<string, any> & { column: Record<string, any> }} Columns */

/** @param {string} name @param {Record<string, any>} query @param {AbortSignal} [signal] @returns {Promise<Columns>} */
export async function columns(name, query, signal) {
  if (file) return file.answer(name, query);
  return unpack(await (await ask(name, query, signal)).arrayBuffer());
}

const TYPES = /** @type {Record<string, any>} */ ({
  float64: Float64Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array, int64: BigInt64Array,
});

/** The format of viewer/answers.py.
 * @param {ArrayBuffer} buffer @returns {Columns} */
export function unpack(buffer) {
  const bytes = new Uint8Array(buffer);
  const end = bytes.indexOf(10);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  let at = end + 1;
  /** @type {Record<string, any>} */
  const column = {};
  for (const { name, type, length } of header.columns) {
    column[name] = new TYPES[type](buffer, at, length);
    at += Math.ceil((column[name].byteLength) / 8) * 8;
  }
  return { ...header, column };
}

/** @param {unknown} error */
export function show(error) {
  if (error instanceof ServerError) showProblem(error.message, error.why, error.hint);
  else if (!(error instanceof DOMException && error.name === "AbortError")) {
    showProblem("Internal error in the page.", String(error), "Reload the page. If it happens again, please report it.");
    console.error(error);
  }
}
