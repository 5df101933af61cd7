// @ts-check
/** The numbers and the chart: a legend that is the readout too, the chart, and how much of it is shown. */

import { Chart, SERIES } from "./chart.js";
import { h, icon, swatch, write } from "./dom.js";
import { UNITS, bytes, clock, delta, duration, percent } from "./format.js";
import { WINDOWS } from "./store.js";

/** @typedef {import("./store.js").Store} Store */

const AGAIN = "M8 2.2V.2l4 3-4 3V4.1a4.3 4.3 0 1 0 4.3 4.3h1.7A6 6 0 1 1 8 2.2z";

export class Readings {
  /**
   * @param {Store} store
   * @param {() => void} restartPeak
   */
  constructor(store, restartPeak) {
    this.store = store;
    /** @type {number | null} */
    this.pointed = null;
    this.style = "";
    /** @type {Map<string, { button: HTMLElement, value: HTMLElement, label: HTMLElement, more: HTMLElement, time: HTMLElement }>} */
    this.entries = new Map();
    this.legend = h("div", { class: "gm-legend", role: "group", "aria-label": "Series" });
    for (const one of SERIES) {
      const value = h("span", { class: "gm-value" }, "–");
      const [word, ...rest] = one.label.split(" ");
      const more = h("span", { class: "gm-more" }, rest.map((next) => ` ${next}`).join(""));
      const time = h("span", {});
      const label = h("span", { class: "gm-label", title: one.label }, word, more, time);
      const button = h(
        "button",
        { type: "button", "aria-pressed": "true", title: "Show or hide this line", onclick: () => store.toggle(one.name) },
        swatch(one.dash, one.name, one.width),
        label,
        value,
      );
      this.entries.set(one.name, { button, value, label, more, time });
      this.legend.append(button);
    }
    this.when = h("span", { class: "gm-when" });
    const mark = {
      type: "button",
      class: "gm-quiet",
      "aria-label": "Restart peak",
      title: "Let the peak begin anew. Your own max_memory_allocated() stays as it is.",
      onclick: restartPeak,
    };
    this.above = h("div", { class: "gm-bar gm-above" }, this.when, h("span", { class: "gm-fill" }), h("button", mark, icon(AGAIN), h("span", {}, "restart peak")));
    this.host = h("div", {
      class: "gm-chart",
      tabindex: "0",
      role: "group",
      "aria-label": "Memory over time. Arrow keys read values, plus and minus zoom, Escape follows again, Space pauses.",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      ondblclick: () => store.set({ zoom: null }),
    });
    this.why = h("p", { class: "gm-why", hidden: true });
    this.windows = h("div", { class: "gm-choice", role: "group", "aria-label": "Window" });
    for (const seconds of WINDOWS) {
      const text = seconds < 60 ? `${seconds} s` : seconds < 3600 ? `${seconds / 60} min` : `${seconds / 3600} h`;
      const onclick = () => store.set({ window: seconds, zoom: null });
      this.windows.append(h("button", { type: "button", "data-window": seconds, onclick }, text));
    }
    this.follow = h("button", { type: "button", class: "gm-quiet", hidden: true, onclick: () => store.set({ zoom: null }) }, "reset zoom");
    const log = { type: "button", title: "Logarithmic scale", onclick: () => store.set({ log: !store.settings.log }) };
    this.log = h("button", log, "log");
    this.unit = h("select", { "aria-label": "Unit" });
    this.unit.addEventListener("change", () => store.set({ unit: this.unit.value }));
    for (const name of ["auto", ...Object.keys(UNITS).slice(1, 4)]) this.unit.append(h("option", { value: name }, name));
    const scale = h("span", { class: "gm-group" }, this.log, this.unit);
    this.below = h("div", { class: "gm-bar" }, this.windows, this.follow, h("span", { class: "gm-fill" }), scale);
    this.chart = new Chart(this.host, store, (index) => {
      this.pointed = index;
      this.readout();
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { store, chart } = this;
    const [start, end] = store.range;
    const width = end - start;
    const keys = /** @type {Record<string, () => void>} */ ({
      ArrowLeft: () => chart.move(event.shiftKey ? -10 : -1),
      ArrowRight: () => chart.move(event.shiftKey ? 10 : 1),
      "+": () => store.set({ zoom: [start + width / 4, end - width / 4] }),
      "-": () => store.set({ zoom: [start - width / 2, end + width / 2] }),
      Escape: () => store.set({ zoom: null }),
      " ": () => store.pause(),
    });
    if (!(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  words() {
    const { state, settings } = this.store;
    for (const [name, { button, label, more, time }] of this.entries) {
      button.setAttribute("aria-pressed", String(!settings.hidden.has(name)));
      if (name === "peak" && state) {
        write(more, " since");
        write(time, ` ${clock(state.since)}`);
        label.title = label.textContent ?? "";
      }
    }
    for (const button of this.windows.children) {
      const on = Number(/** @type {HTMLElement} */ (button).dataset.window) === settings.window && !settings.zoom;
      button.setAttribute("aria-pressed", String(on));
    }
    this.follow.hidden = settings.zoom === null;
    this.log.setAttribute("aria-pressed", String(settings.log));
    this.unit.value = settings.unit;
  }

  /** Draw the chart as the settings want it, anew only where uPlot must be told. */
  restyle() {
    const { log, hidden, unit } = this.store.settings;
    const wanted = [log, unit, ...hidden].join();
    if (wanted !== this.style) {
      this.style = wanted;
      this.chart.restyle();
    }
    this.chart.resize();
  }

  lines() {
    for (const part of [this.legend, this.above, this.host, this.below]) part.hidden = !this.store.shown.length;
    this.chart.update();
    this.readout();
  }

  /** The numbers under the cursor, or the newest. */
  readout() {
    const { store, pointed } = this;
    const { data } = this.chart;
    const at = pointed !== null && pointed < data[0].length && data[1][pointed] !== null ? pointed : null;
    SERIES.forEach((one, k) => {
      const value = at === null ? store.newest(one.name) : data[k + 1][at];
      const text = one.scale === "bytes" ? bytes(value, store.settings.unit) : percent(value);
      write(/** @type {{ value: HTMLElement }} */ (this.entries.get(one.name)).value, text);
    });
    const text = at === null ? this.now() : this.then(data[0][at] ?? 0);
    write(this.when, text);
    this.when.title = text;
    const failed = store.explainedAt(at === null ? null : data[0][at]);
    const why = failed?.oom ? `[${failed.number}] ${failed.oom.sentence}.` : "";
    write(this.why, why);
    this.why.title = why;
    this.why.hidden = !why;
  }

  now() {
    const { device, shown, settings } = this.store;
    const card = device?.total ? ` · card of ${bytes(device.total)}` : "";
    if (!shown.length) return "";
    if (settings.paused !== null) return `at ${clock(settings.paused)}${card}`;
    return device?.gone ? `until ${clock(this.store.latest)}${card}` : `now${card}`;
  }

  /** @param {number} time */
  then(time) {
    const cell = this.store.cellAt(time);
    if (!cell) return `at ${clock(time)}`;
    const cost = cell.devices?.[this.store.device?.label ?? ""];
    const numbers = cost ? ` · peak ${bytes(cost.peak)} (${delta(cost.over)}), stays ${delta(cost.stays)}` : "";
    const took = cell.end === null ? "running" : duration(cell.end - cell.start);
    return `at ${clock(time)} · cell [${cell.number}] ${took}${numbers}${cell.error ? ` · ${cell.error}` : ""}`;
  }
}
