// @ts-check
/** The anywidget module: one store for each panel, any number of views of it, exactly one of them unfolded. */

import "uplot/dist/uPlot.min.css";
import "./panel.css";

import { inLab, isDocked, unfolded } from "./placement.js";
import { Store } from "./store.js";
import { View } from "./view.js";

/** @typedef {import("@anywidget/types").AnyModel<{ interval: number }>} Model */
/** @typedef {import("./placement.js").Place & { view: View, id: string, docked: boolean, visible: boolean, told: number | null | undefined }} Shown */

/** Views give a sign of life this often; the kernel forgets those that are silent for much longer. */
const SIGN_OF_LIFE = 30_000;

export default () => {
  /** @type {Set<Shown>} */
  const shown = new Set();
  /** @type {Store} */
  let store;
  /** @type {(message: Record<string, unknown>) => void} */
  let send;
  let order = 0;

  /**
   * Find out whether the kernel has gone, when the page says that something about that has changed.
   * @param {any} manager
   */
  async function liveness(manager) {
    const models = store.state?.models;
    if (!models) return;
    store.ended = !(await manager.get_model(models.panel)).comm_live;
    if (store.ended) await undock(manager);
    arrange();
  }

  /**
   * Close the tab in the sidebar once its kernel has gone, or its notebook is closed: nobody else would
   * (jupyter-widgets/jupyterlab-sidecar#112). A kernel that lives on keeps its side, and has the tab again with the notebook.
   * @param {any} manager
   */
  async function undock(manager) {
    const dock = store.state?.models.dock;
    if (dock && manager.has_model(dock)) (await manager.get_model(dock)).close(true);
  }

  function arrange() {
    for (const one of shown) {
      one.connected = one.view.element.isConnected;
      one.docked = one.connected && isDocked(one.view.element);
      if (one.docked && !one.chosen) one.chosen = performance.now(); // whoever opens the sidebar wants to see it there
      one.view.head.docked = one.docked;
    }
    const open = unfolded(shown);
    for (const one of shown) {
      const elsewhere = open === null || one === open ? null : open.docked ? "shown in the sidebar." : "shown in another place.";
      const why = store.ended ? "the kernel has ended or was restarted. Run %gpumem_panel again." : elsewhere;
      one.view.fold(why && `GPU memory: ${why}`, !store.ended);
      look(one);
    }
  }

  /** Tell the kernel at which device a view looks, if that has changed. @param {Shown} one */
  function look(one, again = false) {
    const seen = one.visible && one.connected && !one.view.body.hidden && document.visibilityState === "visible";
    const slot = seen && !store.ended ? store.settings.slot : null;
    if (slot === one.told && !(again && slot !== null)) return;
    const fresh = slot !== null && slot !== one.told;
    one.told = slot;
    send({ kind: "look", view: one.id, slot, fresh });
  }

  return {
    /** @param {{ model: Model }} context */
    initialize({ model }) {
      store = new Store(model.get("interval"));
      store.listeners.add((what) => what === "settings" && shown.forEach((one) => look(one)));
      send = (message) => {
        try {
          model.send(message);
        } catch (error) {
          // Its kernel has gone, and nobody is there to be told; views that are taken away still try.
          console.debug("gpumem: not sent", message, error);
        }
      };
      const receive = (/** @type {any} */ content, /** @type {DataView[]} */ buffers) => store.receive(content, buffers);
      model.on("msg:custom", receive);
      const alive = () => liveness(model.widget_manager);
      model.on("comm_live_update", alive);
      const manager = /** @type {any} */ (model.widget_manager);
      const closed = () => undock(manager);
      manager.context?.disposed?.connect(closed); // a notebook's, in JupyterLab and Notebook
      const signs = setInterval(() => shown.forEach((one) => look(one, true)), SIGN_OF_LIFE);
      const visibility = () => shown.forEach((one) => look(one));
      document.addEventListener("visibilitychange", visibility);
      return () => {
        clearInterval(signs);
        document.removeEventListener("visibilitychange", visibility);
        model.off("msg:custom", receive);
        model.off("comm_live_update", alive);
        manager.context?.disposed?.disconnect(closed);
      };
    },

    /** @param {{ el: HTMLElement }} context */
    render({ el }) {
      const id = `${Date.now().toString(36)}-${++order}`;
      /** @type {Shown} */
      const one = {
        view: new View(el, store, (message) => send({ view: id, ...message }), () => {
          one.chosen = performance.now();
          arrange();
        }),
        id,
        order,
        connected: false,
        docked: false,
        chosen: 0,
        visible: true,
        told: undefined,
      };
      shown.add(one);
      const sight = new IntersectionObserver(([entry]) => {
        one.visible = entry.isIntersecting;
        // Where it is can only be told once it is in the page; it may also have moved, or gone.
        arrange();
      });
      sight.observe(el);
      /** @type {any} */ (one.view.root).gpumem = one.view;
      send({ kind: "hello", view: id, slot: store.settings.slot, lab: inLab() });
      return () => {
        sight.disconnect();
        shown.delete(one);
        send({ kind: "look", view: id, slot: null });
        one.view.destroy();
        arrange();
      };
    },
  };
};
