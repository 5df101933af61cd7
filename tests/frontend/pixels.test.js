import assert from "node:assert/strict";
import { test } from "node:test";

import { EDGE, FRAME, Inks, Picture, columnsOf } from "../../jupyter_gpumem/live/frontend/src/pixels.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "../../jupyter_gpumem/live/frontend/src/wire.js";
import { rowOf } from "./helpers.js";

const NEVER = Infinity;

/** For each column of a row how many of its lines show which state. */
function counted(row, width, tall) {
  const { ground, waiting, live } = columnsOf(row, width, tall, NEVER);
  return Array.from(ground, (state, x) => {
    assert.ok(waiting[x] <= live[x] && live[x] <= tall, `${waiting[x]} ${live[x]}`);
    const lines = { [ALLOCATED]: tall - live[x], [AWAITING]: live[x] - waiting[x] };
    if (waiting[x]) lines[state] = (lines[state] ?? 0) + waiting[x];
    return Object.fromEntries(Object.entries(lines).filter(([, count]) => count));
  });
}

test("entries that fill their pixels have them for themselves", () => {
  assert.deepEqual(counted(rowOf([50, ALLOCATED], [50, FREE]), 4, 9), [{ [ALLOCATED]: 9 }, { [ALLOCATED]: 9 }, { [FREE]: 9 }, { [FREE]: 9 }]);
});

test("a pixel that several entries share shows the part of each", () => {
  const row = rowOf([5, ALLOCATED], [3, FREE], [2, AWAITING], [10, FREE]);
  assert.deepEqual(counted(row, 2, 10), [{ [ALLOCATED]: 5, [AWAITING]: 2, [FREE]: 3 }, { [FREE]: 10 }]);
});

test("what an end that falls between pixels leaves over is shown in the pixel there", () => {
  const row = rowOf([15, ALLOCATED], [15, FREE]);
  assert.deepEqual(counted(row, 3, 8), [{ [ALLOCATED]: 8 }, { [ALLOCATED]: 4, [FREE]: 4 }, { [FREE]: 8 }]);
});

test("an end that only rounding moves past a pixel leaves nothing over", () => {
  const states = Array.from({ length: 49 }, (_, i) => (i % 2 ? ALLOCATED : AWAITING));
  assert.notEqual((1 / 49) * 49, 1);
  for (const wide of [1, 2, 7, 30]) {
    const columns = counted(rowOf(...states.map((state) => [512, state])), 49 * wide, 9);
    assert.deepEqual(columns, states.flatMap((state) => Array.from({ length: wide }, () => ({ [state]: 9 }))));
  }
});

test("a pixel that free segments share is not shown as free beside live blocks", () => {
  const row = { ...rowOf([3, WHOLE], [3, WHOLE], [3, WHOLE], [1, WHOLE]), apart: true };
  assert.deepEqual(counted(row, 4, 9), Array.from({ length: 4 }, () => ({ [WHOLE]: 9 })));
  assert.deepEqual(Object.keys(counted(rowOf([1, ALLOCATED], [1, UNMAPPED]), 1, 8)[0]).map(Number), [ALLOCATED, UNMAPPED]);
  assert.deepEqual(Object.keys(counted(rowOf([1, UNMAPPED], [1, FREE]), 1, 8)[0]).map(Number), [FREE]);
});

test("the lines of every state add up to its size", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const tall = 60_000; // so many that rounding to lines does not matter
  for (let round = 0; round < 40; round++) {
    const entries = Array.from({ length: 2 + Math.floor(random() * 300) }, (_, i) => [
      512 * (1 + Math.floor(random() ** 6 * 4000)),
      [FREE, ALLOCATED, AWAITING][(i + round) % 3],
    ]);
    const width = 3 + Math.floor(random() * 400);
    const total = entries.reduce((sum, [size]) => sum + size, 0);
    const sums = { [FREE]: 0, [ALLOCATED]: 0, [AWAITING]: 0 };
    for (const lines of counted(rowOf(...entries), width, tall)) {
      assert.equal(Object.values(lines).reduce((sum, count) => sum + count, 0), tall);
      for (const [state, count] of Object.entries(lines)) sums[state] += count;
    }
    for (const state of [FREE, ALLOCATED, AWAITING]) {
      const expected = entries.reduce((sum, [size, is]) => sum + (is === state ? size : 0), 0) / total;
      const seen = sums[state] / width / tall;
      assert.ok(Math.abs(seen - expected) < 1e-4, `${state}: ${seen} ${expected}`);
    }
  }
});

