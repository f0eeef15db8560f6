import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

import type { Plugin } from "vite";

const COMPRESSIBLE = /\.(css|html|js|json|svg|txt|wasm)$/;

/** A plugin that puts a `.br` and a `.gz` file beside each file that they make smaller. */
export function compress(): Plugin {
  let folder = "";
  return {
    name: "compress",
    apply: "build",
    configResolved(config) {
      folder = config.build.outDir;
    },
    closeBundle() {
      for (const path of filesBelow(folder)) {
        if (COMPRESSIBLE.test(path)) compressFile(path);
      }
    },
  };
}

function compressFile(path: string): void {
  const content = readFileSync(path);
  const forms = {
    ".br": brotliCompressSync(content, {
      params: { [constants.BROTLI_PARAM_SIZE_HINT]: content.length },
    }),
    ".gz": gzipSync(content, { level: constants.Z_BEST_COMPRESSION }),
  };
  for (const [suffix, compressed] of Object.entries(forms)) {
    if (compressed.length < content.length) writeFileSync(path + suffix, compressed);
  }
}

function filesBelow(folder: string): string[] {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name));
}
