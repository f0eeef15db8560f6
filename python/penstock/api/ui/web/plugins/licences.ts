import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import type { Plugin } from "vite";

const PACKAGE = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//;
const LICENCE = /^(licen[cs]e|copying|notice)/i;

/** A plugin that writes `licences.txt`: the licence of each package whose code is in the page. */
export function licences(): Plugin {
  return {
    name: "licences",
    apply: "build",
    generateBundle() {
      const folders = new Set<string>();
      for (const id of this.getModuleIds()) {
        const folder = PACKAGE.exec(id)?.[1];
        if (folder && !folder.startsWith("\0")) folders.add(folder);
      }
      const source = [...folders].sort().map(describe).join("\n\n");
      this.emitFile({ type: "asset", fileName: "licences.txt", source });
    },
  };
}

function describe(folder: string): string {
  const text = readFileSync(join(folder, "package.json"), "utf8");
  const { name, version, license } = JSON.parse(text) as Record<string, string>;
  const terms = readdirSync(folder)
    .filter((file) => LICENCE.test(file))
    .map((file) => readFileSync(join(folder, file), "utf8").trim());
  return [`${name} ${version} (${license})`, ...terms].join("\n\n");
}
