// @ts-check
/** A row of the segment map as pixels: pure functions from its entries to colours. What it costs is what is to be seen. */

import { ALLOCATED, AWAITING, FREE } from "./wire.js";

/** @typedef {import("./layout.js").Row} Row */

/** Inks besides those of the states: what separates wide blocks, and what frames a row. */
export const EDGE = 5;
export const FRAME = 6;

/** How far rounding may move the end of an entry, in pixels. The smallest block on the largest card is a thousand times that. */
const ROUNDING = 1e-9;

/**
 * A row as columns of one pixel each. From its top on a column shows the state in `ground`, from the line in `waiting` on what
 * awaits free, and from the line in `live` on what is allocated.
 * @typedef {{ tall: number, ground: Uint8Array, waiting: Uint16Array, live: Uint16Array }} Columns
 */

/**
 * The columns of a row. An entry has the pixels that it fills for itself; of one that several share, each state has its part,
 * and at least one line if there is anything of it, however small: a tiny live block is what pins a segment.
 * @param {Row} row
 * @param {number} width pixels
 * @param {number} tall pixels
 * @param {number} edged an entry with that many pixels for itself has a visible edge
 * @returns {Columns}
 */
export function columnsOf(row, width, tall, edged) {
  const ground = new Uint8Array(width).fill(FREE);
  const waiting = new Uint16Array(width).fill(tall);
  const live = new Uint16Array(width).fill(tall);
  const { entries, ends, apart } = row;
  let column = -1;
  let allocated = 0;
  let awaiting = 0;
  let free = 0;
  /** What is neither allocated nor awaiting free in the column: its one state, or free where there are several. */
  let rest = -1;
  const flush = () => {
    if (column >= 0) {
      const sum = allocated + awaiting + free;
      const lines = part(tall, allocated / sum, Number(awaiting > 0) + Number(free > 0));
      live[column] = tall - lines;
      waiting[column] = live[column] - part(tall, awaiting / sum, lines + Number(free > 0));
      if (rest >= 0) ground[column] = rest;
    }
    column = rest = -1;
    allocated = awaiting = free = 0;
  };
  /** @param {number} x @param {number} share @param {number} state */
  const add = (x, share, state) => {
    if (share <= 0) return;
    if (x !== column) {
      flush();
      column = x;
    }
    if (state === ALLOCATED) allocated += share;
    else if (state === AWAITING) awaiting += share;
    else {
      free += share;
      rest = rest < 0 || rest === state ? state : FREE;
    }
  };
  let start = 0;
  for (let i = 0; i < entries.length; i++) {
    const { state } = entries[i];
    const end = snapped(ends[i] * width);
    const first = Math.ceil(start);
    const last = Math.floor(end);
    if (last < first) {
      add(last, end - start, state);
    } else {
      add(first - 1, first - start, state);
      if (last > first) {
        flush();
        ground.fill(state, first, last);
        if (last - first >= edged) ground[first] = apart && i ? FRAME : EDGE;
      }
      add(last, end - last, state);
    }
    start = end;
  }
  flush();
  return { tall, ground, waiting, live };
}

/** @param {number} x */
function snapped(x) {
  const near = Math.round(x);
  return Math.abs(x - near) < ROUNDING ? near : x;
}

/**
 * The lines of `tall` that a share gets: one at least if it is anything, while `others` lines stay for the rest.
 * @param {number} tall
 * @param {number} share
 * @param {number} others
 */
function part(tall, share, others) {
  return share > 0 ? Math.max(1, Math.min(tall - others, Math.round(tall * share))) : 0;
}

/** The patterns of all states, each as wide as a picture: what a pixel gets is one look away. */
export class Inks {
  /**
   * @param {Uint32Array[]} squares by state: what is repeated, pixel by pixel
   * @param {number} width of the picture
   */
  constructor(squares, width) {
    this.sizes = squares.map((square) => Math.sqrt(square.length));
    /** Where the first line of each state begins. */
    this.starts = this.sizes.map((_, state) => width * this.sizes.slice(0, state).reduce((sum, size) => sum + size, 0));
    this.width = width;
    this.pixels = new Uint32Array(width * this.sizes.reduce((sum, size) => sum + size, 0));
    squares.forEach((square, state) => {
      const size = this.sizes[state];
      for (let line = 0; line < size; line++) {
        const start = this.starts[state] + line * width;
        for (let x = 0; x < width; x++) this.pixels[start + x] = square[line * size + (x % size)];
      }
    });
  }
}

/** A picture in memory, as a canvas takes it: cheaper than as many rectangles for the canvas to fill. */
export class Picture {
  /** @param {number} width @param {number} height */
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.pixels = new Uint32Array(width * height);
  }

  /**
   * Paint a row, as far as it lies in the picture. Patterns begin at its top, so that it looks the same wherever it is.
   * @param {Columns} columns
   * @param {number} left
   * @param {number} top
   * @param {Inks} inks
   */
  row({ tall, ground, waiting, live }, left, top, inks) {
    const { pixels, width, height } = this;
    const { starts, sizes, pixels: ink } = inks;
    const wide = Math.min(ground.length, width - left);
    const last = Math.min(tall, height - top);
    for (let x = 0; x < wide; ) {
      // Columns that look the same are one rectangle: its lines cost less than its pixels.
      const [state, second, third] = [ground[x], waiting[x], live[x]];
      let end = x + 1;
      while (end < wide && ground[end] === state && waiting[end] === second && live[end] === third) end++;
      for (let line = Math.max(0, -top); line < last; line++) {
        const shown = line >= third ? ALLOCATED : line >= second ? AWAITING : state;
        const from = starts[shown] + (line % sizes[shown]) * inks.width + left;
        const to = (top + line) * width + left;
        for (let i = x; i < end; i++) pixels[to + i] = ink[from + i];
      }
      x = end;
    }
    this.frame(left - 1, top - 1, wide + 2, tall + 2, ink[starts[FRAME]]);
  }

  /**
   * Draw the outline of a rectangle, one pixel wide, as far as it lies in the picture.
   * @param {number} left
   * @param {number} top
   * @param {number} wide
   * @param {number} tall
   * @param {number} colour
   */
  frame(left, top, wide, tall, colour) {
    const { pixels, width, height } = this;
    const right = Math.min(width, left + wide);
    for (let y = Math.max(0, top); y < Math.min(height, top + tall); y++) {
      if (y === top || y === top + tall - 1) pixels.fill(colour, y * width + left, y * width + right);
      pixels[y * width + left] = colour;
      if (left + wide <= width) pixels[y * width + right - 1] = colour;
    }
  }
}
