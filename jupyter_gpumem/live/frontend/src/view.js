// @ts-check
/** One view of the panel: what is where, and what the buttons do. */

import { BlockMapView } from "./blockmap.js";
import { Chart, SERIES } from "./chart.js";
import { h, icon, swatch, write } from "./dom.js";
import { UNITS, bytes, clock, delta, duration, percent } from "./format.js";
import { WINDOWS } from "./store.js";
import { fills, isDark, onThemeChange } from "./theme.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "./wire.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {(message: Record<string, unknown>) => void} Send */

const PAUSE = "M4 3h3v10H4zM9 3h3v10H9z";
const PLAY = "M4 2.5v11L13.5 8z";
const DOCK = "M1.5 2.5h13v11h-13zM3 4v8h5.5V4zM10 4v8h3V4z";
const AGAIN = "M8 2a6 6 0 1 0 5.7 4.1l-1.5.5A4.4 4.4 0 1 1 8 3.6V6l4-3.2L8 0z";

const ACTIONS = /** @type {const} */ ([
  ["empty", "Empty cache", "Give unused cached memory back to the driver"],
  ["audit", "Audit", "Say how badly the memory is fragmented, and why"],
  ["record", "Record", "Record what the allocator does, with the lines that allocate"],
  ["save", "Save", "Save the recording beside the notebook"],
]);

const STATES = /** @type {const} */ ([
  [ALLOCATED, "allocated"],
  [AWAITING, "awaiting free"],
  [FREE, "free, stranded"],
  [WHOLE, "free segment"],
  [UNMAPPED, "unmapped"],
]);

/** Seconds without a word from the kernel after which the panel says so. */
const SILENT = 3;

export class View {
  /**
   * @param {HTMLElement} element
   * @param {Store} store
   * @param {Send} send
   * @param {{ choose: () => void }} actions
   */
  constructor(element, store, send, { choose }) {
    this.element = element;
    this.store = store;
    this.send = send;
    this.root = h("div", { class: "gpumem" });
    this.foldedText = h("span");
    this.showHere = h("button", { type: "button", onclick: choose }, "Show here");
    this.folded = h("div", { class: "gm-folded", hidden: true }, this.foldedText, this.showHere);
    this.body = h("div", { class: "gm-body" });
    this.root.append(this.folded, this.body);
    element.append(this.root);
    /** @type {number | null} */
    this.pointed = null;
    this.build();
    this.chart = new Chart(this.chartHost, store, (index) => {
      this.pointed = index;
      this.readout();
    });
    this.blocks = new BlockMapView(this.scroller, store, (text, pinned) => this.detail(text, pinned));
    this.recolour();
    this.listener = (/** @type {string} */ what) => this.changed(what);
    store.listeners.add(this.listener);
    this.endTheme = onThemeChange(() => this.recolour());
    this.resized = new ResizeObserver(() => {
      this.chart.resize();
      this.blocks.draw();
    });
    this.resized.observe(this.chartHost);
    this.resized.observe(this.scroller);
    this.timer = setInterval(() => this.tick(), 1000);
    this.refresh();
  }

