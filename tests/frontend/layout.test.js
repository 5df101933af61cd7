import assert from "node:assert/strict";
import { test } from "node:test";

import { arrange, describe, entryAt, joined, rowAt } from "../../jupyter_gpumem/live/frontend/src/layout.js";
import { ALLOCATED, FREE, UNMAPPED } from "../../jupyter_gpumem/live/frontend/src/wire.js";
import { BY_ADDRESS, mapOf, rowOf, segment } from "./helpers.js";

const MIB = 2 ** 20;

test("rows have places from top to bottom, and pointing finds them", () => {
  const { rows, height } = arrange(mapOf(segment(0, [[2 * MIB, ALLOCATED]]), segment(9 * MIB, [[512 * MIB, FREE]])), BY_ADDRESS);
  assert.deepEqual(rows.map((row) => [row.y, row.height]), [[0, 9], [12, 20]]);
  assert.equal(height, 35);
  assert.deepEqual([0, 8, 11, 12, 34, 35].map((y) => rowAt(rows, y)), [0, 0, 0, 1, 1, -1]);
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
