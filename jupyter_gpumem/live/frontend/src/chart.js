// @ts-check
/** The time chart: uPlot, with the cells behind the lines and the out-of-memory errors before them. */

import uPlot from "uplot";

import { apart, sizeTicks, tick, timeTick } from "./format.js";
import { LEAST, onLogScale } from "./history.js";
import { coloursOf } from "./theme.js";

/** @typedef {import("./store.js").Store} Store */

/**
 * The lines: where they are measured, and what tells them apart besides their colour. In a narrow place the label's
 * words after the first are left out.
 * @type {{ name: string, label: string, scale: "bytes" | "share", dash: number[], width: number }[]}
 */
export const SERIES = [
  { name: "allocated", label: "allocated", scale: "bytes", dash: [], width: 2 },
  { name: "reserved", label: "reserved", scale: "bytes", dash: [], width: 1.25 },
  { name: "peak", label: "peak", scale: "bytes", dash: [7, 3], width: 1.5 },
  { name: "others", label: "other processes", scale: "bytes", dash: [2, 3], width: 1.5 },
  { name: "ratio", label: "unallocated ratio", scale: "share", dash: [9, 3, 2, 3], width: 1.5 },
  { name: "external", label: "external fragmentation", scale: "share", dash: [4, 2, 1, 2, 1, 2], width: 1.5 },
];

const FONT = "11px system-ui, -apple-system, 'Segoe UI', sans-serif";

export class Chart {
  /**
   * @param {HTMLElement} host
   * @param {Store} store
   * @param {(index: number | null) => void} pointed called with the index into `data` under the cursor
   */
  constructor(host, store, pointed) {
    this.host = host;
    this.store = store;
    this.pointed = pointed;
    /** @type {(number | null)[][]} */
    this.data = [[], [], [], [], [], [], []];
    this.drawMs = 0;
    this.colours = coloursOf(host);
    /** @type {uPlot} */
    this.plot = this.make();
  }

  make() {
    const { width, height } = this.size();
    const self = this;
    const axis = { font: FONT, stroke: () => self.colours.muted, ticks: { size: 4, width: 1, stroke: () => self.colours.grid } };
    return new uPlot(
      {
        width,
        height,
        pxAlign: 1,
        legend: { show: false },
        padding: [14, 0, 0, 0],
        cursor: {
          y: false,
          drag: { x: true, y: false, setScale: false },
          points: { size: 6, width: 1.5, fill: () => self.colours.surface },
        },
        scales: {
          x: { time: true, range: () => self.store.range },
          bytes: {
            distr: this.store.settings.log ? 3 : 1,
            log: 2,
            range: (_u, _low, high) => self.byteRange(high),
          },
          share: { range: [0, 1] },
        },
        axes: [
          { ...axis, size: 26, space: 64, grid: { show: false }, values: (_u, marks, _i, _s, step) => marks.map((t) => timeTick(t, step)) },
          {
            ...axis,
            scale: "bytes",
            size: 62,
            grid: { width: 1, stroke: () => self.colours.grid },
            splits: (u, _axis, low, high) => self.byteTicks(low, high, u.height),
            values: (_u, marks) => marks.map((size) => tick(size, self.store.settings.unit)),
            filter: (_u, marks) => marks,
          },
          {
            ...axis,
            scale: "share",
            side: 1,
            size: 44,
            grid: { show: false },
            splits: () => [0, 0.25, 0.5, 0.75, 1],
            values: (_u, marks) => marks.map((share) => `${Math.round(100 * share)} %`),
          },
        ],
        series: [
          {},
          ...SERIES.map((one) => ({
            label: one.label,
            scale: one.scale,
            show: !this.store.settings.hidden.has(one.name),
            stroke: () => self.colours[one.name],
            fill: one.name === "allocated" ? () => `${self.colours.allocated}2e` : undefined,
            width: one.width,
            dash: one.dash,
            spanGaps: false,
            points: { show: false },
            paths: uPlot.paths.stepped?.({ align: 1 }),
          })),
        ],
        hooks: {
          drawClear: [(u) => self.drawCells(u)],
          draw: [(u) => self.drawMarks(u)],
          setCursor: [(u) => self.pointed(u.cursor.idx ?? null)],
          setSelect: [(u) => self.select(u)],
        },
      },
      /** @type {any} */ (this.data),
      this.host,
    );
  }

  /** The room there is; while the page is not laid out, as during a change of theme, what there was. */
  size() {
    const { clientWidth, clientHeight } = this.host;
    if (this.plot && !(clientWidth && clientHeight)) return { width: this.plot.width, height: this.plot.height };
    return { width: Math.max(120, clientWidth), height: Math.max(150, clientHeight) };
  }

  resize() {
    const { width, height } = this.size();
    if (width !== this.plot.width || height !== this.plot.height) this.plot.setSize({ width, height });
  }

  /** @param {number} high @returns {[number, number]} */
  byteRange(high) {
    const most = Number.isFinite(high) && high > 0 ? high : 2 ** 20;
    return this.store.settings.log ? [LEAST, most * 1.6] : [0, most * 1.08];
  }

