import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

import type { Plugin } from "vite";

const SOURCE = new URL("../src/first-colours.js", import.meta.url);

/** A plugin that loads `first-colours.js` before the first paint. Vite bundles modules only, and they
 * run later. */
export function firstColours(): Plugin {
  const source = readFileSync(SOURCE, "utf8");
  const digest = createHash("sha256").update(source).digest("base64url").slice(0, 8);
  const fileName = `assets/first-colours-${digest}.js`;
  return {
    name: "first-colours",
    apply: "build",
    generateBundle() {
      this.emitFile({ type: "asset", fileName, source });
    },
    transformIndexHtml() {
      const attrs = { src: `/ui/${fileName}` };
      return [{ tag: "script", attrs, injectTo: "head" }];
    },
  };
}
