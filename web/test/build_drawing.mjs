// `node test/build_drawing.mjs FILE` writes a script that draws markdown as the page does.

import { build } from "esbuild";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

await build({
  entryPoints: [join(dirname(fileURLToPath(import.meta.url)), "drawing.tsx")],
  bundle: true,
  format: "iife",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  outfile: process.argv[2],
  logLevel: "warning",
  define: { "process.env.NODE_ENV": '"production"' },
});
