// Bundles the panel into ../static: one module and one style sheet, with the licences of what is inside.
import { build } from "esbuild";

await build({
  entryPoints: { panel: "src/index.js" },
  outdir: "../static",
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  logLevel: "warning",
});
