import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

import { budget } from "./plugins/budget";
import { compress } from "./plugins/compress";
import { firstColours } from "./plugins/firstColours";
import { licences } from "./plugins/licences";

/** The most script that the page may load at its start, in bytes. */
const FIRST_LOAD = 350_000;
// `npm run dev` sends requests for data to a server that runs elsewhere.
const server = process.env["PENSTOCK_URL"] ?? "http://127.0.0.1:1234";

export default defineConfig({
  base: "/ui/",
  plugins: [svelte(), budget(FIRST_LOAD), licences(), firstColours(), compress()],
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    // The policy of the page forbids data: addresses of fonts and scripts.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  server: {
    proxy: { "/ui/api": server, "/v1": server, "/metrics": server, "/health": server },
  },
});
