// @ts-check
/** Binary messages of the kernel, read: `live/wire.py` writes them. */

/** @typedef {import("./types").MapHead} MapHead */
/** @typedef {import("./types").BlockMap} BlockMap */
/** @typedef {import("./types").Segment} Segment */

export const FREE = 0;
export const ALLOCATED = 1;
export const AWAITING = 2;
/** States only the browser knows: a free entry that is its whole segment, and what an expandable segment has unmapped. */
export const WHOLE = 3;
export const UNMAPPED = 4;

const SMALL = 1;
const EXPANDABLE = 2;

/**
 * A copy of a buffer, because typed arrays want an aligned beginning.
 * @param {DataView} view
 * @returns {ArrayBuffer}
 */
function copied(view) {
  return /** @type {ArrayBuffer} */ (view.buffer).slice(view.byteOffset, view.byteOffset + view.byteLength);
}

/**
 * The rows of a `samples` message, one after the other.
 * @param {DataView} view
 * @returns {Float64Array}
 */
export function decodeRows(view) {
  return new Float64Array(copied(view));
}

/**
 * The map that a `map` message holds.
 * @param {MapHead} head
 * @param {DataView[]} buffers
 * @returns {BlockMap}
 */
export function decodeMap(head, buffers) {
  const shapes = new Float64Array(copied(buffers[0]));
  const tables = new Uint32Array(copied(buffers[1]));
  const packed = copied(buffers[2]);
  const n = head.entries;
  const words = new Uint32Array(packed, 0, 2 * n); // of sizes, lower and upper
  const counts = new Uint32Array(packed, 8 * n, n);
  const lines = new Uint16Array(packed, 12 * n, n);
  const states = new Uint8Array(packed, 14 * n, n);
  /** @type {Segment[]} */
  const segments = [];
  let next = 0;
  for (let i = 0; 2 * i < shapes.length; i++) {
    const [stream, pool, flags, amount] = tables.subarray(4 * i, 4 * i + 4);
    const entries = [];
    for (const end = next + amount; next < end; next++) {
      const whole = amount === 1 && states[next] === FREE;
      const state = whole ? WHOLE : states[next];
      const size = words[2 * next] + 2 ** 32 * words[2 * next + 1];
      entries.push({ size, count: counts[next], state, line: head.lines[lines[next]] });
    }
    segments.push({
      address: shapes[2 * i],
      size: shapes[2 * i + 1],
      stream: head.streams[stream],
      pool: head.pools[pool],
      small: (flags & SMALL) !== 0,
      expandable: (flags & EXPANDABLE) !== 0,
      entries,
    });
  }
  return { slot: head.slot, time: head.time, summary: head.summary, segments };
}
