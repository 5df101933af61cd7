// @ts-check
/** Which of a panel's views is unfolded: always exactly one, where the user asked for it last. */

/**
 * @typedef {object} Place
 * @property {number} order views that came later have higher numbers
 * @property {boolean} connected whether the view is in the page at all
 * @property {number} chosen when the user asked to see it here, in the sidebar by opening it; 0 if never
 */

/**
 * The view to unfold, or `null` if none is in the page.
 * @template {Place} T
 * @param {Iterable<T>} places
 * @returns {T | null}
 */
export function unfolded(places) {
  /** @type {T | null} */
  let best = null;
  for (const place of places) {
    if (place.connected && (best === null || before(best, place))) best = place;
  }
  return best;
}

/**
 * Whether `other` is to be preferred.
 * @param {Place} one
 * @param {Place} other
 */
function before(one, other) {
  if (one.chosen !== other.chosen) return other.chosen > one.chosen;
  return other.order > one.order;
}

/** @param {Element} element */
export const isDocked = (element) => element.closest(".jupyterlab-sidecar") !== null;

/** Whether this page is a JupyterLab, which alone has a sidebar for us. */
export const inLab = () => document.querySelector(".jp-LabShell") !== null;
