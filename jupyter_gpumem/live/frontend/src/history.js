// @ts-check
/** The samples of one device in the browser: a ring of columns, taken once, so that a long session needs no more. */

/** What a row holds, in the order of the kernel's `Sample`. */
export const COLUMNS = [
  "time",
  "slot",
  "cell",
  "allocated",
  "reserved",
  "peak",
  "others",
  "external",
  "retries",
  "ooms",
];
const WIDTH = COLUMNS.length;
/** @type {Record<string, number>} */
const AT = Object.fromEntries(COLUMNS.map((name, index) => [name, index]));

/** @typedef {{ time: number, kind: "oom" | "retry", amount: number, verdict?: string }} Mark */

export class History {
  /** @param {number} capacity rows; an hour at 4 Hz by default */
  constructor(capacity = 14400) {
    this.capacity = capacity;
    this.rows = new Float64Array(capacity * WIDTH);
    this.written = 0;
  }

  get length() {
    return Math.min(this.written, this.capacity);
  }

  /**
   * A value of the i-th row, oldest first.
   * @param {number} i
   * @param {string} name
   */
  at(i, name) {
    const first = this.written - this.length;
    return this.rows[((first + i) % this.capacity) * WIDTH + AT[name]];
  }

  /** @param {Float64Array} row */
  append(row) {
    if (this.length && row[AT.time] <= this.at(this.length - 1, "time")) return;
    this.rows.set(row, (this.written % this.capacity) * WIDTH);
    this.written++;
  }

  /**
   * Take in rows that were sent again: those that are older than what is here, or missing in between.
   * @param {Float64Array[]} older in order
   */
  merge(older) {
    /** @type {Float64Array[]} */
    const known = Array.from({ length: this.length }, (_, i) => this.row(i));
    const times = new Set(known.map((row) => row[AT.time]));
    const all = known.concat(older.filter((row) => !times.has(row[AT.time])));
    all.sort((a, b) => a[AT.time] - b[AT.time]);
    this.written = 0;
    for (const row of all.slice(-this.capacity)) this.append(row);
  }

  /**
   * A copy of the i-th row.
   * @param {number} i
   */
  row(i) {
    const start = ((this.written - this.length + i) % this.capacity) * WIDTH;
    return this.rows.slice(start, start + WIDTH);
  }

  /**
   * The index of the first row that is not before a time.
   * @param {number} time
   */
  from(time) {
    let low = 0;
    let high = this.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.at(middle, "time") < time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /**
   * The series of the chart between two times, with one row on either side so that lines reach the edges. Where samples
   * are missing for longer than `gap` seconds a row of `null` breaks the lines.
   * @param {number} start
   * @param {number} end
   * @param {number} gap
   * @returns {(number | null)[][]} times, then allocated, reserved, peak, others, unallocated ratio, external
   */
  series(start, end, gap) {
    /** @type {(number | null)[][]} */
    const columns = [[], [], [], [], [], [], []];
    const last = Math.min(this.length, this.from(end) + 1);
    let before = NaN;
    for (let i = Math.max(0, this.from(start) - 1); i < last; i++) {
      const at = ((this.written - this.length + i) % this.capacity) * WIDTH;
      const [time, , , allocated, reserved, peak, others, external] = this.rows.subarray(at, at + 8);
      if (time - before > gap) {
        columns[0].push((time + before) / 2);
        for (const column of columns.slice(1)) column.push(null);
      }
      const values = [time, allocated, reserved, peak, others, reserved ? 1 - allocated / reserved : NaN, external];
      values.forEach((value, k) => columns[k].push(Number.isNaN(value) ? null : value));
      before = time;
    }
    return columns;
  }

  /**
   * Out-of-memory errors and cache flushes between two times.
   * @param {number} start
   * @param {number} end
   * @returns {Mark[]}
   */
  marks(start, end) {
    /** @type {Mark[]} */
    const found = [];
    for (let i = Math.max(1, this.from(start)); i < this.length && this.at(i, "time") <= end; i++) {
      const time = this.at(i, "time");
      const ooms = this.at(i, "ooms") - this.at(i - 1, "ooms");
      const retries = this.at(i, "retries") - this.at(i - 1, "retries");
      if (ooms > 0) found.push({ time, kind: "oom", amount: ooms });
      // A request that failed was retried as well: that flush is part of the failure.
      if (retries > Math.max(0, ooms)) found.push({ time, kind: "retry", amount: retries - Math.max(0, ooms) });
    }
    return found;
  }
}

/** Where a logarithmic scale of sizes begins. */
export const LEAST = 512;

/**
 * The series as a logarithmic scale can draw them: without the sizes below its beginning. The series stay as they are:
 * what is not drawn, such as 0 B, can still be read.
 * @param {(number | null)[][]} series as of `History.series`
 */
export function onLogScale(series) {
  return series.map((column, k) => (k >= 1 && k <= 4 ? column.map((size) => (size === null || size < LEAST ? null : size)) : column));
}

/**
 * The rows of a message, each for itself.
 * @param {Float64Array} values
 * @returns {Float64Array[]}
 */
export function rowsOf(values) {
  return Array.from({ length: values.length / WIDTH }, (_, i) => values.subarray(i * WIDTH, (i + 1) * WIDTH));
}

/**
 * Which device a row is about.
 * @param {Float64Array} row
 */
export function slotOf(row) {
  return row[AT.slot];
}