test("whatever is there has a line at least, however little it is", () => {
  for (const tall of [9, 12, 40]) {
    for (const state of [ALLOCATED, AWAITING]) {
      const lines = counted(rowOf([2 ** 36, FREE], [512, state], [2 ** 36, FREE]), 301, tall);
      assert.deepEqual(lines.filter((one) => one[state]), [{ [state]: 1, [FREE]: tall - 1 }]);
    }
    for (const state of [FREE, AWAITING]) {
      const lines = counted(rowOf([2 ** 36, ALLOCATED], [512, state], [2 ** 36, ALLOCATED]), 301, tall);
      assert.deepEqual(lines.filter((one) => one[state]), [{ [state]: 1, [ALLOCATED]: tall - 1 }]);
    }
    assert.deepEqual(counted(rowOf([512, AWAITING], [2 ** 36, ALLOCATED], [512, FREE]), 1, tall), [
      { [AWAITING]: 1, [ALLOCATED]: tall - 2, [FREE]: 1 },
    ]);
  }
});

test("free segments side by side have a line between them", () => {
  const row = { ...rowOf([4, WHOLE], [4, WHOLE], [2, WHOLE]), apart: true };
  const { ground } = columnsOf(row, 10, 9, 3);
  assert.deepEqual([...ground], [EDGE, WHOLE, WHOLE, WHOLE, FRAME, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE]);
});

test("a free segment is one thing, and wide entries have an edge", () => {
  assert.deepEqual(counted(rowOf([512, WHOLE]), 3, 9), [{ [WHOLE]: 9 }, { [WHOLE]: 9 }, { [WHOLE]: 9 }]);
  const { ground } = columnsOf(rowOf([2, ALLOCATED], [4, ALLOCATED], [4, FREE]), 10, 9, 4);
  assert.deepEqual([...ground], [ALLOCATED, ALLOCATED, EDGE, ALLOCATED, ALLOCATED, ALLOCATED, EDGE, FREE, FREE, FREE]);
});

/** Inks of which every pixel tells its state and its place in the pattern. */
function inks(width) {
  const squares = Array.from({ length: 7 }, (_, state) => {
    const size = state === FREE ? 3 : 1;
    return Uint32Array.from({ length: size * size }, (__, i) => 100 * (state + 1) + i);
  });
  return new Inks(squares, width);
}

/** The pixels of a picture, line by line. */
function lines({ pixels, width, height }) {
  return Array.from({ length: height }, (_, y) => [...pixels.subarray(y * width, (y + 1) * width)]);
}

const [F, A, X] = [FREE, ALLOCATED, FRAME].map((state) => 100 * (state + 1));

test("a row is painted with the inks of its states, in a frame", () => {
  const picture = new Picture(7, 5);
  picture.row(columnsOf(rowOf([2, ALLOCATED], [2, FREE]), 4, 3, NEVER), 2, 1, inks(7));
  assert.deepEqual(lines(picture), [
    [0, X, X, X, X, X, X],
    [0, X, A, A, F + 1, F + 2, X],
    [0, X, A, A, F + 4, F + 5, X],
    [0, X, A, A, F + 7, F + 8, X],
    [0, X, X, X, X, X, X],
  ]);
});

test("a pixel that is shared shows what is live below what is free", () => {
  const picture = new Picture(3, 4);
  picture.row(columnsOf(rowOf([1, ALLOCATED], [3, FREE]), 1, 4, NEVER), 1, 0, inks(3));
  assert.deepEqual(lines(picture).map((line) => line[1]), [F + 1, F + 4, F + 7, A]);
});

test("a row looks the same wherever it lies, and nothing is painted outside of the picture", () => {
  const columns = columnsOf(rowOf([3, ALLOCATED], [4, FREE], [1, AWAITING], [5, FREE]), 5, 6, 3);
  const whole = new Picture(9, 10);
  whole.row(columns, 2, 2, inks(9));
  const expected = lines(whole);
  for (let top = -8; top < 12; top++) {
    const picture = new Picture(9, 10);
    picture.row(columns, 2, top, inks(9));
    const empty = Array.from({ length: 9 }, () => 0);
    assert.deepEqual(lines(picture), expected.map((_, y) => expected[y - top + 2] ?? empty), `from line ${top}`);
  }
  const narrow = new Picture(5, 10);
  narrow.row(columns, 2, 2, inks(5));
  assert.deepEqual(lines(narrow), expected.map((line) => line.slice(0, 5)));
});
