// @ts-check
/** The segment map on a canvas. Only the rows in sight are drawn, so that its cost does not grow with the map. */

import { h } from "./dom.js";
import { bytes } from "./format.js";
import { arrange, describe, entryAt, rowAt } from "./layout.js";
import { Inks, Picture, columnsOf } from "./pixels.js";
import { coloursOf, fills } from "./theme.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./layout.js").Row} Row */
/** @typedef {{ row: number, first: number, last: number }} Spot */

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
    this.held = h("div", { class: "gm-spot gm-held", hidden: true });
    this.spotted = h("div", { class: "gm-spot", hidden: true });
    this.space.append(this.canvas, this.held, this.spotted);
    scroller.append(this.space);
    /** @type {Row[]} */
    this.rows = [];
    this.height = 0;
    /** @type {WeakMap<Row, import("./pixels.js").Columns>} */
    this.known = new WeakMap();
    this.picture = new Picture(0, 0);
    /** @type {Inks | null} */
    this.inks = null;
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
    this.inks = null;
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
    this.mark();
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
   * The columns of a row, which stay the same until it has another width or another map comes.
   * @param {Row} row
   * @param {number} width
   * @param {number} tall
   */
  columns(row, width, tall) {
    const known = this.known.get(row);
    if (known?.ground.length === width && known.tall === tall) return known;
    const columns = columnsOf(row, width, tall, EDGED * devicePixelRatio);
    this.known.set(row, columns);
    return columns;
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
    const context = canvas.getContext("2d");
    if (!context || !width || !height) return;
    const { picture, inks } = this.fresh(Math.round(width * ratio), Math.round(height * ratio));
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const top = scroller.scrollTop;
    const visible = this.rows.filter((row) => row.y + row.height >= top && row.y <= top + height);
    const place = (/** @type {Row} */ row) => ({ y: Math.round((row.y - top) * ratio), tall: Math.round(row.height * ratio) });
    for (const row of visible) {
      if (row.title !== null) continue;
      const { y, tall } = place(row);
      const bar = this.extent(row);
      picture.row(this.columns(row, Math.round(bar.width * ratio), tall), Math.round(bar.left * ratio), y, inks);
    }
    context.putImageData(new ImageData(new Uint8ClampedArray(picture.pixels.buffer), picture.width, picture.height), 0, 0);
    context.font = `${10.5 * ratio}px system-ui, -apple-system, 'Segoe UI', sans-serif`;
    context.textBaseline = "middle";
    for (const row of visible) {
      const { y, tall } = place(row);
      const title = row.title !== null;
      context.fillStyle = title ? this.colours.text : this.colours.muted;
      context.textAlign = title ? "left" : "right";
      context.fillText(row.title ?? bytes(row.size), (title ? 2 : LABEL - 8) * ratio, y + tall / 2 + ratio / 2);
    }
    this.mark();
  }

  /**
   * An empty picture of that size, and its inks; their memory is taken anew only when the size or the colours have changed.
   * @param {number} width
   * @param {number} height
   */
  fresh(width, height) {
    if (this.picture.width !== width || this.picture.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.picture = new Picture(width, height);
    } else this.picture.pixels.fill(0);
    if (this.inks?.width !== width) this.inks = new Inks(this.fills.map((fill) => new Uint32Array(fill.data.buffer)), width);
    return { picture: this.picture, inks: this.inks };
  }

  /** Show what is pointed at and what is pinned: frames over the picture, which stays as it is. */
  mark() {
    this.frame(this.spotted, this.spot);
    this.frame(this.held, this.pinned);
  }

  /**
   * @param {HTMLElement} element
   * @param {Spot | null} spot
   */
  frame(element, spot) {
    const row = spot && this.rows[spot.row];
    element.hidden = !row;
    if (!row) return;
    const { left, width } = this.extent(row);
    const from = spot.first ? row.ends[spot.first - 1] : 0;
    const wide = Math.max(2, (row.ends[spot.last] - from) * width);
    Object.assign(element.style, { left: `${left + from * width}px`, width: `${wide}px`, top: `${row.y}px`, height: `${row.height}px` });
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
    this.mark();
  }

  /** @param {Spot | null} spot */
  pin(spot) {
    const { pinned } = this;
    const again = pinned && spot && pinned.row === spot.row && pinned.first === spot.first && pinned.last === spot.last;
    this.pinned = again ? null : spot;
    this.say();
    this.mark();
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
      this.pin(null);
      this.point(null);
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
