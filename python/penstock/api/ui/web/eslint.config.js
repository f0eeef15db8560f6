import js from "@eslint/js";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";

import config from "./svelte.config.js";

export default ts.config(
  { ignores: ["node_modules"] },
  js.configs.recommended,
  ts.configs.strict,
  svelte.configs.recommended,
  { languageOptions: { globals: globals.browser } },
  {
    files: ["**/*.svelte", "**/*.svelte.ts"],
    languageOptions: { parserOptions: { parser: ts.parser, svelteConfig: config } },
  },
  {
    rules: {
      "no-undef": "off", // TypeScript checks names
      eqeqeq: "error",
      "no-eval": "error",
      "no-console": "error",
      "svelte/no-at-html-tags": "error", // Markdown has one place for it, with a sanitizer
      "svelte/no-navigation-without-resolve": "off", // a rule for SvelteKit
      "svelte/prefer-svelte-reactivity": "off",
    },
  },
);
