// @ts-check
/** The buttons that ask the kernel for something, and what it answers. */

import { h, write } from "./dom.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {(message: Record<string, unknown>) => void} Send */

/** @type {Record<string, [string, string]>} */
const ACTIONS = {
  empty: ["Empty cache", "Give unused cached memory back to the driver"],
  audit: ["Audit", "Say how the memory lies, and what could be given back"],
  record: ["Record", "Record what the allocator does, with the lines that allocate"],
  stop: ["Stop recording", "End the recording and keep it"],
  save: ["Save", "Save the recording beside the notebook"],
  mark: ["Restart peak", ""],
};

export class Buttons {
  /**
   * @param {Store} store
   * @param {Send} send
   */
  constructor(store, send) {
    this.store = store;
    this.send = send;
    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    const row = h("div", { class: "gm-buttons", role: "group", "aria-label": "Actions" });
    for (const name of ["empty", "audit", "record", "stop", "save"]) {
      const [text, title] = ACTIONS[name];
      const button = h("button", { type: "button", title, onclick: () => this.act(name) }, text);
      this.buttons.set(name, button);
      row.append(button);
    }
    this.queued = h("p", { class: "gm-queued", role: "status", hidden: true });
    this.answer = h("pre", { class: "gm-answer", role: "status", tabindex: "0", hidden: true });
    this.element = h("footer", {}, row, this.queued, this.answer);
  }

  /**
   * Ask the kernel for something, once: until it answers, further clicks on the same button do nothing.
   * @param {string} name
   */
  act(name) {
    const { store } = this;
    if (store.pending.has(name)) return;
    const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
    store.pending.set(name, id);
    store.answer = null;
    this.send({ kind: "act", id, name });
    store.changed("pending");
  }

  words() {
    const { pending, running, answer, state } = this.store;
    const recording = state?.recording;
    for (const [name, button] of this.buttons) button.setAttribute("aria-busy", String(pending.has(name)));
    this.show("record", !recording?.running);
    this.show("stop", recording?.running === true);
    this.show("save", recording?.running === true || recording?.kept === true);
    const waiting = [...pending.keys()].map((name) => ACTIONS[name][0]).join(", ");
    this.queued.hidden = !waiting;
    write(this.queued, waiting && `${waiting}: ${running ? "queued until the cell ends" : "asked the kernel"}`);
    this.answer.hidden = answer === null;
    this.answer.classList.toggle("gm-error", answer?.failed === true);
    write(this.answer, answer?.text ?? "");
  }

  /**
   * @param {string} name
   * @param {boolean} shown
   */
  show(name, shown) {
    const button = this.buttons.get(name);
    if (button) button.hidden = !shown;
  }
}