  build() {
    const { store } = this;
    this.device = h("select", {
      class: "gm-device",
      "aria-label": "Device",
      onchange: () => this.choose(Number(this.device.value)),
    });
    this.status = h("span", { class: "gm-status" });
    this.pause = h("button", { type: "button", class: "gm-icon", onclick: () => this.togglePause() }, icon(PAUSE));
    this.dock = h(
      "button",
      { type: "button", class: "gm-icon", title: "Show in the sidebar", "aria-label": "Show in the sidebar", onclick: () => this.send({ kind: "dock" }) },
      icon(DOCK),
    );
    this.notice = h("p", { class: "gm-notice", role: "status", hidden: true });

    /** @type {Map<string, { button: HTMLElement, value: HTMLElement, label: HTMLElement }>} */
    this.legend = new Map();
    const legend = h("div", { class: "gm-legend", role: "group", "aria-label": "Series" });
    for (const one of SERIES) {
      const value = h("span", { class: "gm-value" }, "–");
      const label = h("span", { class: "gm-label" }, one.label);
      const button = h(
        "button",
        { type: "button", "aria-pressed": "true", title: "Show or hide this line", onclick: () => this.toggle(one.name) },
        swatch(one.dash, one.name, one.width),
        label,
        value,
      );
      this.legend.set(one.name, { button, value, label });
      legend.append(button);
    }
    this.when = h("span", { class: "gm-when" });
    this.mark = h(
      "button",
      { type: "button", class: "gm-quiet", title: "Let the peak begin anew; your own max_memory_allocated() stays", onclick: () => this.act("mark") },
      icon(AGAIN),
      "restart peak",
    );
    this.chartHost = h("div", {
      class: "gm-chart",
      tabindex: "0",
      role: "group",
      "aria-label": "Memory over time. Arrow keys read values, plus and minus zoom, Escape follows again.",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.chartKey(event),
      ondblclick: () => store.set({ zoom: null }),
    });

    this.windows = h("div", { class: "gm-choice", role: "group", "aria-label": "Window" });
    for (const seconds of WINDOWS) {
      const text = seconds < 60 ? `${seconds} s` : seconds < 3600 ? `${seconds / 60} min` : `${seconds / 3600} h`;
      this.windows.append(
        h("button", { type: "button", "data-window": seconds, onclick: () => store.set({ window: seconds, zoom: null }) }, text),
      );
    }
    this.follow = h("button", { type: "button", class: "gm-quiet", hidden: true, onclick: () => store.set({ zoom: null }) }, "reset zoom");
    this.log = h("button", { type: "button", class: "gm-toggle", "aria-pressed": "false", title: "Logarithmic scale", onclick: () => store.set({ log: !store.settings.log }) }, "log");
    this.unit = h("select", { "aria-label": "Unit", onchange: () => store.set({ unit: this.unit.value }) });
    for (const name of ["auto", ...Object.keys(UNITS).slice(1, 4)]) this.unit.append(h("option", { value: name }, name));

    this.count = h("span", { class: "gm-muted" });
    this.order = h("select", {
      "aria-label": "Order of segments",
      onchange: () => store.set({ order: /** @type {any} */ (this.order.value) }),
    });
    for (const [value, text] of [["address", "by address"], ["size", "by size"], ["stream", "by stream"], ["pool", "by pool"]]) {
      this.order.append(h("option", { value }, text));
    }
    this.scale = h("button", { type: "button", class: "gm-toggle", "aria-pressed": "false", title: "Draw segments in proportion to their sizes", onclick: () => store.set({ toScale: !store.settings.toScale }) }, "to scale");
    /** @type {Record<string, HTMLElement>} */
    this.sums = {};
    const summary = h("dl", { class: "gm-summary" });
    for (const [name, text, title] of [
      ["returnable", "returnable", "Emptying the cache would give this back to the driver"],
      ["stranded", "stranded", "It would not give this back: live blocks share its segments"],
      ["largest_free", "largest fit", "The largest request that fits into cached memory now, without asking the driver"],
    ]) {
      this.sums[name] = h("dd", {}, "–");
      summary.append(h("div", { title }, h("dt", {}, text), this.sums[name]));
    }
    this.scroller = h("div", {
      class: "gm-scroll",
      tabindex: "0",
      role: "group",
      "aria-label": "Segments and blocks. Arrow keys go from block to block, Enter pins one.",
    });
    this.states = h("div", { class: "gm-states" });
    this.detailWhat = h("strong");
    this.detailWhere = h("span");
    this.detailLine = h("code");
    this.details = h("div", { class: "gm-detail", role: "status" }, this.detailWhat, this.detailLine, this.detailWhere);
    this.mapSection = h(
      "section",
      { class: "gm-map", "aria-label": "Segment map" },
      h("div", { class: "gm-bar" }, h("h3", {}, "Segments"), this.count, h("span", { class: "gm-fill" }), this.order, this.scale),
      summary,
      this.scroller,
      this.states,
      this.details,
    );

    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    const row = h("div", { class: "gm-buttons", role: "group", "aria-label": "Actions" });
    for (const [name, text, title] of ACTIONS) {
      const button = h("button", { type: "button", title, onclick: () => this.act(name) }, text);
      this.buttons.set(name, button);
      row.append(button);
    }
    this.queued = h("p", { class: "gm-queued", role: "status", hidden: true });
    this.answer = h("pre", { class: "gm-answer", role: "status", hidden: true });

    this.body.append(
      h("header", { class: "gm-head" }, this.device, this.status, h("span", { class: "gm-fill" }), this.pause, this.dock),
      this.notice,
      legend,
      h("div", { class: "gm-bar gm-above" }, this.when, h("span", { class: "gm-fill" }), this.mark),
      this.chartHost,
      h("div", { class: "gm-bar" }, this.windows, this.follow, h("span", { class: "gm-fill" }), this.log, this.unit),
      this.mapSection,
      h("footer", {}, row, this.queued, this.answer),
    );
  }