  /** @param {number} low @param {number} high @param {number} height */
  byteTicks(low, high, height) {
    if (!this.store.settings.log) return sizeTicks(low, high, height / 34, this.store.settings.unit);
    const marks = [];
    for (let mark = 2 ** 10; mark <= high; mark *= 2 ** 5) marks.push(mark);
    return marks;
  }

  /** Draw what the store holds now. */
  update() {
    const began = performance.now();
    const [start, end] = this.store.range;
    this.data = this.store.shown.series(start, end, this.store.gap);
    this.plot.setData(/** @type {any} */ (this.store.settings.log ? onLogScale(this.data) : this.data));
    this.drawMs = performance.now() - began;
  }

  /** Draw anew with other colours, another scale or other series. */
  restyle() {
    this.colours = coloursOf(this.host);
    this.plot.destroy();
    this.plot = this.make();
    this.update();
  }

  /** @param {uPlot} u */
  select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    this.store.set({ zoom: [u.posToVal(left, "x"), u.posToVal(left + width, "x")] });
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  }

  /**
   * Move the cursor by samples, for the keyboard.
   * @param {number} step
   */
  move(step) {
    const now = this.plot.cursor.idx ?? this.data[0].length - 1;
    const index = Math.max(0, Math.min(this.data[0].length - 1, now + step));
    const time = this.data[0][index];
    if (time !== undefined && time !== null) this.plot.setCursor({ left: this.plot.valToPos(time, "x"), top: 10 });
  }

  /** @param {uPlot} u */
  drawCells(u) {
    const { ctx, bbox } = u;
    const [start, end] = this.store.range;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top + bbox.height);
    ctx.clip();
    ctx.font = FONT.replace("11px", `${10 * ratio}px`);
    ctx.textBaseline = "bottom";
    const labels = [];
    for (const cell of this.store.cells) {
      const until = cell.end ?? Math.max(this.store.latest, cell.start);
      if (until < start || cell.start > end) continue;
      const left = u.valToPos(cell.start, "x", true);
      const width = Math.max(ratio, u.valToPos(until, "x", true) - left);
      ctx.fillStyle = this.colours.cell;
      ctx.fillRect(left, bbox.top, width, bbox.height);
      ctx.fillRect(left, bbox.top - 2 * ratio, width, 2 * ratio);
      const text = `[${cell.number}]${cell.error ? " !" : ""}`;
      const from = Math.max(left, bbox.left) + ratio;
      labels.push({ text, from, to: from + ctx.measureText(text).width, weight: width, error: Boolean(cell.error) });
    }
    for (const { text, from, error } of apart(labels.filter(({ to }) => to <= bbox.left + bbox.width), 4 * ratio)) {
      ctx.fillStyle = error ? this.colours.oom : this.colours.muted;
      ctx.fillText(text, from, bbox.top - 2 * ratio);
    }
    ctx.restore();
  }

  /** @param {uPlot} u */
  drawMarks(u) {
    const { ctx, bbox } = u;
    const [start, end] = this.store.range;
    const ratio = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = FONT.replace("11px", `600 ${10 * ratio}px`);
    ctx.textBaseline = "top";
    ctx.lineWidth = 1.5 * ratio;
    const marks = this.store.marks(start, end).map((mark) => ({
      mark,
      oom: mark.kind === "oom",
      colour: mark.kind === "oom" ? this.colours.oom : this.colours.retry,
      x: Math.round(u.valToPos(mark.time, "x", true)),
    }));
    for (const { oom, colour, x } of marks) {
      ctx.strokeStyle = colour;
      ctx.setLineDash(oom ? [] : [2 * ratio, 2 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    /** Where the next label of each kind has room: they have a line each, and no mark's line goes through one. */
    const free = { oom: -Infinity, retry: -Infinity };
    for (const { mark, oom, colour, x } of marks) {
      ctx.fillStyle = colour;
      const short = `${oom ? "OOM" : "flush"}${mark.amount > 1 ? ` ×${mark.amount}` : ""}`;
      const widthOf = (/** @type {string} */ words) => ctx.measureText(words).width + 6 * ratio;
      const whole = mark.verdict ? `${short}: ${mark.verdict}` : short;
      const room = Math.max(x - bbox.left, bbox.left + bbox.width - x);
      const text = widthOf(whole) <= room ? whole : short;
      const width = widthOf(text);
      const left = x + width > bbox.left + bbox.width ? x - width : x;
      if (left >= free[mark.kind]) {
        const top = bbox.top + (oom ? 0 : 15 * ratio);
        ctx.fillRect(left, top, width, 14 * ratio);
        ctx.fillStyle = this.colours.surface;
        ctx.fillText(text, left + 3 * ratio, top + 2 * ratio);
        free[mark.kind] = left + width;
      }
    }
    ctx.restore();
  }

  destroy() {
    this.plot.destroy();
  }
}
