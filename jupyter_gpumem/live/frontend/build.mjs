// Bundles the panel into ../static: one module and one style sheet, with the licence of what is inside.
import { readFileSync } from "node:fs";

import { build } from "esbuild";

const { version } = JSON.parse(readFileSync("node_modules/uplot/package.json", "utf8"));
const licence = readFileSync("node_modules/uplot/LICENSE", "utf8").trim();

await build({
  entryPoints: { panel: "src/index.js" },
  outdir: "../static",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  banner: { js: `/*! Contains uPlot ${version}:\n${licence}\n*/` },
  logLevel: "warning",
});
