// @ts-check
/** Colours for light and dark pages, taken from the style sheet, so that there is one place for them. */

import { EDGE, FRAME } from "./pixels.js";
import { ALLOCATED, AWAITING, FREE, UNMAPPED, WHOLE } from "./wire.js";

/** @typedef {Record<string, string>} Colours */

const NAMES = [
  "text",
  "muted",
  "grid",
  "surface",
  "allocated",
  "reserved",
  "peak",
  "others",
  "ratio",
  "external",
  "cell",
  "oom",
  "retry",
  "block",
  "awaiting",
  "free",
  "whole",
  "edge",
];

/**
 * Whether the page is dark: as JupyterLab, VS Code or Colab say it, or else as the system does.
 * @returns {boolean}
 */
export function isDark() {
  const body = document.body;
  const jupyter = body.dataset.jpThemeLight;
  if (jupyter !== undefined) return jupyter === "false";
  const code = body.dataset.vscodeThemeKind;
  if (code !== undefined) return code.includes("dark") || code === "vscode-high-contrast";
  const colab = document.documentElement.getAttribute("theme");
  if (colab !== null) return colab === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

/**
 * The colours in force at an element.
 * @param {Element} element
 * @returns {Colours}
 */
export function coloursOf(element) {
  const style = getComputedStyle(element);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--gm-${name}`).trim()]));
}

/**
 * Calls back when the page changes between light and dark; returns what ends that.
 * @param {() => void} changed
 * @returns {() => void}
 */
export function onThemeChange(changed) {
  const observer = new MutationObserver(changed);
  const attributeFilter = ["data-jp-theme-light", "data-jp-theme-name", "data-vscode-theme-kind", "theme", "class"];
  observer.observe(document.body, { attributes: true, attributeFilter });
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["theme"] });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", changed);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", changed);
  };
}

/**
 * How each state of a block is filled: by colour and by pattern, so that either alone is enough. Each is a square of pixels
 * to be repeated.
 * @param {Colours} colours
 * @param {number} ratio device pixels for each CSS pixel
 * @returns {ImageData[]} by state
 */
export function fills(colours, ratio) {
  const found = [];
  found[ALLOCATED] = pattern(colours.block, colours.block, "plain", ratio);
  found[AWAITING] = pattern(colours.awaiting, colours.surface, "crossed", ratio);
  found[FREE] = pattern(colours.free, colours.edge, "striped", ratio);
  found[WHOLE] = pattern(colours.whole, colours.edge, "dotted", ratio);
  found[UNMAPPED] = pattern(colours.surface, colours.grid, "striped", ratio);
  found[EDGE] = pattern(colours.surface, colours.surface, "plain", ratio);
  found[FRAME] = pattern(colours.edge, colours.edge, "plain", ratio);
  return found;
}

/**
 * @param {string} ground
 * @param {string} ink
 * @param {"plain" | "striped" | "crossed" | "dotted"} kind
 * @param {number} ratio
 * @returns {ImageData}
 */
function pattern(ground, ink, kind, ratio) {
  const size = kind === "plain" ? 1 : Math.max(4, Math.round((kind === "crossed" ? 4 : 6) * ratio));
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const context = tile.getContext("2d", { willReadFrequently: true });
  if (!context) return new ImageData(size, size);
  context.fillStyle = ground;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = context.fillStyle = ink;
  context.lineWidth = Math.max(1, ratio * 0.9);
  if (kind === "dotted") {
    const dot = Math.max(1, Math.round(1.2 * ratio));
    context.fillRect(Math.round(size / 2 - dot / 2), Math.round(size / 2 - dot / 2), dot, dot);
  } else if (kind !== "plain") {
    context.beginPath();
    for (const offset of [-size, 0, size]) {
      context.moveTo(offset, size);
      context.lineTo(offset + size, 0);
      if (kind === "crossed") {
        context.moveTo(offset, 0);
        context.lineTo(offset + size, size);
      }
    }
    context.stroke();
  }
  return context.getImageData(0, 0, size, size);
}
