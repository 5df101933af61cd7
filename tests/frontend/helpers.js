// Builds what the kernel would send.

import { arrange } from "../../jupyter_gpumem/live/frontend/src/layout.js";

const WIDTH = 10;

/** A row as the kernel packs it. */
export function row(time, { slot = 0, cell = 0, allocated = 0, reserved = 0, peak = 0, others = NaN, external = NaN, retries = 0, ooms = 0 } = {}) {
  return Float64Array.of(time, slot, cell, allocated, reserved, peak, others, external, retries, ooms);
}

export const view = (array) => new DataView(array.buffer, array.byteOffset, array.byteLength);

/** Rows in one buffer. */
export function packed(...rows) {
  const all = new Float64Array(rows.length * WIDTH);
  rows.forEach((one, i) => all.set(one, i * WIDTH));
  return view(all);
}

/** A segment of a decoded map; entries are `[size, state]`. */
export function segment(address, entries, more = {}) {
  const blocks = entries.map(([size, state, count = 1]) => ({ size, state, count, line: "" }));
  const size = entries.reduce((sum, [bytes]) => sum + bytes, 0);
  return { address, size, stream: 0, pool: [0, 0], small: false, expandable: false, entries: blocks, ...more };
}

export const mapOf = (...segments) => ({ slot: 0, time: 0, segments, summary: /** @type {any} */ ({}) });

export const BY_ADDRESS = /** @type {const} */ ({ order: "address", toScale: false, total: 8 * 2 ** 30 });

/** The row of one segment; entries are `[size, state]`. */
export function rowOf(...entries) {
  return arrange(mapOf(segment(0, entries)), BY_ADDRESS).rows[0];
}
