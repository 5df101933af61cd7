// @ts-check
/** What one panel knows in the browser, shared by all its views: samples, cells, maps, and how the user wants to see it. */

import { COLUMNS, History, rowsOf, slotOf } from "./history.js";
import { decodeMap, decodeRows } from "./wire.js";

/** @typedef {import("./types").State} State */
/** @typedef {import("./types").Cell} Cell */
/** @typedef {import("./types").Incoming} Incoming */
/** @typedef {import("./types").BlockMap} BlockMap */
/** @typedef {import("./layout.js").Order} Order */

export const WINDOWS = [30, 120, 600, 3600];

/**
 * How the user looks at it. None of it is known to the kernel, so all of it works while the kernel is busy.
 * @typedef {object} Settings
 * @property {number} window seconds
 * @property {[number, number] | null} zoom
 * @property {number | null} paused the time at which the picture stands still
 * @property {string} unit
 * @property {boolean} log
 * @property {number} slot
 * @property {Set<string>} hidden names of series
 * @property {Order} order
 * @property {boolean} toScale
 */

export class Store {
  /** @param {number} interval seconds between two samples */
  constructor(interval) {
    this.interval = interval;
    /** @type {State | null} */
    this.state = null;
    /** @type {Map<number, History>} */
    this.histories = new Map();
    /** @type {Cell[]} */
    this.cells = [];
    /** @type {Map<number, BlockMap>} */
    this.maps = new Map();
    /** @type {Map<string, string>} names of actions that were asked for and not answered, with their request */
    this.pending = new Map();
    /** @type {import("./types").Answer | null} */
    this.answer = null;
    /** Whether the kernel has gone: nothing will come any more. */
    this.ended = false;
    this.arrived = 0;
    this.messages = 0;
    this.there = "";
    /** @type {Settings} */
    this.settings = {
      window: WINDOWS[1],
      zoom: null,
      paused: null,
      unit: "auto",
      log: false,
      slot: 0,
      hidden: new Set(),
      order: "address",
      toScale: false,
    };
    /** @type {Set<(what: string) => void>} */
    this.listeners = new Set();
  }

  /**
   * Take a message of the kernel.
   * @param {Incoming} content
   * @param {DataView[]} buffers
   */
  receive(content, buffers) {
    this.arrived = performance.now() / 1000;
    this.messages++;
    if (content.kind === "samples") {
      const rows = buffers.length ? rowsOf(decodeRows(buffers[0])) : [];
      if (content.history) this.mergeHistory(rows);
      else for (const row of rows) this.history(slotOf(row)).append(row);
    } else if (content.kind === "cells") {
      this.mergeCells(content.cells);
    } else if (content.kind === "map") {
      this.maps.set(content.slot, decodeMap(content, buffers));
    } else if (content.kind === "state") {
      if (content.columns.join() !== COLUMNS.join()) throw new Error("the panel and the kernel are of different versions");
      this.state = content;
      this.follow();
      if (content.answer) {
        this.answer = content.answer;
        for (const [name, id] of this.pending) if (id === content.answer.id) this.pending.delete(name);
      }
    }
    this.changed(content.kind);
  }

  /** When other devices are there than before, leave one that is gone for the latest of its label, or else the first. */
  follow() {
    const devices = this.state?.devices ?? [];
    const there = devices.flatMap(({ gone }, slot) => (gone ? [] : [slot]));
    if (this.settings.paused !== null || there.join() === this.there) return;
    this.there = there.join();
    if (!this.device?.gone || !there.length) return;
    const { label } = this.device;
    this.set({ slot: there.filter((slot) => devices[slot].label === label).pop() ?? there[0], zoom: null });
  }

  /** @param {string} what */
  changed(what) {
    for (const listener of this.listeners) listener(what);
  }

  /**
   * Change how the user looks at it.
   * @param {Partial<Settings>} changes
   */
  set(changes) {
    Object.assign(this.settings, changes);
    this.changed("settings");
  }

  /**
   * Show or hide a line.
   * @param {string} name
   */
  toggle(name) {
    const hidden = new Set(this.settings.hidden);
    if (!hidden.delete(name)) hidden.add(name);
    this.set({ hidden });
  }

  /** Let the picture stand still, or follow again. */
  pause() {
    this.set({ paused: this.settings.paused === null ? this.latest : null, zoom: null });
    this.follow();
  }

  /** @param {number} slot */
  history(slot) {
    let found = this.histories.get(slot);
    if (!found) this.histories.set(slot, (found = new History()));
    return found;
  }

