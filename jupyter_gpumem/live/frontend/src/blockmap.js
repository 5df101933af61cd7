// @ts-check
/** The segment map on a canvas. Only the rows in sight are drawn, so that its cost does not grow with the map. */

import { bytes } from "./format.js";
import { MIXED_WIDTH, WHOLE_WIDTH, arrange, describe, entryAt, paint, rowAt } from "./layout.js";
import { coloursOf, fills } from "./theme.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "./wire.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./layout.js").Row} Row */
/** @typedef {{ row: number, first: number, last: number }} Spot */

const STATES = [UNMAPPED, WHOLE, FREE, AWAITING, ALLOCATED];
const LABEL = 66;
/** A block as wide as this has a visible edge. */
const EDGED = 5;

export class BlockMapView {
  /**
   * @param {HTMLElement} scroller
   * @param {Store} store
   * @param {(text: ReturnType<typeof describe> | null, pinned: boolean) => void} pointed
   */
  constructor(scroller, store, pointed) {
    this.scroller = scroller;
    this.store = store;
    this.pointed = pointed;
    this.canvas = document.createElement("canvas");
    this.space = document.createElement("div");
    this.space.className = "gm-space";
    this.space.append(this.canvas);
    scroller.append(this.space);
    /** @type {Row[]} */
    this.rows = [];
    this.height = 0;
    /** @type {WeakMap<Row, { width: number, rectangles: import("./layout.js").Paint }>} */
    this.paints = new WeakMap();
    /** @type {Spot | null} */
    this.spot = null;
    /** @type {Spot | null} */
    this.pinned = null;
    this.drawMs = 0;
    this.scheduled = 0;
    this.colours = coloursOf(scroller);
    this.fills = fills(this.colours, devicePixelRatio);
    scroller.addEventListener("scroll", () => this.draw());
    scroller.addEventListener("pointermove", (event) => this.hover(event));
    scroller.addEventListener("pointerleave", () => this.point(null));
    scroller.addEventListener("click", (event) => {
      this.hover(event);
      this.pin(this.spot);
    });
    scroller.addEventListener("keydown", (event) => this.key(event));
  }

  /** Take the colours in force now. */
  restyle() {
    this.colours = coloursOf(this.scroller);
    this.fills = fills(this.colours, devicePixelRatio);
    this.draw();
  }

  /** Lay the newest map out, and draw it soon. */
  update() {
    const { map } = this.store;
    const { order, toScale } = this.store.settings;
    const total = this.store.device?.total ?? null;
    const { rows, height } = map ? arrange(map, { order, toScale, total }) : { rows: [], height: 0 };
    const [pinned, spot] = [this.pinned, this.spot].map((one) => one && this.found(one, rows));
    Object.assign(this, { rows, height, pinned, spot });
    this.space.style.height = `${height}px`;
    this.say();
    this.draw();
  }

  /**
   * Where the same block lies in other rows, if it is still there.
   * @param {Spot} spot
   * @param {Row[]} rows
   * @returns {Spot | null}
   */
  found(spot, rows) {
    const old = this.rows[spot.row];
    const row = rows.findIndex((one) => one.segments[0]?.address === old?.segments[0]?.address && one.size === old.size);
    return row >= 0 && spot.last < rows[row].entries.length ? { ...spot, row } : null;
  }

  draw() {
    if (!this.scheduled) {
      this.scheduled = requestAnimationFrame(() => {
        this.scheduled = 0;
        const began = performance.now();
        this.drawNow();
        this.drawMs = performance.now() - began;
      });
    }
  }

  /**
   * The rectangles of a row; pointing at it does not compute them anew.
   * @param {Row} row
   * @param {number} width
   */
  painted(row, width) {
    const known = this.paints.get(row);
    if (known?.width === width) return known.rectangles;
    const rectangles = paint(row, width);
    this.paints.set(row, { width, rectangles });
    return rectangles;
  }

  /** Where a row begins and how wide it is. @param {Row} row */
  extent(row) {
    return { left: LABEL, width: Math.max(2, Math.round((this.scroller.clientWidth - LABEL - 2) * row.share)) };
  }

