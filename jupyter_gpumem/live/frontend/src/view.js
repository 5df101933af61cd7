// @ts-check
/** One view of the panel: its parts, and which of them a change concerns. */

import { Buttons } from "./buttons.js";
import { h, write } from "./dom.js";
import { Head } from "./head.js";
import { Readings } from "./readings.js";
import { Segments } from "./segments.js";
import { isDark, onThemeChange } from "./theme.js";

/** @typedef {import("./store.js").Store} Store */

export class View {
  /**
   * @param {HTMLElement} element
   * @param {Store} store
   * @param {(message: Record<string, unknown>) => void} send
   * @param {() => void} choose called when the user wants to see the panel here
   */
  constructor(element, store, send, choose) {
    this.element = element;
    this.store = store;
    this.coloured = false;
    this.head = new Head(store, send);
    this.buttons = new Buttons(store, send);
    this.readings = new Readings(store, () => this.buttons.act("mark"));
    this.segments = new Segments(store);
    const { readings } = this;
    // Nothing is shown before it is known where this view is: two panels would flash up.
    this.body = h(
      "div",
      { class: "gm-body", hidden: true },
      ...[this.head.bar, this.head.notice, readings.legend, readings.above, readings.why, readings.host, readings.below],
      ...[this.segments.element, this.buttons.element],
    );
    this.why = h("span");
    this.here = h("button", { type: "button", onclick: choose }, "Show here");
    this.folded = h("div", { class: "gm-folded", hidden: true }, this.why, this.here);
    this.root = h("div", { class: "gpumem" }, this.folded, this.body);
    element.append(this.root);

    this.listener = (/** @type {string} */ what) => this.changed(what);
    store.listeners.add(this.listener);
    this.endTheme = onThemeChange(() => this.recolour());
    this.resized = new ResizeObserver(() => {
      if (!this.open) return;
      readings.chart.resize();
      this.segments.blocks.draw();
    });
    this.resized.observe(readings.host);
    this.resized.observe(this.segments.scroller);
    this.timer = setInterval(() => this.tick(), 1000);
  }

  /** Whether anything of it can be seen. */
  get open() {
    return !this.body.hidden && this.element.isConnected;
  }

  /**
   * Fold to one line, or unfold.
   * @param {string | null} why
   * @param {boolean} [choosable] whether it can be unfolded here
   */
  fold(why, choosable = true) {
    this.here.hidden = !choosable;
    const changed = this.body.hidden !== (why !== null);
    this.body.hidden = why !== null;
    this.folded.hidden = why === null;
    write(this.why, why ?? "");
    if (!this.coloured) this.recolour();
    if (changed) this.refresh();
  }

  /** @param {string} what */
  changed(what) {
    if (!this.open) return;
    if (what === "settings") this.refresh();
    if (what === "state" || what === "pending" || what === "cells") this.words();
    if (what === "state" || what === "samples" || what === "cells") this.readings.lines();
    if (what === "map") this.segments.update();
  }

  words() {
    for (const part of [this.head, this.readings, this.segments, this.buttons]) part.words();
  }

  refresh() {
    if (!this.open) return;
    this.words();
    this.readings.restyle();
    this.readings.lines();
    this.segments.update();
  }

  /** Take the page's colours, which can only be told in the page. */
  recolour() {
    if (!this.element.isConnected) return;
    this.coloured = true;
    this.root.classList.toggle("gm-dark", isDark());
    this.readings.chart.restyle();
    this.segments.recolour();
    this.refresh();
  }

  tick() {
    if (!this.open) return;
    this.head.words();
    if (this.store.silence > this.store.gap) this.readings.lines();
  }

  destroy() {
    clearInterval(this.timer);
    this.store.listeners.delete(this.listener);
    this.endTheme();
    this.resized.disconnect();
    this.readings.chart.destroy();
    this.segments.blocks.destroy();
    this.root.remove();
  }
}
