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
 * @returns {number[]}
 */
export function sizeTicks(low, high, most) {
  const least = (high - low) / Math.max(1, most);
  const unit = UNITS[unitOf(Math.max(least, 1))];
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1024];
  const step = unit * (steps.find((n) => n * unit >= least) ?? 1024);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(tick);
  return ticks;
}

/**
 * A mark of an axis: without needless decimals.
 * @param {number} size
 * @param {string} [unit]
 */
export function tick(size, unit = "auto") {
  const name = unit === "auto" ? unitOf(size) : unit;
  return size === 0 ? "0" : `${Number((size / UNITS[name]).toFixed(2))} ${name}`;
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
