// @ts-check
/** Numbers as people read them; sizes as `jupyter_gpumem.units` writes them. */

const KIB = 1024;
const MIB = KIB ** 2;
const GIB = KIB ** 3;
const TIB = KIB ** 4;

/** @type {Record<string, number>} */
export const UNITS = { B: 1, KiB: KIB, MiB: MIB, GiB: GIB, TiB: TIB };

/**
 * The unit in which a size reads best.
 * @param {number} size
 * @returns {string}
 */
export function unitOf(size) {
  const magnitude = Math.abs(size);
  if (magnitude < KIB) return "B";
  for (const name of ["KiB", "MiB", "GiB"]) {
    // 1023.995 and more would print as 1024.00: the next unit says it better.
    if (magnitude < UNITS[name] * 1023.995) return name;
  }
  return "TiB";
}

/**
 * `0 B`, `65.00 MiB`, and a dash for what is not known.
 * @param {number | null | undefined} size
 * @param {string} [unit] one of `UNITS`, or `auto`
 */
export function bytes(size, unit = "auto") {
  if (size === null || size === undefined || Number.isNaN(size)) return "–";
  const name = unit === "auto" ? unitOf(size) : unit;
  return name === "B" ? `${size} B` : `${(size / UNITS[name]).toFixed(2)} ${name}`;
}

/**
 * A change with its sign.
 * @param {number | null | undefined} size
 */
export function delta(size) {
  return size !== null && size !== undefined && size > 0 ? `+${bytes(size)}` : bytes(size);
}

/**
 * `12.3 %`.
 * @param {number | null | undefined} share
 */
export function percent(share) {
  return share === null || share === undefined || Number.isNaN(share) ? "–" : `${(100 * share).toFixed(1)} %`;
}

/**
 * The time of day, to the second.
 * @param {number} seconds since 1970
 */
export function clock(seconds) {
  const date = new Date(1000 * seconds);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((n) => String(n).padStart(2, "0")).join(":");
}

/**
 * A duration: `0.25 s`, `12.3 s`, `2 min 05 s`.
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.995 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
}

/**
 * Where an axis of sizes has its marks: round numbers in binary units.
 * @param {number} low
 * @param {number} high
 * @param {number} most how many marks there is room for
 * @param {string} [name] the unit of the marks, or `auto`
 * @returns {number[]}
 */
export function sizeTicks(low, high, most, name = "auto") {
  const least = (high - low) / Math.max(1, most);
  const unit = UNITS[name === "auto" ? unitOf(high) : name];
  // Below one of the unit that the highest mark has, halves of it: 512 MiB are round beside 1 GiB, 500 MiB are not.
  let step = unit;
  while (step / 2 >= Math.max(least, 1)) step /= 2;
  const decades = [1, 10, 100, 1000].flatMap((n) => [n, 2 * n, 5 * n]);
  step = step >= least ? step : unit * (decades.find((n) => n * unit >= least) ?? 2 ** Math.ceil(Math.log2(least / unit)));
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/**
 * A mark of an axis: without needless decimals, and in its own unit where two of them would not tell what it is.
 * @param {number} size
 * @param {string} [unit]
 */
export function tick(size, unit = "auto") {
  if (size === 0) return "0";
  const own = unit === "auto" || (size < UNITS[unit] && Number((size / UNITS[unit]).toFixed(2)) * UNITS[unit] !== size);
  const name = own ? unitOf(size) : unit;
  return `${Number((size / UNITS[name]).toFixed(2))} ${name}`;
}

/**
 * A mark of the axis of time: the time of day, as far as its marks differ in it.
 * @param {number} time seconds since 1970
 * @param {number} step seconds between two marks
 */
export function timeTick(time, step) {
  if (step >= 60) return clock(time).slice(0, 5);
  if (step >= 1) return clock(time);
  const digits = [1, 2].find((n) => Math.abs(step * 10 ** n - Math.round(step * 10 ** n)) < 1e-6) ?? 3;
  const second = (Math.round(1000 * time) % 60_000) / 1000;
  return second.toFixed(digits).padStart(digits + 3, "0");
}

/**
 * The labels that have room on one line, in their order; where some are in each other's way, those of most weight.
 * @template {{ from: number, to: number, weight: number }} T
 * @param {T[]} labels
 * @param {number} gap what stays free between two
 * @returns {T[]}
 */
export function apart(labels, gap) {
  /** @type {T[]} */
  const kept = [];
  for (const one of [...labels].sort((a, b) => b.weight - a.weight)) {
    if (kept.every(({ from, to }) => one.to + gap <= from || to + gap <= one.from)) kept.push(one);
  }
  return kept.sort((a, b) => a.from - b.from);
}
