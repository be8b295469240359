// Builds the page into the Python package: hashed files that never change, and one HTML file that names them.
// `node build.mjs --check` builds elsewhere and fails when the committed files are not what the sources give.

import { build } from "esbuild";
import { mkdtemp, readdir, readFile, rm, writeFile, mkdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "..", "src", "holdfast", "web", "built");

async function buildInto(folder) {
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  const result = await build({
    absWorkingDir: here,
    entryPoints: { page: "src/main.tsx" },
    bundle: true,
    splitting: true,
    format: "esm",
    target: ["es2022"],
    minify: true,
    legalComments: "none",
    jsx: "automatic",
    jsxImportSource: "preact",
    outdir: folder,
    entryNames: "[name]-[hash]",
    chunkNames: "[name]-[hash]",
    metafile: true,
    logLevel: "warning",
    define: { "process.env.NODE_ENV": '"production"' },
  });
  const outputs = Object.entries(result.metafile.outputs);
  const name = (path) => path.split("/").at(-1);
  const [script, entry] = outputs.find(([, output]) => output.entryPoint === "src/main.tsx");
  const html = (await readFile(join(here, "src", "page.html"), "utf8"))
    .replace("{script}", `/assets/${name(script)}`)
    .replace("{style}", `/assets/${name(entry.cssBundle)}`);
  await writeFile(join(folder, "page.html"), html);
}

async function contents(folder) {
  const names = (await readdir(folder)).sort();
  return Promise.all(names.map(async (name) => [name, await readFile(join(folder, name), "base64")]));
}

if (process.argv.includes("--check")) {
  const fresh = await mkdtemp(join(tmpdir(), "holdfast-page-"));
  await buildInto(fresh);
  const same = JSON.stringify(await contents(fresh)) === JSON.stringify(await contents(target));
  await rm(fresh, { recursive: true });
  if (!same) {
    console.error("The built page is not what its sources give. Run `make page` and commit what it writes.");
    process.exit(1);
  }
} else {
  await buildInto(target);
}
