import assert from "node:assert/strict";
import { test } from "node:test";

import { arrange, describe, entryAt, joined, rowAt } from "../../jupyter_gpumem/live/frontend/src/layout.js";
import { ALLOCATED, FREE, UNMAPPED, WHOLE } from "../../jupyter_gpumem/live/frontend/src/wire.js";
import { BY_ADDRESS, mapOf, rowOf, segment } from "./helpers.js";

const MIB = 2 ** 20;

test("rows have places from top to bottom, and pointing finds them", () => {
  const { rows, height } = arrange(mapOf(segment(0, [[2 * MIB, ALLOCATED]]), segment(9 * MIB, [[512 * MIB, FREE]])), BY_ADDRESS);
  assert.deepEqual(rows.map((row) => [row.y, row.height]), [[1, 9], [13, 20]]);
  assert.equal(height, 36);
  assert.deepEqual([0, 1, 9, 12, 13, 35, 36].map((y) => rowAt(rows, y)), [-1, 0, 0, 0, 1, 1, -1]);
});

test("pointing along a row finds the entry there", () => {
  const row = rowOf([10, ALLOCATED], [30, FREE], [60, ALLOCATED]);
  assert.deepEqual([0, 0.05, 0.1, 0.39, 0.4, 1].map((share) => entryAt(row, share)), [0, 0, 1, 1, 2, 2]);
});

test("orders: by size the largest first; by stream and by pool in groups with titles", () => {
  const map = mapOf(segment(0, [[MIB, ALLOCATED]], { small: true }), segment(99, [[4 * MIB, ALLOCATED]], { stream: 7 }));
  const rows = (order) => arrange(map, { ...BY_ADDRESS, order }).rows.map((row) => row.title ?? row.size / MIB);
  assert.deepEqual(rows("address"), [1, 4]);
  assert.deepEqual(rows("size"), [4, 1]);
  assert.deepEqual(rows("stream"), ["default stream", 1, "stream 7", 4]);
  assert.deepEqual(rows("pool"), ["small pool", 1, "large pool", 4]);
});

test("private pools come last, under their own title, in any order", () => {
  const map = mapOf(segment(0, [[9 * MIB, ALLOCATED]], { pool: [0, 1] }), segment(99, [[MIB, ALLOCATED]]));
  for (const order of ["address", "size", "stream", "pool"]) {
    const { rows } = arrange(map, { ...BY_ADDRESS, order });
    assert.deepEqual(rows.slice(-2).map((row) => row.title ?? row.size / MIB), ["private pool (0, 1)", 9]);
  }
});

test("to scale, widths are in proportion to sizes", () => {
  const map = mapOf(segment(0, [[2 * MIB, ALLOCATED]]), segment(99, [[8 * MIB, ALLOCATED]]));
  assert.deepEqual(arrange(map, { ...BY_ADDRESS, toScale: true }).rows.map((row) => row.share), [0.25, 1]);
});

test("the mapped parts of an expandable segment are one row, with what is unmapped between them", () => {
  const part = { expandable: true };
  const segments = [segment(0, [[20 * MIB, ALLOCATED]], part), segment(40 * MIB, [[20 * MIB, ALLOCATED]], part)];
  const other = segment(2 ** 45, [[20 * MIB, ALLOCATED]], part);
  assert.deepEqual(joined([...segments, other], 8 * 2 ** 30).map((run) => run.length), [2, 1]);
  const [row] = arrange(mapOf(...segments), BY_ADDRESS).rows;
  assert.deepEqual(row.entries.map((entry) => [entry.state, entry.size / MIB]), [[ALLOCATED, 20], [UNMAPPED, 20], [ALLOCATED, 20]]);
  assert.equal(row.size, 40 * MIB);
  assert.ok(row.ends[1] - row.ends[0] < 0.1);
  assert.match(describe(row, 1, 1).what, /^20.00 MiB not mapped/);
});

test("several blocks under one pixel, or sent as a sum, are told as several", () => {
  const row = rowOf([512, ALLOCATED], [1024, FREE], [512, ALLOCATED]);
  assert.equal(describe(row, 0, 2).what, "2 × allocated (1.00 KiB), 1 × free (1.00 KiB)");
  assert.match(describe(rowOf([512 * 90, ALLOCATED, 90]), 0, 0).what, /^90 × allocated/);
});

test("thousands of segments are laid out in the order of their addresses", () => {
  const segments = Array.from({ length: 20_000 }, (_, i) => segment(4 * MIB * i, [[2 * MIB, ALLOCATED]]));
  const { rows } = arrange(mapOf(...segments), BY_ADDRESS);
  assert.deepEqual(rows.map((row) => row.segments[0]), segments);
});

test("free segments side by side are one row, of which each is told for itself; by size and to scale each has its own", () => {
  const free = (/** @type {number} */ at, /** @type {number} */ size) => segment(at, [[size, WHOLE]]);
  const live = segment(99, [[5 * MIB, ALLOCATED], [15 * MIB, FREE]]);
  const map = mapOf(free(1, MIB), free(2, 2 * MIB), free(3, 5 * MIB), live, free(200, 4 * MIB), segment(300, [[MIB, ALLOCATED]]));
  const { rows } = arrange(map, BY_ADDRESS);
  assert.deepEqual(rows.map((row) => [row.size / MIB, row.entries.length, row.apart]), [[8, 3, true], [20, 2, false], [4, 1, false], [1, 1, false]]);
  assert.deepEqual([...rows[0].ends], [1 / 8, 3 / 8, 1]);
  assert.deepEqual(rows[0].segments, map.segments.slice(0, 3));
  assert.match(describe(rows[0], 1, 1).what, /^2.00 MiB free, the whole segment/);
  assert.match(describe(rows[0], 1, 1).where, /^2.00 MiB segment, .* at 0x2$/);
  assert.match(describe(rows[0], 0, 2).what, /^3 × free .8.00 MiB.$/);
  assert.equal(describe(rows[0], 1, 2).where, "from 0x2 on");
  for (const options of [{ order: "size" }, { toScale: true }]) {
    assert.equal(arrange(map, { ...BY_ADDRESS, .../** @type {any} */ (options) }).rows.length, 6);
  }
});
