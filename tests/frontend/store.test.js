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

const oom = { device: "cuda:0", verdict: "too much", sentence: "Too much for the card" };
const DEVICES = [{ label: "cuda:0" }, { label: "cuda:1" }];

const GONE = [{ label: "cuda:0", gone: true }, { label: "cuda:1", gone: true }];

test("a device that is gone has no numbers, only a past", () => {
  const store = new Store(0.25);
  store.receive({ ...STATE, devices: DEVICES }, []);
  store.receive({ kind: "samples" }, [packed(row(4, { allocated: 5 }))]);
  assert.equal(store.newest("allocated"), 5);
  store.receive({ ...STATE, devices: GONE }, []);
  store.receive({ kind: "samples" }, []);
  assert.equal(store.newest("allocated"), null);
  assert.equal(store.map, null);
  assert.equal(store.shown.length, 1);
  store.pause();
  assert.equal(store.newest("allocated"), 5);
});

test("a device of the same label takes the place of one that is gone, once and not in a picture that stands still", () => {
  const store = new Store(0.25);
  store.receive({ ...STATE, devices: DEVICES }, []);
  store.set({ slot: 1 });
  store.receive({ ...STATE, devices: GONE }, []);
  assert.equal(store.settings.slot, 1);
  store.pause();
  const others = [...GONE, { label: "cuda:0" }, { label: "cuda:1" }];
  store.receive({ ...STATE, devices: others }, []);
  assert.equal(store.settings.slot, 1);
  store.pause();
  assert.equal(store.settings.slot, 3);
  store.set({ slot: 0 });
  store.receive({ ...STATE, devices: others }, []);
  assert.equal(store.settings.slot, 0);
  store.receive({ ...STATE, devices: [...GONE, { label: "cuda:0", gone: true }, { label: "cuda:1" }] }, []);
  assert.equal(store.settings.slot, 3);
});

test("why a cell ran out of memory comes after its end", () => {
  const store = new Store(0.25);
  store.receive({ ...STATE, devices: DEVICES }, []);
  store.receive({ kind: "samples" }, [packed(row(4))]);
  store.receive({ kind: "cells", cells: [{ number: 3, start: 1, end: 2, error: "OutOfMemoryError" }] }, []);
  assert.equal(store.explainedAt(1.5), null);
  store.receive({ kind: "cells", cells: [{ number: 3, start: 1, end: 2, error: "OutOfMemoryError", oom }] }, []);
  assert.equal(store.cells.length, 1);
  assert.equal(store.explainedAt(1.5).oom.sentence, "Too much for the card");
  assert.equal(store.explainedAt(null).number, 3);
});

test("the reason is that of the cell under the pointer, else of the latest in the picture, on its own device", () => {
  const store = new Store(0.25);
  store.receive({ ...STATE, devices: DEVICES }, []);
  store.receive({ kind: "samples" }, [packed(row(1), row(1, { slot: 1 }), row(100), row(100, { slot: 1 }))]);
  const cell = (number, start, more) => ({ number, start, end: start + 5, ...more });
  const cells = [cell(1, 10, { oom }), cell(2, 20), cell(3, 30, { oom }), cell(4, 40, { oom: { ...oom, device: "cuda:1" } })];
  store.receive({ kind: "cells", cells }, []);
  const numbers = [null, 12, 15.2, 22, 33, 42].map((time) => store.explainedAt(time).number);
  assert.deepEqual(numbers, [3, 1, 1, 3, 3, 3]);
  assert.equal(store.cellAt(15.2).number, 1); // its error shows in the sample after its end
  assert.equal(store.cellAt(25.2), null);
  store.set({ zoom: [19, 28] });
  assert.equal(store.explainedAt(null), null);
  store.set({ slot: 1, zoom: null });
  assert.equal(store.explainedAt(null).number, 4);
  cells.push(cell(5, 50, { oom: { ...oom, device: null } }));
  store.receive({ kind: "cells", cells }, []);
  assert.equal(store.explainedAt(null).number, 5);
});

test("the mark of the error that ended a cell says why, those of errors that were handled do not", () => {
  const store = new Store(0.25);
  store.receive({ ...STATE, devices: DEVICES }, []);
  store.receive({ kind: "samples" }, [packed(row(1), row(2, { ooms: 1 }), row(3, { ooms: 2 }), row(9, { ooms: 3 }))]);
  const verdicts = () => store.marks(0, 10).map((mark) => mark.verdict ?? null);
  store.receive({ kind: "cells", cells: [{ number: 1, start: 0.5, end: 2.9, oom }] }, []);
  assert.deepEqual(verdicts(), [null, "too much", null]);
  store.receive({ kind: "cells", cells: [{ number: 1, start: 0.5, end: 7, oom }] }, []);
  assert.deepEqual(verdicts(), [null, "too much", null]);
  store.receive({ kind: "cells", cells: [{ number: 1, start: 0.5, end: 7 }] }, []);
  assert.deepEqual(verdicts(), [null, null, null]);
});

test("an answer ends the waiting of its own request only", () => {
  const store = new Store(0.25);
  store.pending.set("empty", "a").set("audit", "b");
  store.receive({ ...STATE, answer: { id: "a", name: "empty", text: "done", failed: false } }, []);
  assert.deepEqual([...store.pending.keys()], ["audit"]);
});

test("as long as there is less than the window, what there is is shown, and half a minute at least", () => {
  const store = new Store(0.25);
  store.receive({ kind: "samples" }, [packed(row(1000))]);
  assert.deepEqual(store.range, [970, 1000]);
  store.receive({ kind: "samples" }, [packed(row(1090))]);
  assert.deepEqual(store.range, [1000, 1090]);
  store.receive({ kind: "samples" }, [packed(row(1150))]);
  assert.deepEqual(store.range, [1030, 1150]);
  store.set({ window: 30 });
  assert.deepEqual(store.range, [1120, 1150]);
});

test("the window follows the newest sample, stands still when paused, and is the zoom when there is one", () => {
  const store = new Store(0.25);
  store.receive({ kind: "samples" }, [packed(row(500), row(1000))]);
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
