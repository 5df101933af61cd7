import assert from "node:assert/strict";
import { test } from "node:test";

import { unfolded } from "../../jupyter_gpumem/live/frontend/src/placement.js";

/** @param {Partial<import("../../jupyter_gpumem/live/frontend/src/placement.js").Place>} more */
const place = (order, more = {}) => ({ order, connected: true, chosen: 0, ...more });

test("the newest view is unfolded until the user asks for another", () => {
  const [first, second] = [place(1), place(2)];
  assert.equal(unfolded([first, second]), second);
  first.chosen = 10;
  assert.equal(unfolded([first, second]), first);
});

test("the latest wish counts, whichever view came first", () => {
  const [inline, sidebar] = [place(1, { chosen: 10 }), place(2, { chosen: 20 })];
  assert.equal(unfolded([inline, sidebar]), sidebar);
  inline.chosen = 30;
  assert.equal(unfolded([sidebar, inline]), inline);
});

test("a view that is not in the page is never the one", () => {
  assert.equal(unfolded([place(1), place(2, { connected: false, chosen: 10 })])?.order, 1);
  assert.equal(unfolded([place(1, { connected: false })]), null);
  assert.equal(unfolded([]), null);
});
