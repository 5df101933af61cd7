// @ts-check
/** Where everything in the segment map lies: pure functions from a map to rows, and from a place in them to words. */

import { bytes } from "./format.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "./wire.js";

/** @typedef {import("./types").BlockMap} BlockMap */
/** @typedef {import("./types").Segment} Segment */
/** @typedef {import("./types").Entry} Entry */
/** @typedef {"address" | "size" | "stream" | "pool"} Order */

/**
 * A row: one segment, the mapped parts of an expandable one, or free segments side by side; or the title of a group.
 * @typedef {object} Row
 * @property {string | null} title
 * @property {Segment[]} segments
 * @property {boolean} apart whether each entry is a segment of its own, free as a whole
 * @property {Entry[]} entries
 * @property {Float64Array} ends where each entry ends, as a share of the row
 * @property {number} size mapped bytes
 * @property {number} share the part of the width that the row takes
 * @property {number} y
 * @property {number} height
 */

export const GAP = 3;
const TITLE = 20;
/** What an unmapped part may take of its row; its true size is in the text. */
const UNMAPPED_SHARE = 0.08;
/** An expandable segment reserves addresses for this many times the device. */
const RESERVED_ADDRESSES = 1.125;

/**
 * A row's height: larger segments are taller, so that small ones do not look as heavy.
 * @param {number} size
 */
export function heightOf(size) {
  const MIB = 2 ** 20;
  return size <= 2 * MIB ? 9 : size <= 20 * MIB ? 12 : size <= 256 * MIB ? 16 : 20;
}

/** @param {Segment} segment */
const isPrivate = (segment) => segment.pool.some((part) => part !== 0);

/** @param {Segment} segment */
const poolName = (segment) =>
  isPrivate(segment) ? `private pool (${segment.pool.join(", ")})` : segment.small ? "small pool" : "large pool";

/**
 * Segments that belong together: those of one expandable segment, which is mapped in parts.
 * @param {Segment[]} segments by address
 * @param {number | null} total bytes of the device
 * @returns {Segment[][]}
 */
export function joined(segments, total) {
  /** @type {Segment[][]} */
  const rows = [];
  /** @type {Map<string, Segment[]>} */
  const open = new Map();
  for (const segment of segments) {
    if (!segment.expandable) {
      rows.push([segment]);
      continue;
    }
    const key = [segment.stream, segment.pool, segment.small].join("|");
    const run = open.get(key);
    const first = run?.[0];
    if (run && first && segment.address + segment.size - first.address <= RESERVED_ADDRESSES * (total ?? 0)) {
      run.push(segment);
    } else {
      const fresh = [segment];
      open.set(key, fresh);
      rows.push(fresh);
    }
  }
  return rows;
}

/**
 * The entries of a row with the unmapped parts between its segments.
 * @param {Segment[]} run
 * @returns {Entry[]}
 */
function entriesOf(run) {
  if (run.length === 1) return run[0].entries;
  /** @type {Entry[]} */
  const entries = [];
  run.forEach((segment, i) => {
    const before = run[i - 1];
    const missing = before ? segment.address - before.address - before.size : 0;
    if (missing > 0) entries.push({ size: missing, count: 0, state: UNMAPPED, line: "" });
    for (const entry of segment.entries) entries.push(entry);
  });
  return entries;
}

/**
 * Every row of the map with its place.
 * @param {BlockMap} map
 * @param {{ order: Order, toScale: boolean, total: number | null }} options
 * @returns {{ rows: Row[], height: number }}
 */
export function arrange(map, { order, toScale, total }) {
  const runs = joined(map.segments, total).map((run) => ({ run, size: sizeOf(run), apart: false }));
  if (order === "size") runs.sort((a, b) => b.size - a.size);
  const largest = runs.reduce((most, { size }) => Math.max(most, size), 1);
  /** @type {Map<string, Run[]>} */
  const groups = new Map();
  for (const one of runs) {
    const segment = one.run[0];
    const title = isPrivate(segment) || order === "pool" ? poolName(segment) : order === "stream" ? streamName(segment) : "";
    const group = groups.get(title);
    if (group) group.push(one);
    else groups.set(title, [one]);
  }
  const titles = [...groups.keys()].sort((a, b) => Number(a.startsWith("private")) - Number(b.startsWith("private")));
  /** @type {Row[]} */
  const rows = [];
  let y = 1; // room for the frame of the first row
  for (const title of titles) {
    if (title) {
      const empty = new Float64Array(0);
      rows.push({ title, segments: [], apart: false, entries: [], ends: empty, size: 0, share: 1, y, height: TITLE });
      y += TITLE;
    }
    const group = groups.get(title) ?? [];
    for (const { run, size, apart } of order === "size" || toScale ? group : freeTogether(group)) {
      const entries = apart ? run.flatMap((segment) => segment.entries) : entriesOf(run);
      const height = heightOf(size);
      const share = toScale ? size / largest : 1;
      rows.push({ title: null, segments: run, apart, entries, ends: endsOf(entries, size), size, share, y, height });
      y += height + GAP;
    }
  }
  return { rows, height: y };
}

