import assert from "node:assert/strict";
import { test } from "node:test";

import { ALLOCATED, AWAITING, FREE, WHOLE, decodeMap, decodeRows } from "../../jupyter_gpumem/live/frontend/src/wire.js";
import { packed, row, view } from "./helpers.js";

test("rows come out as they went in, wherever their buffer begins", () => {
  const rows = packed(row(1, { allocated: 2 ** 40 + 512 }), row(2));
  const shifted = new Uint8Array(rows.byteLength + 3);
  shifted.set(new Uint8Array(rows.buffer), 3);
  const decoded = decodeRows(new DataView(shifted.buffer, 3));
  assert.equal(decoded.length, 20);
  assert.equal(decoded[3], 2 ** 40 + 512);
});

test("a map is segments with their entries, streams, pools and lines", () => {
  const head = { kind: "map", slot: 1, time: 5, entries: 4, streams: [0, 7], pools: [[0, 0], [0, 1]], lines: ["", "a.py:3 f"], summary: {} };
  const shapes = Float64Array.of(4096, 2 ** 40 + 2560, 65536, 1024);
  const tables = Uint32Array.of(0, 0, 1, 3, 1, 1, 2, 1);
  const packedBlocks = new Uint8Array(4 * 15);
  const data = new DataView(packedBlocks.buffer);
  [512, 2 ** 40 + 512, 1536, 1024].forEach((size, i) => data.setBigUint64(8 * i, BigInt(size), true));
  [1, 1, 9, 1].forEach((count, i) => data.setUint32(32 + 4 * i, count, true));
  [0, 1, 0, 0].forEach((line, i) => data.setUint16(48 + 2 * i, line, true));
  [FREE, ALLOCATED, AWAITING, FREE].forEach((state, i) => data.setUint8(56 + i, state));
  const map = decodeMap(head, [view(shapes), view(tables), data]);
  assert.equal(map.slot, 1);
  assert.deepEqual(map.segments[0], {
    address: 4096,
    size: 2 ** 40 + 2560,
    stream: 0,
    pool: [0, 0],
    small: true,
    expandable: false,
    entries: [
      { size: 512, count: 1, state: FREE, line: "" },
      { size: 2 ** 40 + 512, count: 1, state: ALLOCATED, line: "a.py:3 f" },
      { size: 1536, count: 9, state: AWAITING, line: "" },
    ],
  });
  assert.deepEqual(map.segments[1].entries.map((entry) => entry.state), [WHOLE]);
  assert.deepEqual([map.segments[1].stream, map.segments[1].pool, map.segments[1].expandable], [7, [0, 1], true]);
});
