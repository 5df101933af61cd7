import assert from "node:assert/strict";
import { test } from "node:test";

import { arrange, describe, entryAt, joined, paint, rowAt } from "../../jupyter_gpumem/live/frontend/src/layout.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "../../jupyter_gpumem/live/frontend/src/wire.js";
import { mapOf, segment } from "./helpers.js";

const MIB = 2 ** 20;
const BY_ADDRESS = /** @type {const} */ ({ order: "address", toScale: false, total: 8 * 2 ** 30 });

function rowOf(...entries) {
  return arrange(mapOf(segment(0, entries)), BY_ADDRESS).rows[0];
}

/** The pixels of a row, each with the share of its width that every state takes. */
function pixels(row, width) {
  const { whole, mixed } = paint(row, width);
  const found = Array.from({ length: width }, () => null);
  for (let i = 0; i < whole.length; i += 3) {
    for (let x = whole[i]; x < whole[i] + whole[i + 1]; x++) {
      assert.equal(found[x], null);
      found[x] = { [whole[i + 2]]: 1 };
    }
  }
  for (let i = 0; i < mixed.length; i += 4) {
    assert.equal(found[mixed[i]], null);
    found[mixed[i]] = { [ALLOCATED]: mixed[i + 1], [AWAITING]: mixed[i + 2], [FREE]: mixed[i + 3] };
  }
  return found;
}

test("entries that fill their pixels are painted whole", () => {
  const { whole, mixed } = paint(rowOf([50, ALLOCATED], [50, FREE]), 10);
  assert.deepEqual(whole, [0, 5, ALLOCATED, 5, 5, FREE]);
  assert.deepEqual(mixed, []);
});

test("a pixel that two entries share has the part of each", () => {
  const { whole, mixed } = paint(rowOf([5, ALLOCATED], [15, FREE]), 2);
  assert.deepEqual(mixed.map((n) => Math.round(100 * n) / 100), [0, 0.5, 0, 0.5]);
  assert.deepEqual(whole, [1, 1, FREE]);
});

test("every pixel is painted once, and the shares add up to the sizes", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  for (let round = 0; round < 40; round++) {
    const entries = Array.from({ length: 1 + Math.floor(random() * 300) }, (_, i) => [
      512 * (1 + Math.floor(random() ** 6 * 4000)),
      [FREE, ALLOCATED, AWAITING][(i + round) % 3],
    ]);
    const width = 3 + Math.floor(random() * 400);
    const row = rowOf(...entries);
    const total = entries.reduce((sum, [size]) => sum + size, 0);
    const sums = { [FREE]: 0, [ALLOCATED]: 0, [AWAITING]: 0, [WHOLE]: 0 };
    for (const pixel of pixels(row, width)) {
      assert.notEqual(pixel, null);
      for (const [state, share] of Object.entries(pixel)) sums[state] += share;
    }
    for (const state of [FREE, ALLOCATED, AWAITING]) {
      const expected = entries.reduce((sum, [size, is]) => sum + (is === state ? size : 0), 0);
      const seen = sums[state] + (state === FREE ? sums[WHOLE] : 0);
      assert.ok(Math.abs(seen / width - expected / total) < 1e-6, `${state}: ${seen / width} ${expected / total}`);
    }
  }
});

test("one tiny live block among a thousand free bytes is still there", () => {
  const found = pixels(rowOf([500_000, FREE], [1, ALLOCATED], [500_000, FREE]), 100).filter((pixel) => pixel[ALLOCATED] > 0);
  assert.equal(found.length >= 1, true);
});

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