  /** @param {Float64Array[]} rows */
  mergeHistory(rows) {
    /** @type {Map<number, Float64Array[]>} */
    const bySlot = new Map();
    for (const row of rows) {
      const older = bySlot.get(slotOf(row));
      if (older) older.push(row);
      else bySlot.set(slotOf(row), [row]);
    }
    for (const [slot, older] of bySlot) this.history(slot).merge(older);
  }

  /** @param {Cell[]} cells */
  mergeCells(cells) {
    for (const cell of cells) {
      const known = this.cells.findIndex((one) => one.start === cell.start);
      if (known < 0) this.cells.push(cell);
      else if (cell.end !== null) this.cells[known] = cell; // also later: why it ran out of memory comes last
    }
    this.cells.sort((a, b) => a.start - b.start);
    this.cells.splice(0, this.cells.length - 400);
  }

  /** The device that is shown. */
  get device() {
    return this.state?.devices[this.settings.slot] ?? null;
  }

  /** The samples of the device that is shown. */
  get shown() {
    return this.history(this.settings.slot);
  }

  /** The newest map of the device that is shown; none of one that is gone. */
  get map() {
    return this.device?.gone ? null : this.maps.get(this.settings.slot) ?? null;
  }

  /**
   * The cell that ran at a time, or that had run out of memory just before: its error shows in the next sample.
   * @param {number} time
   */
  cellAt(time) {
    const before = this.cells.filter((cell) => cell.start <= time);
    const cell = before[before.length - 1];
    if (!cell) return null;
    return (cell.end ?? Infinity) + (this.ranOut(cell) ? this.gap : 0) >= time ? cell : null;
  }

  /**
   * The cell whose lack of memory is to be explained: the one at a time, or else the latest in the picture.
   * @param {number | null} time
   * @returns {Cell | null}
   */
  explainedAt(time) {
    const cell = time === null ? null : this.cellAt(time);
    if (cell && this.ranOut(cell)) return cell;
    const [start, end] = this.range;
    const found = this.cells.filter((one) => this.ranOut(one) && one.start <= end && (one.end ?? Infinity) >= start);
    return found[found.length - 1] ?? null;
  }

  /**
   * Whether a cell ran out of the memory of the device that is shown.
   * @param {Cell} cell
   */
  ranOut(cell) {
    return cell.oom !== undefined && (cell.oom.device === null || cell.oom.device === this.device?.label);
  }

  /**
   * Out-of-memory errors and cache flushes of the device that is shown; one that ended a cell with the reason.
   * @param {number} start
   * @param {number} end
   */
  marks(start, end) {
    const marks = this.shown.marks(start, end);
    const errors = marks.filter((mark) => mark.kind === "oom");
    for (const cell of this.cells) {
      if (!this.ranOut(cell) || cell.end === null) continue;
      const [from, until] = [cell.start, cell.end];
      // The counter is read after the cell has ended, unless the error was handled for a while.
      const after = errors.find((mark) => mark.time >= until && mark.time <= until + this.gap);
      const inside = errors.filter((mark) => mark.time >= from && mark.time < until);
      const mark = after ?? inside[inside.length - 1];
      if (mark) mark.verdict = cell.oom?.verdict;
    }
    return marks;
  }

  /**
   * The newest value of a series of the device that is shown; of a paused picture, its last. A device that is gone has
   * none.
   * @param {string} name
   * @returns {number | null}
   */
  newest(name) {
    const { shown, settings } = this;
    const last = (settings.paused === null ? shown.length : shown.from(settings.paused + 1e-3)) - 1;
    if (last < 0 || (settings.paused === null && this.device?.gone)) return null;
    if (name !== "ratio") return shown.at(last, name);
    const reserved = shown.at(last, "reserved");
    return reserved ? 1 - shown.at(last, "allocated") / reserved : null;
  }

  /** The cell that runs, as far as is known here. */
  get running() {
    const last = this.cells[this.cells.length - 1];
    return last && last.end === null ? last : null;
  }

  /** The time of the newest sample of the device that is shown. */
  get latest() {
    const { shown } = this;
    return shown.length ? shown.at(shown.length - 1, "time") : 0;
  }

  /** Seconds since the kernel last said anything. */
  get silence() {
    return this.arrived ? performance.now() / 1000 - this.arrived : 0;
  }

  /** From when samples count as missing. */
  get gap() {
    return Math.max(1, 3.5 * this.interval);
  }

  /**
   * The part of time that the chart shows: the window, or what there is as long as that is less.
   * @returns {[number, number]}
   */
  get range() {
    const { zoom, paused, window } = this.settings;
    if (zoom) return zoom;
    const end = paused ?? this.latest + (this.silence > this.gap ? this.silence : 0);
    const first = this.shown.length ? this.shown.at(0, "time") : end;
    return [Math.max(end - window, Math.min(end - WINDOWS[0], first)), end];
  }
}
