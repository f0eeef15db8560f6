/** The place of the sidebar: beside the page, or over it on a narrow screen. */

import { preferences } from "../state/preferences.svelte";

const query = window.matchMedia("(max-width: 767px)");
let narrow = $state(query.matches);
let drawer = $state(false);

query.addEventListener("change", () => {
  narrow = query.matches;
  drawer = false;
});

export const layout = {
  get narrow(): boolean {
    return narrow;
  },
  /** Whether the sidebar is shown. */
  get sidebar(): boolean {
    return narrow ? drawer : preferences.sidebar.value;
  },
  set sidebar(shown: boolean) {
    if (narrow) drawer = shown;
    else preferences.sidebar.value = shown;
  },
  /** Whether the sidebar covers the page. */
  get covered(): boolean {
    return narrow && drawer;
  },
  closeDrawer(): void {
    drawer = false;
  },
};