  drawNow() {
    const { scroller, canvas } = this;
    const ratio = devicePixelRatio;
    const width = scroller.clientWidth;
    const height = Math.min(scroller.clientHeight, Math.max(1, this.height));
    const deviceWidth = Math.round(width * ratio);
    const deviceHeight = Math.round(height * ratio);
    if (canvas.width !== deviceWidth || canvas.height !== deviceHeight) {
      canvas.width = deviceWidth;
      canvas.height = deviceHeight;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    if (!context) return;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, deviceWidth, deviceHeight);
    const top = scroller.scrollTop;
    /** @type {Map<number, Path2D>} */
    const paths = new Map(STATES.map((state) => [state, new Path2D()]));
    const edges = new Path2D();
    const frames = new Path2D();
    const add = (/** @type {number} */ state, /** @type {number[]} */ [x, y, w, h]) => paths.get(state)?.rect(x, y, w, h);
    context.font = `${10.5 * ratio}px system-ui, -apple-system, 'Segoe UI', sans-serif`;
    context.textBaseline = "middle";
    for (const row of this.rows) {
      if (row.y + row.height < top || row.y > top + height) continue;
      const y = Math.round((row.y - top) * ratio);
      const tall = Math.round(row.height * ratio);
      if (row.title !== null) {
        context.fillStyle = this.colours.text;
        context.textAlign = "left";
        context.fillText(row.title, 2 * ratio, y + tall / 2 + ratio);
        continue;
      }
      context.fillStyle = this.colours.muted;
      context.textAlign = "right";
      context.fillText(bytes(row.size), (LABEL - 8) * ratio, y + tall / 2 + ratio / 2);
      const place = this.extent(row);
      const left = Math.round(place.left * ratio);
      const wide = Math.round(place.width * ratio);
      const { whole, mixed } = this.painted(row, wide);
      for (let i = 0; i < whole.length; i += WHOLE_WIDTH) {
        const [x, w, state] = [left + whole[i], whole[i + 1], whole[i + 2]];
        add(state, [x, y, w, tall]);
        if (w >= EDGED * ratio) edges.rect(x, y, Math.max(1, Math.round(ratio / 2)), tall);
      }
      for (let i = 0; i < mixed.length; ) {
        const [first, live, waiting] = shares(mixed, i, tall);
        let end = first;
        // Pixels that look the same are one rectangle: a segment of tiny blocks has few different ones.
        for (let same = true; same && i < mixed.length; ) {
          const next = shares(mixed, i, tall);
          same = next[0] === end && next[1] === live && next[2] === waiting;
          if (same) [end, i] = [end + 1, i + MIXED_WIDTH];
        }
        const [x, w] = [left + first, end - first];
        if (live) add(ALLOCATED, [x, y + tall - live, w, live]);
        if (waiting) add(AWAITING, [x, y + tall - live - waiting, w, waiting]);
        if (tall > live + waiting) add(FREE, [x, y, w, tall - live - waiting]);
      }
      frames.rect(left - 0.5, y - 0.5, wide + 1, tall + 1);
    }
    for (const state of STATES) {
      context.fillStyle = this.fills[state];
      context.fill(/** @type {Path2D} */ (paths.get(state)));
    }
    context.fillStyle = this.colours.surface;
    context.fill(edges);
    context.strokeStyle = this.colours.edge;
    context.lineWidth = 1;
    context.stroke(frames);
    if (this.spot) this.outline(context, this.spot, top, false);
    if (this.pinned) this.outline(context, this.pinned, top, true);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {Spot} spot
   * @param {number} top
   * @param {boolean} strong
   */
  outline(context, spot, top, strong) {
    const row = this.rows[spot.row];
    if (!row) return;
    const ratio = devicePixelRatio;
    const { left, width } = this.extent(row);
    const from = spot.first ? row.ends[spot.first - 1] : 0;
    const x = (left + from * width) * ratio;
    const wide = Math.max(2 * ratio, (row.ends[spot.last] - from) * width * ratio);
    context.strokeStyle = this.colours.text;
    context.lineWidth = (strong ? 2.5 : 1.5) * ratio;
    context.strokeRect(x, (row.y - top) * ratio, wide, row.height * ratio);
  }

  /** @param {MouseEvent} event */
  hover(event) {
    const box = this.scroller.getBoundingClientRect();
    const row = rowAt(this.rows, event.clientY - box.top + this.scroller.scrollTop);
    if (row < 0) return this.point(null);
    const { left, width } = this.extent(this.rows[row]);
    const x = event.clientX - box.left - left;
    if (x < 0 || x > width) return this.point(null);
    // All that is under this pixel, so that nothing is attributed to one of many.
    const first = entryAt(this.rows[row], Math.floor(x) / width);
    const last = Math.max(first, entryAt(this.rows[row], (Math.floor(x) + 0.999) / width));
    const middle = entryAt(this.rows[row], x / width);
    const few = last - first <= 1;
    this.point(few ? { row, first: middle, last: middle } : { row, first, last });
  }

  /** @param {Spot | null} spot */
  point(spot) {
    const same = spot?.row === this.spot?.row && spot?.first === this.spot?.first && spot?.last === this.spot?.last;
    if (same && (spot === null) === (this.spot === null)) return;
    this.spot = spot;
    this.say();
    this.draw();
  }

  /** @param {Spot | null} spot */
  pin(spot) {
    const { pinned } = this;
    const again = pinned && spot && pinned.row === spot.row && pinned.first === spot.first && pinned.last === spot.last;
    this.pinned = again ? null : spot;
    this.say();
    this.draw();
  }

  say() {
    const spot = this.spot ?? this.pinned;
    const row = spot && this.rows[spot.row];
    this.pointed(spot && row ? describe(row, spot.first, spot.last) : null, spot !== null && spot === this.pinned);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const usable = this.rows.flatMap((row, i) => (row.title === null ? [i] : []));
    if (!usable.length) return;
    const spot = this.spot ?? this.pinned ?? { row: usable[0], first: 0, last: 0 };
    const fresh = this.spot === null && this.pinned === null;
    const at = usable.indexOf(spot.row);
    const moves = /** @type {Record<string, () => Spot>} */ ({
      ArrowRight: () => this.entry(spot.row, spot.last + 1),
      ArrowLeft: () => this.entry(spot.row, spot.first - 1),
      ArrowDown: () => this.entry(usable[Math.min(usable.length - 1, at + 1)], 0),
      ArrowUp: () => this.entry(usable[Math.max(0, at - 1)], 0),
      Home: () => this.entry(usable[0], 0),
      End: () => this.entry(usable[usable.length - 1], 0),
    });
    if (event.key in moves) {
      this.point(fresh ? spot : moves[event.key]());
      this.reveal();
    } else if (event.key === "Enter" || event.key === " ") this.pin(this.spot);
    else if (event.key === "Escape") {
      this.pinned = null;
      this.point(null);
      this.say();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} row @param {number} index @returns {Spot} */
  entry(row, index) {
    const entry = Math.max(0, Math.min(this.rows[row].entries.length - 1, index));
    return { row, first: entry, last: entry };
  }

  /** Scroll the row that the keyboard has reached into sight. */
  reveal() {
    const row = this.spot && this.rows[this.spot.row];
    if (!row) return;
    const { scrollTop, clientHeight } = this.scroller;
    if (row.y < scrollTop) this.scroller.scrollTop = row.y;
    else if (row.y + row.height > scrollTop + clientHeight) this.scroller.scrollTop = row.y + row.height - clientHeight;
  }

  destroy() {
    cancelAnimationFrame(this.scheduled);
    this.space.remove();
  }
}

/**
 * Where a pixel that several blocks share lies, and how much of its height is allocated and awaiting free. Whatever is
 * there gets one device pixel at least: a tiny live block is what pins a segment.
 * @param {number[]} mixed
 * @param {number} i
 * @param {number} tall
 */
function shares(mixed, i, tall) {
  const [x, allocated, awaiting, free] = [mixed[i], mixed[i + 1], mixed[i + 2], mixed[i + 3]];
  const sum = allocated + awaiting + free;
  const live = allocated && Math.max(1, Math.round((tall * allocated) / sum));
  return [x, live, awaiting && Math.max(1, Math.round((tall * awaiting) / sum))];
}
