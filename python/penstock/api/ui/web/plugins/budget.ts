import { brotliCompressSync } from "node:zlib";

import type { Plugin, Rollup } from "vite";

/** A plugin that fails if the scripts of the first load have more than `limit` bytes, uncompressed. */
export function budget(limit: number): Plugin {
  return {
    name: "budget",
    apply: "build",
    generateBundle(_options, bundle) {
      const scripts = firstLoad(bundle);
      const bytes = sum(scripts.map(({ code }) => Buffer.byteLength(code)));
      const sent = sum(scripts.map(({ code }) => brotliCompressSync(code).length));
      const text = `The first load has ${kB(bytes)} of script, ${kB(sent)} in brotli`;
      if (bytes > limit) this.error(`${text}; the limit is ${kB(limit)}. Import lazily.`);
      this.info(`${text}; the limit is ${kB(limit)}.`);
    },
  };
}

/** Return the chunks that the page loads at its start: its entry and their static imports. */
function firstLoad(bundle: Rollup.OutputBundle): Rollup.OutputChunk[] {
  const found = new Map<string, Rollup.OutputChunk>();
  const visit = (name: string): void => {
    const chunk = bundle[name];
    if (chunk?.type !== "chunk" || found.has(name)) return;
    found.set(name, chunk);
    chunk.imports.forEach(visit);
  };
  for (const chunk of Object.values(bundle)) {
    if (chunk.type === "chunk" && chunk.isEntry) visit(chunk.fileName);
  }
  return [...found.values()];
}

function sum(numbers: number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

function kB(bytes: number): string {
  return `${(bytes / 1000).toFixed(1)} kB`;
}