  // What the user does

  /** @param {number} slot */
  choose(slot) {
    this.store.set({ slot, zoom: null });
    this.send({ kind: "look", slot, fresh: true });
  }

  togglePause() {
    const { paused } = this.store.settings;
    this.store.set({ paused: paused === null ? this.store.latest : null, zoom: null });
  }

  /** @param {string} name */
  toggle(name) {
    const hidden = new Set(this.store.settings.hidden);
    if (!hidden.delete(name)) hidden.add(name);
    this.store.set({ hidden });
  }

  /**
   * Ask the kernel for something, once: until it answers, further clicks on the same button do nothing.
   * @param {string} button
   */
  act(button) {
    const { store } = this;
    const name = button === "record" && store.state?.recording.running ? "stop" : button;
    if (store.pending.has(button)) return;
    const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    store.pending.set(button, id);
    store.answer = null;
    this.send({ kind: "act", id, name });
    store.changed("pending");
  }

  /** @param {KeyboardEvent} event */
  chartKey(event) {
    const [start, end] = this.store.range;
    const width = end - start;
    const keys = /** @type {Record<string, () => void>} */ ({
      ArrowLeft: () => this.chart.move(event.shiftKey ? -10 : -1),
      ArrowRight: () => this.chart.move(event.shiftKey ? 10 : 1),
      "+": () => this.store.set({ zoom: [start + width / 4, end - width / 4] }),
      "-": () => this.store.set({ zoom: [start - width / 2, end + width / 2] }),
      Escape: () => this.store.set({ zoom: null }),
      " ": () => this.togglePause(),
    });
    if (!(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
    event.stopPropagation();
  }

  // What is shown

  /** @param {string} what */
  changed(what) {
    if (!this.open) return;
    if (what === "settings") this.refresh();
    else {
      if (what === "state" || what === "pending" || what === "cells") this.words();
      if (what === "samples" || what === "cells" || what === "state") this.lines();
      if (what === "map") this.map();
    }
  }

  get open() {
    return !this.body.hidden && this.element.isConnected;
  }

  /**
   * Fold to one line, or unfold.
   * @param {string | null} text why it is folded
   */
  fold(text) {
    const was = this.body.hidden;
    this.body.hidden = text !== null;
    this.folded.hidden = text === null;
    write(this.foldedText, text ?? "");
    if (was && text === null) this.refresh();
  }

  refresh() {
    if (!this.open) return;
    this.words();
    const wanted = JSON.stringify([this.store.settings.log, [...this.store.settings.hidden], this.store.settings.unit]);
    if (wanted !== this.style) {
      this.style = wanted;
      this.chart.restyle();
    }
    this.chart.resize();
    this.lines();
    this.map();
  }

  recolour() {
    this.root.classList.toggle("gm-dark", isDark());
    this.states.replaceChildren(...this.stateSwatches());
    this.chart.restyle();
    this.blocks.restyle();
  }

  *stateSwatches() {
    const filled = fills(this.chartColours(), devicePixelRatio);
    for (const [state, name] of STATES) {
      const canvas = h("canvas", { width: 16 * devicePixelRatio, height: 10 * devicePixelRatio, "aria-hidden": "true" });
      const context = canvas.getContext("2d");
      if (context) {
        context.fillStyle = filled[state];
        context.fillRect(0, 0, canvas.width, canvas.height);
      }
      yield h("span", {}, canvas, name);
    }
  }

  chartColours() {
    this.chart.restyle();
    return this.chart.colours;
  }

  tick() {
    if (!this.open) return;
    if (this.store.silence > this.store.gap) {
      this.words();
      this.lines();
    }
  }

  /** Everything but numbers that move. */
  words() {
    const { store } = this;
    const { state, settings, device } = store;
    const names = (state?.devices ?? []).map(({ label, name }) => (name ? `${label} · ${name}` : label));
    if (this.device.dataset.names !== names.join("\n")) {
      this.device.dataset.names = names.join("\n");
      this.device.replaceChildren(...names.map((name, slot) => h("option", { value: slot }, name)));
    }
    this.device.value = String(settings.slot);
    this.device.disabled = names.length < 2;
    this.device.hidden = !names.length;
    const silent = store.silence > SILENT;
    const { running } = store;
    const [tone, text] = state?.error
      ? ["error", "stopped"]
      : settings.paused !== null
        ? ["paused", "paused"]
        : silent
          ? ["silent", `silent for ${Math.round(store.silence)} s`]
          : running
            ? ["running", `cell [${running.number}] runs`]
            : ["idle", "live"];
    this.status.dataset.tone = tone;
    write(this.status, text);
    const paused = settings.paused !== null;
    this.pause.replaceChildren(icon(paused ? PLAY : PAUSE));
    this.pause.title = paused ? "Follow again (Space)" : "Let the picture stand still (Space)";
    this.pause.setAttribute("aria-label", this.pause.title);
    this.dock.hidden = !state?.can_dock || this.docked === true;
    write(this.notice, this.noticeText(silent));
    this.notice.hidden = !this.notice.textContent;
    this.notice.classList.toggle("gm-error", Boolean(state?.error));
    for (const [name, { button, label }] of this.legend) {
      button.setAttribute("aria-pressed", String(!settings.hidden.has(name)));
      if (name === "peak" && state) write(label, `peak since ${clock(state.since)}`);
    }
    for (const button of this.windows.children) {
      const on = Number(/** @type {HTMLElement} */ (button).dataset.window) === settings.window && !settings.zoom;
      button.setAttribute("aria-pressed", String(on));
    }
    this.follow.hidden = settings.zoom === null;
    this.log.setAttribute("aria-pressed", String(settings.log));
    this.scale.setAttribute("aria-pressed", String(settings.toScale));
    this.unit.value = settings.unit;
    this.order.value = settings.order;
    write(this.buttons.get("record") ?? this.answer, state?.recording.running ? "Stop recording" : "Record");
    const save = this.buttons.get("save");
    if (save) save.disabled = !state?.recording.running && !state?.recording.kept;
    for (const [name, button] of this.buttons) button.setAttribute("aria-busy", String(store.pending.has(name)));
    this.queued.hidden = !store.pending.size;
    const waiting = [...store.pending.keys()].map((name) => ACTIONS.find(([one]) => one === name)?.[1] ?? "Restart peak");
    write(this.queued, store.pending.size ? `${waiting.join(", ")}: ${running ? "queued until the cell ends" : "asked the kernel"}` : "");
    this.answer.hidden = store.answer === null;
    this.answer.classList.toggle("gm-error", store.answer?.failed === true);
    write(this.answer, store.answer?.text ?? "");
    this.mapSection.hidden = !device;
  }

  /** @param {boolean} silent */
  noticeText(silent) {
    const { state, running } = this.store;
    if (!state) return this.waiting ? "Waiting for the kernel: it answers between cells. If it was restarted, run %gpumem_panel again." : "";
    if (state.error) return `Stopped: ${state.error}`;
    if (silent) {
      return running
        ? "Nothing from the kernel: one long call holds the interpreter, or the kernel was restarted."
        : "Nothing from the kernel. If it was restarted, run %gpumem_panel again.";
    }
    if (!state.devices.length) return state.absent ? `Nothing to show: ${state.absent}.` : "No GPU is used yet; the panel starts with its first use.";
    return "";
  }

  get waiting() {
    return this.store.messages === 0 && performance.now() > this.born + 2000;
  }

  born = performance.now();

  lines() {
    this.chart.update();
    this.readout();
  }

  /** The numbers under the cursor, or the newest. */
  readout() {
    const { store } = this;
    const { data } = this.chart;
    const shown = store.shown;
    const index = this.pointed;
    const there = index !== null && index < data[0].length && data[1][index] !== null;
    const last = shown.length - 1;
    SERIES.forEach((one, k) => {
      const entry = this.legend.get(one.name);
      let value = there && index !== null ? data[k + 1][index] : null;
      if (!there && last >= 0) {
        const reserved = shown.at(last, "reserved");
        value = one.name === "ratio" ? (reserved ? 1 - shown.at(last, "allocated") / reserved : null) : shown.at(last, one.name);
      }
      if (entry) write(entry.value, one.scale === "bytes" ? bytes(value, store.settings.unit) : percent(value));
    });
    const time = there && index !== null ? data[0][index] : null;
    write(this.when, time === null || time === undefined ? this.newest() : this.at(time));
  }

  newest() {
    const { total } = this.store.device ?? { total: null };
    return this.store.shown.length ? `now${total ? ` · card of ${bytes(total)}` : ""}` : "";
  }

  /** @param {number} time */
  at(time) {
    const cell = this.store.cells.find((one) => one.start <= time && (one.end ?? Infinity) >= time);
    if (!cell) return `at ${clock(time)}`;
    const cost = cell.devices?.[this.store.device?.label ?? ""];
    const numbers = cost ? ` · peak ${bytes(cost.peak)} (${delta(cost.over)}), stays ${delta(cost.stays)}` : "";
    const took = cell.end === null ? "running" : duration(cell.end - cell.start);
    return `at ${clock(time)} · cell [${cell.number}] ${took}${numbers}${cell.error ? ` · ${cell.error}` : ""}`;
  }

  map() {
    const map = this.store.maps.get(this.store.settings.slot);
    const summary = map?.summary;
    const many = (/** @type {number} */ n, /** @type {string} */ one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
    write(this.count, summary ? `${many(summary.segments, "segment")}, ${many(summary.blocks, "block")}` : "no map yet");
    for (const [name, element] of Object.entries(this.sums)) {
      write(element, summary ? bytes(/** @type {any} */ (summary)[name], this.store.settings.unit) : "–");
    }
    this.blocks.update();
  }

  /**
   * @param {{ what: string, where: string, line: string } | null} text
   * @param {boolean} pinned
   */
  detail(text, pinned) {
    write(this.detailWhat, text ? `${pinned ? "Pinned: " : ""}${text.what}` : "Point at a block to see what it is; click to pin it.");
    write(this.detailWhere, text?.where ?? "");
    write(this.detailLine, text?.line ?? "");
    this.details.classList.toggle("gm-none", text === null);
  }

  destroy() {
    clearInterval(this.timer);
    this.store.listeners.delete(this.listener);
    this.endTheme();
    this.resized.disconnect();
    this.chart.destroy();
    this.blocks.destroy();
    this.root.remove();
  }
}
