// @ts-check
/** The segment map with what it adds up to, what its patterns mean, and what lies under the pointer. */

import { BlockMapView } from "./blockmap.js";
import { h, write } from "./dom.js";
import { bytes } from "./format.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "./wire.js";

/** @typedef {import("./store.js").Store} Store */

const STATES = /** @type {const} */ ([
  [ALLOCATED, "allocated"],
  [AWAITING, "awaiting free"],
  [FREE, "free beside live blocks"],
  [WHOLE, "free segment"],
  [UNMAPPED, "unmapped"],
]);

const SUMS = /** @type {const} */ ([
  ["returnable", "returnable", "Emptying the cache would give this back to the driver"],
  ["stranded", "stranded", "Emptying the cache would not give this back: live blocks share its segments"],
  ["largest_free", "largest fit", "The largest request that cached memory serves now, without asking the driver"],
]);

const ORDERS = [
  ["address", "by address"],
  ["size", "by size"],
  ["stream", "by stream"],
  ["pool", "by pool"],
];

export class Segments {
  /** @param {Store} store */
  constructor(store) {
    this.store = store;
    this.count = h("span", { class: "gm-muted" });
    this.order = h("select", { "aria-label": "Order of segments" });
    this.order.addEventListener("change", () => store.set({ order: /** @type {any} */ (this.order.value) }));
    for (const [value, text] of ORDERS) this.order.append(h("option", { value }, text));
    const scale = {
      type: "button",
      title: "Draw segments in proportion to their sizes",
      onclick: () => store.set({ toScale: !store.settings.toScale }),
    };
    this.scale = h("button", scale, "to scale");
    /** @type {Map<"returnable" | "stranded" | "largest_free", HTMLElement>} */
    this.sums = new Map();
    const summary = h("div", { class: "gm-summary" });
    for (const [name, text, title] of SUMS) {
      const value = h("strong", {}, "–");
      this.sums.set(name, value);
      summary.append(h("div", { title }, h("span", {}, text), value));
    }
    this.scroller = h("div", {
      class: "gm-scroll",
      tabindex: "0",
      role: "group",
      "aria-label": "Segments and blocks. Arrow keys go from block to block, Enter pins one, Escape lets it go.",
    });
    this.states = h("div", { class: "gm-states" });
    this.what = h("strong");
    this.where = h("span");
    this.line = h("code");
    this.details = h("div", { class: "gm-detail", role: "status" }, this.what, this.line, this.where);
    const fill = h("span", { class: "gm-fill" });
    const looks = h("span", { class: "gm-group" }, this.order, this.scale);
    const bar = h("div", { class: "gm-bar" }, h("h3", {}, "Segments"), this.count, fill, looks);
    const parts = [bar, summary, this.scroller, this.states, this.details];
    this.element = h("section", { class: "gm-map", "aria-label": "Segment map" }, ...parts);
    this.blocks = new BlockMapView(this.scroller, store, (text, pinned) => this.detail(text, pinned));
  }

  words() {
    const { settings, device } = this.store;
    this.scale.setAttribute("aria-pressed", String(settings.toScale));
    this.order.value = settings.order;
    this.element.hidden = !device || device.gone;
  }

  recolour() {
    this.blocks.restyle();
    const ratio = devicePixelRatio;
    const filled = this.blocks.fills;
    const swatches = STATES.map(([state, name]) => {
      const canvas = h("canvas", { width: 16 * ratio, height: 10 * ratio, "aria-hidden": "true" });
      const context = canvas.getContext("2d");
      const tile = filled[state];
      for (let x = 0; x < canvas.width; x += tile.width) {
        for (let y = 0; y < canvas.height; y += tile.height) context?.putImageData(tile, x, y);
      }
      return h("span", {}, canvas, name);
    });
    this.states.replaceChildren(...swatches);
  }

  update() {
    const summary = this.store.map?.summary;
    const many = (/** @type {number} */ n, /** @type {string} */ one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
    write(this.count, summary ? `${many(summary.segments, "segment")} · ${many(summary.blocks, "block")}` : "no map yet");
    for (const [name, element] of this.sums) {
      write(element, bytes(summary?.[name], this.store.settings.unit));
    }
    this.blocks.update();
  }

  /**
   * @param {{ what: string, where: string, line: string } | null} text
   * @param {boolean} pinned
   */
  detail(text, pinned) {
    const hint = "Point at a block to see what it is; click to pin it.";
    write(this.what, text ? `${pinned ? "Pinned: " : ""}${text.what}` : hint);
    write(this.where, text?.where ?? "");
    write(this.line, text?.line ?? "");
    this.details.classList.toggle("gm-none", text === null);
  }
}
