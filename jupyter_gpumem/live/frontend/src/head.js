// @ts-check
/** The head of the panel: which device, how the kernel is, pause and placement, and what is wrong if something is. */

import { h, icon, write } from "./dom.js";
import { inLab } from "./placement.js";

/** @typedef {import("./store.js").Store} Store */
/** @typedef {(message: Record<string, unknown>) => void} Send */

const PAUSE = "M4 3h3v10H4zM9 3h3v10H9z";
const PLAY = "M4 2.5v11L13.5 8z";
const DOCK = "M1.5 2.5h13v11h-13zM3 4v8h5.5V4z";

/** Seconds without a word from the kernel after which the panel says so. */
const SILENT = 3;

export class Head {
  /**
   * @param {Store} store
   * @param {Send} send
   */
  constructor(store, send) {
    this.store = store;
    this.born = performance.now();
    this.docked = false;
    this.device = h("select", { class: "gm-device", "aria-label": "Device" });
    this.device.addEventListener("change", () => {
      store.set({ slot: Number(this.device.value), zoom: null });
    });
    this.status = h("span", { class: "gm-status" });
    this.pause = h("button", { type: "button", class: "gm-icon", onclick: () => store.pause() });
    const title = "Show in the sidebar";
    const dock = { type: "button", class: "gm-icon", title, "aria-label": title, onclick: () => send({ kind: "dock" }) };
    this.dock = h("button", dock, icon(DOCK));
    this.notice = h("p", { class: "gm-notice", role: "status", hidden: true });
    this.bar = h("header", { class: "gm-head" }, this.device, this.status, h("span", { class: "gm-fill" }), this.pause, this.dock);
  }

  words() {
    const { state, settings } = this.store;
    const names = (state?.devices ?? []).map(({ label, name, gone }) => [label, name, gone && "gone"].filter(Boolean).join(" · "));
    if (this.device.dataset.names !== names.join("\n")) {
      this.device.dataset.names = names.join("\n");
      this.device.replaceChildren(...names.map((name, slot) => h("option", { value: slot }, name)));
    }
    this.device.value = String(settings.slot);
    this.device.title = names[settings.slot] ?? "";
    this.device.disabled = names.length < 2;
    this.device.hidden = !names.length;
    const [tone, text] = this.tone();
    this.status.dataset.tone = tone;
    write(this.status, text);
    const paused = settings.paused !== null;
    if (this.pause.title === "" || paused !== (this.pause.dataset.paused === "true")) {
      this.pause.dataset.paused = String(paused);
      this.pause.replaceChildren(icon(paused ? PLAY : PAUSE));
      this.pause.title = paused ? "Follow again (Space)" : "Let the picture stand still (Space)";
      this.pause.setAttribute("aria-label", this.pause.title);
    }
    this.dock.hidden = !state?.can_dock || this.docked || !inLab();
    write(this.notice, this.wrong());
    this.notice.hidden = !this.notice.textContent;
    this.notice.classList.toggle("gm-error", Boolean(state?.error));
  }

  /** @returns {[string, string]} */
  tone() {
    const { state, settings, running, silence, device } = this.store;
    if (state?.error) return ["error", "stopped"];
    if (settings.paused !== null) return ["paused", "paused"];
    if (!state) return ["silent", "waiting"];
    if (silence > SILENT) return ["silent", `silent for ${Math.round(silence)} s`];
    if (device?.gone) return ["paused", "gone"];
    return running ? ["running", `cell [${running.number}] runs`] : ["idle", "live"];
  }

  /** What is wrong, in a sentence; empty if nothing is. */
  wrong() {
    const { state, silence, messages, device } = this.store;
    if (!state) {
      const late = messages === 0 && performance.now() > this.born + 1000 * SILENT;
      return late ? "Waiting for the kernel, which answers between cells. If it was restarted, run %gpumem_panel again." : "";
    }
    if (state.error) return `Stopped: ${state.error}`;
    if (silence > SILENT) {
      // That a cell runs may itself be what has not arrived: its first call holds the interpreter.
      return "Nothing from the kernel: one long call holds the interpreter, or it was restarted; then run %gpumem_panel again.";
    }
    if (device?.gone) return `${device.label} is not there any more: the chart ends with what it held last.`;
    if (state.devices.length) return "";
    return state.absent ? `Nothing to show: ${state.absent}.` : "No GPU is used yet; the panel begins with its first use.";
  }
}
