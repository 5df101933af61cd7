import assert from "node:assert/strict";
import { test } from "node:test";

import { COLUMNS } from "../../jupyter_gpumem/live/frontend/src/history.js";
import { Store } from "../../jupyter_gpumem/live/frontend/src/store.js";
import { packed, row } from "./helpers.js";

const STATE = { kind: "state", columns: COLUMNS, devices: [], since: 0, absent: null, error: null, recording: {}, can_dock: false };

test("samples go to their devices, and late history before them", () => {
  const store = new Store(0.25);
  store.receive({ kind: "samples" }, [packed(row(9, { slot: 0 }), row(9, { slot: 1, allocated: 5 }))]);
  store.receive({ kind: "samples", history: true }, [packed(row(8, { slot: 1 }), row(9, { slot: 1 }))]);
  assert.deepEqual([store.history(0).length, store.history(1).length], [1, 2]);
  assert.equal(store.history(1).at(1, "allocated"), 5);
});

test("a kernel of another version is refused", () => {
  assert.throws(() => new Store(1).receive({ ...STATE, columns: ["time"] }, []), /different versions/);
});

test("a cell runs until its end is known, also when it is told twice", () => {
  const store = new Store(0.25);
  store.receive({ kind: "cells", cells: [{ number: 3, start: 1, end: null }] }, []);
  assert.equal(store.running.number, 3);
  store.receive({ kind: "cells", cells: [{ number: 3, start: 1, end: 2 }] }, []);
  store.receive({ kind: "cells", cells: [{ number: 3, start: 1, end: null }] }, []);
  assert.equal(store.running, null);
  assert.equal(store.cells.length, 1);
});

test("an answer ends the waiting of its own request only", () => {
  const store = new Store(0.25);
  store.pending.set("empty", "a").set("audit", "b");
  store.receive({ ...STATE, answer: { id: "a", name: "empty", text: "done", failed: false } }, []);
  assert.deepEqual([...store.pending.keys()], ["audit"]);
});

test("the window follows the newest sample, stands still when paused, and is the zoom when there is one", () => {
  const store = new Store(0.25);
  store.receive({ kind: "samples" }, [packed(row(1000))]);
  assert.deepEqual(store.range, [880, 1000]);
  store.pause();
  store.receive({ kind: "samples" }, [packed(row(1001, { allocated: 7 }))]);
  assert.deepEqual(store.range, [880, 1000]);
  assert.equal(store.newest("allocated"), 0);
  store.pause();
  assert.equal(store.newest("allocated"), 7);
  store.set({ zoom: [5, 6] });
  assert.deepEqual(store.range, [5, 6]);
});
