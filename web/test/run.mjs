// Bundles the tests of the pure parts and runs them in Node.

import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = await mkdtemp(join(tmpdir(), "holdfast-page-tests-"));
const tests = (await readdir(here)).filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: tests.map((name) => join(here, name)),
  bundle: true,
  platform: "node",
  format: "esm",
  outdir: folder,
  outExtension: { ".js": ".mjs" },
  logLevel: "warning",
});
const files = tests.map((name) => join(folder, name.replace(/\.ts$/, ".mjs")));
const { status } = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" });
await rm(folder, { recursive: true });
process.exit(status ?? 1);
