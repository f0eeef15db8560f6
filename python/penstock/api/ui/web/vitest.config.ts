import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

export default defineConfig({
  plugins: [svelte()],
  // Components are compiled for the browser, not for rendering on a server.
  resolve: { conditions: ["browser"] },
  test: {
    include: ["src/**/*.test.ts"],
    // A file that needs a document starts with `// @vitest-environment jsdom`.
    environment: "node",
  },
});
