import assert from "node:assert/strict";
import { test } from "node:test";

import { COLUMNS, History, rowsOf, onLogScale } from "../../jupyter_gpumem/live/frontend/src/history.js";
import { row } from "./helpers.js";

function filled(count, capacity = 100, step = 0.25) {
  const history = new History(capacity);
  for (let i = 0; i < count; i++) history.append(row(i * step, { allocated: i, reserved: 2 * i }));
  return history;
}

test("the newest rows stay and no memory is added", () => {
  const history = filled(250);
  const { rows } = history;
  assert.equal(history.length, 100);
  assert.deepEqual([history.at(0, "allocated"), history.at(99, "allocated")], [150, 249]);
  history.append(row(1000));
  assert.equal(history.rows, rows);
});

test("an hour at 4 Hz keeps a 10 s window small", () => {
  const history = filled(14_400, 14_400);
  assert.equal(history.series(3590, 3600, 1)[0].length, 41);
  assert.equal(history.rows.length, 14_400 * COLUMNS.length);
});

test("a row that is not newer is not taken twice", () => {
  const history = filled(3);
  history.append(row(0.5));
  assert.equal(history.length, 3);
});

test("rows that are sent again fill what is missing, in order, once", () => {
  const history = new History(10);
  history.append(row(4));
  history.append(row(5));
  history.merge([row(1), row(2), row(4)]);
  assert.deepEqual([0, 1, 2, 3].map((i) => history.at(i, "time")), [1, 2, 4, 5]);
  assert.equal(history.length, 4);
});

test("a window has one row on either side, and the row found is the first in it", () => {
  const history = filled(40);
  const [times] = history.series(2, 4, 1);
  assert.deepEqual([times[0], times.at(-1)], [1.75, 4]);
  assert.equal(history.at(history.from(2.1), "time"), 2.25);
});

test("missing samples are a gap, not a line", () => {
  const history = new History();
  for (const time of [0, 0.25, 0.5, 5, 5.25]) history.append(row(time, { allocated: 1, reserved: 2 }));
  const [times, allocated, , , others, ratio] = history.series(0, 6, 1);
  assert.deepEqual(times, [0, 0.25, 0.5, 2.75, 5, 5.25]);
  assert.deepEqual(allocated, [1, 1, 1, null, 1, 1]);
  assert.deepEqual(others, [null, null, null, null, null, null]);
  assert.deepEqual(ratio, [0.5, 0.5, 0.5, null, 0.5, 0.5]);
});

test("nothing reserved has no ratio", () => {
  const history = new History();
  history.append(row(1));
  assert.deepEqual(history.series(0, 2, 1)[5], [null]);
});

test("errors and flushes are marks; the flush of an error belongs to it", () => {
  const history = new History();
  history.append(row(0, { retries: 3, ooms: 1 }));
  history.append(row(1, { retries: 4, ooms: 1 }));
  history.append(row(2, { retries: 6, ooms: 2 }));
  history.append(row(3, { retries: 7, ooms: 3 }));
  assert.deepEqual(history.marks(0, 9), [
    { time: 1, kind: "retry", amount: 1 },
    { time: 2, kind: "oom", amount: 1 },
    { time: 2, kind: "retry", amount: 1 },
    { time: 3, kind: "oom", amount: 1 },
  ]);
});

test("a message of rows is cut into rows", () => {
  assert.deepEqual(rowsOf(new Float64Array(30)).map((one) => one.length), [10, 10, 10]);
});

test("a logarithmic scale leaves small sizes out of the picture, not out of the series", () => {
  const series = [[1, 2], [0, 1024], [null, 511], [512, 0], [0, 0], [0, 0.5], [null, 1]];
  assert.deepEqual(onLogScale(series), [[1, 2], [null, 1024], [null, null], [512, null], [null, null], [0, 0.5], [null, 1]]);
  assert.equal(series[1][0], 0);
});
