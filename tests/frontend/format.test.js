import assert from "node:assert/strict";
import { test } from "node:test";

import { apart, bytes, delta, duration, percent, sizeTicks, tick, timeTick } from "../../jupyter_gpumem/live/frontend/src/format.js";

const GIB = 2 ** 30;

test("sizes read as Python writes them", () => {
  const sizes = [0, 512, 1023, 1024, 1023.995 * 1024, 65 * 2 ** 20, 139.8 * 2 ** 30, 2 ** 41];
  const texts = ["0 B", "512 B", "1023 B", "1.00 KiB", "1.00 MiB", "65.00 MiB", "139.80 GiB", "2.00 TiB"];
  assert.deepEqual(sizes.map((size) => bytes(size)), texts);
  assert.equal(bytes(2 ** 30, "MiB"), "1024.00 MiB");
});

test("what is not known is a dash", () => {
  assert.deepEqual([bytes(NaN), bytes(null), bytes(undefined), percent(NaN), percent(null)], ["–", "–", "–", "–", "–"]);
});

test("changes have a sign, shares a percent sign, durations a unit", () => {
  assert.deepEqual([delta(1024), delta(-1024), delta(0)], ["+1.00 KiB", "-1.00 KiB", "0 B"]);
  assert.equal(percent(0.1234), "12.3 %");
  assert.deepEqual([0.25, 9.999, 59.96, 125].map(duration), ["0.25 s", "10.0 s", "1 min 00 s", "2 min 05 s"]);
});

test("an axis of sizes has round marks in binary units, never more than there is room for", () => {
  assert.deepEqual(sizeTicks(0, 8 * GIB, 4).map((size) => tick(size)), ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB"]);
  for (let high = 1000; high < 2 ** 42; high *= 1.7) {
    const marks = sizeTicks(0, high, 5);
    assert.ok(marks.length >= 1 && marks.length <= 6, `${high}: ${marks}`);
  }
});

test("marks are round in the unit of the highest, or in the chosen one", () => {
  const marks = (high, most, unit) => sizeTicks(0, high, most, unit).map((size) => tick(size, unit));
  assert.deepEqual(marks(1.9 * GIB, 4.5), ["0", "512 MiB", "1 GiB", "1.5 GiB"]);
  assert.deepEqual(marks(1.08 * GIB, 4.5), ["0", "256 MiB", "512 MiB", "768 MiB", "1 GiB"]);
  assert.deepEqual(marks(0.9 * GIB, 4.5, "GiB"), ["0", "0.25 GiB", "0.5 GiB", "0.75 GiB"]);
  assert.deepEqual(marks(22.5 * GIB, 4.5, "GiB"), ["0", "5 GiB", "10 GiB", "15 GiB", "20 GiB"]);
});

test("a mark that two decimals of the chosen unit would not tell is in its own", () => {
  const sizes = [2 ** 10, 2 ** 15, 2 ** 18, 2 ** 30];
  assert.deepEqual(sizes.map((size) => tick(size, "MiB")), ["1 KiB", "32 KiB", "0.25 MiB", "1024 MiB"]);
});

test("marks of time differ, however near they are", () => {
  const base = 1_800_000_000;
  assert.deepEqual([0.75, 1, 1.25].map((t) => timeTick(base + t, 0.25)), ["00.75", "01.00", "01.25"]);
  assert.deepEqual([59.9, 60, 60.1].map((t) => timeTick(base + t, 0.1)), ["59.9", "00.0", "00.1"]);
  assert.equal(timeTick(base + 0.98, 0.02), "00.98");
  assert.match(timeTick(base + 5, 5), /^\d\d:\d\d:05$/);
  assert.match(timeTick(base, 60), /^\d\d:\d\d$/);
});

test("of labels in each other's way the weightiest stays, and those that have room stay in order", () => {
  const label = (from, to, weight) => ({ from, to, weight });
  const [a, b, c, d] = [label(0, 10, 1), label(8, 18, 50), label(21, 31, 2), label(40, 50, 1)];
  assert.deepEqual(apart([a, b, c, d], 3), [b, c, d]);
  assert.deepEqual(apart([a, b, c, d], 4), [b, d]);
  assert.deepEqual(apart([label(0, 9, 1), label(5, 14, 1)], 0), [label(0, 9, 1)]);
  assert.deepEqual(apart([], 4), []);
});