/**
 * What becomes a row.
 * @typedef {{ run: Segment[], size: number, apart: boolean }} Run
 */

/** @param {Segment[]} run */
const sizeOf = (run) => run.reduce((sum, segment) => sum + segment.size, 0);

/** @param {Run} one */
const isFree = ({ run: [segment, ...more] }) => !more.length && !segment.expandable && segment.entries[0]?.state === WHOLE;

/**
 * The same with neighbours that are free as a whole in one row: a cache of hundreds of them would hide what lives.
 * @param {Run[]} runs
 * @returns {Run[]}
 */
function freeTogether(runs) {
  /** @type {Run[]} */
  const found = [];
  let before = false;
  for (const one of runs) {
    const free = isFree(one);
    const last = found[found.length - 1];
    if (free && before) {
      if (!last.apart) found[found.length - 1] = { run: [...last.run, ...one.run], size: last.size + one.size, apart: true };
      else {
        last.run.push(...one.run);
        last.size += one.size;
      }
    } else found.push(one);
    before = free;
  }
  return found;
}

/** @param {Segment} segment */
const streamName = (segment) => (segment.stream === 0 ? "default stream" : `stream ${segment.stream}`);

/**
 * @param {Entry[]} entries
 * @param {number} mapped bytes
 */
function endsOf(entries, mapped) {
  const ends = new Float64Array(entries.length);
  let sum = 0;
  entries.forEach((entry, i) => {
    sum += entry.state === UNMAPPED ? Math.min(entry.size, UNMAPPED_SHARE * mapped) : entry.size;
    ends[i] = sum;
  });
  return sum ? ends.map((end) => end / sum) : ends;
}

/**
 * The row at a height, or -1.
 * @param {Row[]} rows
 * @param {number} y
 */
export function rowAt(rows, y) {
  let low = 0;
  let high = rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].y + rows[middle].height + GAP <= y) low = middle + 1;
    else high = middle;
  }
  return low < rows.length && rows[low].title === null && rows[low].y <= y ? low : -1;
}

/**
 * The entry that lies at a share of the row.
 * @param {Row} row
 * @param {number} share
 */
export function entryAt(row, share) {
  let low = 0;
  let high = row.ends.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.ends[middle] <= share) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @type {Record<number, string>} */
export const STATE_NAMES = {
  [ALLOCATED]: "allocated",
  [AWAITING]: "awaiting free: another stream may still use it",
  [FREE]: "free, in a segment with live blocks",
  [WHOLE]: "free, the whole segment",
  [UNMAPPED]: "not mapped: addresses of an expandable segment without memory",
};

/**
 * What is said of the entries `first` to `last` of a row: one of them, or several under one pixel.
 * @param {Row} row
 * @param {number} first
 * @param {number} last
 * @returns {{ what: string, where: string, line: string }}
 */
export function describe(row, first, last) {
  const one = row.entries[first];
  const segment = row.segments[row.apart ? first : 0];
  const size = row.apart ? segment.size : row.size;
  const kind = `${segment.expandable ? "expandable " : ""}${bytes(size)} segment, ${poolName(segment)}, ${streamName(segment)}`;
  const where = row.apart && first < last ? `from 0x${segment.address.toString(16)} on` : `${kind}, at 0x${segment.address.toString(16)}`;
  if (first === last && one.count <= 1) {
    return { what: `${bytes(one.size)} ${STATE_NAMES[one.state]}`, where, line: one.line };
  }
  /** @type {Map<number, { size: number, count: number }>} */
  const sums = new Map();
  for (const { state, size, count } of row.entries.slice(first, last + 1)) {
    const sum = sums.get(state) ?? { size: 0, count: 0 };
    sums.set(state, { size: sum.size + size, count: sum.count + Math.max(1, count) });
  }
  const parts = [...sums].map(([state, { size, count }]) => `${count} × ${STATE_NAMES[state].split(/[,:]/)[0]} (${bytes(size)})`);
  return { what: parts.join(", "), where, line: "" };
}
